//! Collectives that are repeated, so that they go by tiles, and by copies that the system makes.
#![allow(clippy::print_stdout, reason = "a skip is reported")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use ccl_core::settings::{CrossMemoryAttach, Settings};

use ccl::{
    Collective, Communicator, DataType, Error, Operation, Rank, ReduceOp, Reduction, Region,
    Request,
};

use super::{config, ranks};

/// More than a trial has, and what it may wait for, so that its verdict is used too.
const CALLS_TO_COMPARE: usize = 52;

/// Where nothing is compared.
const CALLS: usize = 8;

/// What `from` has for `to` in a call: no two bytes that could be confused are equal.
fn byte(call: usize, from: u32, to: u32, at: usize) -> u8 {
    (call * 101 + from as usize * 37 + to as usize * 11 + at * 7 + at / 253) as u8
}

fn request(collective: Collective, count: usize) -> Request {
    Request { collective, count, datatype: DataType::Uint8, ..Request::BARRIER }
}

/// One call of blocks of `bytes` bytes, whose buffers begin at an odd address.
fn call(
    communicator: &Communicator,
    collective: Collective,
    bytes: usize,
    call: usize,
    in_place: bool,
) {
    let (me, size) = (communicator.rank().0, communicator.size());
    let blocks = size as usize;
    let receiver = |block: u32| if collective == Collective::AllToAll { block } else { 0 };
    let own_at = if collective == Collective::AllGather { me as usize * bytes } else { 0 };
    let own_blocks = if collective == Collective::AllGather { 1 } else { size };
    let own: Vec<u8> = (0..own_blocks)
        .flat_map(|block| (0..bytes).map(move |at| byte(call, me, receiver(block), at)))
        .collect();
    let mut input = [vec![0], own.clone()].concat();
    let mut output = vec![0xee; 1 + blocks * bytes + 1];
    if in_place {
        output[1 + own_at..1 + own_at + own.len()].copy_from_slice(&own);
    }
    let all = Region::of_mut(&mut output).part(1, blocks * bytes);
    let own = match in_place {
        true => all.part(own_at, own.len()),
        false => Region::of_mut(&mut input).part(1, own.len()),
    };
    let request = request(collective, bytes);
    let operation = Operation::Collective { request, input: Some(own), output: Some(all) };
    communicator.run(operation).unwrap();
    for (from, block) in (0..size).zip(output[1..].chunks(bytes)) {
        let expected = |at| byte(call, from, receiver(me), at);
        let wrong = (0..bytes).find(|at| block[*at] != expected(*at));
        assert_eq!(
            wrong, None,
            "{collective:?} of {bytes}, call {call}, from {from} to {me} of {size}"
        );
    }
    assert_eq!((output[0], output[1 + blocks * bytes]), (0xee, 0xee), "outside");
}

fn repeat(
    communicator: &Communicator,
    calls: usize,
    bytes: usize,
    in_place: impl Fn(usize) -> bool,
) {
    for collective in [Collective::AllGather, Collective::AllToAll] {
        (0..calls).for_each(|n| call(communicator, collective, bytes, n, in_place(n)));
    }
}

/// What rank `from` contributes in a call.
fn number(call: usize, from: u32, at: usize) -> f32 {
    ((call * 31 + from as usize * 17 + at * 5 + at / 509) % 1021) as f32
}

/// One call with `count` numbers in a block: a sum, a mean, or what rank 1 has.
fn call_with_numbers(
    communicator: &Communicator,
    (collective, op): (Collective, ReduceOp),
    count: usize,
    call: usize,
    in_place: bool,
) {
    let (me, size) = (communicator.rank().0, communicator.size());
    let scatters = collective == Collective::ReduceScatter;
    let (sent, own_at) = if scatters { (size as usize, me as usize * count) } else { (1, 0) };
    let mut input: Vec<f32> = (0..sent * count).map(|at| number(call, me, at)).collect();
    let mut output = vec![-1.0_f32; count];
    {
        let from = Region::of_mut(&mut input);
        let to = match in_place {
            true => from.part(own_at * size_of::<f32>(), count * size_of::<f32>()),
            false => Region::of_mut(&mut output),
        };
        let reduction = Reduction::Builtin(op);
        let datatype = DataType::Float32;
        let request = Request { collective, count, datatype, reduction, root: Rank(1) };
        let operation = Operation::Collective { request, input: Some(from), output: Some(to) };
        communicator.run(operation).unwrap();
    }
    let result = if in_place { &input[own_at..own_at + count] } else { &output[..] };
    for (at, result) in result.iter().enumerate() {
        let at = own_at + at;
        let sum = || (0..size).map(|from| number(call, from, at)).sum::<f32>();
        let expected = match (collective, op) {
            (Collective::Broadcast, _) => number(call, 1, at),
            (_, ReduceOp::Avg) => {
                (0..size).map(|from| number(call, from, at) * (1.0 / size as f32)).sum()
            }
            _ => sum(),
        };
        assert_eq!(
            *result, expected,
            "{collective:?} {op:?} of {count}, call {call}, {at} at {me}"
        );
    }
}

/// Ranks that go by what is found to be faster, or always have the system copy, and so many calls.
fn on_both_ways(size: u32, body: impl Fn(Communicator, usize) + Send + Clone + 'static) {
    let ways =
        [(CrossMemoryAttach::Measured, CALLS_TO_COMPARE), (CrossMemoryAttach::Always, CALLS)];
    for (way, calls) in ways {
        let mut config = config();
        config.settings.cross_memory_attach = way;
        let body = body.clone();
        ranks(size, &config, move |communicator| body(communicator, calls));
    }
}

#[test]
fn every_way_gives_the_same_results() {
    for size in [2, 3] {
        on_both_ways(size, |communicator, calls| {
            for bytes in [40_001, (1 << 19) + 5] {
                repeat(&communicator, calls, bytes, |_| false);
                repeat(&communicator, calls, bytes, |_| true);
                repeat(&communicator, calls, bytes, |call| call % 2 == 1);
            }
        });
    }
}

#[test]
fn what_is_combined_or_broadcast_is_the_same_every_way() {
    use Collective::{AllReduce, Broadcast, ReduceScatter};
    for size in [2, 3] {
        on_both_ways(size, |communicator, calls| {
            for of in [
                (AllReduce, ReduceOp::Sum),
                (AllReduce, ReduceOp::Avg),
                (ReduceScatter, ReduceOp::Sum),
                (Broadcast, ReduceOp::Sum),
            ] {
                for count in [17_000, (1 << 17) + 3] {
                    for in_place in [[false; 2], [true; 2], [false, true]] {
                        (0..calls).for_each(|n| {
                            call_with_numbers(&communicator, of, count, n, in_place[n % 2]);
                        });
                    }
                }
            }
        });
    }
}

/// Whoever is in place cannot have its input read in an AllToAll, and the others hear of it.
#[test]
fn ranks_in_place_call_with_others_that_are_not() {
    on_both_ways(3, |communicator, calls| {
        let me = communicator.rank().0 as usize;
        repeat(&communicator, calls, 100_000, |_| me == 1);
        repeat(&communicator, calls, 30_000, |call| call % 3 == me);
    });
}

/// Whoever is in place writes its sum where the other one still reads.
#[test]
fn one_of_two_ranks_is_in_place() {
    on_both_ways(2, |communicator, calls| {
        let me = communicator.rank().0 as usize;
        for in_place in [[true, false], [false, true]] {
            let of = (Collective::AllReduce, ReduceOp::Sum);
            (0..calls).for_each(|n| {
                call_with_numbers(&communicator, of, 100_000, n, in_place[(me + n) % 2]);
            });
        }
    });
}

/// All do what the most reluctant rank says.
#[test]
fn ranks_may_ask_for_different_ways() {
    use CrossMemoryAttach::{Always, Measured, Never};
    ranks(3, &config(), |communicator| {
        for asked in [[Always, Never, Measured], [Always, Measured, Always]] {
            let mut config = config();
            config.settings.cross_memory_attach = asked[communicator.rank().0 as usize];
            let split = communicator.split(Some(0), 0, Some(&config)).unwrap().unwrap();
            repeat(&split, CALLS_TO_COMPARE, 50_000, |_| false);
        }
    });
}

/// Who is asked for an algorithm neither asks where buffers are nor is attached, and what ranks tell each other in the middle of a
/// call has an algorithm, too.
#[test]
fn ranks_that_are_asked_for_different_algorithms_disagree() {
    let asked = ["allreduce:one_shot", "allreduce:two_shot", "allgather:ring"];
    ranks(2, &config(), move |communicator| {
        for asked in asked.into_iter().chain(["barrier:recursive_doubling"]) {
            let mut config = config();
            if communicator.rank() == Rank(1) {
                config.settings.algorithms =
                    Settings::parse([("R2CCL_ALGO", asked)]).unwrap().settings.algorithms;
            }
            let split = communicator.split(Some(0), 0, Some(&config)).unwrap().unwrap();
            let refused = split.all_reduce_in_place(&mut vec![1f32; 1 << 18], ReduceOp::Sum);
            assert!(matches!(refused, Err(Error::Disagreement { .. })), "{asked}: {refused:?}");
        }
    });
}

/// Memory that its process can read, and the system for nobody.
struct Secret {
    address: *mut u8,
    bytes: usize,
}

impl Secret {
    /// None where the system has no such memory.
    fn new(bytes: usize) -> Option<Self> {
        // SAFETY: it takes a number and touches no memory.
        let file = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
        let file = i32::try_from(file).ok().filter(|file| *file >= 0)?;
        // SAFETY: the file is open, and nobody else has it.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(bytes as u64).ok()?;
        let (access, file) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: the mapping is a new one.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0) };
        (address != libc::MAP_FAILED).then_some(Self { address: address.cast(), bytes })
    }

    fn region(&mut self) -> Region<'_> {
        // SAFETY: the mapping has so many bytes and is borrowed as long as the region lives.
        unsafe { Region::new(self.address, self.bytes) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: nobody has a region of the mapping any more.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

/// The others hear of it, and all go by tiles.
#[test]
fn memory_that_the_system_does_not_copy_goes_by_tiles() {
    const BYTES: usize = 64 << 10;
    if Secret::new(BYTES).is_none() {
        println!("skip: this system has no memfd_secret");
        return;
    }
    on_both_ways(2, |communicator, calls| {
        let me = communicator.rank().0;
        let mut secret = (me == 1).then(|| Secret::new(BYTES).unwrap());
        for n in 0..calls {
            let own: Vec<u8> = (0..BYTES).map(|at| byte(n, me, 0, at)).collect();
            let own = Region::of(&own);
            let input = secret.as_mut().map_or(own, Secret::region);
            if me == 1 {
                ccl_kernels::copy(own.source(0, BYTES), input.target(0, BYTES));
            }
            let mut output = vec![0u8; 2 * BYTES];
            let (request, all) =
                (request(Collective::AllGather, BYTES), Region::of_mut(&mut output));
            let gather = Operation::Collective { request, input: Some(input), output: Some(all) };
            communicator.run(gather).unwrap();
            for (from, block) in (0..).zip(output.chunks(BYTES)) {
                assert!((0..BYTES).all(|at| block[at] == byte(n, from, 0, at)), "{n} from {from}");
            }
        }
    });
}
