//! Collectives on memory of CUDA devices, on a driver whose devices are interpreters.
//!
//! Every test starts its own program again, with a library path on which that driver is found as
//! `libcuda.so.1`, and does its work there, in one process or in one per rank.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm,
    reason = "tests tell their processes by the environment; small numbers; what fails, fails the test"
)]

mod calls;
mod captures;
mod columns;
mod direct;
mod endings;
mod generations;
mod kernels;
mod late;
#[path = "../../../kernels/tests/cuda/nvrtc.rs"]
mod nvrtc;
mod ranks;
mod windows;
mod wire;

use std::io::Write as _;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ccl::cuda::{self, Buffer, DeviceRegion, Gpu, Stream};
use ccl::{
    Collective, Communicator, Config, DataType, Error, OperationOn, Ragged, Rank, ReduceOp,
    Reduction, Region, Request, UniqueId,
};
use ranks::processes;

/// Collectives do not take as long, and so does nothing that waits for their failure.
const TIMEOUT: Duration = Duration::from_secs(30);

fn config(staging_bytes: usize) -> Config {
    let name = Some("stage".into());
    let mut config = Config { timeout: Some(TIMEOUT), name, ..Config::default() };
    config.settings.bootstrap_timeout = TIMEOUT;
    config.settings.cuda_staging_bytes = staging_bytes;
    config
}

/// Past the test harness, so that it is seen.
fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "skip: {what}");
}

/// One rank, with what a program has.
struct Member {
    cuda: cuda::Communicator,
    stream: Stream,
}

impl Member {
    /// With a device of its own, if there are two ranks: memory is freed between calls, which waits for
    /// everything that its device has to do.
    fn new(rank: u32, size: u32, id: &UniqueId, staging_bytes: usize) -> Self {
        Self::on(rank as usize % 2, (rank, size), id, staging_bytes)
    }

    fn on(device: usize, place: (u32, u32), id: &UniqueId, staging_bytes: usize) -> Self {
        Self::with(device, place, id, &config(staging_bytes))
    }

    fn with(device: usize, (rank, size): (u32, u32), id: &UniqueId, config: &Config) -> Self {
        Self::over(&Communicator::create(id, rank, size, config).unwrap(), device)
    }

    /// With a communicator that is there.
    fn over(host: &Communicator, device: usize) -> Self {
        let gpu = cuda::open(device).unwrap();
        let cuda = cuda::Communicator::new(host, &gpu).unwrap();
        Self { cuda, stream: gpu.stream().unwrap() }
    }

    fn gpu(&self) -> &Arc<Gpu> {
        self.cuda.gpu()
    }

    fn host(&self) -> &Communicator {
        self.cuda.host()
    }

    fn size(&self) -> u32 {
        self.host().size()
    }

    fn me(&self) -> u32 {
        self.host().rank().0
    }

    /// What has ended the communicator; waits for it.
    fn ending(&self) -> Error {
        loop {
            if let Err(error) = self.cuda.wait() {
                return error;
            }
            thread::yield_now();
        }
    }

    /// Memory of the device with these bytes.
    fn upload(&self, bytes: &[u8]) -> Buffer {
        let buffer = self.gpu().allocate(bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        buffer
    }
}

fn download(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.region().bytes()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

/// Elements whose sums, products and so on of a few ranks are exact in every type: 0, 1 and 2.
fn contribution(datatype: DataType, count: usize, rank: u32) -> Vec<u8> {
    let element = |index: usize| -> Vec<u8> {
        let value = (index * 7 + index / 64 + rank as usize * 5) % 3;
        match datatype {
            DataType::Float32 => (value as f32).to_le_bytes().to_vec(),
            DataType::Float64 => (value as f64).to_le_bytes().to_vec(),
            DataType::Bfloat16 => (value as f32).to_le_bytes()[2..].to_vec(),
            _ => {
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(datatype.bytes(), 0);
                bytes
            }
        }
    };
    (0..count).flat_map(element).collect()
}

/// Blocks of a rank's input and output, and what output minus input is in place, in blocks.
fn shape(collective: Collective, me: usize, ranks: usize) -> (usize, usize, isize) {
    let own = me.cast_signed();
    match collective {
        Collective::AllGather | Collective::Gather => (1, ranks, -own),
        Collective::ReduceScatter | Collective::Scatter => (ranks, 1, own),
        Collective::AllToAll => (ranks, ranks, 0),
        _ => (1, 1, 0),
    }
}

/// One collective out of place and in place, on the device and on the host.
fn compare(member: &Member, request: Request) {
    let (me, ranks) = (member.me() as usize, member.size() as usize);
    let (inputs, outputs, shift) = shape(request.collective, me, ranks);
    let block = request.bytes();
    let input = contribution(request.datatype, inputs * request.count, member.me());
    let before = vec![0x5a; outputs * block];
    let (mut sent, mut expected) = (input.clone(), before.clone());
    let operation = ccl::Operation::Collective {
        request,
        input: Some(Region::of_mut(&mut sent)),
        output: Some(Region::of_mut(&mut expected)),
    };
    member.host().run(operation).unwrap();
    let (from, to) = (member.upload(&input), member.upload(&before));
    let enqueue = |input, output| {
        let operation =
            OperationOn::Collective { request, input: Some(input), output: Some(output) };
        member.cuda.enqueue(operation, &member.stream).unwrap();
    };
    enqueue(from.region(), to.region());
    member.stream.synchronise().unwrap();
    member.cuda.wait().unwrap();
    assert!(download(&to) == expected, "rank {me}: {request:?}");
    assert!(download(&from) == input, "rank {me}: {request:?}: the input is as it was");

    // In place, where the larger of both lies.
    let input_at = if shift < 0 { shift.unsigned_abs() * block } else { 0 };
    let output_at = if shift > 0 { shift.unsigned_abs() * block } else { 0 };
    let mut both = vec![0xa5; (inputs.max(outputs)) * block];
    both[input_at..][..input.len()].copy_from_slice(&input);
    let shared = member.upload(&both);
    let part = |at: usize, bytes: usize| shared.region().part(at, bytes);
    enqueue(part(input_at, input.len()), part(output_at, before.len()));
    member.stream.synchronise().unwrap();
    // Ranks without an output keep what they have.
    let has_output = expected != before;
    let is = &download(&shared)[output_at..][..before.len()];
    assert!(!has_output || is == expected, "rank {me}, in place: {request:?}");
}

fn all_collectives(member: &Member) {
    let types = [DataType::Float32, DataType::Bfloat16, DataType::Int64, DataType::Uint8];
    let sum = Reduction::Builtin(ReduceOp::Sum);
    for (index, collective) in Collective::UNIFORM.into_iter().enumerate() {
        let root = Rank(index as u32 % member.size());
        for (datatype, count) in types.into_iter().zip([1, 1000, 0, 5000]) {
            compare(member, Request { collective, count, datatype, reduction: sum, root });
        }
    }
    for op in [ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg] {
        for datatype in [DataType::Float64, DataType::Int32] {
            let (collective, reduction) = (Collective::AllReduce, Reduction::Builtin(op));
            compare(member, Request { collective, count: 777, datatype, reduction, root: Rank(0) });
        }
    }
    member.cuda.check().unwrap();
}

#[test]
fn two_processes_get_what_they_get_on_the_host() {
    processes("two_processes_get_what_they_get_on_the_host", 2, &[], |rank, size, id| {
        all_collectives(&Member::new(rank, size, &id, 1 << 20));
    });
}

#[test]
fn four_processes_get_what_they_get_on_the_host() {
    processes("four_processes_get_what_they_get_on_the_host", 4, &[], |rank, size, id| {
        all_collectives(&Member::new(rank, size, &id, 1 << 20));
    });
}

#[test]
fn what_is_larger_than_the_staging_memory_goes_in_pieces() {
    const TEST: &str = "what_is_larger_than_the_staging_memory_goes_in_pieces";
    processes(TEST, 3, &[], |rank, size, id| all_collectives(&Member::new(rank, size, &id, 4096)));
}

/// Does it in a process of its own, for every rank in a thread.
fn threads(test: &str, size: u32, act: impl Fn(u32, &UniqueId) + Sync) {
    processes(test, 1, &[], |_, _, _| in_threads(size, act));
}

/// Does it for every rank in a thread.
fn in_threads(size: u32, act: impl Fn(u32, &UniqueId) + Sync) {
    let id = UniqueId::create(&config(4096).settings).unwrap();
    thread::scope(|scope| {
        for rank in 0..size {
            let (id, act) = (&id, &act);
            scope.spawn(move || act(rank, id));
        }
    });
}

#[test]
fn threads_get_what_they_get_on_the_host() {
    threads("threads_get_what_they_get_on_the_host", 2, |rank, id| {
        all_collectives(&Member::new(rank, 2, id, 8192));
    });
}

fn sum(count: usize) -> Request {
    Request {
        collective: Collective::AllReduce,
        count,
        datatype: DataType::Int64,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    }
}

fn all_reduce<'a>(data: &'a Buffer) -> cuda::Operation<'a> {
    let region = data.region();
    let request = sum(region.bytes() / 8);
    OperationOn::Collective { request, input: Some(region), output: Some(region) }
}

fn words(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(i64::to_le_bytes).collect()
}

#[test]
fn streams_and_the_host_take_turns() {
    threads("streams_and_the_host_take_turns", 2, |rank, id| {
        // Both on one device.
        let member = Member::on(0, (rank, 2), id, 4096);
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        let buffers = [0, 1].map(|k| member.upload(&words(vec![k + i64::from(rank); 2000])));
        let mut host = vec![1i64; 100];
        for round in 1..=5u32 {
            for (stream, buffer) in streams.iter().zip(&buffers) {
                member.cuda.enqueue(all_reduce(buffer), stream).unwrap();
            }
            // Comes after what was enqueued, on both ranks.
            member.host().all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
            assert_eq!(host, vec![1i64 << round; 100]);
        }
        streams.iter().for_each(|stream| stream.synchronise().unwrap());
        for (k, buffer) in (0..).zip(&buffers) {
            let expected = (2 * k + 1) << 4;
            assert!(download(buffer) == words(vec![expected; 2000]), "buffer {k}");
        }
    });
}

#[test]
fn later_work_of_the_stream_finds_the_result() {
    threads("later_work_of_the_stream_finds_the_result", 2, |rank, id| {
        let member = Member::new(rank, 2, id, 4096);
        let (source, kept) = (member.upload(&words([0; 600])), member.upload(&words([0; 600])));
        let pinned = member.gpu().pin(4800).unwrap();
        pinned.word(0).store(rank + 1, std::sync::atomic::Ordering::Release);
        // The input is there only when the stream has copied it, the result when the collective has ended.
        member.stream.copy(pinned.region(), source.region()).unwrap();
        member.cuda.enqueue(all_reduce(&source), &member.stream).unwrap();
        member.stream.copy(source.region(), kept.region()).unwrap();
        member.stream.synchronise().unwrap();
        assert_eq!(download(&kept)[..8], 3i64.to_le_bytes());
    });
}

#[test]
fn messages_and_ragged_blocks() {
    processes("messages_and_ragged_blocks", 3, &[], |rank, size, id| {
        let member = Member::new(rank, size, &id, 8192);
        // More than a slot, in a group to and from everybody, oneself included.
        let count = |from: u32, to: u32| 1000 + 300 * from as usize + 50 * to as usize;
        let value = |from: u32, to: u32| i64::from(10 * from + to);
        let sent: Vec<Buffer> = (0..size)
            .map(|to| member.upload(&words(vec![value(rank, to); count(rank, to)])))
            .collect();
        let received: Vec<Buffer> =
            (0..size).map(|from| member.gpu().allocate(8 * count(from, rank)).unwrap()).collect();
        let sends = (0..)
            .zip(&sent)
            .map(|(peer, buffer)| OperationOn::Send { peer: Rank(peer), data: buffer.region() });
        let receives = (0..)
            .zip(&received)
            .map(|(peer, buffer)| OperationOn::Receive { peer: Rank(peer), data: buffer.region() });
        let group: Vec<cuda::Operation<'_>> = sends.chain(receives).collect();
        member.cuda.enqueue_group(&group, &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        for (from, buffer) in (0..).zip(&received) {
            let expected = words(vec![value(from, rank); count(from, rank)]);
            assert!(download(buffer) == expected, "from {from} to {rank}");
        }

        // With a gap between blocks that nobody touches.
        let ragged = |from: u32, to: u32| 1 + (from + 2 * to) as usize;
        let send = (0..size).map(|to| (ragged(rank, to), 20 * to as usize)).collect();
        let receive = (0..size).map(|from| (ragged(from, rank), 20 * from as usize)).collect();
        let input: Vec<i64> = (0..60).map(|index| value(rank, index / 20)).collect();
        let (input, output) = (member.upload(&words(input)), member.upload(&words([-1; 60])));
        let operation = OperationOn::AllToAllV {
            datatype: DataType::Int64,
            counts: Ragged { send, receive },
            input: input.region(),
            output: output.region(),
        };
        member.cuda.enqueue(operation, &member.stream).unwrap();
        member.cuda.enqueue(OperationOn::Barrier, &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        let expected = (0..60u32).map(|index| {
            let (from, at) = (index / 20, index as usize % 20);
            if at < ragged(from, rank) { value(from, rank) } else { -1 }
        });
        assert!(download(&output) == words(expected));
        member.cuda.wait().unwrap();
    });
}

#[test]
fn an_abort_lets_the_stream_go() {
    threads("an_abort_lets_the_stream_go", 2, |rank, id| {
        let member = Member::new(rank, 2, id, 4096);
        let data = member.upload(&words([1; 2000]));
        if rank == 0 {
            // The other rank never comes.
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.cuda.abort("on purpose");
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
        let next = member.cuda.enqueue(all_reduce(&data), &member.stream);
        assert!(matches!(next, Err(Error::Aborted { .. })), "{next:?}");
        member.stream.synchronise().unwrap();
    });
}

#[test]
fn an_abort_ends_what_waits_for_its_stream() {
    threads("an_abort_ends_what_waits_for_its_stream", 1, |rank, id| {
        let member = Member::new(rank, 1, id, 4096);
        let (data, words_of_host) = (member.upload(&words([1; 10])), member.gpu().pin(4).unwrap());
        // Holds the stream up before the collective.
        member.stream.wait_for_word(&words_of_host, 0, 1).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        member.cuda.abort("on purpose");
        assert!(matches!(member.cuda.wait(), Err(Error::Aborted { .. })));
        words_of_host.word(0).store(1, std::sync::atomic::Ordering::Release);
        member.stream.synchronise().unwrap();
    });
}

#[test]
fn streams_of_a_group_wait_for_each_other() {
    threads("streams_of_a_group_wait_for_each_other", 2, |rank, id| {
        let member = Member::new(rank, 2, id, 4096);
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        let (source, data) = (member.upload(&words([1; 600])), member.upload(&words([0; 600])));
        let word = member.gpu().pin(4).unwrap();
        // The call goes on the first stream, its input comes on the second one, late.
        streams[1].wait_for_word(&word, 0, 1).unwrap();
        streams[1].copy(source.region(), data.region()).unwrap();
        member.cuda.enqueue_joined(&[all_reduce(&data)], &streams).unwrap();
        streams[1].copy(data.region(), source.region()).unwrap();
        word.word(0).store(1, std::sync::atomic::Ordering::Release);
        streams[1].synchronise().unwrap();
        assert!(download(&source) == words([2; 600]));
        let none = member.cuda.enqueue_joined(&[all_reduce(&data)], &[]);
        assert!(matches!(none, Err(Error::InvalidArgument(_))), "{none:?}");
        member.cuda.wait().unwrap();
    });
}

#[test]
fn a_rank_that_dies_is_named_and_the_stream_goes_on() {
    const TEST: &str = "a_rank_that_dies_is_named_and_the_stream_goes_on";
    processes(TEST, 3, &[1], |rank, size, id| {
        let member = Member::new(rank, size, &id, 4096);
        let data = member.upload(&words([1; 2000]));
        if rank == 1 {
            process::abort();
        }
        // The call may have begun before or after that is known.
        let error = loop {
            let enqueued = member.cuda.enqueue(all_reduce(&data), &member.stream);
            member.stream.synchronise().unwrap();
            if let Err(error) = enqueued.and_then(|()| member.cuda.wait()) {
                break error;
            }
        };
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        assert_eq!(member.cuda.check(), Err(error), "it is kept");
    });
}

#[test]
fn what_is_no_memory_of_the_device_is_refused() {
    threads("what_is_no_memory_of_the_device_is_refused", 1, |rank, id| {
        let member = Member::new(rank, 1, id, 4096);
        let (own, other) = (member.upload(&words([1; 10])), cuda::open(1).unwrap());
        let (pinned, there) = (member.gpu().pin(80).unwrap(), other.allocate(80).unwrap());
        let vector = words([1; 10]);
        // SAFETY: nothing is done with it: that is what is tested.
        let host = unsafe { DeviceRegion::new(vector.as_ptr().expose_provenance() as u64, 80) };
        let refused = |region: DeviceRegion<'_>, expected: &str| {
            let operation = OperationOn::Collective {
                request: sum(10),
                input: Some(own.region()),
                output: Some(region),
            };
            let error = member.cuda.enqueue(operation, &member.stream).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        };
        refused(host, "not known to the driver");
        refused(pinned.region(), "pinned memory of the host");
        refused(there.region(), "memory of device 1");
        refused(own.region().part(0, 72), "80 are needed");
        let stream = other.stream().unwrap();
        let error = member.cuda.enqueue(all_reduce(&own), &stream).unwrap_err();
        assert!(error.to_string().contains("the stream is of device 1"), "{error}");
        let graph = member.stream.capture(|| {
            let error = member.cuda.enqueue(all_reduce(&own), &member.stream).unwrap_err();
            assert!(matches!(error, Error::InvalidUsage(_)), "{error}");
            assert!(error.to_string().contains("captured into a graph"), "{error}");
            member.stream.copy(own.region(), own.region())
        });
        graph.unwrap();
        // Nothing has happened.
        member.cuda.enqueue(all_reduce(&own), &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        member.cuda.wait().unwrap();
        assert!(download(&own) == words([1; 10]));
    });
}

#[test]
fn without_a_driver_it_is_said_so() {
    let error = cuda::open(0).map_or_else(|error| error.to_string(), |_| "a device".to_owned());
    if ["a device", "open a device", "driver supports"].iter().any(|text| error.contains(text)) {
        return skip("the error without a CUDA driver: there is one");
    }
    assert!(error.contains("no CUDA driver: there is no libcuda.so.1"), "{error}");
}
