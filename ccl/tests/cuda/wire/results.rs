//! What ranks on several hosts get.

use std::sync::atomic::Ordering;

use ccl::{Collective, DataType, Rank, ReduceOp, Reduction, Request};

use super::{SMALL_BYTES, assert_wire, ready, ready_with};
use crate::calls::rounds;
use crate::direct::{compare, noise, request};
use crate::ranks::processes_with;
use crate::{Member, all_reduce, contribution, download, words};

const ALL: [DataType; 12] = DataType::ALL;
const RINGS: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

#[test]
fn two_hosts_get_all_types_and_operations() {
    const TEST: &str = "wire::results::two_hosts_get_all_types_and_operations";
    // Sums of two are the same in any order, so any bits will do.
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = ready(rank, size, &id, &ALL);
        let before = member.cuda.paths().0;
        for datatype in ALL {
            let least = SMALL_BYTES / datatype.bytes() + 1;
            for op in ReduceOp::ALL {
                for (count, shift) in [(least, 8), (3001, 0)] {
                    let request = request(Collective::AllReduce, count, datatype, op);
                    let bytes = noise(request.bytes(), rank + 2 * count as u32);
                    compare(&member, request, shift, &bytes, false);
                }
            }
            let scalar = if datatype.is_float() { 0x3c } else { 3 + u64::from(rank) };
            let reduction = Reduction::PreMulSum { datatype, scalar };
            for collective in [Collective::AllReduce, Collective::ReduceScatter] {
                let sum = request(collective, least + 100, datatype, ReduceOp::Sum);
                let bytes = noise(2 * sum.bytes(), 77 + rank);
                compare(&member, Request { reduction, ..sum }, 0, &bytes, false);
            }
        }
        assert_wire(&member, before);
    });
}

const OPERATIONS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg];

/// Elements that have exact sums, whatever their order.
fn all_collectives(member: &Member) {
    let before = member.cuda.paths().0;
    let size = member.size();
    for collective in RINGS {
        for (count, shift) in [(1025, 3), (1500, 0), (3331, 8)] {
            for datatype in [DataType::Float32, DataType::Int64, DataType::Uint8] {
                let moves = matches!(collective, Collective::AllGather | Collective::Broadcast);
                let ops = if moves { &OPERATIONS[..1] } else { &OPERATIONS };
                for op in ops.iter().copied() {
                    let root = Rank((count % size as usize) as u32);
                    let request = Request { root, ..request(collective, count, datatype, op) };
                    let bytes = contribution(datatype, count * size as usize, member.me());
                    // An average of thirds is rounded, in the order of the ring.
                    if op != ReduceOp::Avg || !datatype.is_float() {
                        compare(member, request, shift, &bytes, false);
                    }
                }
            }
        }
    }
    assert_wire(member, before);
    // Nothing to do, and nobody waits; little, and others, which go through the host.
    let sum = |collective, count| request(collective, count, DataType::Int64, ReduceOp::Sum);
    let bytes = contribution(DataType::Int64, 2000 * size as usize, member.me());
    compare(member, sum(Collective::AllReduce, 0), 0, &[], false);
    compare(member, sum(Collective::AllReduce, SMALL_BYTES / 8), 0, &bytes, false);
    for collective in [Collective::AllToAll, Collective::Gather, Collective::Scatter] {
        compare(member, sum(collective, 2000), 0, &bytes, false);
    }
    let (last, now) = (member.cuda.paths().0, sum(Collective::AllReduce, SMALL_BYTES / 8 + 1));
    compare(member, now, 0, &bytes, false);
    assert_eq!(assert_wire(member, last).wire, last.wire + 2);
}

#[test]
fn three_hosts_get_what_they_get_through_the_host() {
    const TEST: &str = "wire::results::three_hosts_get_what_they_get_through_the_host";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let types = [DataType::Float32, DataType::Int64, DataType::Uint8];
        all_collectives(&ready(rank, size, &id, &types));
    });
}

#[test]
fn five_hosts_get_what_they_get_through_the_host() {
    const TEST: &str = "wire::results::five_hosts_get_what_they_get_through_the_host";
    processes_with(TEST, 5, &[], |rank, size, id| {
        let types = [DataType::Float32, DataType::Int64, DataType::Uint8];
        all_collectives(&ready(rank, size, &id, &types));
    });
}

/// Some of which the copy engine copies.
#[test]
fn large_tiles_arrive() {
    processes_with("wire::results::large_tiles_arrive", 3, &[], |rank, size, id| {
        let more = [("R2CCL_CUDA_STAGING_BYTES", "4194304")];
        let member = ready_with(rank, size, &id, (&[DataType::Uint8], &more));
        let before = member.cuda.paths().0;
        for (collective, shift) in [(Collective::AllGather, 5), (Collective::Broadcast, 0)] {
            let request = request(collective, 300_001, DataType::Uint8, ReduceOp::Sum);
            compare(&member, request, shift, &noise(request.bytes(), rank + 7), false);
        }
        assert_eq!(assert_wire(&member, before).wire, 4);
    });
}

/// More than kernels could combine at once.
#[test]
fn nine_hosts_are_a_ring_too() {
    processes_with("wire::results::nine_hosts_are_a_ring_too", 9, &[], |rank, size, id| {
        let member = ready(rank, size, &id, &[DataType::Int64]);
        let before = member.cuda.paths().0;
        for (collective, op) in
            [(Collective::AllReduce, ReduceOp::Avg), (Collective::ReduceScatter, ReduceOp::Sum)]
        {
            let request = request(collective, 333, DataType::Int64, op);
            let bytes = contribution(DataType::Int64, 333 * size as usize, rank);
            compare(&member, request, 8, &bytes, false);
        }
        assert_eq!(assert_wire(&member, before).wire, 4);
    });
}

#[test]
fn calls_follow_each_other_on_several_streams_and_ways() {
    const TEST: &str = "wire::results::calls_follow_each_other_on_several_streams_and_ways";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let member = ready(rank, size, &id, &[DataType::Int64]);
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        for is_late in [false, true] {
            rounds(&member, &streams, &[3, 900, 64, 5000, 700, 129], is_late);
        }
        // Of the six calls of a round, four are not small.
        assert_eq!((member.cuda.paths().0.wire, member.cuda.paths().0.host), (48, 24));
        // The input is there when the stream has copied it, and not before.
        let (source, data) = (member.upload(&words([1; 900])), member.upload(&words([7; 900])));
        let word = member.gpu().pin(4).unwrap();
        member.stream.wait_for_word(&word, 0, 1).unwrap();
        member.stream.copy(source.region(), data.region()).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        // Meanwhile a call that did not wait would have time.
        let others = member.upload(&words([1; 10]));
        (0..500).for_each(|_| others.read(0, &mut [0; 8]).unwrap());
        word.word(0).store(1, Ordering::Release);
        member.stream.synchronise().unwrap();
        assert!(download(&data) == words([3; 900]));
        // Later work of the stream finds the result, and calls on the host come in between.
        let (data, kept) = (member.upload(&words([1; 900])), member.upload(&words([0; 900])));
        let mut host = vec![1i64; 10];
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        member.stream.copy(data.region(), kept.region()).unwrap();
        member.host().all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
        member.stream.synchronise().unwrap();
        assert!(download(&kept) == words([3; 900]) && host == [3; 10]);
        member.cuda.finalize().unwrap();
    });
}
