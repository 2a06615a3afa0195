//! What ranks do in the tests. All results are exact, whatever the order of summation.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use ccl::{
    Allocation, Collective, Communicator, Config, DataType, Error, Group, Ongoing, Operation, Rank,
    ReduceOp, Reduction, Region, Request, UniqueId,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use super::child::{Child, Line, Role};
use super::footprint;

/// All roles, by name.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("endless", endless),
    ("endless in memory of the library", endless_in_shared_memory),
    ("endless without who is lost", endless_without_who_is_lost),
    ("endless with a rank in its place", endless_with_a_replacement),
    ("endless copies by the system", endless_copies_by_the_system),
    ("endless without /dev/shm", endless_without_named_memory),
    ("endless splits", endless_splits),
    ("every collective", every_collective),
    ("misuse", misuse),
    ("mismatches", mismatches),
    ("abort", abort),
    ("churn", churn),
];

/// Elements of an all-reduce of 1 MiB.
const MEBIBYTE: usize = (1 << 20) / size_of::<u32>();

/// Calls after which a rank is in the middle of them.
const CALLS_UNTIL_UNDERWAY: u32 = 20;

/// All-reduces of 1 MiB without an end, until the first rank hears a word; every result is checked.
/// Says that it is under way after the first calls.
fn endless(child: &Child) {
    let mut data = vec![0u32; MEBIBYTE];
    child.as_member(|communicator| sums_until_told(child, communicator, &mut data));
}

/// As [`endless`], in memory that all ranks read and write.
fn endless_in_shared_memory(child: &Child) {
    child.as_member(|communicator| {
        let allocation = Allocation::new(MEBIBYTE * size_of::<u32>())?;
        let start = allocation.address().cast::<u32>();
        // SAFETY: zeros of this size, aligned to pages, which only this rank and its calls use.
        let data = unsafe { std::slice::from_raw_parts_mut(start, MEBIBYTE) };
        sums_until_told(child, communicator, data)
    });
}

/// As [`endless`], of all ranks and then of those that are left.
fn endless_without_who_is_lost(child: &Child) {
    let mut data = vec![0u32; MEBIBYTE];
    child.as_member(|communicator| sums_of_who_is_left(child, communicator, &mut data));
}

fn sums_of_who_is_left(
    child: &Child,
    communicator: &Communicator,
    data: &mut [u32],
) -> Result<String, Error> {
    match sums_until_told(child, communicator, data) {
        Err(Error::PeerLost { .. }) => {
            sums_of_who_is_left(child, &without_who_is_lost(communicator)?, data)
        }
        other => other,
    }
}

/// Tries again: others may have known of fewer that are lost, or of more.
fn without_who_is_lost(communicator: &Communicator) -> Result<Communicator, Error> {
    let mut attempts = 2 * communicator.size();
    loop {
        attempts -= 1;
        match communicator.shrink(&communicator.lost_ranks(), Ongoing::Finish, None) {
            Err(_) if attempts > 0 => {}
            outcome => return outcome,
        }
    }
}

/// As [`endless`], and then with a new process for the one that is lost, which has the last number.
fn endless_with_a_replacement(child: &Child) {
    let mut data = vec![0u32; MEBIBYTE];
    child.as_member(|communicator| match sums_until_told(child, communicator, &mut data) {
        Err(Error::PeerLost { rank: lost, .. }) => {
            let left = communicator.shrink(&[lost], Ongoing::Finish, None)?;
            if left.rank() == Rank(0) {
                child.pass_on(&left.growth_id()?);
            }
            let grown = left.grow(communicator.size(), None)?;
            assert_eq!(grown.rank(), left.rank());
            sums_until_told(child, &grown, &mut data)
        }
        other => other,
    });
}

fn sums_until_told(
    child: &Child,
    communicator: &Communicator,
    data: &mut [u32],
) -> Result<String, Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    for call in 0.. {
        // The first element is the wish to stop, the others differ by place, call and rank.
        data[0] = u32::from(me == 0 && child.was_told());
        for (value, place) in data[1..].iter_mut().zip(1..) {
            *value = place + call + me;
        }
        communicator.all_reduce_in_place(data, ReduceOp::Sum)?;
        let expected = |place: u32| size * (place + call) + size * (size - 1) / 2;
        let wrong = data[1..].iter().zip(1..).find(|(value, place)| **value != expected(*place));
        assert_eq!(wrong, None, "call {call} on rank {me}");
        if call == CALLS_UNTIL_UNDERWAY {
            child.report(&Line::Underway { of: communicator.size() });
        }
        if data[0] > 0 {
            break;
        }
    }
    Ok("all results exact".to_owned())
}

/// Splits without an end, into one part with all.
fn endless_splits(child: &Child) {
    child.as_member(|communicator| {
        for call in 0.. {
            let part = communicator.split(Some(0), 0, None)?.expect("every rank has the colour");
            assert_eq!(part.size(), communicator.size());
            if call == 2 {
                child.report(&Line::Underway { of: communicator.size() });
            }
        }
        unreachable!("it has no end")
    });
}

/// As [`endless`], but AllGathers that read the memory of all processes.
fn endless_copies_by_the_system(child: &Child) {
    child.as_member(|communicator| {
        let (me, size) = (communicator.rank().0, communicator.size() as usize);
        // So much of two inputs each of two ranks adds by itself.
        let elements = if size == 2 { MEBIBYTE / 4 } else { MEBIBYTE };
        let mut all = vec![0u32; size * elements];
        for call in 0.. {
            let stops = u32::from(me == 0 && child.was_told());
            let own: Vec<u32> =
                (0..).take(elements).map(|place| place * 2 + call + me + stops).collect();
            communicator.all_gather(&own, &mut all)?;
            let stops = all[0] - call;
            for (rank, block) in (0..).zip(all.chunks(elements)) {
                let first = call + rank + if rank == 0 { stops } else { 0 };
                let wrong = (0..).zip(block).find(|(place, value)| **value != place * 2 + first);
                assert_eq!(wrong, None, "call {call} on rank {me} from rank {rank}");
            }
            let mut sums = vec![0u32; elements];
            communicator.all_reduce(&own, &mut sums, ReduceOp::Sum)?;
            let sum = |place: usize| all.iter().skip(place).step_by(elements).sum::<u32>();
            let wrong = sums.iter().enumerate().find(|(place, value)| **value != sum(*place));
            assert_eq!(wrong, None, "sum of call {call} on rank {me}");
            if call == CALLS_UNTIL_UNDERWAY {
                child.report(&Line::Underway { of: communicator.size() });
            }
            if stops > 0 {
                break;
            }
        }
        Ok("all results exact".to_owned())
    });
}

/// As [`endless`], with a `/dev/shm` of its own on which there is no room.
fn endless_without_named_memory(child: &Child) {
    match full_shared_memory_folder() {
        Ok(()) => endless(child),
        Err(reason) => {
            child.report(&Line::Skipped(reason));
            child.word();
        }
    }
}

/// Gives the calling thread, and those it starts, a `/dev/shm` without room.
fn full_shared_memory_folder() -> Result<(), String> {
    let named = |call: &'static str| move |cause| format!("{call}: {cause}");
    // SAFETY: descriptors stay shared; only the view of mounted file systems becomes this thread's own.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.map_err(named("unshare"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(named("make the mounts private"))?;
    mount("none", "/dev/shm", "tmpfs", MountFlags::empty(), Some(c"size=64k"))
        .map_err(named("mount a file system"))?;
    let mut file = std::fs::File::create("/dev/shm/filling").map_err(|e| e.to_string())?;
    let refused = (0..64).any(|_| file.write_all(&[0; 4096]).is_err());
    assert!(refused, "a file system of 64 KiB has no room for more");
    Ok(())
}

/// Every kind of collective with sizes around those of tiles; ends once.
fn every_collective(child: &Child) {
    child.as_member(|communicator| {
        for length in [1, 3, 1000, 32_768, 100_001] {
            reductions(communicator, length)?;
            movements(communicator, length)?;
        }
        communicator.finalize()?;
        Ok("all results exact".to_owned())
    });
}

/// What `rank` has at `place`.
fn value(rank: u32, place: usize) -> i64 {
    i64::from(rank) * 1_000_003 + place as i64
}

fn reductions(communicator: &Communicator, length: usize) -> Result<(), Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let own: Vec<i64> = (0..length).map(|place| value(me, place)).collect();
    let sum = |place| (0..size).map(|rank| value(rank, place)).sum::<i64>();
    let mut result = vec![0; length];
    communicator.all_reduce(&own, &mut result, ReduceOp::Sum)?;
    assert!((0..length).all(|place| result[place] == sum(place)));
    communicator.all_reduce(&own, &mut result, ReduceOp::Max)?;
    assert!((0..length).all(|place| result[place] == value(size - 1, place)));
    let blocks: Vec<i64> = (0..length * size as usize).map(|place| value(me, place)).collect();
    communicator.reduce_scatter(&blocks, &mut result, ReduceOp::Sum)?;
    let first = me as usize * length;
    assert!((0..length).all(|place| result[place] == sum(first + place)));
    Ok(())
}

fn movements(communicator: &Communicator, length: usize) -> Result<(), Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let own: Vec<i64> = (0..length).map(|place| value(me, place)).collect();
    let mut all = vec![0; length * size as usize];
    communicator.all_gather(&own, &mut all)?;
    let from = |rank: u32, data: &[i64]| (0..length).all(|place| data[place] == value(rank, place));
    assert!((0..).zip(all.chunks(length)).all(|(rank, block)| from(rank, block)));
    for root in 0..size {
        let mut data = own.clone();
        communicator.broadcast(&mut data, Rank(root))?;
        assert!(from(root, &data));
    }
    let mut exchanged = vec![0; all.len()];
    communicator.all_to_all(&all, &mut exchanged)?;
    assert!(exchanged.chunks(length).all(|block| from(me, block)));
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let mut received = vec![0; length];
    let mut group = Group::default();
    group.add(communicator, Operation::Send { peer: Rank(next), data: Region::of(&own) });
    let data = Region::of_mut(&mut received);
    group.add(communicator, Operation::Receive { peer: Rank(previous), data });
    group.run()?;
    assert!(from(previous, &received));
    Ok(())
}

/// A call that one rank alone can tell to be wrong.
pub(crate) struct Misuse {
    pub(crate) name: &'static str,
    call: fn(&Communicator) -> Result<(), Error>,
    /// What the message has to contain; without one the call succeeds.
    pub(crate) complaint: Option<&'static str>,
}

const fn wrong(
    name: &'static str,
    complaint: &'static str,
    call: fn(&Communicator) -> Result<(), Error>,
) -> Misuse {
    Misuse { name, call, complaint: Some(complaint) }
}

const fn right(name: &'static str, call: fn(&Communicator) -> Result<(), Error>) -> Misuse {
    Misuse { name, call, complaint: None }
}

/// In the order in which [`misuse`] makes them.
pub(crate) const MISUSES: &[Misuse] = &[
    wrong("a root beyond the group", "root 9", |c| c.broadcast(&mut [1u8; 4], Rank(9))),
    wrong("a peer beyond the group", "peer 2", |c| c.send(&[1u8; 4], Rank(2))),
    wrong("no input", "input buffer has 0", |c| c.run(all_reduce(4, None, Some(&mut [0; 4])))),
    wrong("no output", "output buffer has 0", |c| c.run(all_reduce(4, Some(&mut [0; 4]), None))),
    wrong("a short output", "7 elements, 8 are", |c| c.all_gather(&[1u8; 4], &mut [0; 7])),
    wrong("overlapping buffers", "overlap", overlapping),
    wrong("a count beyond memory", "count", |c| c.run(all_reduce(usize::MAX / 2, None, None))),
    right("nothing to reduce", |c| c.all_reduce_in_place::<f32>(&mut [], ReduceOp::Sum)),
    right("nothing to send on", |c| c.broadcast::<f32>(&mut [], Rank(1))),
    right("nothing to gather", |c| c.all_gather::<f32>(&[], &mut [])),
    right("a right call after all that", right_call),
];

fn all_reduce<'a>(
    count: usize,
    input: Option<&'a mut [i32]>,
    output: Option<&'a mut [i32]>,
) -> Operation<'a> {
    let reduction = Reduction::Builtin(ReduceOp::Sum);
    let (collective, datatype) = (Collective::AllReduce, DataType::Int32);
    let request = Request { collective, count, datatype, reduction, root: Rank(0) };
    Operation::Collective {
        request,
        input: input.map(Region::of_mut),
        output: output.map(Region::of_mut),
    }
}

fn overlapping(communicator: &Communicator) -> Result<(), Error> {
    let mut memory = [0i32; 6];
    let whole = Region::of_mut(&mut memory);
    let Operation::Collective { request, .. } = all_reduce(4, None, None) else { unreachable!() };
    let (input, output) = (Some(whole.part(0, 16)), Some(whole.part(8, 16)));
    communicator.run(Operation::Collective { request, input, output })
}

fn right_call(communicator: &Communicator) -> Result<(), Error> {
    let mut data = [communicator.rank().0 + 1];
    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    let size = communicator.size();
    assert_eq!(data[0], size * (size + 1) / 2);
    Ok(())
}

/// Makes the calls of [`MISUSES`], leaves, and claims a rank and a size that cannot be; ends after
/// each of these.
fn misuse(child: &Child) {
    child.as_member(|communicator| {
        for misuse in MISUSES {
            child.end((misuse.call)(communicator).map(|()| misuse.name.to_owned()));
        }
        communicator.finalize().map(|()| String::new())
    });
    let config = Config::default();
    let id = UniqueId::create(&config.settings).expect("a store");
    for (rank, size) in [(7, 2), (0, 0)] {
        child.end(Communicator::create(&id, rank, size, &config).map(|_| String::new()));
    }
}

/// A call that differs between ranks: with `true` on the odd one, with `false` on the others.
pub(crate) type Mismatch = fn(&Communicator, bool) -> Result<(), Error>;

/// In the order in which [`mismatches`] makes them, with what differs.
pub(crate) const MISMATCHES: &[(&str, Mismatch)] = &[
    ("count", |c, odd| {
        c.all_reduce_in_place(&mut vec![1f32; 10 + usize::from(odd)], ReduceOp::Sum)
    }),
    ("count of nothing", |c, odd| {
        c.all_reduce_in_place(&mut vec![1f32; if odd { 0 } else { 10 }], ReduceOp::Sum)
    }),
    ("large count", |c, odd| {
        let length = 1_000_000 - usize::from(odd);
        c.all_reduce_in_place(&mut vec![1f32; length], ReduceOp::Sum)
    }),
    ("type", |c, odd| match odd {
        true => c.all_reduce_in_place(&mut [1i32; 10], ReduceOp::Sum),
        false => c.all_reduce_in_place(&mut [1f32; 10], ReduceOp::Sum),
    }),
    ("operation", |c, odd| {
        let operation = if odd { ReduceOp::Min } else { ReduceOp::Max };
        c.all_reduce_in_place(&mut [1f32; 10], operation)
    }),
    ("collective", |c, odd| match odd {
        true => c.broadcast(&mut [1f32; 10], Rank(0)),
        false => c.all_reduce_in_place(&mut [1f32; 10], ReduceOp::Sum),
    }),
    // Two roots may have sent all they have before anybody can notice: the barrier notices.
    ("root", |c, odd| {
        c.broadcast(&mut [1f32; 10], Rank(u32::from(odd))).and_then(|()| c.barrier())
    }),
];

/// Makes each call of [`MISMATCHES`] in a group of its own, rank 1 as the odd one; ends after each.
fn mismatches(child: &Child) {
    child.as_member(|communicator| {
        for (_, call) in MISMATCHES {
            let part = communicator.split(Some(0), 0, None)?.expect("every rank has the colour");
            child.end(call(&part, child.rank == 1).map(|()| String::new()));
        }
        communicator.barrier().map(|()| String::new())
    });
}

/// Rank 2 aborts when it hears a word, while another thread of it and all other ranks but the last
/// are inside a call; the last one calls when it hears a word. Ends with that call, on all ranks.
fn abort(child: &Child) {
    child.as_member(|communicator| {
        let call = || communicator.all_reduce_in_place(&mut vec![1f32; MEBIBYTE], ReduceOp::Sum);
        child.report(&Line::Underway { of: communicator.size() });
        let result = match child.rank {
            2 => thread::scope(|scope| {
                let inside = scope.spawn(call);
                child.word();
                communicator.abort("enough");
                inside.join().expect("no panic")
            }),
            3 => {
                child.word();
                call()
            }
            _ => call(),
        };
        assert_eq!(result.as_ref().err(), communicator.async_error().as_ref());
        result.map(|()| String::new())
    });
}

/// How often [`churn`] makes and ends communicators.
const CHURNS: u32 = 50;

/// After this many times everything that is made once is there.
const WARM_UP: u32 = 3;

/// Makes, splits, uses and ends communicators again and again; ends with a sentence if the process
/// has as many descriptors and threads afterwards as after the first times.
fn churn(child: &Child) {
    child.as_member(|communicator| {
        for _ in 0..WARM_UP {
            one_churn(communicator)?;
        }
        let before = settled(communicator, (usize::MAX, usize::MAX))?;
        for _ in WARM_UP..CHURNS {
            one_churn(communicator)?;
        }
        let after = settled(communicator, before)?;
        let (fds, threads) = before;
        assert!(after.0 <= fds && after.1 <= threads, "{before:?} became {after:?}");
        Ok(format!("{fds} descriptors, {threads} threads before and after"))
    });
}

/// A new group by a new id, and parts of it.
fn one_churn(communicator: &Communicator) -> Result<(), Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let config = Config::from_environment()?;
    let mut bytes = match me {
        0 => UniqueId::create(&config.settings)?.to_bytes(),
        _ => [0; 128],
    };
    communicator.broadcast(&mut bytes, Rank(0))?;
    let group = Communicator::create(&UniqueId::from_bytes(&bytes)?, me, size, &config)?;
    right_call(&group)?;
    let part = group.split(Some(me % 2), 0, None)?.expect("every rank has a colour");
    right_call(&part)?;
    let pending = part.start(Operation::Barrier)?;
    pending.wait()?;
    if me == 0 {
        group.finalize()?;
    }
    Ok(())
}

/// Descriptors and threads of this process, once they are no more than `limit`: stores end when they
/// hear that everybody has gone.
fn settled(communicator: &Communicator, limit: (usize, usize)) -> Result<(usize, usize), Error> {
    let end = Instant::now() + Duration::from_secs(5);
    communicator.barrier()?;
    let mut least = (usize::MAX, usize::MAX);
    loop {
        let now = (footprint::descriptors("self"), footprint::threads("self"));
        let changed = now.0 < least.0 || now.1 < least.1;
        least = (least.0.min(now.0), least.1.min(now.1));
        let fits = least.0 <= limit.0 && least.1 <= limit.1;
        if (fits && !changed) || Instant::now() > end {
            return Ok(least);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
