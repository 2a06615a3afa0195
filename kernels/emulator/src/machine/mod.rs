//! A machine that runs kernels.
//!
//! Every warp is a little state machine; the scheduler gives them turns, in order or at random from
//! a seed, so that the same seed is the same run. Memory is sequentially consistent, or stores arrive
//! late and in any order.

mod access;
mod block;
mod calls;
mod pending;
mod together;
mod turn;
mod warp;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ccl_core::random::Random;
use thiserror::Error;

use crate::error::{Fault, Reason};
use crate::memory::{Memory, Ranges, Reach, Words};
use crate::program::{Kernel, Scope};
use block::{Block, Grid, Means};
use pending::{Pending, Unseen};
use turn::Trouble;

/// Instructions of a turn where turns are in order, and at most where they are random.
const TURN: u64 = 200;

/// Threads that a block may have.
const BLOCK_THREADS: u32 = 1024;

/// Who runs when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One warp after the other.
    InOrder,
    /// At random, from a seed.
    Random(u64),
}

/// How a machine behaves where hardware may behave in several ways.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Who runs when.
    pub schedule: Schedule,
    /// Accesses of more than 8 bytes are made in pieces of 8, in any order, and others may run in
    /// between. Without it the accesses of one instruction of a warp are seen as hardware shows
    /// lines of 128 bytes: whole, for whoever looks at their last word first.
    pub torn: bool,
    /// Threads of a warp part without a reason now and then.
    pub split: bool,
    /// Ordinary stores arrive late and in any order at other blocks, and later at other streams, each of
    /// which is a device of its own, until a thread of the block executes a fence or a release that reaches so far.
    /// Loads are never stale.
    pub weak: bool,
    /// How many threads there can be at once; blocks beyond wait until others have ended.
    pub resident_threads: u32,
    /// After how many instructions without any change in memory it is a deadlock; `None` where
    /// somebody outside of the machine may still change something.
    pub patience: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: Schedule::InOrder,
            torn: false,
            split: false,
            weak: false,
            resident_threads: 16 * 2048,
            patience: Some(20_000_000),
        }
    }
}

/// A kernel and what it is launched with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// Blocks in every direction.
    pub grid: [u32; 3],
    /// Threads of a block in every direction.
    pub block: [u32; 3],
    /// Shared memory beyond what the text declares.
    pub shared_bytes: usize,
    /// The arguments, laid out as [`Kernel::parameters`] says.
    pub arguments: Vec<u8>,
}

/// A launch that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// No block, no thread, or more threads than a block can have.
    #[error("a grid of {grid:?} blocks of {block:?} threads")]
    Size {
        /// Blocks.
        grid: [u32; 3],
        /// Threads.
        block: [u32; 3],
    },
    /// The arguments do not have the size that the kernel declares.
    #[error("{given} bytes of arguments for a kernel that takes {expected}")]
    Arguments {
        /// What was given.
        given: usize,
        /// What it takes.
        expected: usize,
    },
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left to run.
    Idle,
    /// Something was changed in memory, or a thread ended.
    Moving,
    /// Threads ran, and nothing changed: they wait for somebody.
    Waiting,
}

#[derive(Debug)]
struct Running {
    grid: Arc<Grid>,
    blocks: u32,
    next_block: u32,
    ended: u32,
    /// Stores of blocks that have ended, and those that all blocks see; all arrive before the kernel has ended.
    late: Vec<Pending>,
    device: Pending,
}

/// Runs kernels of several streams at once, the kernels of one stream one after the other.
#[derive(Debug)]
pub struct Machine {
    memory: Arc<Memory>,
    options: Options,
    random: Random,
    queues: BTreeMap<u32, VecDeque<Launch>>,
    running: BTreeMap<u32, Running>,
    /// Blocks with their streams.
    blocks: Vec<Option<(u32, Block)>>,
    /// Warps that can run: block and warp.
    ready: VecDeque<(usize, usize)>,
    resident: u32,
    executed: u64,
    changed: u64,
}

impl Machine {
    /// A machine that reaches this memory.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, options: Options) -> Self {
        let seed = if let Schedule::Random(seed) = options.schedule { seed } else { 0 };
        Self {
            memory: Arc::clone(memory),
            options,
            random: Random::new(seed),
            queues: BTreeMap::new(),
            running: BTreeMap::new(),
            blocks: Vec::new(),
            ready: VecDeque::new(),
            resident: 0,
            executed: 0,
            changed: 0,
        }
    }

    /// Puts a kernel at the end of a stream.
    ///
    /// # Errors
    ///
    /// It cannot be launched like this.
    pub fn launch(&mut self, stream: u32, launch: Launch) -> Result<(), LaunchError> {
        let Launch { grid, block, .. } = launch;
        let product =
            |size: [u32; 3]| size.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
        let threads = product(block).filter(|threads| (1..=BLOCK_THREADS).contains(threads));
        if threads.is_none() || product(grid).is_none_or(|blocks| blocks == 0) {
            return Err(LaunchError::Size { grid, block });
        }
        let (given, expected) = (launch.arguments.len(), launch.kernel.parameter_bytes());
        if given != expected {
            return Err(LaunchError::Arguments { given, expected });
        }
        self.queues.entry(stream).or_default().push_back(launch);
        Ok(())
    }

    /// Runs everything that was launched to its end. Gives the number of instructions, those of a
    /// warp together counted once.
    ///
    /// # Errors
    ///
    /// A thread did what no thread may do; the rest is abandoned.
    pub fn run(&mut self) -> Result<u64, Fault> {
        let before = self.executed;
        while self.step(TURN * 64)? != Progress::Idle {}
        Ok(self.executed - before)
    }

    /// Runs about so many instructions.
    ///
    /// # Errors
    ///
    /// A thread did what no thread may do; the rest is abandoned.
    pub fn step(&mut self, instructions: u64) -> Result<Progress, Fault> {
        let ranges = self.memory.ranges();
        let end = self.executed + instructions;
        let changed = self.changed;
        while self.executed < end {
            self.start_blocks();
            let Some(place) = self.next() else {
                let idle = self.running.is_empty();
                return if idle {
                    Ok(Progress::Idle)
                } else {
                    Err(self.deadlock("nobody can go on"))
                };
            };
            self.turn(place, &ranges)?;
            if self.options.weak {
                self.drift(&ranges);
            }
            let patience = self.options.patience.unwrap_or(u64::MAX);
            if self.executed - self.changed > patience {
                return Err(self.deadlock("everybody spins"));
            }
        }
        Ok(if self.changed > changed { Progress::Moving } else { Progress::Waiting })
    }

    /// Starts the next kernel of every stream, and blocks while there is room for them.
    fn start_blocks(&mut self) {
        if self.resident >= self.options.resident_threads {
            return;
        }
        let streams: Vec<u32> = self.queues.keys().copied().collect();
        for stream in streams {
            if self.running.contains_key(&stream) {
                continue;
            }
            let next = self.queues.get_mut(&stream).and_then(VecDeque::pop_front);
            match next {
                Some(launch) => {
                    self.running.insert(stream, Running::new(launch));
                    self.changed = self.executed;
                }
                None => {
                    self.queues.remove(&stream);
                }
            }
        }
        while let Some((stream, block)) = self.next_block() {
            self.place(stream, block);
        }
    }

    /// A block for which there is room, of the kernels in turn.
    fn next_block(&mut self) -> Option<(u32, Block)> {
        let room = self.options.resident_threads - self.resident.min(self.options.resident_threads);
        let alone = self.resident == 0;
        let fits = |running: &Running| {
            let threads: u32 = running.grid.block.iter().product();
            running.next_block < running.blocks && (threads <= room || alone)
        };
        let fewest = |(_, running): &(&u32, &mut Running)| running.next_block;
        let candidates = self.running.iter_mut().filter(|(_, running)| fits(running));
        let (stream, running) = candidates.min_by_key(fewest)?;
        let number = running.next_block;
        running.next_block += 1;
        Some((*stream, Block::new(&running.grid, number)))
    }

    fn place(&mut self, stream: u32, block: Block) {
        self.resident += block.threads();
        let warps = block.warps();
        let index = self.blocks.iter().position(Option::is_none).unwrap_or(self.blocks.len());
        if index == self.blocks.len() {
            self.blocks.push(None);
        }
        self.blocks[index] = Some((stream, block));
        self.ready.extend((0..warps).map(|warp| (index, warp)));
    }

    /// The warp whose turn it is, taken from those that are ready.
    fn next(&mut self) -> Option<(usize, usize)> {
        match self.options.schedule {
            Schedule::InOrder => self.ready.pop_front(),
            Schedule::Random(_) => {
                let index = self.random.index(self.ready.len());
                self.ready.swap_remove_back(index)
            }
        }
    }

    fn turn(&mut self, place: (usize, usize), ranges: &Ranges) -> Result<(), Fault> {
        let (index, warp) = place;
        let budget = match self.options.schedule {
            Schedule::InOrder => TURN,
            Schedule::Random(_) => 1 + self.random.below(TURN),
        };
        let Some((stream, block)) = self.blocks[index].as_mut() else { return Ok(()) };
        let Some(running) = self.running.get_mut(stream) else { return Ok(()) };
        let mut means = Means {
            ranges,
            random: &mut self.random,
            device: &mut running.device,
            torn: self.options.torn,
            split: self.options.split,
            weak: self.options.weak,
            executed: self.executed,
            changed: self.changed,
        };
        let outcome = block.run(warp, budget, &mut means);
        (self.executed, self.changed) = (means.executed, means.changed);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err((warp, trouble)) => return Err(self.fault(index, warp, trouble)),
        };
        if outcome.finished {
            self.end_block(index, ranges);
            return Ok(());
        }
        if outcome.released {
            let waiting = |other: &usize| *other != warp && block.is_ready(*other);
            let released: Vec<usize> = (0..block.warps()).filter(waiting).collect();
            for other in released {
                if !self.ready.contains(&(index, other)) {
                    self.ready.push_back((index, other));
                }
            }
        }
        if block.is_ready(warp) {
            self.ready.push_back(place);
        }
        Ok(())
    }

    fn end_block(&mut self, index: usize, ranges: &Ranges) {
        let Some((stream, block)) = self.blocks[index].take() else { return };
        self.resident -= block.threads();
        let Some(running) = self.running.get_mut(&stream) else { return };
        running.ended += 1;
        running.late.push(block.into_pending());
        if running.ended == running.blocks {
            let none = Words::new(0);
            let mut reach = Reach::registered(ranges, &none);
            let Running { late, device, .. } = running;
            for block in late {
                Unseen { block, device: &mut *device }.order(&mut reach, Scope::Device);
            }
            pending::flush(device, &mut reach);
            self.running.remove(&stream);
        }
    }

    /// Some stores arrive: those of blocks that have ended at other blocks, those of devices at others.
    fn drift(&mut self, ranges: &Ranges) {
        let none = Words::new(0);
        let mut reach = Reach::registered(ranges, &none);
        for Running { late, device, .. } in self.running.values_mut() {
            for block in late {
                let mut unseen = Unseen { block, device: &mut *device };
                unseen.drift(&mut reach, &mut self.random);
            }
            pending::drift(device, &mut reach, &mut self.random);
        }
    }

    fn fault(&mut self, index: usize, warp: usize, trouble: Trouble) -> Fault {
        let thread = (warp * 32 + trouble.lane) as u32;
        let fault = match self.blocks[index].as_ref() {
            Some((_, block)) => {
                let line = block.grid.kernel.module.code[trouble.place as usize].line;
                describe(block, thread, line, trouble.reason)
            }
            None => unreachable!("a block runs while it is there"),
        };
        self.abandon();
        fault
    }

    fn deadlock(&mut self, why: &str) -> Fault {
        let mut fault = None;
        let mut where_they_are = vec![why.to_owned()];
        for (_, block) in self.blocks.iter().flatten() {
            let (kernel, number) = (block.grid.kernel.name(), block.number());
            let mut lines: BTreeMap<(u32, &str), (usize, usize)> = BTreeMap::new();
            for (thread, line, what) in block.places() {
                let entry = lines.entry((line, what)).or_insert((thread, 0));
                entry.1 += 1;
                let reason = || Reason::Deadlock(String::new());
                fault.get_or_insert_with(|| describe(block, thread as u32, line, reason()));
            }
            for ((line, what), (first, threads)) in lines {
                where_they_are.push(format!(
                    "{kernel} block {number}: {threads} threads, thread {first} first, \
                     line {line}, {what}"
                ));
            }
        }
        where_they_are.truncate(20);
        let Some(mut fault) = fault else { unreachable!("somebody waits") };
        fault.reason = Reason::Deadlock(where_they_are.join("; "));
        self.abandon();
        fault
    }

    fn abandon(&mut self) {
        self.queues.clear();
        self.running.clear();
        self.blocks.clear();
        self.ready.clear();
        self.resident = 0;
    }
}

fn describe(block: &Block, thread: u32, line: u32, reason: Reason) -> Fault {
    let module = &block.grid.kernel.module;
    let text = module.lines.get((line as usize).saturating_sub(1));
    Fault {
        kernel: block.grid.kernel.name().to_owned(),
        block: block.number(),
        thread,
        line,
        instruction: text.map_or_else(String::new, |text| text.trim().to_owned()),
        reason,
    }
}

impl Running {
    fn new(launch: Launch) -> Self {
        let parameters = Words::new(launch.arguments.len());
        parameters.write(0, &launch.arguments);
        let blocks = launch.grid.iter().product();
        let grid = Arc::new(Grid {
            kernel: launch.kernel,
            size: launch.grid,
            block: launch.block,
            dynamic_shared_bytes: launch.shared_bytes,
            parameters,
        });
        let (late, device) = (Vec::new(), Pending::default());
        Self { grid, blocks, next_block: 0, ended: 0, late, device }
    }
}
