//! What several ranks on each of several hosts get.

use std::sync::atomic::Ordering;

use ccl::{Collective, DataType, Rank, ReduceOp, Reduction, Request};

use super::{assert_columns, ready};
use crate::calls::rounds;
use crate::direct::{compare, request};
use crate::ranks::processes_with;
use crate::wire::{SMALL_BYTES, ready_with};
use crate::{Member, all_reduce, contribution, download, words};

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];
const SOME: [DataType; 3] = [DataType::Float32, DataType::Int64, DataType::Uint8];

/// 0, 1 and 2 of any type, of which four have exact sums, products and means.
fn small(datatype: DataType, count: usize, rank: u32) -> Vec<u8> {
    let bits: [u64; 3] = match datatype {
        DataType::Float16 => [0, 0x3c00, 0x4000],
        DataType::Float8E4m3 => [0, 0x38, 0x40],
        DataType::Float8E5m2 => [0, 0x3c, 0x40],
        _ => return contribution(datatype, count, rank),
    };
    let element = |at: usize| bits[(at * 7 + at / 64 + rank as usize * 5) % 3].to_le_bytes();
    (0..count).flat_map(|at| element(at)[..datatype.bytes()].to_vec()).collect()
}

/// One half, or a number that differs from rank to rank.
fn scalar(datatype: DataType, rank: u32) -> u64 {
    match datatype {
        DataType::Float64 => 0.5_f64.to_bits(),
        DataType::Float32 => u64::from(0.5_f32.to_bits()),
        DataType::Bfloat16 => 0x3f00,
        DataType::Float16 => 0x3800,
        DataType::Float8E4m3 => 0x30,
        DataType::Float8E5m2 => 0x38,
        _ => 3 + u64::from(rank),
    }
}

#[test]
fn two_hosts_of_two_get_all_types_and_operations() {
    const TEST: &str = "columns::results::two_hosts_of_two_get_all_types_and_operations";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&DataType::ALL, &[]));
        let (before, mut calls) = (member.cuda.paths().0, 0);
        for datatype in DataType::ALL {
            // Not for all ranks the same number of elements.
            let count = SMALL_BYTES / datatype.bytes() + 3;
            let scaled = Reduction::PreMulSum { datatype, scalar: scalar(datatype, rank) };
            for reduction in ReduceOp::ALL.into_iter().map(Reduction::Builtin).chain([scaled]) {
                let request = request(Collective::AllReduce, count, datatype, ReduceOp::Sum);
                let request = Request { reduction, ..request };
                compare(&member, request, 8, &small(datatype, count, rank), false);
                calls += 2;
            }
        }
        assert_columns(&member, before, calls);
    });
}

/// Elements that have exact sums, whatever their order.
fn all_collectives(member: &Member, counts: &[usize]) {
    let (before, size) = (member.cuda.paths().0, member.size());
    let mut calls = 0;
    for collective in COLLECTIVES {
        for (index, count) in counts.iter().copied().enumerate() {
            for datatype in SOME {
                let moves = matches!(collective, Collective::AllGather | Collective::Broadcast);
                let ops =
                    if moves { &[ReduceOp::Sum][..] } else { &[ReduceOp::Sum, ReduceOp::Avg] };
                let bytes = contribution(datatype, count * size as usize, member.me());
                // A mean of thirds is rounded, in the order of the ring.
                let is_exact = |op: &&ReduceOp| **op != ReduceOp::Avg || !datatype.is_float();
                for op in ops.iter().filter(is_exact).copied() {
                    let root = Rank((count % size as usize) as u32);
                    let request = Request { root, ..request(collective, count, datatype, op) };
                    // Others have mapped the memory in the last round.
                    compare(member, request, [3, 0, 8][index % 3], &bytes, index == 2);
                    calls += 2;
                }
            }
        }
    }
    assert_columns(member, before, calls);
}

#[test]
fn three_hosts_of_two_get_what_they_get_through_the_host() {
    const TEST: &str = "columns::results::three_hosts_of_two_get_what_they_get_through_the_host";
    processes_with(TEST, 6, &[], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&SOME, &[]));
        all_collectives(&member, &[1025, 3331, 1500]);
        // Nothing to do, and nobody waits; little, and others, which go through the host.
        let before = member.cuda.paths().0;
        let sum = |collective, count| request(collective, count, DataType::Int64, ReduceOp::Sum);
        let bytes = contribution(DataType::Int64, 200 * size as usize, rank);
        for count in [0, 1, SMALL_BYTES / 8] {
            compare(&member, sum(Collective::AllReduce, count), 0, &bytes, false);
        }
        for collective in [Collective::AllToAll, Collective::Gather, Collective::Scatter] {
            compare(&member, sum(collective, 200), 0, &bytes, false);
        }
        assert_eq!(member.cuda.paths().0.columns, before.columns);
        let now = sum(Collective::AllReduce, SMALL_BYTES / 8 + 1);
        compare(&member, now, 0, &bytes, false);
        assert_eq!(member.cuda.paths().0.columns, before.columns + 2);
    });
}

#[test]
fn two_hosts_of_four_get_what_they_get_through_the_host() {
    const TEST: &str = "columns::results::two_hosts_of_four_get_what_they_get_through_the_host";
    processes_with(TEST, 8, &[], |rank, size, id| {
        let member = ready((rank, size, 4), &id, (&SOME, &[]));
        all_collectives(&member, &[1031]);
    });
}

#[test]
fn ranks_in_any_order_have_columns() {
    const TEST: &str = "columns::results::ranks_in_any_order_have_columns";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let more = [("R2CCL_HOST_ID", ["one", "another"][rank as usize % 2])];
        let types = [DataType::Int64, DataType::Uint8];
        let member = ready_with(rank, size, &id, (&types, &more));
        let bytes = contribution(DataType::Int64, 4 * 333, rank);
        let sum = |collective| request(collective, 333, DataType::Int64, ReduceOp::Sum);
        let before = member.cuda.paths().0;
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            compare(&member, sum(collective), 0, &bytes, false);
        }
        assert_columns(&member, before, 6);
        // Blocks are in the order of the ranks, and those of a host not together.
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            compare(&member, sum(collective), 0, &bytes, false);
        }
        assert_eq!(member.cuda.paths().0.columns, before.columns + 6);
    });
}

#[test]
fn calls_follow_each_other_on_several_streams_and_ways() {
    const TEST: &str = "columns::results::calls_follow_each_other_on_several_streams_and_ways";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&[DataType::Int64], &[]));
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        for is_late in [false, true] {
            rounds(&member, &streams, &[3, 900, 64, 1500, 129], is_late);
        }
        // Of the five calls of a round, three are not small.
        assert_eq!((member.cuda.paths().0.columns, member.cuda.paths().0.host), (36, 24));
        // The input is there when the stream has copied it, and not before.
        let (source, data) = (member.upload(&words([1; 900])), member.upload(&words([7; 900])));
        let kept = member.upload(&words([0; 900]));
        let word = member.gpu().pin(4).unwrap();
        member.stream.wait_for_word(&word, 0, 1).unwrap();
        member.stream.copy(source.region(), data.region()).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        // Later work of the stream finds the result.
        member.stream.copy(data.region(), kept.region()).unwrap();
        // Meanwhile a call that did not wait would have time.
        let others = member.upload(&words([1; 10]));
        (0..500).for_each(|_| others.read(0, &mut [0; 8]).unwrap());
        word.word(0).store(1, Ordering::Release);
        let mut host = vec![1i64; 10];
        member.host().all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
        member.stream.synchronise().unwrap();
        assert!(download(&kept) == words([4; 900]) && host == [4; 10]);
        member.cuda.finalize().unwrap();
    });
}
