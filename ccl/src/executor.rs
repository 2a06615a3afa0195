//! Runs programs on links. It knows no algorithm and no transport.
//!
//! One sweep visits every lane (a link in one direction) and moves as many tiles as the slots of
//! the link and the order of the program allow; see [`ccl_core::program`] for that order. Sweeps
//! repeat until every step has moved all its bytes. Nothing here waits: between sweeps in which
//! nothing moved the caller decides how.

mod copies;
mod departure;
mod doubt;
mod idle;
mod landing;
mod looks;
mod progress;
mod rails;
mod resume;
mod straight;
mod task;
mod unstaged;
mod waiting;

use std::os::fd::RawFd;

use ccl_core::datatype::DataType;
use ccl_core::ids::Rank;
use ccl_core::program::{Action, Buffer, Lane, Operand, Port, Span, StepIndex};
use ccl_core::wire::{EncodedStamp, Stamp};
use ccl_kernels::{Region, Scratch, Source, reduce, scale};
use ccl_transport::{Link, Loan, TransportError, clock};
use smallvec::SmallVec;

use self::departure::Departure;
pub(crate) use self::departure::LEAST_LOAN_BYTES;
use self::doubt::arrivals;
use self::progress::{Lent, Progress};
pub(crate) use self::straight::is_straight;
pub(crate) use self::task::{Arithmetic, Failure, Task};
pub(crate) use self::unstaged::Least;
use crate::stores::{Call, Stores};

/// Reductions over at most this many operands need no heap memory per tile.
const INLINE_OPERANDS: usize = 32;

/// The links of one rank, by [`Port::index`]; two places per rank of the group.
pub(crate) type Links = Vec<Option<Box<dyn Link>>>;

/// Links and the memory that programs need besides the application's.
#[derive(Debug)]
pub(crate) struct Executor {
    me: Rank,
    links: Links,
    /// Links that have to be pushed, in order.
    pushed: Vec<usize>,
    /// Their sockets, and at which revision of the links they were collected.
    sockets: Vec<RawFd>,
    revision: u32,
    /// What ended a link, by link. It matters only to programs that still need the link: a peer that
    /// has all it needs may leave before us.
    broken: Vec<Option<TransportError>>,
    scratch: Scratch,
    /// One tile of scaled contributions.
    scaled: Scratch,
    progress: Progress,
    /// How the last program divided the bytes among the rails.
    rails: Vec<(Rank, Vec<u16>)>,
    /// What goes past the caches.
    stores: Stores,
    /// What is sent unstaged.
    least: Least,
    /// Peers are not waited for at the end.
    is_abandoned: bool,
    /// For [those that write memory of this rank](Self::await_writers).
    has_waited: bool,
}

impl Executor {
    pub(crate) fn new(me: Rank, links: Links) -> Self {
        let (mut pushed, mut sockets) = (Vec::new(), Vec::new());
        for (index, link) in links.iter().enumerate() {
            let before = sockets.len();
            if let Some(link) = link {
                link.descriptors(&mut sockets);
            }
            if sockets.len() > before {
                pushed.push(index);
            }
        }
        let largest = links.iter().flatten().map(|link| link.tile_bytes()).max().unwrap_or(0);
        let progress = Progress::new(links.len());
        let scaled = Scratch::new(largest);
        let broken = vec![None; links.len()];
        let scratch = Scratch::new(0);
        let (revision, rails) = (0, Vec::new());
        let (stores, least) = (Stores::default(), Least::default());
        Self {
            me,
            links,
            pushed,
            sockets,
            revision,
            broken,
            scratch,
            scaled,
            progress,
            rails,
            stores,
            least,
            is_abandoned: false,
            has_waited: false,
        }
    }

    /// Begins `task`: [`Self::resume`] goes on with it.
    pub(crate) fn begin(&mut self, task: &Task<'_>) {
        if task.is_straight {
            return self.prepare_straight(task.program);
        }
        self.prepare(task.program);
        self.divide(&task.program.rails);
        let call = self.call(task.stamp, task.buffers);
        self.stores.begin(call, self.caches().limit(call.collective));
    }

    /// What the stores of a call with these buffers depend on.
    fn call(&self, stamp: Stamp, buffers: &[Region<'_>]) -> Call {
        let signature = stamp.signature;
        let is_root = signature.collective.is_rooted() && signature.root == self.me.0;
        Call { is_root, ..Call::of(signature.collective, buffers) }
    }
}

/// A program under way.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    me: Rank,
    task: &'a Task<'a>,
    /// How peers on this host can read the buffers of the task, where they can.
    loans: &'a [Option<Loan>],
    /// The stamp of the task.
    encoded: EncodedStamp,
    links: &'a mut Links,
    pushed: &'a [usize],
    sockets: &'a mut Vec<RawFd>,
    revision: &'a mut u32,
    broken: &'a mut [Option<TransportError>],
    scratch: Region<'a>,
    scaled: Region<'a>,
    progress: &'a mut Progress,
    stores: &'a mut Stores,
    least: Least,
    /// Not even one of the buffers fits into all caches together.
    exceeds_all: bool,
}

impl<'a> Run<'a> {
    /// Moves what can be moved. Tells whether anything did.
    pub(crate) fn sweep(&mut self) -> Result<bool, Failure> {
        if self.task.is_straight {
            return self.go_on();
        }
        let started = self.stores.is_tried().then(clock::worked);
        let moved = self.sweep_lanes()?;
        if let Some(started) = started.filter(|_| moved) {
            self.stores.count(clock::worked().saturating_sub(started));
            if self.progress.left == 0 {
                self.stores.end();
            }
        }
        Ok(moved)
    }

    /// Sends before it looks at the links: most often nothing has come yet when a call begins, and to find that out is a
    /// system call.
    fn sweep_lanes(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        for lane in 0..self.task.program.sends.len() {
            moved |= self.send(lane)?;
        }
        moved |= self.look()?;
        if self.progress.left == self.task.program.steps.len() || !moved {
            moved |= self.copy();
        }
        for lane in 0..self.task.program.receives.len() {
            moved |= self.receive(lane)?;
        }
        Ok(moved)
    }

    /// Whether every byte has moved, and none waits in this process, but for what calls before have left for a peer that this
    /// one [goes round](Self::goes_round).
    pub(crate) fn finished(&self) -> bool {
        let flushed = |index: &usize| {
            let link = self.links[*index].as_ref();
            self.broken[*index].is_some()
                || link.is_none_or(|link| link.flushed())
                || self.goes_round(*index)
        };
        let is_through = match self.task.is_straight {
            true => self.progress.passed == self.task.program.steps.len(),
            false => self.progress.left == 0,
        };
        is_through && self.pushed.iter().all(flushed)
    }

    fn index(&self, port: Port) -> usize {
        port.index(self.links.len() / 2)
    }

    fn region(&self, buffer: Buffer) -> &Region<'a> {
        if buffer == Buffer::SCRATCH { &self.scratch } else { &self.task.buffers[buffer.index()] }
    }

    fn source(&self, span: Span, step: StepIndex, bytes: usize) -> Source<'_> {
        let offset = span.offset + self.progress.done[step as usize];
        self.region(span.buffer).source(offset, bytes)
    }

    /// The factor and type to scale `span` with, if it is to be scaled.
    fn factor(&self, span: Span) -> Option<(DataType, u64)> {
        let arithmetic = self.task.arithmetic.filter(|_| span.is_contribution())?;
        arithmetic.factor.map(|factor| (arithmetic.kernel.datatype, factor))
    }

    fn stamp(&self, step: StepIndex) -> Stamp {
        let mut stamp = self.task.stamp;
        if self.task.is_ragged() {
            stamp.signature.count = self.task.program.steps[step as usize].bytes as u64;
        }
        stamp
    }

    /// What the tiles of a step must be stamped with.
    fn expected(&self, step: StepIndex) -> EncodedStamp {
        if self.task.is_ragged() { self.stamp(step).encode() } else { self.encoded }
    }

    fn send(&mut self, lane: usize) -> Result<bool, Failure> {
        let program = self.task.program;
        let Lane { port, steps } = &program.sends[lane];
        let mut moved = self.take_back(lane, *port);
        while let Some(&step) = steps.get(self.progress.sent[lane]) {
            let bytes = match self.depart(*port, step)? {
                Departure::Waits => break,
                Departure::Copied(bytes) => {
                    self.copy_along(step, bytes);
                    let last = self.progress.lent[lane].back();
                    if last.is_some_and(|last| last.step == step) {
                        self.progress.lend(lane, step, (bytes, 0));
                    } else {
                        self.progress.advance(program, step, bytes);
                    }
                    bytes
                }
                Departure::Lent(bytes, tile) => {
                    self.progress.lend(lane, step, (bytes, tile));
                    bytes
                }
                Departure::Unstaged(bytes, tile) => {
                    self.copy_along(step, bytes);
                    self.note_unstaged(lane, step, bytes, tile);
                    bytes
                }
            };
            moved = true;
            let posted = &mut self.progress.posted[step as usize];
            *posted += bytes;
            self.progress.sent[lane] += usize::from(*posted == program.steps[step as usize].bytes);
        }
        Ok(moved)
    }

    /// Counts what the peer has returned as done.
    fn take_back(&mut self, lane: usize, port: Port) -> bool {
        if self.progress.lent[lane].is_empty() {
            return false;
        }
        self.supply(lane, port);
        let index = self.index(port);
        let returned = self.links[index].as_mut().map_or(0, |link| link.returned());
        let mut moved = false;
        while let Some(&Lent { step, bytes, tile, .. }) = self.progress.lent[lane].front() {
            if tile > returned {
                break;
            }
            self.progress.lent[lane].pop_front();
            self.progress.advance(self.task.program, step, bytes);
            self.progress.patience[lane] = 0;
            moved = true;
        }
        moved
    }

    fn receive(&mut self, lane: usize) -> Result<bool, Failure> {
        let steps = &self.task.program.receives[lane].steps;
        let mut moved = false;
        while let Some(&step) = steps.get(self.progress.received[lane]) {
            let bytes = match &self.task.program.steps[step as usize].action {
                Action::Receive { port, into } => self.store(*port, *into, step)?,
                Action::Reduce { operands, into } => self.reduce(lane, operands, *into, step)?,
                Action::Send { .. } | Action::Copy { .. } => unreachable!("a lane of receives"),
            };
            if bytes == 0 {
                break;
            }
            moved = true;
            self.complete(step, bytes)?;
        }
        Ok(moved)
    }

    /// Stores what of the oldest tile on `port` belongs to `step`; returns how many bytes.
    fn store(&mut self, port: Port, into: Span, step: StepIndex) -> Result<usize, Failure> {
        let bytes = self.arrived(port, step)?.min(self.progress.allowed(self.task.program, step));
        if bytes > 0 {
            let offset = into.offset + self.progress.done[step as usize];
            if !self.has_landed(port) {
                self.place(self.tile(port, bytes), self.region(into.buffer).target(offset, bytes));
            }
        }
        Ok(bytes)
    }

    /// Reduces what has arrived on all links of the step; returns how many bytes. The step is run
    /// by the first of its lanes, once all of them have come to it.
    fn reduce(
        &mut self,
        lane: usize,
        operands: &[Operand],
        into: Span,
        step: StepIndex,
    ) -> Result<usize, Failure> {
        let mut bytes = self.progress.allowed(self.task.program, step);
        for operand in operands {
            let Operand::Arrival(port) = *operand else { continue };
            let other = self.progress.lane_of[self.index(port)];
            let head = self.task.program.receives[other].steps.get(self.progress.received[other]);
            if other < lane || head != Some(&step) {
                return Ok(0);
            }
            bytes = bytes.min(self.arrived(port, step)?);
            if bytes == 0 {
                return Ok(0);
            }
        }
        let Some(Arithmetic { kernel, .. }) = self.task.arithmetic else {
            unreachable!("a program that reduces has an operation")
        };
        let bytes = self.scale_own(operands, step, bytes);
        let sources: SmallVec<[Source<'_>; INLINE_OPERANDS]> =
            operands.iter().map(|operand| self.operand(*operand, step, bytes)).collect();
        let offset = into.offset + self.progress.done[step as usize];
        reduce(kernel, &sources, self.region(into.buffer).target(offset, bytes));
        Ok(bytes)
    }

    /// Puts the scaled own contribution aside, if there is one; returns how many bytes fitted.
    fn scale_own(&self, operands: &[Operand], step: StepIndex, bytes: usize) -> usize {
        let own = operands.iter().find_map(|operand| match operand {
            Operand::Local(span) => self.factor(*span).map(|factor| (*span, factor)),
            Operand::Arrival(_) => None,
        });
        let Some((span, (datatype, factor))) = own else { return bytes };
        let bytes = bytes.min(self.scaled.bytes());
        scale(datatype, factor, self.source(span, step, bytes), self.scaled.target(0, bytes));
        bytes
    }

    fn operand(&self, operand: Operand, step: StepIndex, bytes: usize) -> Source<'_> {
        match operand {
            Operand::Arrival(port) => self.tile(port, bytes),
            Operand::Local(span) if self.factor(span).is_some() => self.scaled.source(0, bytes),
            Operand::Local(span) => self.source(span, step, bytes),
        }
    }

    /// Bytes of the oldest tile on `port` that are not used yet, after a check that it belongs to
    /// this call.
    fn arrived(&mut self, port: Port, step: StepIndex) -> Result<usize, Failure> {
        let index = self.index(port);
        let link = self.links[index].as_ref();
        let Some(tile) = link.and_then(|link| link.peek()) else { return Ok(0) };
        if *tile.stamp != self.expected(step) {
            return Err(Failure::of_foreign_tile(
                port.rank(),
                self.stamp(step).signature.count,
                tile.stamp,
            ));
        }
        let bytes = tile.payload.len();
        self.progress.oldest[index] = bytes;
        Ok(bytes - self.progress.used[index])
    }

    fn tile(&self, port: Port, bytes: usize) -> Source<'_> {
        let index = self.index(port);
        let used = self.progress.used[index];
        let tile = self.links[index].as_ref().and_then(|link| link.peek());
        let Some(tile) = tile else { unreachable!("the tile was there a moment ago") };
        (&tile.payload[used..used + bytes]).into()
    }

    /// Counts `bytes` of a receiving step as moved, and gives used-up tiles back.
    fn complete(&mut self, step: StepIndex, bytes: usize) -> Result<(), Failure> {
        let program = self.task.program;
        let action = &program.steps[step as usize].action;
        // Before anything is sent on, or the program counts as done.
        self.check_loans(action)?;
        let complete = self.progress.advance(program, step, bytes);
        arrivals(action).try_for_each(|port| self.use_up(port, bytes, complete))
    }

    fn use_up(&mut self, port: Port, bytes: usize, complete: bool) -> Result<(), Failure> {
        let index = self.index(port);
        self.progress.received[self.progress.lane_of[index]] += usize::from(complete);
        let Some(link) = &mut self.links[index] else { return Ok(()) };
        let used = &mut self.progress.used[index];
        *used += bytes;
        if *used == self.progress.oldest[index] {
            *used = 0;
            link.release().map_err(|cause| Failure::Link { peer: port.rank(), cause })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
