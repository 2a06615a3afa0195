//! What must not be done.

use super::super::*;
use super::bench::REGION_BYTES;
use super::every_variant;

#[test]
fn what_is_not_registered_is_refused() {
    every_variant(|bench| {
        let region = |access| {
            let memory = Memory::allocate(4096).unwrap();
            bench.right.domain.register(&memory, access).unwrap()
        };
        let (plain, writable, gone) =
            (region(Access::LOCAL), region(Access::WRITE), region(Access::ALL).remote(0));
        let source = bench.left.region.segment(0, 100);
        let word = bench.left.region.segment(0, 8);
        let write = |target| Operation::Write { source, target };
        let unknown = RemoteAddress { key: RemoteKey(0xffff_ffff), address: 0 };
        let wild = RemoteAddress { address: u64::MAX - 50, ..writable.remote(0) };
        let refused = [
            write(unknown),
            write(gone),
            write(plain.remote(0)),
            write(wild),
            write(writable.remote(4000)),
            Operation::WriteWithImmediate { source, target: plain.remote(0), immediate: 1 },
            Operation::Read { target: source, source: writable.remote(0) },
            Operation::FetchAdd { result: word, target: writable.remote(0), addend: 1 },
            Operation::CompareAndSwap {
                result: word,
                target: plain.remote(0),
                expected: 0,
                new: 1,
            },
        ];
        bench.left.fill(0, &[0xff; 100]);
        for operation in refused {
            bench.right.receive(1, None);
            bench.left.post(2, operation);
            bench.left.post(3, write(writable.remote(0)));
            bench.settle(2, 1);
            let expected = [(2, Status::RemoteAccess), (3, Status::Flushed)];
            assert_eq!(bench.left.statuses(), expected, "{operation:?}");
            assert_eq!(bench.right.statuses(), [(1, Status::Flushed)], "{operation:?}");
            assert_eq!(bench.right.pair.state(), State::Error);
            assert!(bench.right.pair.fault().is_some() && bench.left.pair.fault().is_some());
            for memory in [plain.memory(), writable.memory()] {
                assert!(memory.lock().bytes(0..4096).iter().all(|&byte| byte == 0));
            }
            for end in [&mut bench.left, &mut bench.right] {
                end.pair.reset();
                end.done.clear();
            }
            bench.connect();
        }
    });
}

#[test]
fn a_message_that_does_not_fit_is_an_error_at_both_ends() {
    every_variant(|bench| {
        bench.right.receive(1, Some((0, 10)));
        bench.left.fill(0, &[1; 11]);
        bench.left.send(2, 0, 11);
        bench.settle(1, 1);
        assert_eq!(bench.left.statuses(), [(2, Status::RemoteInvalidRequest)]);
        assert_eq!(bench.right.statuses(), [(1, Status::LocalLength)]);
        // What it holds is undefined then: devices fill it as far as it goes. What is behind it is not.
        assert_eq!(bench.right.bytes(10, 1), [0]);
    });
}

#[test]
fn local_memory_must_be_registered_with_the_domain() {
    every_variant(|bench| {
        let source = Segment { key: LocalKey(77), offset: 0, bytes: 1 };
        bench.left.send(1, 0, 1);
        bench.left.post(2, Operation::Send { source });
        bench.settle(2, 0);
        assert_eq!(bench.left.statuses(), [(1, Status::Flushed), (2, Status::LocalProtection)]);
        let outside = bench.left.region.segment(REGION_BYTES - 1, 2);
        for end in [&mut bench.left, &mut bench.right] {
            end.pair.reset();
            end.done.clear();
        }
        bench.connect();
        bench.left.post(3, Operation::Send { source: outside });
        bench.settle(1, 0);
        assert_eq!(bench.left.statuses(), [(3, Status::LocalProtection)]);
    });
}
