//! Two processes that carry out the same list of measurements.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{cell, hint, thread};

use ccl_transport::clock;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::area::{Area, HUGE_BYTES};

/// Shared memory for each side behind the board: room for rings and registered memory.
pub(crate) const SHARED_BYTES: usize = (64 << 20) + (2 << 20);
const LINES: usize = 8;
/// Meetings of one probe of the distance, the shortest of which counts.
const PROBES: usize = 5;
const PROBE_MEETINGS: usize = 40;
/// Less than this between two meetings, and the processors share a cache: 40 to 60 ns, else 100 and more (AMD Zen 4).
const NEAR_SECONDS: f64 = 85e-9;
/// Looks at a flag before the processor is given up.
const LOOKS: u32 = 500;
/// How long the other side may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// Which of the two this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Sends where only one sends, takes the time, prints.
    First,
    /// Was started by the first.
    Second,
}

/// How far the processors of the two are from each other at a moment: a hypervisor may move them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    Near,
    Far,
}

/// A number in cache lines of its own.
#[repr(align(128))]
pub(crate) struct Line(pub(crate) AtomicU64);

/// What one side writes, and the other reads.
pub(crate) struct Lines {
    arrived: &'static AtomicU64,
    told: &'static AtomicU64,
    /// Tiles published in the ring that this side sends into.
    pub(crate) filled: &'static AtomicU64,
    /// Tiles consumed from the other's ring.
    pub(crate) emptied: &'static AtomicU64,
}

/// This process and its peer.
pub(crate) struct Pair {
    pub(crate) side: Side,
    pub(crate) own: Lines,
    pub(crate) other: Lines,
    pub(crate) own_shared: Area,
    pub(crate) other_shared: Area,
    /// Of the other process.
    pub(crate) process: i32,
    /// Where the second side is reached.
    pub(crate) address: String,
    /// Whether each side has a processor of its own.
    pub(crate) apart: bool,
    meetings: cell::Cell<u64>,
    child: Option<Child>,
}

impl Pair {
    /// Starts the peer, or joins whoever started this process: `peer=` names the descriptor of the shared memory.
    pub(crate) fn meet_up(words: &[String]) -> Self {
        let named = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        let place = named("in=").map(|place| place.split_once(':').unwrap());
        let (side, memory, child) = match named("peer=") {
            Some(number) => (Side::Second, format!("/proc/self/fd/{number}"), None),
            None => {
                // Without close-on-exec, so that the peer inherits it.
                let memory = memfd_create("ways", MemfdFlags::empty()).unwrap();
                ftruncate(&memory, (HUGE_BYTES + 2 * SHARED_BYTES) as u64).unwrap();
                let child = start(words, place.map(|(namespace, _)| namespace), &memory);
                (
                    Side::First,
                    format!("/proc/self/fd/{}", memory.as_raw_fd()),
                    Some((child, memory)),
                )
            }
        };
        if side == Side::Second {
            set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        }
        let file = std::fs::File::options().read(true).write(true).open(memory).unwrap();
        let child = child.map(|(child, _memory)| child);
        let board = Area::of_file(&file, 0, HUGE_BYTES);
        let shared = [0, 1].map(|index| {
            let offset = HUGE_BYTES + index * SHARED_BYTES;
            Area::of_file(&file, offset, SHARED_BYTES)
        });
        let (own, other) = match side {
            Side::First => (0, 1),
            Side::Second => (1, 0),
        };
        let apart = bind(own);
        allow_peer();
        let mut pair = Self {
            side,
            own: lines(board, own),
            other: lines(board, other),
            own_shared: shared[own],
            other_shared: shared[other],
            process: 0,
            address: place.map_or("127.0.0.1", |(_, address)| address).to_owned(),
            apart,
            meetings: cell::Cell::new(0),
            child,
        };
        pair.process = pair.exchange(u64::from(std::process::id())).try_into().unwrap();
        pair
    }

    /// Returns when the other side has come here too.
    pub(crate) fn meet(&self) {
        let meeting = self.meetings.get() + 1;
        self.meetings.set(meeting);
        self.own.arrived.store(meeting, Ordering::Release);
        self.wait_until(|| self.other.arrived.load(Ordering::Acquire) >= meeting);
    }

    /// Tells the other side a number, and returns what it tells.
    pub(crate) fn exchange(&self, number: u64) -> u64 {
        self.own.told.store(number, Ordering::Relaxed);
        self.meet();
        let told = self.other.told.load(Ordering::Relaxed);
        self.meet();
        told
    }

    /// What the first side thinks, for both.
    pub(crate) fn agreed(&self, own: bool) -> bool {
        let told = self.exchange(u64::from(own)) == 1;
        if self.side == Side::First { own } else { told }
    }

    /// Looks some times, then yields between looks.
    pub(crate) fn wait_until(&self, mut reached: impl FnMut() -> bool) {
        let mut patience = Patience::default();
        while !reached() {
            patience.wait();
        }
    }

    /// Does it on the first side, while the other sleeps.
    pub(crate) fn alone(&self, action: impl FnOnce()) {
        match self.side {
            Side::First => {
                action();
                self.meet();
            }
            Side::Second => {
                let awaited = self.meetings.get() + 1;
                while self.other.arrived.load(Ordering::Acquire) < awaited {
                    clock::sleep(Duration::from_millis(20));
                }
                self.meet();
            }
        }
    }

    /// Seconds of one of `calls` calls that both sides make at the same time.
    pub(crate) fn time(&self, calls: usize, mut call: impl FnMut()) -> f64 {
        self.meet();
        let start = clock::now();
        (0..calls).for_each(|_| call());
        self.meet();
        start.elapsed().as_secs_f64() / calls as f64
    }

    /// How long a cache line takes to the other side and back, sorted into two classes.
    pub(crate) fn distance(&self) -> Distance {
        let probes = (0..PROBES).map(|_| self.time(PROBE_MEETINGS, || self.meet()));
        match probes.fold(f64::INFINITY, f64::min) {
            seconds if seconds < NEAR_SECONDS => Distance::Near,
            _ => Distance::Far,
        }
    }

    /// Ends both.
    pub(crate) fn part(mut self) {
        self.meet();
        if let Some(child) = &mut self.child {
            assert!(child.wait().unwrap().success(), "the peer failed");
        }
    }
}

/// How somebody waits who has no time to sleep.
#[derive(Default)]
pub(crate) struct Patience {
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    /// # Panics
    ///
    /// If it has been waited far too long.
    pub(crate) fn wait(&mut self) {
        self.looks += 1;
        if self.looks < LOOKS {
            return hint::spin_loop();
        }
        thread::yield_now();
        if self.looks.is_multiple_of(4096) {
            let since = self.since.get_or_insert_with(clock::now);
            assert!(since.elapsed() < SILENCE, "the peer is silent");
        }
    }
}

/// The lines of a side on the board.
fn lines(board: Area, index: usize) -> Lines {
    let first = board.region().address() + index * LINES * size_of::<Line>();
    let line = |number: usize| {
        let line = std::ptr::with_exposed_provenance::<Line>(first + number * size_of::<Line>());
        // SAFETY: inside the board, which stays mapped, starts at zero and is accessed by atomics only.
        let line: &'static Line = unsafe { &*line };
        &line.0
    };
    Lines { arrived: line(0), told: line(1), filled: line(2), emptied: line(3) }
}

/// Runs this program as the peer, in a network namespace if one is named.
fn start(words: &[String], namespace: Option<&str>, memory: &OwnedFd) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = match namespace {
        None => Command::new(program),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
    };
    command.args(words).arg(format!("peer={}", memory.as_raw_fd())).spawn().unwrap()
}

/// Binds this process to a processor of its own, and says whether there is one.
fn bind(index: usize) -> bool {
    let allowed = sched_getaffinity(None).unwrap();
    let processors: Vec<_> =
        (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).collect();
    let mut set = CpuSet::new();
    set.set(processors[index % processors.len()]);
    sched_setaffinity(None, &set).unwrap();
    processors.len() > 1
}

/// Lets the peer read this process's memory where Yama asks for that.
fn allow_peer() {
    // SAFETY: the option takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
