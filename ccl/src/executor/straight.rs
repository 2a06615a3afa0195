//! Short programs, straight through.
//!
//! Of a program in which nothing is longer than a tile and no link is sent on twice, nothing can be pipelined:
//! its steps are done in their order, each at once. That leaves one counter where other programs need several
//! for every step and lane, and it is those that a call of a few bytes spends its time on.
//!
//! **Nobody waits for ever.** A step that cannot be done holds up those behind it, unlike in a sweep over all
//! lanes. Of all ranks, look at those that are furthest behind, and among their steps at one of the earliest
//! round. If it sends, there is room: all that is on the link belongs to calls that the peer has finished. If
//! it receives, the peer has come to this round, in which sends come first, and there was room for that one.

use ccl_core::program::{Action, Buffer, Operand, Port, Program, Span};
use ccl_core::wire::EncodedStamp;
use ccl_kernels::{Region, Source, copy, copy_streaming, reduce};
use ccl_transport::TransportError;
use smallvec::SmallVec;

use super::departure::is_streamed;
use super::{Arithmetic, Executor, Failure, INLINE_OPERANDS, Links, Run, Task};

/// A step of this length fits into a tile of every link inside a host.
const MOST_BYTES: usize = 4096;

/// Whether `program` can be run straight through, on links inside a host.
pub(crate) fn is_straight(program: &Program) -> bool {
    program.steps.iter().all(|step| step.bytes <= MOST_BYTES)
        && program.sends.iter().all(|lane| lane.steps.len() == 1)
}

/// What a short program needs while it is under way.
#[derive(Debug)]
struct Straight<'r> {
    task: &'r Task<'r>,
    /// The stamp of the task.
    encoded: EncodedStamp,
    links: &'r mut Links,
    scratch: Region<'r>,
    /// Steps that are done.
    passed: &'r mut usize,
}

impl Executor {
    /// Begins a task that is [straight](is_straight), and does what of it can be done now. Tells whether that
    /// was all of it; otherwise it is [taken up again](Self::resume).
    pub(crate) fn at_once(&mut self, task: &Task<'_>) -> Result<bool, Failure> {
        self.prepare_straight(task.program);
        let Self { links, scratch, progress, .. } = self;
        let (encoded, passed) = (task.stamp.encode(), &mut progress.passed);
        let mut straight = Straight { task, encoded, links, scratch: scratch.region(), passed };
        straight.go_on()?;
        Ok(progress.passed == task.program.steps.len())
    }
}

impl Run<'_> {
    /// Does as many steps as can be done now. Tells whether there were any.
    pub(super) fn go_on(&mut self) -> Result<bool, Failure> {
        let Self { task, encoded, scratch, .. } = *self;
        let (links, passed) = (&mut *self.links, &mut self.progress.passed);
        let before = *passed;
        Straight { task, encoded, links, scratch, passed }.go_on()?;
        Ok(self.progress.passed > before)
    }

    /// Whether tiles that steps further on will take belong to this call. The step that is waited for may
    /// wait for ever if they do not.
    pub(super) fn look_ahead(&self) -> Result<(), Failure> {
        self.open_receives().try_for_each(|port| {
            let link = self.links[self.index(port)].as_ref();
            match link.and_then(|link| link.peek()) {
                Some(tile) if *tile.stamp != self.encoded => Err(Failure::of_foreign_tile(
                    port.rank(),
                    self.task.stamp.signature.count,
                    tile.stamp,
                )),
                _ => Ok(()),
            }
        })
    }
}

impl<'r> Straight<'r> {
    #[inline(always)]
    fn go_on(&mut self) -> Result<(), Failure> {
        let steps = &self.task.program.steps;
        let mut passed = *self.passed;
        while let Some(step) = steps.get(passed) {
            let done = match &step.action {
                Action::Send { port, from, .. } => self.send_tile(*port, *from, step.bytes)?,
                Action::Receive { port, into } => self.store_tile(*port, *into, step.bytes)?,
                Action::Reduce { operands, into } => {
                    self.reduce_tiles(operands, *into, step.bytes)?
                }
                Action::Copy { from, into } => {
                    let source = self.region(from.buffer).source(from.offset, step.bytes);
                    copy(source, self.region(into.buffer).target(into.offset, step.bytes));
                    true
                }
            };
            if !done {
                break;
            }
            passed += 1;
        }
        *self.passed = passed;
        Ok(())
    }

    fn index(&self, port: Port) -> usize {
        port.index(self.links.len() / 2)
    }

    fn region(&self, buffer: Buffer) -> Region<'r> {
        if buffer == Buffer::SCRATCH { self.scratch } else { self.task.buffers[buffer.index()] }
    }

    #[inline(always)]
    fn send_tile(&mut self, port: Port, from: Span, bytes: usize) -> Result<bool, Failure> {
        let source = self.region(from.buffer).source(from.offset, bytes);
        let index = self.index(port);
        let Some(link) = &mut self.links[index] else {
            unreachable!("a link for every port of the program")
        };
        let failed = |cause| Failure::Link { peer: port.rank(), cause };
        let is_streamed = is_streamed(&**link, bytes);
        let Some(slot) = link.reserve(bytes).map_err(failed)? else { return Ok(false) };
        if is_streamed {
            copy_streaming(source, slot.into());
        } else {
            copy(source, slot.into());
        }
        link.commit(&self.task.stamp).map_err(failed)?;
        Ok(true)
    }

    #[inline(always)]
    fn store_tile(&mut self, port: Port, into: Span, bytes: usize) -> Result<bool, Failure> {
        let Some(tile) = self.whole_tile(port, bytes)? else { return Ok(false) };
        copy(tile, self.region(into.buffer).target(into.offset, bytes));
        self.give_back(port)?;
        Ok(true)
    }

    fn reduce_tiles(
        &mut self,
        operands: &[Operand],
        into: Span,
        bytes: usize,
    ) -> Result<bool, Failure> {
        let mut sources: SmallVec<[Source<'_>; INLINE_OPERANDS]> = SmallVec::new();
        for operand in operands {
            match operand {
                Operand::Arrival(port) => match self.whole_tile(*port, bytes)? {
                    Some(tile) => sources.push(tile),
                    None => return Ok(false),
                },
                Operand::Local(span) => {
                    sources.push(self.region(span.buffer).source(span.offset, bytes));
                }
            }
        }
        let Some(Arithmetic { kernel, .. }) = self.task.arithmetic else {
            unreachable!("a program that reduces has an operation")
        };
        reduce(kernel, &sources, self.region(into.buffer).target(into.offset, bytes));
        drop(sources);
        operands.iter().try_for_each(|operand| match operand {
            Operand::Arrival(port) => self.give_back(*port),
            Operand::Local(_) => Ok(()),
        })?;
        Ok(true)
    }

    /// The oldest tile on `port`, if one has arrived, after a check that it is what the step needs.
    #[inline(always)]
    fn whole_tile(&self, port: Port, bytes: usize) -> Result<Option<Source<'_>>, Failure> {
        let link = self.links[self.index(port)].as_ref();
        let Some(tile) = link.and_then(|link| link.peek()) else { return Ok(None) };
        if *tile.stamp != self.encoded {
            return Err(Failure::of_foreign_tile(
                port.rank(),
                self.task.stamp.signature.count,
                tile.stamp,
            ));
        }
        if tile.payload.len() != bytes {
            let text = format!("a tile of {} bytes instead of {bytes}", tile.payload.len());
            let cause = TransportError::Protocol(text);
            return Err(Failure::Link { peer: port.rank(), cause });
        }
        Ok(Some(tile.payload.into()))
    }

    #[inline(always)]
    fn give_back(&mut self, port: Port) -> Result<(), Failure> {
        let index = self.index(port);
        let Some(link) = &mut self.links[index] else { return Ok(()) };
        link.release().map_err(|cause| Failure::Link { peer: port.rank(), cause })
    }
}
