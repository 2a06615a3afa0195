//! What this machine can do at best: what the times of collectives are held against.
//!
//! `yardsticks RANKS WHAT:BYTES:CALLS...` prints `BYTES MICROSECONDS WRONG WHAT` for each, where WRONG counts
//! wrong bytes. The microseconds are those of one call, the mean over the calls and the threads.
//!
//! | WHAT | a call |
//! |---|---|
//! | `copy` | every rank copies BYTES bytes: plain memcpy |
//! | `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `alltoall` | what no such collective of RANKS ranks can do without: every byte of the inputs is read once, and what becomes of it, sums of `f32` where it is reduced, written once to each output where it belongs. BYTES is the larger of the two buffers of a rank, as for the perf programs; all but broadcast are out of place. Nobody waits for anybody, all threads have equally much to do, and the best of some ways counts: blocks of 16, 64 and 256 KiB, plain and streaming stores |
//! | `ordinary_all_reduce` and so on | the same for ranks that cannot read each other's buffers: what another rank needs is copied to a tile first and read there, however often, or the system copies it to where it belongs or is added (`process_vm_readv`); the better way counts. A tile stays in the cache of the thread that fills and reads it |
//! | `compute` | every rank, a thread, multiplies BYTES times, one after the other |
//! | `sum` | one thread adds two arrays of BYTES bytes of `f32` |
//! | `exchange` | every rank, a thread, copies BYTES bytes to where its neighbour copies them from: the least that shared memory can do. Ranks that outnumber the processors yield while they wait |
//! | `tcp` | a thread sends BYTES bytes to another over loopback, and gets as many back |
//!
//! Ranks that share processors are one thread for each of these in the first three rows. Threads are bound to the
//! processors in turn.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

mod collective;
mod limit;
mod memory;

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, RwLock};
use std::time::Instant;
use std::{hint, thread};

use ccl_kernels::reduce;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use self::collective::Collective;
use self::limit::{Reach, SUM};
use self::memory::{Memory, different};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Calls before the timed ones.
const UNTIMED: usize = 3;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let ranks = words.next().ok_or("usage: yardsticks RANKS WHAT:BYTES:CALLS...")?;
    let ranks = ranks.parse::<NonZeroUsize>()?.get();
    let processors = processors()?;
    for word in words {
        let [what, bytes, calls] = word.split(':').collect::<Vec<_>>()[..] else {
            return Err(format!("{word} is not WHAT:BYTES:CALLS").into());
        };
        let job =
            Job { ranks, bytes: bytes.parse()?, calls: calls.parse()?, processors: &processors };
        let (microseconds, wrong) = match what {
            "copy" => job.copy(),
            "compute" => job.compute(),
            "sum" => job.sum(),
            "exchange" => job.exchange(),
            "tcp" => job.tcp()?,
            _ => {
                let ordinary = what.strip_prefix("ordinary_");
                let reaches: &[Reach] =
                    if ordinary.is_some() { &[Reach::Tiles, Reach::System] } else { &[Reach::All] };
                let collective = Collective::named(ordinary.unwrap_or(what), ranks, job.bytes);
                job.limit(&collective.ok_or(format!("no yardstick is called {what}"))?, reaches)
            }
        };
        println!("{bytes} {microseconds:.3} {wrong} {what}");
    }
    Ok(())
}

/// The processors that this process may use.
fn processors() -> Outcome<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).collect())
}

/// What is measured, as the command line says it.
#[derive(Clone, Copy)]
struct Job<'a> {
    ranks: usize,
    bytes: usize,
    calls: usize,
    processors: &'a [usize],
}

impl Job<'_> {
    fn copy(self) -> (f64, usize) {
        let sources: Vec<_> = (0..self.ranks).map(|rank| Memory::new(self.bytes, rank)).collect();
        let mut targets: Vec<_> = (0..self.ranks).map(|_| Memory::new(self.bytes, 0)).collect();
        let threads = self.ranks.min(self.processors.len());
        let mut work: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        for (rank, pair) in sources.iter().zip(&mut targets).enumerate() {
            work[rank % threads].push((pair.0.bytes(), pair.1.bytes_mut()));
        }
        let microseconds = self.timed(work, |pairs| {
            pairs.iter_mut().for_each(|(from, to)| to.copy_from_slice(from));
        });
        let pairs = sources.iter().zip(&targets);
        (microseconds, pairs.map(|(from, to)| different(from.bytes(), to.bytes())).sum())
    }

    fn compute(self) -> (f64, usize) {
        let microseconds = self.timed(vec![1_u64; self.ranks], |product| {
            (0..self.bytes).for_each(|_| *product = hint::black_box(product.wrapping_mul(3)));
        });
        (microseconds, 0)
    }

    fn sum(self) -> (f64, usize) {
        let [first, second, expected] = [1, 2, 3].map(|value| Memory::new(self.bytes, value));
        let mut target = Memory::new(self.bytes, 0);
        let microseconds = self.timed(vec![target.bytes_mut()], |target| {
            reduce(SUM, &[first.bytes().into(), second.bytes().into()], (&mut **target).into());
        });
        (microseconds, different(target.bytes(), expected.bytes()))
    }

    fn exchange(self) -> (f64, usize) {
        let sources: Vec<_> = (0..self.ranks).map(|rank| Memory::new(self.bytes, rank)).collect();
        let mut targets: Vec<_> = (0..self.ranks).map(|_| Memory::new(self.bytes, 0)).collect();
        let slot = || RwLock::new(Memory::new(self.bytes, 0));
        let slots: Vec<_> = (0..self.ranks).map(|_| [slot(), slot()]).collect();
        let filled: Vec<_> = (0..self.ranks).map(|_| Count::default()).collect();
        let work = targets.iter_mut().enumerate().map(|(rank, target)| (rank, 0, target)).collect();
        let microseconds = self.timed(work, |(rank, call, target)| {
            let [before, after] = [self.ranks - 1, 1].map(|step| (*rank + step) % self.ranks);
            // Whoever has filled a slot in the last call has emptied that of the call before.
            self.wait(&filled[before], *call);
            let half = *call % 2;
            if let Ok(mut slot) = slots[*rank][half].write() {
                slot.bytes_mut().copy_from_slice(sources[*rank].bytes());
            }
            *call += 1;
            filled[*rank].0.store(*call, Ordering::Release);
            self.wait(&filled[after], *call);
            if let Ok(slot) = slots[after][half].read() {
                target.bytes_mut().copy_from_slice(slot.bytes());
            }
        });
        let neighbours = sources.iter().cycle().skip(1).zip(&targets);
        (microseconds, neighbours.map(|(from, to)| different(from.bytes(), to.bytes())).sum())
    }

    /// Waits until a count is so large; yields if ranks share processors.
    fn wait(self, count: &Count, least: usize) {
        while count.0.load(Ordering::Acquire) < least {
            if self.ranks > self.processors.len() { thread::yield_now() } else { hint::spin_loop() }
        }
    }

    fn tcp(self) -> Outcome<(f64, usize)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        let (sent, wrong) = (Memory::new(self.bytes, 1), AtomicUsize::new(0));
        let mut ends = Vec::new();
        for (stream, begins) in [(near, true), (far, false)] {
            stream.set_nodelay(true)?;
            ends.push((stream, Memory::new(self.bytes, 0), begins));
        }
        let microseconds = self.timed(ends, |(stream, received, begins)| {
            let passed = there_and_back(stream, sent.bytes(), received.bytes_mut(), *begins);
            if passed.is_err() || received.bytes() != sent.bytes() {
                wrong.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok((microseconds, wrong.into_inner()))
    }

    /// Microseconds of a call of `action`, the mean over the calls and over a thread for each item.
    #[allow(clippy::cast_precision_loss, reason = "calls and threads are far below 2^53")]
    fn timed<T: Send>(self, items: Vec<T>, action: impl Fn(&mut T) + Sync) -> f64 {
        let count = items.len();
        let start = Barrier::new(count);
        let one = |(index, mut item): (usize, T)| {
            bind(self.processors[index % self.processors.len()]);
            (0..UNTIMED).for_each(|_| action(&mut item));
            start.wait();
            let began = Instant::now();
            (0..self.calls).for_each(|_| action(&mut item));
            began.elapsed().as_secs_f64() / self.calls as f64 * 1e6
        };
        thread::scope(|scope| {
            let items = items.into_iter().enumerate();
            let threads: Vec<_> = items.map(|item| scope.spawn(|| one(item))).collect();
            let times = threads.into_iter().filter_map(|thread| thread.join().ok());
            times.sum::<f64>() / count as f64
        })
    }
}

/// Sends and receives, or receives and sends.
fn there_and_back(
    stream: &mut TcpStream,
    sent: &[u8],
    received: &mut [u8],
    begins: bool,
) -> std::io::Result<()> {
    if begins {
        stream.write_all(sent)?;
    }
    stream.read_exact(received)?;
    if !begins {
        stream.write_all(sent)?;
    }
    Ok(())
}

/// Binds this thread to a processor; where that is refused, it runs where it may.
fn bind(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = sched_setaffinity(None, &set);
}

/// A number in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);
