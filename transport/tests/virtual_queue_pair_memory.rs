//! What a virtual queue pair costs with backups of its own, and with a pool that many share.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

#[path = "support/bench.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod bench;
#[path = "support/shadows.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod shadows;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bench::{Pair, Place};
use ccl_transport::clock;
use ccl_transport::verbs::virtual_qp::{Evidence, Owner, SparePool, VirtualSettings};
use ccl_transport::verbs::{Depth, Operation, Status};

/// Counts what is allocated and not freed.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAIRS: usize = 32;
const RAILS: usize = 3;
const DEPTH: Depth = Depth { sends: 64, receives: 64 };
const LIMIT: Duration = Duration::from_secs(30);

/// Of one end of one queue pair.
#[derive(Debug)]
struct Cost {
    heap_bytes: usize,
    control_bytes: usize,
    queue_pairs: usize,
    sockets: f64,
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Makes the queue pairs, uses each once, and tells what an end of them costs.
fn measure(backups: impl FnOnce(&mut [Pair])) -> Cost {
    let settings = VirtualSettings::new(Evidence::Log, RAILS);
    let (near, far) = (Place::new(&settings, 4096, 0), Place::new(&settings, 4096, 0));
    let (before, files) = (IN_USE.load(Ordering::Relaxed), open_files());
    let mut pairs: Vec<Pair> = (0..PAIRS).map(|_| Pair::new(&near, &far, DEPTH)).collect();
    backups(&mut pairs);
    for pair in &mut pairs {
        let (source, target) = (near.region.segment(0, 8), far.region.remote(0));
        pair.post(1, Operation::Write { source, target });
        while pair.near_done.is_empty() || pair.far.peer().is_none() {
            pair.poll();
        }
        assert_eq!(pair.near_done[0].status, Status::Success);
    }
    let heap = IN_USE.load(Ordering::Relaxed) - before;
    // Each pair has a listener of its own, which is the test's.
    let sockets = open_files() - files - PAIRS;
    let footprint = pairs[0].near.footprint();
    let ends = 2 * PAIRS;
    assert!(footprint.ring_bytes <= heap / ends);
    Cost {
        heap_bytes: heap / ends,
        control_bytes: footprint.control_bytes,
        queue_pairs: footprint.queue_pairs,
        sockets: sockets as f64 / ends as f64,
    }
}

fn attach_in_background(exchange: &shadows::Exchange, pairs: &mut [Pair]) {
    for (index, pair) in pairs.iter_mut().enumerate() {
        pair.near.set_shadow(Some(exchange.near(&format!("pair {index}"))));
        pair.far.set_shadow(Some(exchange.far(&format!("pair {index}"))));
    }
    let deadline = clock::now() + LIMIT;
    let is_complete = |pair: &Pair| {
        [&pair.near, &pair.far].iter().all(|end| end.footprint().queue_pairs == RAILS)
    };
    while !pairs.iter().all(is_complete) {
        assert!(clock::now() < deadline, "not all rails are connected");
        for pair in &mut *pairs {
            pair.poll();
        }
    }
}

#[test]
fn a_pool_costs_less_than_backups_for_everybody() {
    let own = measure(|pairs| pairs.iter_mut().for_each(|pair| pair.attach(1..RAILS)));
    let shared = |size| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut pools = [SparePool::new(size), SparePool::new(size)];
        let cost = measure(|_| {
            for _ in 0..size {
                let (one, other) = bench::streams(&listener);
                pools[0].add(one, Owner::Here).unwrap();
                pools[1].add(other, Owner::There).unwrap();
            }
        });
        drop(pools);
        cost
    };
    let exchange = shadows::Exchange::new(RAILS);
    let background = measure(|pairs| attach_in_background(&exchange, pairs));
    let (small, large) = (shared(2), shared(8));
    println!("per end of {PAIRS} queue pairs, depth {}, {RAILS} rails:", DEPTH.sends);
    let costs = [("own backups", &own), ("with shadows", &background)];
    for (name, cost) in costs.into_iter().chain([("pool of 2", &small), ("pool of 8", &large)]) {
        println!("{name:>12}: {cost:?}");
    }
    assert_eq!((background.queue_pairs, background.sockets), (RAILS, own.sockets));
    assert!(background.heap_bytes < own.heap_bytes + 4096);
    assert_eq!((own.queue_pairs, small.queue_pairs, large.queue_pairs), (RAILS, 1, 1));
    // Two queue pairs less, whose buffers are most of what an end allocates.
    assert!(3 * small.heap_bytes < 2 * own.heap_bytes && 3 * large.heap_bytes < 2 * own.heap_bytes);
    assert!(small.sockets < large.sockets && large.sockets < own.sockets);
    assert_eq!(own.control_bytes, small.control_bytes);
}
