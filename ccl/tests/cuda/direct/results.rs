//! What ranks get from collectives that kernels do.

use ccl::{Collective, DataType, Rank, ReduceOp, Reduction, Request};

use super::{SOME, assert_direct, compare, member, noise, prepared, request};
use crate::calls::rounds;
use crate::ranks::{processes_with, threads_with};
use crate::{Member, all_reduce, contribution, download, words};

const ALL: [DataType; 12] = DataType::ALL;

/// Two ranks: sums of two are the same in any order, so any bits will do.
fn all_types_and_operations(member: &Member, shown: bool) {
    let before = member.cuda.paths().0;
    for (index, datatype) in ALL.into_iter().enumerate() {
        for op in ReduceOp::ALL {
            for (count, shift) in [(1, 0), (37, 1), (700, 8), (3001, 3)] {
                // Elements of two or more bytes at any address only in some types: each is slow.
                let shift = if index % 3 == 0 { shift } else { shift / 8 * 8 };
                let request = request(Collective::AllReduce, count, datatype, op);
                let bytes = noise(request.bytes(), member.me() + 2 * count as u32);
                compare(member, request, shift, &bytes, shown && count > 700);
            }
        }
        let scalar = if datatype.is_float() { 0x3c } else { 3 + u64::from(member.me()) };
        let reduction = Reduction::PreMulSum { datatype, scalar };
        for count in [50, 1500] {
            let request = Request {
                reduction,
                ..request(Collective::AllReduce, count, datatype, ReduceOp::Sum)
            };
            compare(member, request, 0, &noise(request.bytes(), 77 + member.me()), false);
        }
    }
    let paths = assert_direct(member, before);
    assert!(paths.low_latency > 0 && paths.push > 0, "{paths:?}");
    assert_eq!(paths.mapped_buffers > 0, shown, "{paths:?}");
}

#[test]
fn all_types_and_operations_through_staging_memory() {
    const TEST: &str = "direct::results::all_types_and_operations_through_staging_memory";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = member(rank as usize, (rank, size), &id, "staged");
        all_types_and_operations(&prepared(member, &ALL, &[]), false);
    });
}

#[test]
fn all_types_and_operations_on_mapped_buffers_of_one_device() {
    const TEST: &str = "direct::results::all_types_and_operations_on_mapped_buffers_of_one_device";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = member(0, (rank, size), &id, "1");
        all_types_and_operations(&prepared(member, &ALL, &[]), true);
    });
}

const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

/// Elements that have exact sums.
fn all_collectives(member: &Member, shown: bool) {
    let before = member.cuda.paths().0;
    for collective in COLLECTIVES {
        for (count, shift) in [(1, 0), (77, 3), (1000, 0), (1500, 9)] {
            for datatype in [DataType::Float32, DataType::Int64, DataType::Uint8] {
                let root = Rank((count % member.size() as usize) as u32);
                let request =
                    Request { root, ..request(collective, count, datatype, ReduceOp::Sum) };
                let elements = count * member.size() as usize;
                let bytes = contribution(datatype, elements, member.me());
                compare(member, request, shift, &bytes, shown && count == 1500);
            }
        }
    }
    let paths = assert_direct(member, before);
    assert_eq!(paths.mapped_buffers > 0, shown, "{paths:?}");
    // Nothing to do, and nobody waits.
    let empty = request(Collective::AllReduce, 0, DataType::Float32, ReduceOp::Sum);
    compare(member, empty, 0, &[], false);
}

#[test]
fn all_collectives_of_three_processes() {
    processes_with(
        "direct::results::all_collectives_of_three_processes",
        3,
        &[],
        |rank, size, id| {
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            all_collectives(&prepared(member, &SOME, &[]), true);
        },
    );
}

#[test]
fn all_collectives_of_threads_on_two_devices() {
    threads_with("direct::results::all_collectives_of_threads_on_two_devices", 2, |rank, id| {
        let member = member(rank as usize, (rank, 2), id, "staged");
        all_collectives(&prepared(member, &SOME, &[]), false);
    });
}

/// Calls of both protocols.
const COUNTS: [usize; 6] = [3, 900, 64, 1, 700, 128];

#[test]
fn calls_follow_each_other_on_several_streams() {
    processes_with(
        "direct::results::calls_follow_each_other_on_several_streams",
        3,
        &[],
        |rank, size, id| {
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            let member = prepared(member, &[DataType::Int64], &[]);
            let before = member.cuda.paths().0;
            let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
            rounds(&member, &streams[..1], &COUNTS, false);
            rounds(&member, &streams, &COUNTS, false);
            rounds(&member, &streams, &COUNTS, true);
            assert_direct(&member, before);
            // Calls on the host come in between.
            let data = member.upload(&words([1; 900]));
            let mut host = vec![1i64; 10];
            member.cuda.enqueue(all_reduce(&data), &streams[1]).unwrap();
            member.host().all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
            assert!(
                download(&data) == words([3; 900]),
                "a call on the host waits for those before"
            );
        },
    );
}
