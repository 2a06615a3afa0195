//! At which rails a link looks, seen by the cables of its rails.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::verbs::fault::{Interrupted, Loss, Lossy};

const RAILS: usize = 2;

/// A cable that loses nothing, and counts how often its queue pair was used.
#[derive(Debug)]
struct Counter {
    rail: usize,
    uses: Arc<[AtomicU32; RAILS]>,
}

impl Lossy for Counter {
    fn loss(&self) -> Loss {
        self.uses[self.rail].fetch_add(1, Ordering::Relaxed);
        Loss::default()
    }
}

/// How often each rail is used meanwhile.
fn used(uses: &[AtomicU32; RAILS], meanwhile: impl FnOnce()) -> [u32; RAILS] {
    uses.iter().for_each(|uses| uses.store(0, Ordering::Relaxed));
    meanwhile();
    [0, 1].map(|rail| uses[rail].load(Ordering::Relaxed))
}

#[test]
fn who_waits_looks_where_the_next_tile_is_expected_and_everywhere_after_having_confirmed() {
    const LOOKS: u32 = 10;
    let uses: Arc<[AtomicU32; RAILS]> = Arc::default();
    let counted = Arc::clone(&uses);
    let instrument: Instrument = Box::new(move |rail, pair, depth| {
        let cable = Counter { rail, uses: Arc::clone(&counted) };
        Box::new(Interrupted::new(pair, depth.sends, cable))
    });
    let near = endpoint(0, &[1.0; RAILS]).instrument(instrument);
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0; RAILS]));
    // They take turns on the rails.
    for tiles in [6, 1, 1] {
        stream(&mut *far, &mut *near, tiles, 100);
        let mut looks = used(&uses, || {
            (0..LOOKS).for_each(|_| assert!(!near.progress().unwrap()));
        });
        looks.sort_unstable();
        assert!(looks[0] < LOOKS / 2 && looks[1] >= LOOKS, "{looks:?} at one and the other");
    }
    let told = used(&uses, || near.confirm());
    assert!(told.iter().all(|uses| *uses > 0), "{told:?}: what has arrived, on every rail");
    let looks = used(&uses, || {
        (0..LOOKS).for_each(|_| assert!(!near.progress().unwrap()));
    });
    assert!(looks.iter().all(|looks| *looks >= LOOKS), "{looks:?}: nothing is expected");
}
