//! Which calls copy engines do, and when a window is of no use.

use ccl::cuda::{DeviceRegion, Promise};
use ccl::{Collective, DataType, Error, OperationOn, ReduceOp, UniqueId};

use super::{LEAST_BYTES, Windowed, bytes_of, check_gather, gather, gathered, member, noise};
use crate::Member;
use crate::ranks::{processes, processes_with};

#[test]
fn kernels_do_what_is_small_or_elsewhere() {
    const TEST: &str = "windows::ways::kernels_do_what_is_small_or_elsewhere";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id).prepared(&[DataType::Uint8]);
        check_gather(&windowed, LEAST_BYTES, 3);
        let Member { cuda, stream } = &windowed.member;
        let before = cuda.paths().0;
        cuda.enqueue(gather(&windowed, LEAST_BYTES - 1), stream).unwrap();
        let elsewhere = windowed.member.gpu().allocate(2 * LEAST_BYTES).unwrap();
        let inside = windowed.region().part(0, 2 * LEAST_BYTES);
        let (out, part) = (elsewhere.region(), |at| inside.part(at, LEAST_BYTES));
        for (collective, input, output) in [
            // What must be in the window is not.
            (Collective::AllGather, part(0), out),
            (Collective::AllToAll, out, inside),
            // In place it is overwritten while others take it.
            (Collective::AllToAll, inside, inside),
            (Collective::AllReduce, part(0), part(LEAST_BYTES)),
            (Collective::Gather, part(0), out),
        ] {
            let request = bytes_of(collective, LEAST_BYTES, 0);
            let (input, output) = (Some(input), Some(output));
            cuda.enqueue(OperationOn::Collective { request, input, output }, stream).unwrap();
        }
        stream.synchronise().unwrap();
        cuda.wait().unwrap();
        let (paths, reason) = cuda.paths();
        // Who has left is a reason.
        windowed.member.host().barrier().unwrap();
        assert_eq!((paths.copied, paths.host, reason), (before.copied, before.host, None));
        assert_eq!(paths.push + paths.low_latency, before.push + before.low_latency + 6);
    });
}

#[test]
fn windows_end_and_begin_again() {
    const TEST: &str = "windows::ways::windows_end_and_begin_again";
    processes(TEST, 3, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        check_gather(&windowed, 2000, 5);
        let mut member = windowed.member;
        let mut last = windowed.memory.region().address();
        member.cuda.deregister_window(&windowed.window).unwrap();
        let error = member.cuda.deregister_window(&windowed.window).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        // Without it the host does it, as there are no kernels.
        member.host().barrier().unwrap();
        let before = member.cuda.paths().0;
        let windowed = Windowed { member, ..windowed };
        member_gathers(&windowed);
        let paths = windowed.member.cuda.paths().0;
        assert_eq!((paths.copied, paths.host), (before.copied, before.host + 1));
        let Windowed { member: back, memory, .. } = windowed;
        (member, _) = (back, drop(memory));
        // Other memory, often at the same address.
        let mut reused = 0;
        for round in 0..4 {
            let windowed = Windowed::with(member, 20_000 + round);
            let address = windowed.memory.region().address();
            reused += u32::from(std::mem::replace(&mut last, address) == address);
            check_gather(&windowed, 3000 + round, 10 * round as u32);
            windowed.member.cuda.deregister_window(&windowed.window).unwrap();
            let Windowed { member: back, memory, .. } = windowed;
            (member, _) = (back, drop(memory));
        }
        assert!(reused > 0, "the driver gives addresses again");
    });
}

#[test]
fn memory_that_comes_again_is_not_that_of_a_window() {
    const TEST: &str = "windows::ways::memory_that_comes_again_is_not_that_of_a_window";
    processes(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        check_gather(&windowed, 2000, 5);
        // Against the rules.
        let Windowed { member, memory, window } = windowed;
        let (address, bytes) = (memory.region().address(), memory.region().bytes());
        member.host().barrier().unwrap();
        drop(memory);
        let memory = member.gpu().allocate(bytes).unwrap();
        let is_same = memory.region().address() == address;
        let mut all_same = vec![i64::from(is_same)];
        member.host().all_reduce_in_place(&mut all_same, ReduceOp::Min).unwrap();
        assert_eq!(all_same, [1], "the driver gives addresses again");
        let windowed = Windowed { member, memory, window };
        let before = windowed.copied();
        member_gathers(&windowed);
        assert_eq!(windowed.copied(), before);
    });
}

/// One call, whichever way it goes.
fn member_gathers(windowed: &Windowed) {
    let Member { cuda, stream } = &windowed.member;
    let (me, count) = (windowed.member.me(), 2500);
    windowed.write(me as usize * count, &noise(count, 40 + me));
    cuda.enqueue(gather(windowed, count), stream).unwrap();
    stream.synchronise().unwrap();
    let expected = gathered(windowed, count, 40);
    assert!(windowed.read(0, expected.len()) == expected);
}

#[test]
fn several_windows_are_told_apart() {
    processes("windows::ways::several_windows_are_told_apart", 2, &[], |rank, size, id| {
        let first = Windowed::new((rank, size), &id);
        let second = Windowed::with(first.member, 9000);
        check_gather(&second, 1200, 7);
        let first = Windowed { member: second.member, ..first };
        check_gather(&first, 1200, 8);
        first.member.cuda.deregister_window(&first.window).unwrap();
        let second = Windowed { member: first.member, ..second };
        check_gather(&second, 1300, 9);
    });
}

#[test]
fn windows_of_different_sizes_are_refused_on_all_ranks() {
    const TEST: &str = "windows::ways::windows_of_different_sizes_are_refused_on_all_ranks";
    processes(TEST, 3, &[], |rank, size, id| {
        let member = member((rank, size), &id, ("1", LEAST_BYTES));
        let memory = member.gpu().allocate(5000).unwrap();
        let bytes = if rank == 1 { 4000 } else { 5000 };
        let region = memory.region().part(0, bytes);
        let error = member.cuda.register_window(&region, Promise::Symmetric).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("a window has 5000 bytes on rank 0 and 4000 on rank 1"), "{text}");
        let promise = if rank == 2 { Promise::Nothing } else { Promise::Symmetric };
        let error = member.cuda.register_window(&memory.region(), promise).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("symmetric on rank 0 and not symmetric on rank 2"), "{text}");
        let nothing = memory.region().part(0, 0);
        let error = member.cuda.register_window(&nothing, Promise::Symmetric).unwrap_err();
        assert!(error.to_string().contains("no bytes"), "{error}");
        // Nothing has happened.
        check_gather(&Windowed::with(member, 9000), 1100, 4);
    });
}

#[test]
fn a_window_that_ends_beyond_all_addresses_is_of_no_use() {
    const TEST: &str = "windows::ways::a_window_that_ends_beyond_all_addresses_is_of_no_use";
    processes(TEST, 2, &[], |rank, size, id| {
        let member = member((rank, size), &id, ("1", LEAST_BYTES));
        let memory = member.gpu().allocate(5000).unwrap();
        // SAFETY: nobody reads or writes there, because it is of no use.
        let region = unsafe { DeviceRegion::new(memory.region().address() + 1, usize::MAX) };
        let window = member.cuda.register_window(&region, Promise::Symmetric).unwrap();
        let obstacle = window.obstacle().unwrap();
        assert!(obstacle.contains("the window is in several allocations"), "{obstacle}");
    });
}

/// A window that is of no use, for that reason, and a call that goes another way.
fn useless(member: Member, expected: &str) {
    let windowed = Windowed::with(member, 12_000);
    let obstacle = windowed.window.obstacle().unwrap_or_default();
    assert!(obstacle.contains(expected), "{obstacle}");
    let (paths, reason) = windowed.member.cuda.paths();
    assert!(reason.is_some(), "{paths:?}");
    member_gathers(&windowed);
    assert_eq!(windowed.copied(), 0);
    windowed.member.cuda.deregister_window(&windowed.window).unwrap();
    windowed.member.cuda.check().unwrap();
}

/// On all three ranks, of which one has other settings.
fn refused(test: &str, of: impl Fn(u32) -> (&'static str, usize), expected: &str) {
    processes(test, 3, &[], |rank, size, id| {
        useless(member((rank, size), &id, of(rank)), expected);
    });
}

#[test]
fn a_rank_whose_memory_is_staged_is_named() {
    const TEST: &str = "windows::ways::a_rank_whose_memory_is_staged_is_named";
    let peers = |rank| (if rank == 1 { "staged" } else { "1" }, LEAST_BYTES);
    refused(TEST, peers, "rank 1: R2CCL_CUDA_P2P is staged");
}

#[test]
fn a_rank_without_peers_is_named() {
    const TEST: &str = "windows::ways::a_rank_without_peers_is_named";
    let peers = |rank| (if rank == 2 { "0" } else { "1" }, LEAST_BYTES);
    refused(TEST, peers, "rank 2: R2CCL_CUDA_P2P is 0");
}

#[test]
fn the_setting_must_be_the_same_on_all_ranks() {
    const TEST: &str = "windows::ways::the_setting_must_be_the_same_on_all_ranks";
    let least = |rank| ("1", if rank == 1 { 2000 } else { LEAST_BYTES });
    refused(TEST, least, "R2CCL_CUDA_COPY_ENGINE_BYTES is 1000 on rank 0 and 2000 on rank 1");
}

#[test]
fn the_setting_turns_it_off() {
    const TEST: &str = "windows::ways::the_setting_turns_it_off";
    refused(TEST, |_| ("1", 0), "R2CCL_CUDA_COPY_ENGINE_BYTES is 0");
}

#[test]
fn ranks_of_several_hosts_and_single_ones_are_told_so() {
    const TEST: &str = "windows::ways::ranks_of_several_hosts_and_single_ones_are_told_so";
    processes(TEST, 3, &[], |rank, size, id| {
        let mut config = crate::config(4096);
        config.settings.host_identity = Some(format!("host {}", rank / 2));
        let host = ccl::Communicator::create(&id, rank, size, &config).unwrap();
        let gpu = ccl::cuda::open(0).unwrap();
        let cuda = ccl::cuda::Communicator::new(&host, &gpu).unwrap();
        useless(Member { cuda, stream: gpu.stream().unwrap() }, "3 ranks are on 2 hosts");
        let id = UniqueId::create(&config.settings).unwrap();
        let alone = Windowed::with(member((0, 1), &id, ("1", LEAST_BYTES)), 100);
        assert_eq!(alone.window.obstacle(), Some("there is one rank"));
        alone.member.cuda.deregister_window(&alone.window).unwrap();
    });
}

#[test]
fn a_window_of_which_nothing_is_promised_changes_nothing() {
    const TEST: &str = "windows::ways::a_window_of_which_nothing_is_promised_changes_nothing";
    processes(TEST, 2, &[], |rank, size, id| {
        let member = member((rank, size), &id, ("1", LEAST_BYTES));
        let memory = member.gpu().allocate(5000).unwrap();
        let window = member.cuda.register_window(&memory.region(), Promise::Nothing).unwrap();
        assert_eq!(window.obstacle(), Some("nothing is promised of a window"));
        member.cuda.deregister_window(&window).unwrap();
    });
}
