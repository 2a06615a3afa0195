//! Blocks of different sizes, which kernels take from each other; the host does the first calls.

use std::process;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl::cuda::{self, Buffer, Paths};
use ccl::{Collective, DataType, Error, OperationOn, Ragged, Rank, ReduceOp, Request};

use super::{GUARD, STAGING_BYTES, member, noise, request};
use crate::ranks::{processes, processes_with, threads_with};
use crate::{Member, all_reduce, download, words};

/// Bytes of a message for which it gets another block of the kernel.
const PART_BYTES: usize = 32 << 10;

/// Elements from one rank to another.
type Count<'a> = &'a dyn Fn(usize, usize) -> usize;

/// A member whose calls of this kind, and sums of 64 bits, go without the host.
fn prepared(member: Member, memory: &[cuda::DeviceRegion<'_>]) -> Member {
    let requests: [Request; 2] = [Collective::AllToAllV, Collective::AllReduce]
        .map(|collective| request(collective, 1, DataType::Int64, ReduceOp::Sum));
    member.cuda.prepare(&requests, memory).unwrap();
    member.host().barrier().unwrap();
    member
}

/// Where blocks of these counts lie, in reversed order of rank and with gaps, and how many elements that takes.
fn places(
    counts: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator,
) -> Vec<(usize, usize)> {
    let mut at = 1;
    let mut places: Vec<(usize, usize)> = counts
        .rev()
        .map(|count| {
            at += count + 2;
            (count, at - count - 2)
        })
        .collect();
    places.reverse();
    places
}

/// Where the blocks of a rank lie, and how many elements its buffers have.
fn ragged(me: usize, ranks: usize, count: Count<'_>) -> (Ragged, usize) {
    let send = places((0..ranks).map(|to| count(me, to)));
    let receive = places((0..ranks).map(|from| count(from, me)));
    let end = send.iter().chain(&receive).map(|(count, at)| count + at + 2).max().unwrap();
    (Ragged { send, receive }, end)
}

/// Those of the member.
fn ragged_of(member: &Member, count: Count<'_>) -> (Ragged, usize) {
    ragged(member.me() as usize, member.size() as usize, count)
}

fn operation<'a>(
    datatype: DataType,
    counts: &Ragged,
    input: cuda::DeviceRegion<'a>,
    output: cuda::DeviceRegion<'a>,
) -> cuda::Operation<'a> {
    OperationOn::AllToAllV { datatype, counts: counts.clone(), input, output }
}

/// The input of a rank.
fn input(rank: usize, ranks: usize, datatype: DataType, count: Count<'_>) -> Vec<u8> {
    let bytes = ragged(rank, ranks, count).1 * datatype.bytes();
    noise(bytes, (rank + 3 * bytes) as u32)
}

/// What is in the output of the member, in which there was `before`.
fn exchanged(member: &Member, datatype: DataType, count: Count<'_>, before: &[u8]) -> Vec<u8> {
    let (me, ranks, size) = (member.me() as usize, member.size() as usize, datatype.bytes());
    let mut output = before.to_vec();
    for (from, (elements, at)) in ragged(me, ranks, count).0.receive.into_iter().enumerate() {
        let sent = input(from, ranks, datatype, count);
        let start = ragged(from, ranks, count).0.send[me].1;
        output[at * size..][..elements * size]
            .copy_from_slice(&sent[start * size..][..elements * size]);
    }
    output
}

/// One exchange out of place and in place, in buffers that begin `shift` bytes into an allocation. `shown`: the
/// others have mapped these buffers.
fn compare(member: &Member, datatype: DataType, count: Count<'_>, shift: usize, shown: bool) {
    let counts = ragged_of(member, count).0;
    let input = input(member.me() as usize, member.size() as usize, datatype, count);
    let bytes = input.len();
    let apart = exchanged(member, datatype, count, &vec![GUARD; bytes]);
    let one = exchanged(member, datatype, count, &input);
    let upload = |bytes: &[u8]| member.upload(&[&vec![GUARD; shift], bytes].concat());
    let (from, to, both) = (upload(&input), upload(&vec![GUARD; bytes]), upload(&input));
    if shown {
        member.cuda.prepare(&[], &[from.region(), to.region(), both.region()]).unwrap();
    }
    let region = |buffer| Buffer::region(buffer).part(shift, bytes);
    let enqueue = |operation| {
        member.cuda.enqueue(operation, &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        member.cuda.wait().unwrap();
    };
    enqueue(operation(datatype, &counts, region(&from), region(&to)));
    let me = member.me();
    assert!(download(&from)[shift..] == input, "rank {me}: {counts:?}: the input changed");
    assert!(download(&to)[shift..] == apart, "rank {me}: {counts:?} of {datatype:?}");
    enqueue(operation(datatype, &counts, region(&both), region(&both)));
    assert!(download(&both)[shift..] == one, "rank {me}, in place: {counts:?} of {datatype:?}");
}

/// That all calls since then were done by kernels.
fn assert_direct(member: &Member, before: Paths) -> Paths {
    let (paths, reason) = member.cuda.paths();
    assert_eq!(paths.host, before.host, "{reason:?}: {paths:?}");
    assert!(paths.pull > before.pull, "{paths:?}");
    member.cuda.check().unwrap();
    paths
}

/// Blocks of every size, some of them larger than the staging memory of a rank, or cut into several parts.
fn all_sizes(member: &Member, shown: bool) {
    let before = member.cuda.paths().0;
    let small = |from: usize, to: usize| [0usize, 1, 37, 5, 0, 160, 3][(2 * from + 5 * to) % 7];
    for (index, datatype) in DataType::ALL.into_iter().enumerate() {
        compare(member, datatype, &small, [0, 8, 3, 1][index % 4], shown && index % 2 == 0);
    }
    let large = |from: usize, to: usize| {
        [STAGING_BYTES + 9, 0, 700, 2 * STAGING_BYTES][(from + 2 * to) % 4]
    };
    compare(member, DataType::Uint8, &large, 5, shown);
    compare(member, DataType::Int32, &large, 0, false);
    let in_parts = |from: usize, to: usize| [2 * PART_BYTES + 77, 3, PART_BYTES][(from + to) % 3];
    compare(member, DataType::Uint8, &in_parts, 1, shown);
    compare(member, DataType::Uint8, &in_parts, 0, false);
    // Ranks that send nothing, that receive nothing, that only have something for themselves.
    let none = |_: usize, _: usize| 0usize;
    let one_sends = |from: usize, _: usize| if from == 1 { 100 } else { 0 };
    let one_receives = |_: usize, to: usize| if to == 1 { 100 } else { 0 };
    let own = |from: usize, to: usize| if from == to { 50 } else { 0 };
    for count in [&none as Count<'_>, &one_sends, &one_receives, &own] {
        compare(member, DataType::Int64, count, 0, shown);
    }
    let paths = assert_direct(member, before);
    assert_eq!(paths.mapped_buffers > before.mapped_buffers, shown, "{paths:?}");
}

#[test]
fn all_sizes_between_three_processes() {
    processes_with(
        "direct::uneven::all_sizes_between_three_processes",
        3,
        &[],
        |rank, size, id| {
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            all_sizes(&prepared(member, &[]), true);
        },
    );
}

#[test]
fn all_sizes_through_staging_memory() {
    processes_with("direct::uneven::all_sizes_through_staging_memory", 2, &[], |rank, size, id| {
        let member = member(0, (rank, size), &id, "staged");
        all_sizes(&prepared(member, &[]), false);
    });
}

#[test]
fn all_sizes_between_threads() {
    threads_with("direct::uneven::all_sizes_between_threads", 2, |rank, id| {
        let member = member(rank as usize, (rank, 2), id, "1");
        all_sizes(&prepared(member, &[]), true);
    });
}

/// Nobody prepares, and what is larger than the staging memory is so from the first call on.
#[test]
fn the_way_changes_between_large_exchanges() {
    const TEST: &str = "direct::uneven::the_way_changes_between_large_exchanges";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        let count = |from: usize, to: usize| [0, 3 * STAGING_BYTES, 700, 1][(from + 2 * to) % 4];
        let mut calls = 0;
        loop {
            compare(&member, DataType::Uint8, &count, 0, false);
            calls += 2;
            let paths = member.cuda.paths().0;
            assert_eq!(paths.host + paths.pull, calls, "{paths:?}");
            // All ranks end after the same call.
            let mut pulls = vec![paths.pull as i64];
            member.host().all_reduce_in_place(&mut pulls, ReduceOp::Min).unwrap();
            assert_eq!(paths.pull as i64, pulls[0], "rank {rank}: {paths:?}");
            if pulls[0] > 6 {
                break;
            }
        }
        assert!(member.cuda.paths().0.host > 0);
    });
}

/// Without kernels, or with some that nobody may use.
#[test]
fn all_sizes_through_the_host() {
    processes("direct::uneven::all_sizes_through_the_host", 3, &[], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "0");
        let small = |from: usize, to: usize| [0usize, 1, 37, 5, 0, 160, 3][(2 * from + 5 * to) % 7];
        let large = |from: usize, to: usize| [STAGING_BYTES, 0, 700, 30_000][(from + 2 * to) % 4];
        for datatype in [DataType::Uint8, DataType::Int64, DataType::Bfloat16] {
            for count in [&small as Count<'_>, &large, &|_, _| 0] {
                compare(&member, datatype, count, 0, false);
            }
        }
        let paths = member.cuda.paths().0;
        assert_eq!(paths, Paths { host: 18, ..Paths::default() });
    });
}

/// Exchanges and sums in turn, of which nobody waits for one, on two streams; the first rank comes late.
fn in_order(member: &Member) {
    let me = member.me() as usize;
    let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
    // The largest goes in pieces. What was sent comes back, and so does what is exchanged twice in place.
    let count = |from: usize, to: usize| [1, 2000, 40][(from + to) % 3];
    let (counts, elements) = ragged_of(member, &count);
    let back = Ragged { send: counts.receive.clone(), receive: counts.send.clone() };
    let data = || (0..elements as i64).map(|at| 100_000 * me as i64 + at);
    let (here, one) = (member.upload(&words(data())), member.upload(&words(data())));
    let (there, sum) = (member.upload(&words(vec![0; elements])), member.upload(&words([1])));
    let word = member.gpu().pin(4).unwrap();
    if me == 0 {
        streams.iter().for_each(|stream| stream.wait_for_word(&word, 0, 1).unwrap());
    }
    let rounds: u32 = 4;
    for round in 0..rounds as usize {
        let [stream, other] = [&streams[round % 2], &streams[(round + 1) % 2]];
        let exchange = |counts, from: &Buffer, to: &Buffer, stream| {
            let operation = operation(DataType::Int64, counts, from.region(), to.region());
            member.cuda.enqueue(operation, stream).unwrap();
        };
        exchange(&counts, &here, &there, stream);
        exchange(&counts, &one, &one, other);
        member.cuda.enqueue(all_reduce(&sum), stream).unwrap();
        exchange(&back, &there, &here, other);
        exchange(&back, &one, &one, stream);
    }
    word.word(0).store(1, Ordering::Release);
    member.cuda.wait().unwrap();
    streams.iter().for_each(|stream| stream.synchronise().unwrap());
    assert!(download(&sum) == words([i64::from(member.size()).pow(rounds)]));
    assert!(download(&here) == words(data()), "rank {me}");
    assert!(download(&one) == words(data()), "rank {me}, in place");
}

#[test]
fn exchanges_are_in_the_order_of_streams() {
    const TEST: &str = "direct::uneven::exchanges_are_in_the_order_of_streams";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let member = prepared(member(rank as usize % 2, (rank, size), &id, "1"), &[]);
        let before = member.cuda.paths().0;
        in_order(&member);
        assert_direct(&member, before);
    });
}

#[test]
fn exchanges_through_the_host_are_in_the_order_of_streams() {
    const TEST: &str = "direct::uneven::exchanges_through_the_host_are_in_the_order_of_streams";
    processes(TEST, 3, &[], |rank, size, id| {
        in_order(&member(rank as usize % 2, (rank, size), &id, "0"));
    });
}

/// What ends an exchange in which rank 1 sends rank 0 `sent` elements of which it expects `expected`.
fn quarrel(member: &Member, sent: usize, expected: usize) -> Error {
    let me = member.me();
    let count = |from: usize, to: usize| match (from, to) {
        (1, 0) if me == 0 => expected,
        (1, 0) => sent,
        _ => 7 * from + to,
    };
    let (counts, elements) = ragged_of(member, &count);
    let buffers = [(); 2].map(|()| member.upload(&words(vec![0; elements])));
    let [from, to] = [&buffers[0], &buffers[1]].map(Buffer::region);
    let error =
        match member.cuda.enqueue(operation(DataType::Int64, &counts, from, to), &member.stream) {
            Ok(()) => member.ending(),
            Err(error) => error,
        };
    member.stream.synchronise().unwrap();
    assert_eq!(member.cuda.check(), Err(error.clone()), "it is kept");
    error
}

fn assert_names_both(error: &Error, sent: usize, expected: usize) {
    let text = error.to_string();
    assert!(matches!(error, Error::Disagreement { rank: Rank(0), other: Rank(1), .. }), "{text}");
    let called = format!("rank 0 called alltoallv(count={expected} from rank 1, type=int64)");
    assert!(text.contains(&called), "{text}");
    assert!(text.contains(&format!("rank 1 called alltoallv(count={sent} to rank 0)")), "{text}");
}

fn counts_that_do_not_fit(test: &str, peers: &str, sent: usize, expected: usize) {
    let act = |rank: u32, size: u32, id| {
        let member = member(rank as usize % 2, (rank, size), &id, peers);
        let member = if peers == "0" { member } else { prepared(member, &[]) };
        let error = quarrel(&member, sent, expected);
        assert_names_both(&error, sent, expected);
        // A rank may hear what the others have found out before it makes its call.
        let paths = member.cuda.paths().0;
        assert_eq!(if peers == "0" { paths.pull } else { paths.host }, 0, "{paths:?}");
    };
    if peers == "0" { processes(test, 3, &[], act) } else { processes_with(test, 3, &[], act) }
}

#[test]
fn counts_that_do_not_fit_are_named() {
    counts_that_do_not_fit("direct::uneven::counts_that_do_not_fit_are_named", "1", 5, 6);
}

#[test]
fn nothing_for_something_is_named() {
    counts_that_do_not_fit("direct::uneven::nothing_for_something_is_named", "1", 0, 100_000);
}

#[test]
fn something_for_nothing_is_named() {
    counts_that_do_not_fit("direct::uneven::something_for_nothing_is_named", "staged", 100_000, 0);
}

#[test]
fn counts_that_do_not_fit_are_named_by_the_host() {
    const TEST: &str = "direct::uneven::counts_that_do_not_fit_are_named_by_the_host";
    counts_that_do_not_fit(TEST, "0", 0, 3000);
}

#[test]
fn a_rank_that_dies_is_named() {
    processes_with("direct::uneven::a_rank_that_dies_is_named", 3, &[1], |rank, size, id| {
        let member = prepared(member(rank as usize % 2, (rank, size), &id, "1"), &[]);
        let (counts, elements) = ragged_of(&member, &|from, to| 1500 * from + to);
        let [from, to] = [(); 2].map(|()| member.upload(&words(vec![1; elements])));
        let enqueue = || {
            let operation = operation(DataType::Int64, &counts, from.region(), to.region());
            member.cuda.enqueue(operation, &member.stream)
        };
        enqueue().unwrap();
        if rank == 1 {
            member.stream.synchronise().unwrap();
            process::abort();
        }
        let error = loop {
            let ended = enqueue().and_then(|()| member.cuda.wait());
            member.stream.synchronise().unwrap();
            if let Err(error) = ended {
                break error;
            }
        };
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        assert_eq!(member.cuda.paths().0.host, 0);
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    processes_with(
        "direct::uneven::a_rank_that_does_not_come_is_named",
        3,
        &[],
        |rank, size, id| {
            let member = prepared(member(rank as usize % 2, (rank, size), &id, "1"), &[]);
            let (counts, elements) = ragged_of(&member, &|from, to| 10 * from + to);
            let [from, to] = [(); 2].map(|()| member.upload(&words(vec![1; elements])));
            let enqueue = || {
                let operation = operation(DataType::Int64, &counts, from.region(), to.region());
                member.cuda.enqueue(operation, &member.stream).unwrap();
            };
            (0..3).for_each(|_| enqueue());
            member.cuda.wait().unwrap();
            member.host().barrier().unwrap();
            if rank != 2 {
                member.host().set_timeout(Duration::from_secs(2)).unwrap();
                enqueue();
            }
            let error = member.ending();
            member.stream.synchronise().unwrap();
            let text = error.to_string();
            assert!(text.contains("alltoallv did not finish"), "{text}");
            assert!(text.contains("the device of rank 2 has not come to it"), "{text}");
        },
    );
}

#[test]
fn an_abort_lets_an_exchange_go() {
    threads_with("direct::uneven::an_abort_lets_an_exchange_go", 2, |rank, id| {
        let member = prepared(member(rank as usize, (rank, 2), id, "1"), &[]);
        let (counts, elements) = ragged_of(&member, &|from, to| 100 + from + to);
        let [from, to] = [(); 2].map(|()| member.upload(&words(vec![1; elements])));
        if rank == 0 {
            // The other rank never comes.
            for _ in 0..2 {
                let operation = operation(DataType::Int64, &counts, from.region(), to.region());
                member.cuda.enqueue(operation, &member.stream).unwrap();
            }
            member.cuda.abort("on purpose");
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
    });
}

#[test]
fn what_a_rank_sends_itself_is_what_it_receives() {
    threads_with("direct::uneven::what_a_rank_sends_itself_is_what_it_receives", 2, |rank, id| {
        let member = prepared(member(rank as usize, (rank, 2), id, "1"), &[]);
        let data = member.upload(&words(vec![0; 10]));
        let mut counts = Ragged { send: vec![(1, 0), (1, 1)], receive: vec![(1, 0), (1, 1)] };
        counts.receive[rank as usize].0 = 2;
        let output = member.upload(&words(vec![0; 10]));
        let operation = operation(DataType::Int64, &counts, data.region(), output.region());
        let error = member.cuda.enqueue(operation, &member.stream).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("sends 1 elements to itself and receives 2"), "{error}");
        member.cuda.check().unwrap();
    });
}
