//! Cables that are lost for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::fault::{Loss, Lossy};
use super::super::*;
use super::bench::{Bench, End};
use super::{over, soft};

/// A cable that loses everything while it is cut.
#[derive(Clone, Debug, Default)]
struct Cut(Arc<AtomicBool>);

impl Lossy for Cut {
    fn loss(&self) -> Loss {
        let lost = self.0.load(Ordering::Relaxed);
        Loss { outgoing: lost, incoming: lost }
    }
}

/// Two ends over one cable.
fn over_one_cable() -> (Bench, Cut) {
    let (device, cable) = (soft(), Cut::default());
    let [mut left, mut right] = [(); 2].map(|()| End::new(&*device, |plain| plain));
    left.pair = over(left.pair, cable.clone());
    right.pair = over(right.pair, cable.clone());
    let mut bench = Bench { left, right };
    bench.connect();
    (bench, cable)
}

#[test]
fn what_an_interruption_holds_back_arrives_when_it_is_over() {
    let (mut bench, cable) = over_one_cable();
    (0..3).for_each(|id| bench.right.receive(id, Some((0, 1))));
    bench.left.send(0, 0, 1);
    bench.settle(1, 1);
    assert_eq!(bench.left.pair.silence(), None, "nothing is on the way");
    cable.0.store(true, Ordering::Relaxed);
    assert_eq!(bench.left.pair.silence(), None, "nothing is on the way");
    bench.left.send(1, 0, 1);
    bench.settle(1, 1);
    let silence = bench.left.pair.silence();
    assert!(silence.is_some() && bench.left.pair.silence() >= silence, "{silence:?}");
    assert!(bench.left.pair.in_flight() && !bench.left.pair.flushed());
    cable.0.store(false, Ordering::Relaxed);
    bench.left.send(2, 0, 1);
    bench.settle(3, 3);
    assert!(bench.left.statuses().iter().all(|(_, status)| *status == Status::Success));
    assert_eq!(bench.left.pair.silence(), None);
}

#[test]
fn what_an_interruption_holds_back_is_flushed_with_the_rest() {
    let (mut bench, cable) = over_one_cable();
    bench.left.send(0, 0, 1);
    cable.0.store(true, Ordering::Relaxed);
    bench.left.send(1, 0, 1);
    bench.left.pair.fail();
    bench.until(|bench| bench.left.done.len() == 2);
    assert_eq!(bench.left.statuses(), [(0, Status::Flushed), (1, Status::Flushed)]);
    assert!(bench.left.pair.flushed() && !bench.left.pair.in_flight());
}
