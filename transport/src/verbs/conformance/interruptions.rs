//! Cables that are lost for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::fault::{Loss, Lossy};
use super::super::*;
use super::bench::{Bench, End, REGION_BYTES};
use super::{Script, over, soft, wrap};
use crate::{Stretch, clock};

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

/// Left writes a byte, which right has executed and not told.
fn with_news(bench: &mut Bench) {
    let target = bench.right.region.remote(8);
    let told = bench.left.done.len();
    bench.left.fill(0, &[bench.right.bytes(8, 1)[0] + 1]);
    bench.left.write(told as u64, (0, 1), target);
    let before = bench.right.bytes(8, 1);
    while bench.right.bytes(8, 1) == before {
        bench.left.pair.poll(&mut bench.left.done);
        bench.right.pair.poll(&mut bench.right.done);
    }
    assert_eq!(bench.left.done.len(), told, "nobody has said so");
}

/// Whether left is told, although right does not even poll.
fn hears(bench: &mut Bench) -> bool {
    let told = bench.left.done.len();
    (0..1000).any(|_| {
        bench.left.pair.poll(&mut bench.left.done);
        bench.left.done.len() > told
    })
}

#[test]
fn what_was_executed_is_told_on_request_if_the_cable_is_whole() {
    let (mut bench, cable) = over_one_cable();
    with_news(&mut bench);
    bench.right.pair.acknowledge();
    assert!(hears(&mut bench));
    with_news(&mut bench);
    cable.0.store(true, Ordering::Relaxed);
    bench.right.pair.acknowledge();
    cable.0.store(false, Ordering::Relaxed);
    assert!(!hears(&mut bench), "it would have been lost");
    bench.right.pair.acknowledge();
    assert!(hears(&mut bench));
}

#[test]
fn who_has_fallen_silent_tells_nothing() {
    let (device, silent) = (soft(), Script { silent_after: Some(0), ..Script::default() });
    let [left, mut right] = [(); 2].map(|()| End::new(&*device, |plain| plain));
    right.pair = wrap(right.pair, silent);
    let mut bench = Bench { left, right };
    bench.connect();
    with_news(&mut bench);
    bench.right.send(0, 0, 1);
    bench.right.pair.acknowledge();
    assert!(!hears(&mut bench));
}

#[test]
fn a_cable_that_can_be_cut_lets_large_operations_wait_as_others_do() {
    let (mut bench, _cable) = over_one_cable();
    bench.left.pair.cork(usize::MAX);
    let target = bench.right.region.remote(0);
    bench.left.write(0, (0, REGION_BYTES), target);
    assert!(!bench.left.pair.flushed());
    bench.settle(1, 0);
}

/// Left writes all of its region, of which nothing is staged, if that can be sent now.
fn writes_unstaged(bench: &mut Bench) -> Option<usize> {
    let bytes = [7; REGION_BYTES];
    let (origin, source) = (&bytes[..], bench.left.region.segment(0, REGION_BYTES));
    let operation = Operation::Write { source, target: bench.right.region.remote(0) };
    let request = WorkRequest { id: WorkId(0), operation, signalled: true };
    let rest = Stretch::new(&origin, 0..REGION_BYTES);
    bench.left.pair.post_unstaged(&[Unstaged { request, rest }])
}

#[test]
fn nothing_is_sent_unstaged_over_a_cable_that_is_cut_and_what_was_is_awaited() {
    let (mut bench, cable) = over_one_cable();
    cable.0.store(true, Ordering::Relaxed);
    assert_eq!(writes_unstaged(&mut bench), None);
    cable.0.store(false, Ordering::Relaxed);
    bench.settle(0, 0);
    assert!(bench.right.bytes(0, REGION_BYTES).iter().all(|byte| *byte == 0));
    assert_eq!(writes_unstaged(&mut bench), Some(1));
    cable.0.store(true, Ordering::Relaxed);
    // By then the kernel of the peer's host has everything.
    clock::sleep(Duration::from_millis(100));
    assert!(bench.left.pair.silence().is_some(), "what it waits for does not come");
    cable.0.store(false, Ordering::Relaxed);
    bench.settle(1, 0);
    assert!(bench.right.bytes(0, REGION_BYTES).iter().all(|byte| *byte == 7));
}
