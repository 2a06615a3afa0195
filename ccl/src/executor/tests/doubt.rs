//! Memory that was lent by a rank whose call has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl_core::program::point_to_point;
use ccl_transport::clock;
use ccl_transport::shm::Segment;

use super::*;

const BYTES: usize = 3 * LEAST_LOAN_BYTES;
const SHAPE: RingShape = RingShape { tile_bytes: 4096, slots: 4, tiles: 4 };

/// The links of rank 0 to rank 1 in the shared memory of a host, and the end of rank 1.
fn links() -> (Links, Box<dyn Link>) {
    let segments = [0, 1].map(|_| Segment::create(2, SHAPE, SHAPE).unwrap());
    let [first, second] = [0, 1]
        .map(|index: usize| segments[1 - index].open(index, &segments[index].address()).unwrap());
    let mut links: Links = (0..4).map(|_| None).collect();
    links[Port::Pair(Rank(1)).index(2)] = Some(segments[0].link(0, &second));
    (links, segments[1].link(1, &first))
}

/// What becomes of a message in pieces that its sender lends, if it renounces when so many of them were received; and whether
/// all of it counts as received.
fn received(pieces: usize, before: usize) -> (Result<(), Failure>, bool) {
    let (links, mut sender) = links();
    let allocation = Allocation::new(BYTES).unwrap();
    allocation.publish();
    let mut target = vec![0; BYTES];
    let buffer = Buffer(3);
    let program = point_to_point(Rank(0), &[], &[(Rank(1), buffer, BYTES)]);
    let buffers = [Region::empty(), Region::empty(), Region::empty(), Region::of_mut(&mut target)];
    let signature = Case::new(Collective::Broadcast, 2, BYTES / 4, 0).request.signature(0);
    let stamp = Stamp { sequence: 1, signature };
    let task =
        Task { program: &program, buffers: &buffers, stamp, arithmetic: None, is_straight: false };
    let mut executor = Executor::new(Rank(0), links);
    let mut run = begin(&mut executor, &task, &[]);
    let start = allocation.start().addr().get();
    let results: Result<(), Failure> = (0..pieces).try_for_each(|piece| {
        let bytes = BYTES / pieces;
        let loan = Allocation::loan(start + piece * bytes, bytes).unwrap();
        sender.lend(&stamp, &loan).unwrap().unwrap();
        if piece == before {
            sender.renounce();
        }
        run.sweep().map(|_| ())
    });
    if before == pieces {
        sender.renounce();
    }
    let is_finished = run.finished();
    allocation.withdraw();
    (results, is_finished)
}

#[test]
fn what_a_rank_has_lent_whose_call_has_failed_is_not_received() {
    for pieces in [1, 3] {
        for before in 0..pieces {
            let (result, is_finished) = received(pieces, before);
            let is_named = matches!(&result, Err(Failure::Link { peer: Rank(1), .. }));
            assert!(is_named && !is_finished, "{before} of {pieces}: {result:?}");
        }
        let (result, is_finished) = received(pieces, pieces);
        assert!(result.is_ok() && is_finished, "it has failed later: {result:?}");
    }
}

#[test]
fn a_rank_whose_call_has_failed_waits_for_those_that_write_its_memory() {
    let (links, peer) = links();
    let mut executor = Executor::new(Rank(0), links);
    let writing = peer.begin_to_write().unwrap();
    let has_ended = AtomicBool::new(false);
    executor.renounce();
    assert!(peer.begin_to_write().is_err());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            clock::sleep(Duration::from_millis(20));
            has_ended.store(true, Ordering::Relaxed);
            drop(writing);
        });
        assert!(executor.await_writers() && has_ended.load(Ordering::Relaxed));
    });
}

/// As one that has died in the middle. All that was started behind the call ends at once.
#[test]
fn a_peer_that_writes_for_ever_is_not_waited_for_so_long_and_only_once() {
    let (links, peer) = links();
    let writing = peer.begin_to_write().unwrap();
    let mut executor = Executor::new(Rank(0), links);
    executor.renounce();
    assert!(!executor.await_writers());
    let calls = 1000;
    let start = clock::now();
    assert!((0..calls).all(|_| executor.await_writers()));
    assert!(start.elapsed() < Duration::from_secs(calls));
    drop(writing);
}
