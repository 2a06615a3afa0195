//! Collectives that kernels do between ranks of one host.
//!
//! Every test prepares its ranks, and asks in the end which way its calls went: what goes through the host
//! is tested beside this.

use std::process;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl::cuda::{self, Buffer, DeviceRegion, Paths};
use ccl::{
    Collective, Communicator, DataType, Error, OperationOn, Rank, ReduceOp, Reduction, Region,
    Request, UniqueId,
};

use super::ranks::{KERNELS, processes_with, threads_with};
use super::{Member, all_reduce, config, download, shape, skip, words};

/// Staging memory: calls of up to a quarter have low latency, and larger ones than this go in pieces.
const STAGING_BYTES: usize = 4096;
const GUARD: u8 = 0x5a;

/// A rank for which `R2CCL_CUDA_P2P` has this value.
fn member(device: usize, (rank, size): (u32, u32), id: &UniqueId, peers: &str) -> Member {
    let mut config = config(STAGING_BYTES);
    config.settings.cuda_peers = peers.parse().unwrap();
    config.settings.cuda_kernels = std::env::var_os(KERNELS).map(Into::into);
    let host = Communicator::create(id, rank, size, &config).unwrap();
    let gpu = cuda::open(device).unwrap();
    let cuda = cuda::Communicator::new(&host, &gpu).unwrap();
    Member { cuda, stream: gpu.stream().unwrap() }
}

fn request(collective: Collective, count: usize, datatype: DataType, op: ReduceOp) -> Request {
    Request { collective, count, datatype, reduction: Reduction::Builtin(op), root: Rank(1) }
}

fn sums(datatypes: &[DataType]) -> Vec<Request> {
    let sum = |datatype| request(Collective::AllReduce, 1, datatype, ReduceOp::Sum);
    datatypes.iter().map(|datatype| sum(*datatype)).collect()
}

/// A member whose calls of these types go without the host.
fn prepared(member: Member, datatypes: &[DataType], memory: &[DeviceRegion<'_>]) -> Member {
    member.cuda.prepare(&sums(datatypes), memory).unwrap();
    // So that nobody has made a call while another one is still being told.
    member.host().barrier().unwrap();
    member
}

/// Any bits, different on every rank.
fn noise(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// One collective out of place and in place, against the same one on the host, in buffers that begin
/// `shift` bytes into an allocation. `shown`: the others have mapped these buffers.
fn compare(member: &Member, request: Request, shift: usize, contribution: &[u8], shown: bool) {
    let (me, ranks) = (member.me() as usize, member.size() as usize);
    let (inputs, outputs, apart) = shape(request.collective, me, ranks);
    let block = request.bytes();
    let input = &contribution[..inputs * block];
    let before = vec![GUARD; outputs * block + 16];
    let mut expected = before[..outputs * block].to_vec();
    let mut sent = input.to_vec();
    let operation = ccl::Operation::Collective {
        request,
        input: Some(Region::of_mut(&mut sent)),
        output: Some(Region::of_mut(&mut expected)),
    };
    member.host().run(operation).unwrap();
    let has_output = match request.collective {
        Collective::Reduce | Collective::Gather => request.root.index() == me,
        _ => true,
    };
    let upload = |bytes: &[u8]| member.upload(&[&vec![GUARD; shift], bytes].concat());
    let enqueue = |input, output| {
        let operation =
            OperationOn::Collective { request, input: Some(input), output: Some(output) };
        member.cuda.enqueue(operation, &member.stream).unwrap();
        member.stream.synchronise().unwrap();
    };
    let (from, to) = (upload(input), upload(&before));
    if shown {
        member.cuda.prepare(&[], &[from.region(), to.region()]).unwrap();
    }
    enqueue(from.region().part(shift, input.len()), to.region().part(shift, outputs * block));
    assert!(download(&from)[shift..] == *input, "rank {me}: {request:?}: the input changed");
    let is = &download(&to)[shift..];
    assert!(is[outputs * block..] == before[outputs * block..], "rank {me}: {request:?}: behind");
    assert!(!has_output || is[..outputs * block] == expected, "rank {me}: {request:?}");

    // In place, where the larger of both lies.
    let at = |shift: isize, sign: isize| (shift * sign).max(0).unsigned_abs() * block;
    let (input_at, output_at) = (at(apart, -1), at(apart, 1));
    let mut both = vec![GUARD; inputs.max(outputs) * block];
    both[input_at..][..input.len()].copy_from_slice(input);
    let shared = upload(&both);
    if shown {
        member.cuda.prepare(&[], &[shared.region()]).unwrap();
    }
    enqueue(
        shared.region().part(shift + input_at, input.len()),
        shared.region().part(shift + output_at, outputs * block),
    );
    let is = &download(&shared)[shift + output_at..][..outputs * block];
    assert!(!has_output || is == expected, "rank {me}, in place: {request:?}");
}

/// The way of all calls since then.
fn assert_direct(member: &Member, before: Paths) -> Paths {
    let (paths, reason) = member.cuda.paths();
    assert_eq!(paths.host, before.host, "{reason:?}: {paths:?}");
    assert!(paths.low_latency + paths.push > before.low_latency + before.push, "{paths:?}");
    member.cuda.check().unwrap();
    paths
}

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
    const TEST: &str = "direct::all_types_and_operations_through_staging_memory";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = member(rank as usize, (rank, size), &id, "staged");
        all_types_and_operations(&prepared(member, &ALL, &[]), false);
    });
}

#[test]
fn all_types_and_operations_on_mapped_buffers_of_one_device() {
    const TEST: &str = "direct::all_types_and_operations_on_mapped_buffers_of_one_device";
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
                let bytes = super::contribution(datatype, elements, member.me());
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

const SOME: [DataType; 3] = [DataType::Float32, DataType::Int64, DataType::Uint8];

#[test]
fn all_collectives_of_three_processes() {
    processes_with("direct::all_collectives_of_three_processes", 3, &[], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        all_collectives(&prepared(member, &SOME, &[]), true);
    });
}

#[test]
fn all_collectives_of_threads_on_two_devices() {
    threads_with("direct::all_collectives_of_threads_on_two_devices", 2, |rank, id| {
        let member = member(rank as usize, (rank, 2), id, "staged");
        all_collectives(&prepared(member, &SOME, &[]), false);
    });
}

/// Calls of both protocols, one behind the other, of which nobody waits for one.
fn rounds(member: &Member, streams: &[cuda::Stream], late: bool) {
    let (me, size) = (i64::from(member.me()), i64::from(member.size()));
    let counts = [3, 900, 64, 1, 700, 128];
    let buffers: Vec<Buffer> =
        counts.iter().map(|count| member.upload(&words(vec![me + 1; *count]))).collect();
    let word = member.gpu().pin(4).unwrap();
    if late && me == 0 {
        streams.iter().for_each(|stream| stream.wait_for_word(&word, 0, 1).unwrap());
    }
    let rounds: u32 = 6;
    for round in 0..rounds {
        for (index, buffer) in buffers.iter().enumerate() {
            let stream = &streams[(index + round as usize) % streams.len()];
            member.cuda.enqueue(all_reduce(buffer), stream).unwrap();
        }
    }
    word.word(0).store(1, Ordering::Release);
    member.cuda.wait().unwrap();
    streams.iter().for_each(|stream| stream.synchronise().unwrap());
    let expected = size * (size + 1) / 2 * size.pow(rounds - 1);
    for (count, buffer) in counts.iter().zip(&buffers) {
        assert!(download(buffer) == words(vec![expected; *count]), "{count} elements, rank {me}");
    }
}

#[test]
fn calls_follow_each_other_on_several_streams() {
    processes_with(
        "direct::calls_follow_each_other_on_several_streams",
        3,
        &[],
        |rank, size, id| {
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            let member = prepared(member, &[DataType::Int64], &[]);
            let before = member.cuda.paths().0;
            let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
            rounds(&member, &streams[..1], false);
            rounds(&member, &streams, false);
            rounds(&member, &streams, true);
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

#[test]
fn the_way_changes_between_calls_without_harm() {
    processes_with(
        "direct::the_way_changes_between_calls_without_harm",
        3,
        &[],
        |rank, size, id| {
            // Nobody prepares: the first calls go through the host, and ranks are not equally fast.
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            let data = member.upload(&words([1; 900]));
            let mut calls = 0;
            loop {
                for _ in 0..10 {
                    member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
                    calls += 1;
                    if calls % (2 + rank) == 0 {
                        member.stream.synchronise().unwrap();
                    }
                }
                member.stream.synchronise().unwrap();
                let expected = 3i64.wrapping_pow(calls);
                assert!(
                    download(&data) == words([expected; 900]),
                    "after {calls} calls, rank {rank}"
                );
                // All ranks end after the same call.
                let paths = member.cuda.paths().0;
                let mut pushes = vec![paths.push as i64];
                member.host().all_reduce_in_place(&mut pushes, ReduceOp::Min).unwrap();
                assert_eq!(paths.push as i64, pushes[0], "rank {rank}: {paths:?}");
                if pushes[0] > 20 {
                    break;
                }
            }
            assert!(member.cuda.paths().0.host > 0);
        },
    );
}

/// The error that ends the communicator, after a call was enqueued; the stream goes on.
fn failure(member: &Member, data: &Buffer) -> Error {
    loop {
        let enqueued = member.cuda.enqueue(all_reduce(data), &member.stream);
        let ended = enqueued.and_then(|()| member.cuda.wait());
        member.stream.synchronise().unwrap();
        if let Err(error) = ended {
            assert_eq!(member.cuda.check(), Err(error.clone()), "it is kept");
            return error;
        }
    }
}

fn a_rank_dies(test: &str, count: usize) {
    processes_with(test, 3, &[1], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        let data = member.upload(&words(vec![1; count]));
        let member = prepared(member, &[DataType::Int64], &[data.region()]);
        let before = member.cuda.paths().0;
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        if rank == 1 {
            member.stream.synchronise().unwrap();
            process::abort();
        }
        let error = failure(&member, &data);
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        let paths = member.cuda.paths().0;
        assert_eq!(paths.host, before.host);
    });
}

#[test]
fn a_rank_that_dies_is_named_with_low_latency() {
    a_rank_dies("direct::a_rank_that_dies_is_named_with_low_latency", 10);
}

#[test]
fn a_rank_that_dies_is_named_in_a_push() {
    a_rank_dies("direct::a_rank_that_dies_is_named_in_a_push", 2000);
}

#[test]
fn ranks_that_disagree_are_told_at_the_next_meeting() {
    processes_with(
        "direct::ranks_that_disagree_are_told_at_the_next_meeting",
        2,
        &[],
        |rank, size, id| {
            let member = member(rank as usize, (rank, size), &id, "1");
            let data = member.upload(&words([1; 90]));
            let member = prepared(member, &[DataType::Int64], &[]);
            let enqueue = |op| {
                let request = request(Collective::AllReduce, 90, DataType::Int64, op);
                let (input, output) = (Some(data.region()), Some(data.region()));
                let operation = OperationOn::Collective { request, input, output };
                member.cuda.enqueue(operation, &member.stream)
            };
            for _ in 0..3 {
                enqueue(ReduceOp::Sum).unwrap();
            }
            // The same bytes come, and nobody waits in vain.
            let mut last = enqueue(if rank == 0 { ReduceOp::Max } else { ReduceOp::Min });
            let error = loop {
                if let Err(error) = last {
                    break error;
                }
                last = enqueue(ReduceOp::Sum).and_then(|()| member.cuda.wait());
            };
            member.stream.synchronise().unwrap();
            let text = error.to_string();
            assert!(matches!(error, Error::Disagreement { sequence: 4, .. }), "{text}");
            assert!(
                text.contains("rank 0 called allreduce(count=90, type=int64, op=max)"),
                "{text}"
            );
            assert!(
                text.contains("rank 1 called allreduce(count=90, type=int64, op=min)"),
                "{text}"
            );
        },
    );
}

fn a_rank_does_not_come(test: &str, count: usize) {
    processes_with(test, 3, &[], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        let data = member.upload(&words(vec![1; count]));
        let member = prepared(member, &[DataType::Int64], &[]);
        for _ in 0..3 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        }
        member.cuda.wait().unwrap();
        member.host().barrier().unwrap();
        if rank != 2 {
            member.host().set_timeout(Duration::from_secs(2)).unwrap();
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        }
        let error = member.ending();
        member.stream.synchronise().unwrap();
        // Of the two that wait, one is the first to tell.
        let text = error.to_string();
        assert!(text.contains("the device of rank 2 has not come to it"), "{text}");
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_with_low_latency() {
    a_rank_does_not_come("direct::a_rank_that_does_not_come_is_named_with_low_latency", 10);
}

#[test]
fn a_rank_that_does_not_come_is_named_in_a_push() {
    a_rank_does_not_come("direct::a_rank_that_does_not_come_is_named_in_a_push", 2000);
}

#[test]
fn an_abort_lets_kernels_go() {
    threads_with("direct::an_abort_lets_kernels_go", 2, |rank, id| {
        let member = member(rank as usize, (rank, 2), id, "1");
        let data = member.upload(&words([1; 2000]));
        let member = prepared(member, &[DataType::Int64], &[]);
        if rank == 0 {
            // The other rank never comes.
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.cuda.abort("on purpose");
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
    });
}

#[test]
fn memory_that_was_freed_is_not_told_again() {
    processes_with("direct::memory_that_was_freed_is_not_told_again", 2, &[], |rank, size, id| {
        let member =
            prepared(member(rank as usize, (rank, size), &id, "1"), &[DataType::Int64], &[]);
        let count = 8192;
        let (mut reused, mut last) = (0, 0);
        for round in 0..12i64 {
            let data = member.upload(&words(vec![round + i64::from(rank); count]));
            let address = data.region().address();
            reused += u32::from(address == last);
            last = address;
            let before = member.cuda.paths().0;
            // Sometimes the others have the buffer of this round, sometimes only that of an earlier one.
            let is_shown = round % 3 == 0;
            if is_shown {
                member.cuda.prepare(&[], &[data.region()]).unwrap();
            }
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
            let paths = assert_direct(&member, before);
            let mapped = paths.mapped_buffers - before.mapped_buffers;
            assert!(!is_shown || mapped == 2, "round {round}: {paths:?}");
            assert!(
                download(&data) == words(vec![2 * round + 1; count]),
                "round {round}, rank {rank}"
            );
        }
        assert!(reused > 0, "the driver gives addresses again");
    });
}

#[test]
fn buffers_become_known_by_themselves() {
    processes_with("direct::buffers_become_known_by_themselves", 2, &[], |rank, size, id| {
        let member =
            prepared(member(rank as usize, (rank, size), &id, "1"), &[DataType::Int64], &[]);
        let data = member.upload(&words([0; 2000]));
        for _ in 0..200 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
        }
        let paths = member.cuda.paths().0;
        assert!(paths.mapped_buffers > 0, "{paths:?}");
    });
}

#[test]
fn the_setting_turns_it_off_for_all() {
    processes_with("direct::the_setting_turns_it_off_for_all", 3, &[], |rank, size, id| {
        let member =
            member(rank as usize % 2, (rank, size), &id, if rank == 1 { "0" } else { "1" });
        let member = prepared(member, &SOME, &[]);
        let data = member.upload(&words([1; 900]));
        for _ in 0..3 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        }
        member.stream.synchronise().unwrap();
        assert!(download(&data) == words([27; 900]));
        let (paths, reason) = member.cuda.paths();
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        assert_eq!(reason.as_deref(), Some("rank 1: R2CCL_CUDA_P2P is 0"));
    });
}

#[test]
fn kernels_that_one_rank_lacks_are_used_by_none() {
    processes_with(
        "direct::kernels_that_one_rank_lacks_are_used_by_none",
        2,
        &[],
        |rank, size, id| {
            let mut config = config(STAGING_BYTES);
            let folder = std::env::var_os(KERNELS).map(Into::into);
            config.settings.cuda_kernels = folder.filter(|_| rank == 0);
            let host = Communicator::create(&id, rank, size, &config).unwrap();
            let gpu = cuda::open(0).unwrap();
            let cuda = cuda::Communicator::new(&host, &gpu).unwrap();
            let member = prepared(Member { cuda, stream: gpu.stream().unwrap() }, &SOME, &[]);
            let data = member.upload(&words([1; 900]));
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
            assert!(download(&data) == words([2; 900]));
            let (paths, reason) = member.cuda.paths();
            assert_eq!(paths.host, 1, "{paths:?}");
            let reason = reason.unwrap();
            if reason.contains("there is no libnvrtc") {
                assert!(reason.starts_with("rank 1: no kernels for"), "{reason}");
            } else {
                skip("kernels that cannot be had: NVRTC is installed");
            }
        },
    );
}
