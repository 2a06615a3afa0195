//! AllReduce in the memory of all ranks of a host, without any tile.
//!
//! Where the buffers of all ranks lie in memory of the library, rank *i* combines slice *i* of all inputs and writes it
//! into all outputs. Every byte is read once and written once per rank, which nothing can do with less. Slices are
//! combined in order of rank, so the result is that of `two_shot` to the bit.
//!
//! 1. All ranks tell each other where their buffers are: an AllGather of a few bytes. It is also the proof that
//!    everybody has come, and that all have called the same.
//! 2. If all of them can be reached, each does its slice.
//! 3. A barrier: nobody returns while somebody still works in his memory.
//!
//! If one of them cannot be reached, the plan that was made for the call is carried out, and the next calls do not ask:
//! twice as many as the last time. All ranks have seen the same answers, so all of them ask again at the same call.
//!
//! A call that ends early takes the memory back from those that write it; see [`ccl_transport::window`].

use std::time::Duration;

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::wire::Stamp;
use ccl_kernels::{Kernel, Region, Scratch, Source, copy, copy_streaming, reduce};
use ccl_transport::window::{Opened, Window, Windows};
use smallvec::SmallVec;

use super::{Ended, Engine, Limits};
use crate::executor::{Failure, Task};

/// Smaller calls are done in the time in which all ranks tell each other where their buffers are. Measured with 2 to 8
/// ranks on two processors: from here on this is as fast as tiles, and with twice as much faster.
const LEAST_BYTES: usize = 64 << 10;

/// So much is combined at a time: small beside a second-level cache, of which all operands take a part.
const BLOCK_BYTES: usize = 16 << 10;

/// Slices begin at lines, so that no two ranks write the same one.
const LINE_BYTES: usize = 64;

/// Blocks between two looks whether the call has ended elsewhere.
const BLOCKS_PER_LOOK: usize = 64;

/// Calls that do not ask after one in vain, at most.
const LONGEST_PAUSE: u32 = 64;

/// How long peers may go on writing after a call has ended early: a slice takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A rank tells of its input, then of its output.
const ANSWER_BYTES: usize = 2 * (1 + Window::ENCODED_BYTES);

/// What is remembered from call to call.
#[derive(Debug, Default)]
pub(super) struct Direct {
    windows: Windows,
    /// Calls that do not ask yet.
    pause: u32,
    /// As long as the last pause was.
    last_pause: u32,
    /// What this rank has told, and then what all have.
    answers: Scratch,
    block: Scratch,
}

/// The memory of a rank: that of others is reached through windows.
enum Place<'a> {
    Here { input: Region<'a>, output: Region<'a> },
    There { input: Option<Opened>, output: Opened },
}

impl Place<'_> {
    /// Part of its input.
    fn source(&self, offset: usize, bytes: usize) -> Source<'_> {
        match self {
            Self::Here { input, .. } => input.source(offset, bytes),
            Self::There { input, output } => {
                input.as_ref().unwrap_or(output).bytes(offset..offset + bytes).into()
            }
        }
    }

    /// Puts a result into its output.
    fn place(&mut self, offset: usize, result: Source<'_>, streams: bool) {
        let bytes = result.bytes();
        // What was just read as input is in a cache.
        let (target, is_read) = match self {
            Self::Here { input, output } => {
                (output.target(offset, bytes), input.address() == output.address())
            }
            Self::There { input, output } => {
                (output.bytes_mut(offset..offset + bytes).into(), input.is_none())
            }
        };
        if streams && !is_read { copy_streaming(result, target) } else { copy(result, target) }
    }
}

impl Engine {
    /// Does an AllReduce in the memory of all ranks, if that is possible; tells whether it has.
    pub(super) fn directly(
        &mut self,
        task: &Task<'_>,
        limits: Limits<'_>,
    ) -> Result<bool, Box<Error>> {
        let Some(arithmetic) = task.arithmetic.filter(|arithmetic| arithmetic.factor.is_none())
        else {
            return Ok(false);
        };
        let [input, output] = *task.buffers else { unreachable!("a collective has two buffers") };
        let mut direct = std::mem::take(&mut self.direct);
        let result =
            self.ask(&mut direct, task.stamp, (input, output), limits).and_then(|places| {
                let Some(places) = places else { return Ok(false) };
                self.combine(&mut direct, arithmetic.kernel, places, limits)?;
                self.pass_together(task.stamp, limits).map(|()| true)
            });
        self.direct = direct;
        if result.is_err() && !Window::revoke(output.address(), PATIENCE) {
            tracing::warn!(
                rank = self.me.0,
                "a peer may still write into the output of the call that failed"
            );
        }
        result
    }

    /// Lets nobody pass before everybody has come, in the middle of a call.
    fn pass_together(&mut self, stamp: Stamp, limits: Limits<'_>) -> Ended {
        let plan = self.planner.plan(&Request::BARRIER, false)?;
        let arithmetic = Some(super::arithmetic(&Request::BARRIER, self.ranks));
        let mut token = std::mem::take(&mut self.token);
        let (program, buffers) = (&plan.program, &[token.region(); 2]);
        let barrier = Task { program, buffers, stamp, arithmetic, is_straight: plan.is_straight };
        let result = self.drive(&barrier, limits);
        self.token = token;
        result
    }

    /// Whether it is worth while to ask for [that](Self::directly), which all ranks know alike.
    #[inline]
    pub(super) fn may_be_direct(&mut self, request: &Request) -> bool {
        let is_worth_it = request.collective == Collective::AllReduce
            && request.bytes() >= LEAST_BYTES
            && self.ranks > 1
            && self.planner.introduced().nodes() == 1
            && !self.planner.is_forced(Collective::AllReduce);
        if is_worth_it && self.direct.pause > 0 {
            self.direct.pause -= 1;
            return false;
        }
        is_worth_it
    }

    /// Tells all ranks where this rank's buffers are, and opens those of all others, if all can be reached.
    fn ask<'a>(
        &mut self,
        direct: &mut Direct,
        stamp: Stamp,
        (input, output): (Region<'a>, Region<'a>),
        limits: Limits<'_>,
    ) -> Result<Option<Vec<Place<'a>>>, Box<Error>> {
        let ranks = self.ranks as usize;
        direct.answers.grow(ANSWER_BYTES * (1 + ranks));
        let answers = direct.answers.region();
        let (own, all) =
            (answers.part(0, ANSWER_BYTES), answers.part(ANSWER_BYTES, ANSWER_BYTES * ranks));
        let answer = answer(input, output);
        copy(Source::from(&answer[..]), own.target(0, ANSWER_BYTES));
        let gather = Request {
            collective: Collective::AllGather,
            count: ANSWER_BYTES,
            datatype: DataType::Uint8,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        let plan = self.planner.plan(&gather, false)?;
        let (program, buffers) = (&plan.program, &[own, all]);
        let is_straight = plan.is_straight;
        let gather = Task { program, buffers, stamp, arithmetic: None, is_straight };
        self.drive(&gather, limits)?;
        let mut told: SmallVec<[(Window, Window); 8]> = SmallVec::new();
        for rank in 0..ranks {
            let mut bytes = [0; ANSWER_BYTES];
            copy(all.source(rank * ANSWER_BYTES, ANSWER_BYTES), (&mut bytes[..]).into());
            let [input, output] =
                [&bytes[..ANSWER_BYTES / 2], &bytes[ANSWER_BYTES / 2..]].map(window);
            if let (Some(input), Some(output)) = (input, output)
                && input.bytes() == output.bytes()
            {
                told.push((input, output));
            }
        }
        if told.len() < ranks {
            direct.last_pause = (2 * direct.last_pause).clamp(1, LONGEST_PAUSE);
            direct.pause = direct.last_pause;
            return Ok(None);
        }
        direct.last_pause = 0;
        let open = |(rank, (theirs, result)): (u32, &(Window, Window))| {
            if Rank(rank) == self.me {
                return Ok(Place::Here { input, output });
            }
            let mut open = |window| {
                direct.windows.open(window).map_err(|cause| {
                    let failure = Failure::Link { peer: Rank(rank), cause };
                    limits.error_for(failure, self.me, stamp, &self.history)
                })
            };
            let input = (theirs != result).then(|| open(theirs)).transpose()?;
            Ok(Place::There { input, output: open(result)? })
        };
        (0..).zip(&told).map(open).collect::<Result<_, _>>().map(Some)
    }

    /// Combines this rank's slice of all inputs and puts it into all outputs.
    fn combine(
        &self,
        direct: &mut Direct,
        kernel: Kernel,
        mut places: Vec<Place<'_>>,
        limits: Limits<'_>,
    ) -> Result<(), Error> {
        let Place::Here { input, output } = &places[self.me.index()] else {
            unreachable!("one of the places is here")
        };
        let streams = self.executor.exceeds_caches(&[*input, *output]);
        direct.block.grow(BLOCK_BYTES);
        let block = direct.block.region();
        let slice = slice(output.bytes(), self.me.index(), places.len());
        for (number, offset) in slice.clone().step_by(BLOCK_BYTES).enumerate() {
            if number % BLOCKS_PER_LOOK == 0
                && let Some(fault) = limits.fault()
            {
                return Err(fault);
            }
            let bytes = BLOCK_BYTES.min(slice.end - offset);
            let sources: SmallVec<[Source<'_>; 8]> =
                places.iter().map(|place| place.source(offset, bytes)).collect();
            reduce(kernel, &sources, block.target(0, bytes));
            drop(sources);
            places
                .iter_mut()
                .for_each(|place| place.place(offset, block.source(0, bytes), streams));
        }
        Ok(())
    }
}

/// What this rank tells the others: zeros where a buffer cannot be reached.
fn answer(input: Region<'_>, output: Region<'_>) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    for (part, buffer) in answer.chunks_exact_mut(ANSWER_BYTES / 2).zip([input, output]) {
        if let Some(window) = Window::on(buffer.address(), buffer.bytes()) {
            part[0] = 1;
            part[1..].copy_from_slice(&window.encode());
        }
    }
    answer
}

/// Half of an answer.
fn window(bytes: &[u8]) -> Option<Window> {
    let (is_there, window) = bytes.split_first()?;
    (*is_there == 1).then(|| Window::decode(window)).flatten()
}

/// Which bytes of a buffer rank number `index` of `ranks` combines.
fn slice(bytes: usize, index: usize, ranks: usize) -> std::ops::Range<usize> {
    let each = bytes.div_ceil(ranks).next_multiple_of(LINE_BYTES);
    (index * each).min(bytes)..((index + 1) * each).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_lines_and_make_up_the_whole() {
        for (bytes, ranks) in [(1 << 20, 2), ((1 << 20) + 24, 3), (100, 7), (0, 2)] {
            let slices: Vec<_> = (0..ranks).map(|index| slice(bytes, index, ranks)).collect();
            assert_eq!(slices[0].start, 0);
            assert_eq!(slices[ranks - 1].end, bytes);
            assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(slices.iter().all(|slice| slice.is_empty() || slice.start % LINE_BYTES == 0));
        }
    }

    #[test]
    fn memory_that_nobody_reaches_is_no_window() {
        let memory = [0_u8; 10];
        let told = answer(Region::of(&memory), Region::of(&memory));
        assert_eq!(told, [0; ANSWER_BYTES]);
        assert_eq!(window(&told[..ANSWER_BYTES / 2]), None);
    }
}
