//! Operations that are posted together, and those of which nothing is heard.

use super::super::*;
use super::bench::{DEPTH, REGION_BYTES, pattern};
use super::every_variant;

#[test]
fn what_is_unsignalled_shows_only_through_what_follows() {
    every_variant(|bench| {
        bench.left.fill(0, &pattern(2, 300));
        for index in 0..30 {
            let source = bench.left.region.segment(index * 10, 10);
            let target = bench.right.region.remote(index * 10);
            let operation = Operation::Write { source, target };
            let request = WorkRequest { id: WorkId(1), operation, signalled: index == 29 };
            bench.left.pair.post_send(request).unwrap();
        }
        bench.until(|bench| !bench.left.done.is_empty());
        assert_eq!(bench.right.bytes(0, 300), pattern(2, 300));
        bench.settle(1, 0);
    });
}

#[test]
fn a_list_means_what_its_operations_mean_one_after_the_other() {
    every_variant(|bench| {
        bench.left.fill(0, &pattern(5, 9000));
        bench.right.region.memory().store(8192, 41);
        bench.right.receive(50, Some((20_000, 100)));
        let here = |offset, bytes| bench.left.region.segment(offset, bytes);
        let there = |offset| bench.right.region.remote(offset);
        // Short and long payloads, so that some travel in their requests, and an empty one.
        let sizes = [3000, 8, 0, 1, 700, 64];
        let mut requests: Vec<_> = (0..sizes.len())
            .map(|index| {
                let (source, target) = (here(1000 * index, sizes[index]), there(1000 * index));
                let operation = Operation::Write { source, target };
                WorkRequest { id: WorkId(index as u64), operation, signalled: index % 2 == 1 }
            })
            .collect();
        let more = [
            Operation::Read { target: here(10_000, 3000), source: there(0) },
            Operation::FetchAdd { result: here(16_000, 8), target: there(8192), addend: 1 },
            Operation::Send { source: here(100, 60) },
            Operation::Write { source: here(0, 8), target: there(3000) },
        ];
        for (operation, id) in more.into_iter().zip(10..) {
            requests.push(WorkRequest { id: WorkId(id), operation, signalled: true });
        }
        bench.left.pair.post_send_list(&requests).unwrap();
        bench.settle(7, 1);
        let statuses = [1, 3, 5, 10, 11, 12, 13].map(|id| (id, Status::Success));
        assert_eq!(bench.left.statuses(), statuses);
        for (index, bytes) in sizes.into_iter().enumerate().filter(|(index, _)| *index != 3) {
            assert_eq!(
                bench.right.bytes(1000 * index, bytes),
                bench.left.bytes(1000 * index, bytes),
                "write {index}"
            );
        }
        assert_eq!(bench.right.bytes(3000, 8), bench.left.bytes(0, 8));
        assert_eq!(bench.left.bytes(10_000, 3000), bench.left.bytes(0, 3000));
        assert_eq!(bench.left.region.memory().load(16_000), 41);
        assert_eq!(bench.right.region.memory().load(8192), 42);
        assert_eq!(bench.right.bytes(20_000, 60), bench.left.bytes(100, 60));
    });
}

#[test]
fn of_a_list_that_does_not_fit_the_beginning_is_queued() {
    every_variant(|bench| {
        let operation = Operation::Send { source: bench.left.region.segment(0, 1) };
        let request = |id| WorkRequest { id: WorkId(id), operation, signalled: true };
        let count = DEPTH.sends as u64;
        let list: Vec<_> = (0..count + 5).map(request).collect();
        let (queued, cause) = bench.left.pair.post_send_list(&list).unwrap_err();
        assert_eq!(cause, PostError::QueueFull);
        assert!((1..=DEPTH.sends).contains(&queued), "{queued}");
        for id in 0..DEPTH.receives as u64 {
            bench.right.receive(id, Some((0, 1)));
        }
        bench.settle(queued, queued);
        bench.left.pair.reset();
        let reset = PostError::WrongState(State::Reset);
        assert_eq!(bench.left.pair.post_send_list(&list), Err((0, reset)));
        assert_eq!(bench.left.pair.post_send_list(&[]), Ok(()));
    });
}

#[test]
fn a_list_with_a_flaw_ends_the_queue_pair_at_it() {
    every_variant(|bench| {
        let (source, target) = (bench.left.region.segment(0, 8), bench.right.region.remote(0));
        let outside = bench.left.region.segment(REGION_BYTES - 1, 2);
        let list = [source, outside, source].map(|source| {
            let operation = Operation::Write { source, target };
            WorkRequest { id: WorkId(source.offset as u64), operation, signalled: true }
        });
        bench.left.pair.post_send_list(&list).unwrap();
        bench.until(|bench| bench.left.done.len() == 3);
        let statuses = bench.left.statuses();
        assert!(matches!(statuses[0], (0, Status::Success | Status::Flushed)), "{statuses:?}");
        let flawed = (REGION_BYTES as u64 - 1, Status::LocalProtection);
        assert_eq!(statuses[1..], [flawed, (0, Status::Flushed)]);
        assert_eq!(bench.left.pair.state(), State::Error);
    });
}
