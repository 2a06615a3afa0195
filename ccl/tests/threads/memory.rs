//! Buffers in memory of the library, which all ranks of a host reach.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test names the collectives that it is about")]

use ccl::{
    Allocation, Collective, DataType, Operation, Rank, ReduceOp, Reduction, Region, Request,
};

use super::{config, ranks};

/// Large buffers in shareable memory are read in place by the peers: the results must not depend on
/// that, in place or not, with neighbours that use ordinary memory.
#[test]
fn shareable_memory_gives_the_same_results() {
    for (ranks, count) in [(2, 16_384), (4, 8_192), (4, 16_001), (4, 300_001), (3, 1_000_000)] {
        share(ranks, count);
    }
}

fn share(size: u32, count: usize) {
    ranks(size, &config(), move |communicator| {
        let me = communicator.rank().0;
        let allocation = Allocation::new(2 * count * 4).unwrap();
        let registration = communicator.register(allocation.address().addr(), 64).unwrap();
        assert!(registration.is_shared());
        for in_place in [false, true] {
            let mut own: Vec<f32> = (0..count).map(|i| (i % 1000) as f32 + me as f32).collect();
            let mut result = vec![0f32; count];
            // SAFETY: the allocation is larger than both parts, and only this thread and the
            // collective use it.
            let whole = unsafe { Region::new(allocation.address(), 2 * count * 4) };
            let (input, output) = (whole.part(0, count * 4), whole.part(count * 4, count * 4));
            ccl_kernels::copy(Region::of(&own).source(0, count * 4), input.target(0, count * 4));
            let request = Request {
                collective: Collective::AllReduce,
                count,
                datatype: DataType::Float32,
                reduction: Reduction::Builtin(ReduceOp::Sum),
                root: Rank(0),
            };
            let output = if in_place { input } else { output };
            // Rank 3 stays with ordinary memory.
            let (input, output) = match me {
                3 => (Region::of_mut(&mut own), Region::of_mut(&mut result)),
                _ => (input, output),
            };
            let (input, output) = (Some(input), Some(output));
            communicator.run(Operation::Collective { request, input, output }).unwrap();
            let output = output.unwrap();
            let mut got = vec![0f32; count];
            ccl_kernels::copy(
                output.source(0, count * 4),
                Region::of_mut(&mut got).target(0, count * 4),
            );
            let ranks = size as f32;
            let expected = |i| ranks * (i % 1000) as f32 + ranks * (ranks - 1.0) / 2.0;
            let wrong = (0..count).find(|i| got[*i] != expected(*i));
            assert_eq!(wrong, None, "in place: {in_place}, rank {me} of {size}, {count}");
        }
        communicator.deregister(registration).unwrap();
    });
}

/// Where all ranks can reach all buffers they do without tiles; the bits are the same, whichever ranks can.
#[test]
fn the_bits_do_not_depend_on_whose_memory_is_shareable() {
    let own_scalar = |me: u32| {
        let scalar = [0.3f32, -1.7, 2.9][me as usize];
        Reduction::PreMulSum { datatype: DataType::Float32, scalar: scalar.to_bits().into() }
    };
    let sum = the_same_bits(|_| Reduction::Builtin(ReduceOp::Sum));
    let mean = the_same_bits(|_| Reduction::Builtin(ReduceOp::Avg));
    let scaled = the_same_bits(own_scalar);
    assert!(sum != mean && mean != scaled && scaled != sum);
}

/// An AllReduce of the same contributions, over and over; returns its result.
fn the_same_bits(reduction: fn(u32) -> Reduction) -> Vec<u32> {
    const COUNT: usize = 400_003;
    let results = ranks(3, &config(), move |communicator| {
        let me = communicator.rank().0;
        let allocation = Allocation::new((2 * COUNT + 1) * 4).unwrap();
        // SAFETY: the allocation is as large, and only this thread and the collectives use it.
        let shared = unsafe { Region::new(allocation.address(), (2 * COUNT + 1) * 4) };
        let mut ordinary = vec![0f32; 2 * COUNT + 1];
        let ordinary = Region::of_mut(&mut ordinary);
        let mut own = vec![0f32; COUNT];
        let mut state = u64::from(me) + 1;
        for value in &mut own {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *value = ((state >> 40) as f32 - 8e6) * 1.3e-5;
        }
        let mut all = Vec::new();
        // By bits: which ranks have ordinary memory. Each of them often enough for all to ask again.
        for (ordinary_ranks, in_place) in
            (0..40).map(|call| ([0, 1, 0, 7, 0, 0, 4, 2][call % 8], call % 3 == 0))
        {
            let memory = if ordinary_ranks >> me & 1 == 1 { ordinary } else { shared };
            // Not at a line.
            let (input, output) =
                (memory.part(4, COUNT * 4), memory.part((COUNT + 1) * 4, COUNT * 4));
            let output = if in_place { input } else { output };
            ccl_kernels::copy(Region::of(&own).source(0, COUNT * 4), input.target(0, COUNT * 4));
            let request = Request {
                collective: Collective::AllReduce,
                count: COUNT,
                datatype: DataType::Float32,
                reduction: reduction(me),
                root: Rank(0),
            };
            let (input, output) = (Some(input), Some(output));
            communicator.run(Operation::Collective { request, input, output }).unwrap();
            let mut got = vec![0u32; COUNT];
            let into = Region::of_mut(&mut got);
            ccl_kernels::copy(output.unwrap().source(0, COUNT * 4), into.target(0, COUNT * 4));
            all.push(got);
        }
        all
    });
    let expected = &results[0][3];
    for (rank, results) in results.iter().enumerate() {
        let wrong = results.iter().position(|result| result != expected);
        assert_eq!(wrong, None, "call that is wrong on rank {rank}");
    }
    results[0][3].clone()
}

/// What rank `rank` contributes at a place.
fn contribution(rank: u32, at: usize) -> u32 {
    (at as u32 ^ rank << 28).wrapping_mul(2_654_435_761)
}

/// What rank `me` of `size` gets at a place, if it gets anything.
fn result(request: &Request, me: u32, size: u32, at: usize) -> Option<u32> {
    let (count, root) = (request.count, request.root.0);
    let sum = |at| (0..size).map(|rank| contribution(rank, at)).fold(0, u32::wrapping_add);
    let gathered = || contribution((at / count) as u32, at % count);
    match request.collective {
        Collective::AllReduce => Some(sum(at)),
        Collective::Reduce => (me == root).then(|| sum(at)),
        Collective::ReduceScatter => Some(sum(me as usize * count + at)),
        Collective::Broadcast => Some(contribution(root, at)),
        Collective::AllGather => Some(gathered()),
        Collective::Gather => (me == root).then(gathered),
        other => unreachable!("{other:?} is not tested here"),
    }
}

/// Collectives that use no tiles, out of place and in place, when all ranks have such memory and when one has not;
/// with buffers that are larger than they need to be.
#[test]
fn every_collective_in_memory_of_all_ranks() {
    for (collective, count) in [
        (Collective::AllReduce, 70_001),
        (Collective::Reduce, 70_001),
        (Collective::Broadcast, 300_007),
        (Collective::AllGather, 300_007),
        (Collective::Gather, 300_007),
        (Collective::ReduceScatter, (4 << 20) + 3),
    ] {
        for size in [2, 3] {
            let request = Request {
                collective,
                count,
                datatype: DataType::Uint32,
                reduction: Reduction::Builtin(ReduceOp::Sum),
                root: Rank(if collective.is_rooted() { size - 1 } else { 0 }),
            };
            ranks(size, &config(), move |communicator| {
                let me = communicator.rank().0;
                let elements = 2 * (size as usize * count + 9);
                let allocation = Allocation::new(elements * 4).unwrap();
                let own = own_shared_memory(elements * 4);
                let registration = communicator.register(own.addr(), elements * 4).unwrap();
                assert!(registration.is_shared());
                // Some ranks have memory of the library, some have registered their own.
                let start = if me == 1 { own } else { allocation.address() };
                // SAFETY: the memory is as large, and only this thread and the collectives use it.
                let shared = unsafe { Region::new(start, elements * 4) };
                let mut ordinary = vec![0u32; elements];
                let ordinary = Region::of_mut(&mut ordinary);
                // The second has a rank that nobody reaches, and the third comes while nobody asks.
                for (call, in_place) in [false, false, false, true, true].into_iter().enumerate() {
                    let memory = if call == 1 && me == 0 { ordinary } else { shared };
                    one(&communicator, &request, memory, in_place);
                }
                communicator.deregister(registration).unwrap();
                communicator.finalize().unwrap();
            });
        }
    }
}

/// A request that is done without tiles where all ranks reach all buffers.
fn large(collective: Collective) -> Request {
    Request {
        collective,
        count: if collective == Collective::ReduceScatter { 4 << 20 } else { 1 << 18 },
        datatype: DataType::Uint32,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    }
}

/// Ranks put results into the memory of each other: with tiles nobody maps the output of another one.
#[test]
fn results_are_written_where_they_belong() {
    for (collective, foreign) in [
        (Collective::AllReduce, 2),
        (Collective::Broadcast, 2),
        (Collective::AllGather, 2),
        (Collective::Reduce, 1),
        (Collective::Gather, 1),
    ] {
        ranks(2, &config(), move |communicator| {
            let request = large(collective);
            let (input, output) = (request.bytes(), 2 * request.bytes());
            let name = format!("r2ccl-output-of-{}", collective.name());
            let places = [("r2ccl-input", input), (&name, output)].map(|(name, bytes)| {
                let start = named_memory(name, bytes);
                let registration = communicator.register(start.addr(), bytes).unwrap();
                // SAFETY: the memory is as large, and only this thread and the collective use it.
                (unsafe { Region::new(start, bytes) }, registration)
            });
            let [input, output] = [0, 1].map(|place: usize| Some(places[place].0));
            communicator.run(Operation::Collective { request, input, output }).unwrap();
            communicator.barrier().unwrap();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mapped = maps.lines().filter(|line| line.contains(&name)).count();
            assert_eq!(mapped, 2 + foreign, "{collective:?}");
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn memory_of_the_application_is_shared_as_long_as_it_is_registered() {
    use ccl_transport::shm::Allocation as Known;
    ranks(1, &config(), |communicator| {
        let start = own_shared_memory(10_000).addr();
        let known = |from: usize, bytes| Known::containing(start + from, bytes).is_some();
        let whole = communicator.register(start, 10_000).unwrap();
        let part = communicator.register(start + 100, 50).unwrap();
        let again = communicator.register(start, 8_000).unwrap();
        assert!([&whole, &part, &again].iter().all(|registration| registration.is_shared()));
        communicator.deregister(part).unwrap();
        communicator.deregister(whole).unwrap();
        assert!(known(0, 8_000) && !known(0, 8_001), "it is still registered once");
        communicator.deregister(again).unwrap();
        assert!(!known(0, 1));
        // First a part, then the whole.
        let part = communicator.register(start, 50).unwrap();
        let whole = communicator.register(start, 10_000).unwrap();
        assert!(known(0, 10_000) && known(7, 20) && !known(1, 10_000));
        communicator.deregister(part).unwrap();
        assert!(known(9_999, 1));
        communicator.deregister(whole).unwrap();
        assert!(!known(0, 1));
        let ordinary = [0_u8; 100];
        let registration = communicator.register(ordinary.as_ptr().addr(), 100).unwrap();
        assert!(!registration.is_shared());
    });
}

/// Shared memory that the library has not made; it stays for as long as the process.
fn own_shared_memory(bytes: usize) -> *mut u8 {
    named_memory("r2ccl-test", bytes)
}

fn named_memory(name: &str, bytes: usize) -> *mut u8 {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
    std::mem::forget(file);
    start.unwrap().cast()
}

/// One call with both buffers in `memory`.
fn one(communicator: &ccl::Communicator, request: &Request, memory: Region<'_>, in_place: bool) {
    let (me, size) = (communicator.rank().0, communicator.size());
    let (count, own) = (request.count, me as usize * request.count);
    let (inputs, outputs) = match request.collective {
        Collective::ReduceScatter => (size as usize * count, count),
        Collective::AllGather | Collective::Gather => (count, size as usize * count),
        _ => (count, count),
    };
    // One element behind a line, and more than needed where that touches nobody, on each rank as much as it likes.
    let more = 3 + me as usize;
    let half = memory.bytes() / 2;
    let (input, output) = match (in_place, request.collective) {
        (false, _) => {
            (memory.part(4, (inputs + more) * 4), memory.part(half + 4, (outputs + more) * 4))
        }
        (true, Collective::ReduceScatter) => {
            (memory.part(4, inputs * 4), memory.part(4 + own * 4, outputs * 4))
        }
        (true, Collective::AllGather | Collective::Gather) => {
            (memory.part(4 + own * 4, inputs * 4), memory.part(4, outputs * 4))
        }
        (true, _) => (memory.part(4, inputs * 4), memory.part(4, outputs * 4)),
    };
    let data: Vec<u32> = (0..inputs).map(|at| contribution(me, at)).collect();
    ccl_kernels::copy(Region::of(&data).source(0, inputs * 4), input.target(0, inputs * 4));
    let operation =
        Operation::Collective { request: *request, input: Some(input), output: Some(output) };
    communicator.run(operation).unwrap();
    let mut got = vec![0u32; outputs];
    ccl_kernels::copy(
        output.source(0, outputs * 4),
        Region::of_mut(&mut got).target(0, outputs * 4),
    );
    let wrong = (0..outputs)
        .find(|at| result(request, me, size, *at).is_some_and(|expected| got[*at] != expected));
    assert_eq!(wrong, None, "rank {me} of {size}, in place: {in_place}, {request:?}");
}
