//! How much is sent again after a cut, when the peer had executed some of what was outstanding.

use std::time::Duration;

use ccl_transport::clock;
use ccl_transport::verbs::virtual_qp::{Evidence, VirtualSettings};
use ccl_transport::verbs::{Depth, Operation, QueuePair, ReceiveRequest, Status, WorkId};

use std::sync::atomic::Ordering;

use super::bench::{Pair, Place};

pub(super) const WRITES: usize = 64;
pub(super) const BYTES: usize = 64 << 10;
/// Every so many writes one is with an immediate: what a receiver counts.
const NOTIFY_EVERY: usize = 4;
const LIMIT: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resent {
    /// Writes that the peer had executed when the rail was cut, none of which was acknowledged.
    pub(super) executed: usize,
    pub(super) writes: u64,
    pub(super) bytes: u64,
}

/// Posts all writes, cuts the rail when the peer has executed `before_cut` of them and the sender
/// knows of none, and lets the rest finish.
pub(super) fn run(evidence: Evidence, before_cut: usize) -> Resent {
    let settings = VirtualSettings::new(evidence, 2);
    let (near, far) =
        (Place::new(&settings, WRITES * BYTES, 0), Place::new(&settings, WRITES * BYTES, 0));
    let depth = Depth { sends: WRITES, receives: WRITES };
    let mut pair = Pair::new(&near, &far, depth);
    pair.attach(std::iter::once(1));
    for id in 0..WRITES as u64 {
        pair.far.post_receive(ReceiveRequest { id: WorkId(id), target: None }).unwrap();
    }
    let pattern: Vec<u8> = (0..WRITES * BYTES).map(|index| (index / BYTES) as u8 + 1).collect();
    near.memory().write(0, &pattern);
    until(&mut pair, |pair| pair.near.peer().is_some() && pair.far.peer().is_some());
    while pair.poll() {}

    near.weather.is_deaf.store(true, Ordering::Relaxed);
    let executed = |count: usize| (0..count).all(|write| is_written(&far, write));
    for write in 0..before_cut {
        post(&mut pair, (&near, &far), write);
    }
    until(&mut pair, |_| executed(before_cut));
    // Now the other end executes nothing more, so what is posted stays on its way.
    for write in before_cut..WRITES {
        post(&mut pair, (&near, &far), write);
    }
    pair.far.suspect(0);
    let known = (0..WRITES).filter(|&write| is_written(&far, write)).count();
    near.weather.is_deaf.store(false, Ordering::Relaxed);
    pair.near.suspect(0);
    until(&mut pair, |pair| pair.near_done.len() == WRITES);
    assert!(pair.near_done.iter().all(|done| done.status == Status::Success));
    let mut arrived = vec![0; WRITES * BYTES];
    far.memory().read(0, &mut arrived);
    assert!(arrived == pattern, "the bytes of some write are wrong");
    let counters = pair.near.counters();
    Resent { executed: known, writes: counters.resent, bytes: counters.resent_bytes }
}

fn until(pair: &mut Pair, reached: impl Fn(&Pair) -> bool) {
    let deadline = clock::now() + LIMIT;
    while !reached(pair) {
        assert!(clock::now() < deadline, "{pair:?}");
        pair.poll();
    }
}

/// Whether the last byte of a write is there.
fn is_written(far: &Place, write: usize) -> bool {
    let mut last = [0];
    far.memory().read((write + 1) * BYTES - 1, &mut last);
    last[0] == write as u8 + 1
}

fn post(pair: &mut Pair, (near, far): (&Place, &Place), write: usize) {
    let source = near.region.segment(write * BYTES, BYTES);
    let target = far.region.remote(write * BYTES);
    let operation = if (write + 1).is_multiple_of(NOTIFY_EVERY) {
        Operation::WriteWithImmediate { source, target, immediate: write as u32 }
    } else {
        Operation::Write { source, target }
    };
    pair.post(write as u64, operation);
}
