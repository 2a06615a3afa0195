//! What calls cost that have been made before: ranks of one host neither allocate memory nor call the kernel, but to
//! wait for each other, and to copy large blocks and to read how long their thread has worked where ways are compared now and then.
//!
//! A system call that is none of those for waiting and copying ends this program: `signal: 31, SIGSYS`.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]
#![allow(clippy::print_stdout, reason = "a skip is reported")]
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ccl::{Communicator, Config, Rank, ReduceOp, UniqueId};
use ccl_transport::clock;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

const RANKS: u32 = 2;
const DEADLINE: Duration = Duration::from_secs(60);
/// Of one rank, in `f32`s: tiles of one step, of several, and of several slots.
const COUNTS: [usize; 3] = [2, 1 << 10, 1 << 16];
const WARM_UP: usize = 30;
const CALLS: usize = 300;

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a rank works on.
struct Buffers {
    own: Vec<f32>,
    /// A block for each rank.
    all: Vec<f32>,
    /// As long as `all`.
    other: Vec<f32>,
}

impl Buffers {
    fn new() -> Self {
        let most = COUNTS[COUNTS.len() - 1];
        let blocks = || vec![1.0; most * RANKS as usize];
        Self { own: vec![1.0; most], all: blocks(), other: blocks() }
    }

    /// Every collective of `count` elements.
    fn call(&mut self, communicator: &Communicator, count: usize) {
        let (own, all) = (&mut self.own[..count], &mut self.all[..count * RANKS as usize]);
        let other = &mut self.other[..count * RANKS as usize];
        communicator.all_reduce(&*all, other, ReduceOp::Max).unwrap();
        communicator.all_gather(own, all).unwrap();
        communicator.reduce_scatter(all, own, ReduceOp::Max).unwrap();
        communicator.broadcast(own, Rank(0)).unwrap();
        communicator.all_to_all(all, other).unwrap();
        communicator.barrier().unwrap();
    }
}

/// Nothing but waiting, for a while, for another thread, for a turn on the processor, and copying large blocks.
fn waiting_and_copying() -> BpfProgram {
    let waiting =
        [libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
    // The time of a thread: all other clocks are read without the kernel.
    let comparing = [libc::SYS_process_vm_readv, libc::SYS_clock_gettime];
    let allowed = waiting.into_iter().chain(comparing);
    let rules = allowed.map(|number| (number, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture);
    filter.unwrap().try_into().unwrap()
}

#[test]
fn calls_that_were_made_before_allocate_nothing_and_call_the_kernel_to_wait_and_copy_only() {
    let config = Config { timeout: Some(DEADLINE), ..Config::default() };
    let id = UniqueId::create(&config.settings).unwrap();
    let found = Arc::new(Mutex::new(Vec::with_capacity(RANKS as usize)));
    for rank in 0..RANKS {
        let (config, found) = (config.clone(), Arc::clone(&found));
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, RANKS, &config).unwrap();
            let mut buffers = Buffers::new();
            let filter = waiting_and_copying();
            let mut calls = |times: usize| {
                COUNTS.iter().for_each(|count| {
                    (0..times).for_each(|_| buffers.call(&communicator, *count));
                });
            };
            calls(WARM_UP);
            let before = ALLOCATIONS.get();
            let is_filtered = apply_filter(&filter).is_ok();
            calls(CALLS);
            let allocated = ALLOCATIONS.get() - before;
            found.lock().unwrap().push((allocated, is_filtered));
            // To end, a thread would have to call the kernel.
            loop {
                thread::park();
            }
        });
    }
    let end = clock::now() + DEADLINE;
    while found.lock().unwrap().len() < RANKS as usize {
        assert!(clock::now() < end, "a rank has not come to the end");
        clock::sleep(Duration::from_millis(5));
    }
    let found = found.lock().unwrap();
    if found.iter().any(|(_, is_filtered)| !is_filtered) {
        println!("skip: this kernel has no seccomp: system calls are not looked at");
    }
    assert!(found.iter().all(|(allocated, _)| *allocated == 0), "allocations: {found:?}");
}
