//! A block of threads: its warps, its shared memory, its barriers.

use std::sync::Arc;

use ccl_core::random::Random;

use super::pending::{Pending, Unseen};
use super::turn::{Stop, Surroundings, Trouble, Turn};
use super::warp::{Mask, Warp, lanes};
use crate::arithmetic::WIDTH;
use crate::error::Reason;
use crate::memory::{Own, Ranges, Reach, Words};
use crate::program::{Barrier, Kernel, Motion, Operation, Place, Tally};

/// Barriers of a block.
const BARRIERS: usize = 16;

/// What a block is part of.
#[derive(Debug)]
pub(crate) struct Grid {
    pub(crate) kernel: Kernel,
    pub(crate) size: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: usize,
    pub(crate) parameters: Words,
}

impl Grid {
    /// The barrier at a place, if there is one.
    fn barrier(&self, place: Place) -> Option<&Barrier> {
        let operation = &self.kernel.module.code[place as usize].operation;
        if let Operation::Motion(Motion::Barrier(barrier)) = operation {
            Some(barrier)
        } else {
            None
        }
    }
}

/// Threads that have come to a barrier, and what they said.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    threads: u32,
    holds: u32,
    /// For how many it is, if one of them said so; otherwise for all that live.
    expected: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) grid: Arc<Grid>,
    surroundings: Surroundings,
    warps: Vec<Warp>,
    locals: Vec<Words>,
    shared: Words,
    barriers: [Arrivals; BARRIERS],
    /// Stores that other blocks do not see yet.
    pending: Pending,
    /// Threads that have not ended.
    living: u32,
}

/// How warps are run.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    pub(crate) ranges: &'a Ranges,
    pub(crate) random: &'a mut Random,
    /// Stores that other devices do not see yet.
    pub(crate) device: &'a mut Pending,
    pub(crate) torn: bool,
    pub(crate) split: bool,
    pub(crate) weak: bool,
    pub(crate) executed: u64,
    pub(crate) changed: u64,
}

/// What went wrong, and in which warp: not always in the one whose turn it is.
type OfWarp = (usize, Trouble);

/// How a turn of a warp ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The warp cannot go on by itself.
    pub(crate) blocked: bool,
    /// Other warps can go on again.
    pub(crate) released: bool,
    /// All threads of the block have ended.
    pub(crate) finished: bool,
}

impl Block {
    pub(crate) fn new(grid: &Arc<Grid>, number: u32) -> Self {
        let function = grid.kernel.function();
        let threads: u32 = grid.block.iter().product();
        let of_warp = |warp: u32| (threads - warp * WIDTH as u32).min(WIDTH as u32) as usize;
        let warps = threads.div_ceil(WIDTH as u32);
        let dynamic_shared = function.shared_bytes.next_multiple_of(16);
        let shared_bytes = dynamic_shared + grid.dynamic_shared_bytes;
        let mut block = Self {
            grid: Arc::clone(grid),
            surroundings: Surroundings {
                grid: grid.size,
                block: grid.block,
                number,
                shared_bytes,
                dynamic_shared: dynamic_shared as u64,
            },
            warps: (0..warps).map(|warp| Warp::new(of_warp(warp), function)).collect(),
            locals: (0..warps).map(|_| Words::unwritten(function.local_bytes() * WIDTH)).collect(),
            shared: Words::unwritten(shared_bytes),
            barriers: [Arrivals::default(); BARRIERS],
            pending: Pending::default(),
            living: threads,
        };
        let (mut random, mut device) = (Random::new(0), Pending::default());
        let none = Ranges::default();
        let mut means = Means {
            ranges: &none,
            random: &mut random,
            device: &mut device,
            torn: false,
            split: false,
            weak: false,
            executed: 0,
            changed: 0,
        };
        let grid = Arc::clone(grid);
        for warp in 0..warps as usize {
            block.turn(&grid, warp, &mut means).fill(function, 0, Mask::MAX);
        }
        block
    }

    /// The stores that no other block has seen when this one has ended.
    pub(crate) fn into_pending(self) -> Pending {
        self.pending
    }

    pub(crate) fn warps(&self) -> usize {
        self.warps.len()
    }

    pub(crate) fn threads(&self) -> u32 {
        self.surroundings.block.iter().product()
    }

    pub(crate) fn number(&self) -> u32 {
        self.surroundings.number
    }

    pub(crate) fn is_ready(&self, warp: usize) -> bool {
        self.warps[warp].ready != 0
    }

    fn turn<'a>(&'a mut self, grid: &'a Grid, warp: usize, means: &'a mut Means<'_>) -> Turn<'a> {
        let function = grid.kernel.function();
        Turn {
            module: &grid.kernel.module,
            kernel: function,
            warp: &mut self.warps[warp],
            reach: Reach::new(
                means.ranges,
                Own {
                    shared: &self.shared,
                    parameters: &grid.parameters,
                    local: &self.locals[warp],
                    local_bytes: function.local_bytes(),
                },
            ),
            surroundings: &self.surroundings,
            number: warp as u32,
            random: &mut *means.random,
            torn: means.torn,
            split: means.split,
            weak: means.weak,
            unseen: Unseen { block: &mut self.pending, device: &mut *means.device },
            executed: means.executed,
            changed: means.changed,
        }
    }

    /// Runs a warp for so many instructions, or until it cannot go on.
    pub(crate) fn run(
        &mut self,
        warp: usize,
        budget: u64,
        means: &mut Means<'_>,
    ) -> Result<Outcome, OfWarp> {
        let outcome = self.run_turn(warp, budget, means)?;
        if means.weak {
            let grid = Arc::clone(&self.grid);
            self.turn(&grid, warp, means).drift();
        }
        Ok(outcome)
    }

    fn run_turn(
        &mut self,
        warp: usize,
        budget: u64,
        means: &mut Means<'_>,
    ) -> Result<Outcome, OfWarp> {
        let grid = Arc::clone(&self.grid);
        let end = means.executed + budget;
        let mut outcome = Outcome::default();
        while means.executed < end {
            let mut turn = self.turn(&grid, warp, means);
            let stop = turn.run(end - turn.executed);
            let (executed, changed) = (turn.executed, turn.changed);
            (means.executed, means.changed) = (executed, changed);
            match stop.map_err(|trouble| (warp, trouble))? {
                Stop::Budget | Stop::Pause => break,
                Stop::Blocked => {
                    outcome.blocked = true;
                    break;
                }
                Stop::Barrier(place, who) => {
                    if let Some(barrier) = grid.barrier(place)
                        && !barrier.is_passed_together()
                    {
                        outcome.released |= self.arrive(warp, barrier, who, means)?;
                    }
                    outcome.released |= self.pass(warp, means)?;
                }
                Stop::Ended(who) => {
                    means.changed = means.executed;
                    self.living -= who.count_ones();
                    outcome.finished = self.living == 0;
                    if outcome.finished {
                        break;
                    }
                    outcome.released |= self.pass(warp, means)? | self.release_all(means)?;
                }
            }
        }
        Ok(outcome)
    }

    /// Lets the threads of a warp go on from an aligned barrier at which they do not wait, once all of them have come to it.
    fn pass(&mut self, warp: usize, means: &mut Means<'_>) -> Result<bool, OfWarp> {
        let (grid, state) = (Arc::clone(&self.grid), &self.warps[warp]);
        let passed = |lane: usize| {
            self.barrier(warp, lane).filter(|barrier| barrier.is_passed_together()).is_some()
        };
        let Some(lane) = lanes(state.at_barrier).find(|lane| passed(*lane)) else {
            return Ok(false);
        };
        let place = state.places[lane] - 1;
        let Some(barrier) = grid.barrier(place) else { return Ok(false) };
        match self.apart(warp, lane, barrier) {
            None => self.arrive(warp, barrier, !state.ended, means),
            // It comes here no more without those that wait for it.
            Some(other) if self.barrier(warp, other).is_some_and(|other| other.is_aligned) => {
                Err(self.parted(warp, lane, other))
            }
            Some(_) => Ok(false),
        }
    }

    /// Threads of a warp come to a barrier. Says whether anybody can go on.
    fn arrive(
        &mut self,
        warp: usize,
        barrier: &Barrier,
        who: Mask,
        means: &mut Means<'_>,
    ) -> Result<bool, OfWarp> {
        for lane in lanes(who) {
            let state = &mut self.warps[warp];
            let number = state.value(lane, barrier.number) as u32 as usize;
            let holds = state.value(lane, barrier.predicate) & 1;
            let expected = barrier.threads.map(|threads| state.value(lane, threads) as u32);
            if !barrier.waits {
                state.at_barrier &= !(1 << lane);
                state.ready |= 1 << lane;
            }
            let Some(arrivals) = self.barriers.get_mut(number) else {
                let reason = Reason::OutOfRange(number as u64);
                return Err((warp, Trouble { lane, place: state.places[lane] - 1, reason }));
            };
            arrivals.threads += 1;
            arrivals.holds += holds as u32;
            arrivals.expected = arrivals.expected.or(expected);
        }
        self.release_all(means)
    }

    /// Opens all barriers to which everybody has come.
    fn release_all(&mut self, means: &mut Means<'_>) -> Result<bool, OfWarp> {
        let mut released = false;
        for number in 0..BARRIERS {
            let arrivals = self.barriers[number];
            let expected = arrivals.expected.unwrap_or(self.living);
            if arrivals.threads == 0 || arrivals.threads < expected {
                continue;
            }
            for warp in 0..self.warps.len() {
                self.check_alignment(warp, number)?;
                self.release(warp, number, arrivals);
            }
            self.barriers[number] = Arrivals::default();
            means.changed = means.executed;
            released = true;
        }
        Ok(released)
    }

    /// Whether all threads of a warp, or none, wait at a barrier that asks for it.
    fn check_alignment(&self, warp: usize, number: usize) -> Result<(), OfWarp> {
        let state = &self.warps[warp];
        let is_here = |lane: &usize| {
            self.barrier(warp, *lane).is_some_and(|barrier| {
                let is_this = state.value(*lane, barrier.number) as u32 as usize == number;
                is_this && barrier.is_aligned && barrier.waits
            })
        };
        let Some(lane) = lanes(state.at_barrier).find(is_here) else { return Ok(()) };
        let Some(barrier) = self.barrier(warp, lane) else { return Ok(()) };
        let other = self.apart(warp, lane, barrier);
        other.map_or(Ok(()), |other| Err(self.parted(warp, lane, other)))
    }

    /// A living thread of a warp that is not at the barrier at which that one is.
    fn apart(&self, warp: usize, lane: usize, barrier: &Barrier) -> Option<usize> {
        let state = &self.warps[warp];
        let number = |lane: usize| state.value(lane, barrier.number) as u32;
        let is_elsewhere = |other: &usize| {
            let is_at_barrier = state.at_barrier >> other & 1 != 0;
            let is_there = is_at_barrier && state.places[*other] == state.places[lane];
            !is_there || number(*other) != number(lane)
        };
        lanes(!state.ended).find(is_elsewhere)
    }

    /// What is wrong if one thread of a warp is at an aligned barrier, and another one is not.
    fn parted(&self, warp: usize, lane: usize, other: usize) -> OfWarp {
        let (line, _) = self.place(warp, other);
        let reason = Reason::Apart { thread: (warp * WIDTH + other) as u32, line };
        (warp, Trouble { lane, place: self.warps[warp].places[lane] - 1, reason })
    }

    /// The barrier at which a thread is, if it is at one.
    fn barrier(&self, warp: usize, lane: usize) -> Option<&Barrier> {
        let state = &self.warps[warp];
        let is_at_barrier = state.at_barrier >> lane & 1 != 0;
        if is_at_barrier { self.grid.barrier(state.places[lane] - 1) } else { None }
    }

    fn release(&mut self, warp: usize, number: usize, arrivals: Arrivals) {
        let grid = Arc::clone(&self.grid);
        for lane in lanes(self.warps[warp].at_barrier) {
            let state = &mut self.warps[warp];
            let Some(barrier) = grid.barrier(state.places[lane] - 1) else { continue };
            if !barrier.waits || state.value(lane, barrier.number) as u32 as usize != number {
                continue;
            }
            let result = match barrier.tally {
                Tally::Nothing => None,
                Tally::Count => Some(u64::from(arrivals.holds)),
                Tally::All => Some(u64::from(arrivals.holds == arrivals.threads)),
                Tally::Any => Some(u64::from(arrivals.holds > 0)),
            };
            if let Some(result) = result {
                state.set(lane, barrier.to, result);
            }
            state.at_barrier &= !(1 << lane);
            state.ready |= 1 << lane;
        }
    }

    /// Where some of the living threads are: warp, thread, line, what they wait for.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, u32, &'static str)> {
        self.warps.iter().enumerate().flat_map(move |(index, warp)| {
            lanes(!warp.ended).map(move |lane| {
                let (line, what) = self.place(index, lane);
                (index * WIDTH + lane, line, what)
            })
        })
    }

    /// The line at which a living thread is, and what it waits for there.
    fn place(&self, warp: usize, lane: usize) -> (u32, &'static str) {
        let (warp, bit) = (&self.warps[warp], 1 << lane);
        let waiting = warp.at_barrier & bit != 0;
        let place = warp.places[lane] as usize - usize::from(waiting);
        let what = match () {
            () if waiting => "at a barrier",
            () if warp.together & bit != 0 => "for its warp",
            () => "running",
        };
        (self.grid.kernel.module.code[place].line, what)
    }
}
