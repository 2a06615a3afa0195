//! How far a program has come.

use std::collections::VecDeque;

use ccl_core::program::{Program, StepIndex};

/// The counters of one program; the memory is kept from program to program.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes moved, by step: the memory they were read from may change.
    pub(super) done: Vec<usize>,
    /// Bytes handed to the link, by step; of what is lent, more than [`Self::done`].
    pub(super) posted: Vec<usize>,
    /// Pieces whose memory is still needed, in order, by lane of [`Program::sends`].
    pub(super) lent: Vec<VecDeque<Lent>>,
    /// Sweeps in which nothing of these came back, by lane.
    pub(super) patience: Vec<u32>,
    /// Steps handed over completely, by lane of [`Program::sends`].
    pub(super) sent: Vec<usize>,
    /// Steps completed, by lane of [`Program::receives`].
    pub(super) received: Vec<usize>,
    /// Lane in [`Program::receives`], by link.
    pub(super) lane_of: Vec<usize>,
    /// Bytes of the oldest tile that were used already, by link.
    pub(super) used: Vec<usize>,
    /// Length of the oldest tile, by link, as of the last look at it.
    pub(super) oldest: Vec<usize>,
    /// How often links were looked at, and at which of these looks each link was, by link.
    pub(super) looks: u32,
    pub(super) looked: Vec<u32>,
    /// Steps that have bytes left.
    pub(super) left: usize,
    /// Steps of a program that is run [straight](super::straight) that are done; nothing else above
    /// is about it.
    pub(super) passed: usize,
}

/// A piece of a sending step whose memory is needed until its tile has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lent {
    pub(super) step: StepIndex,
    /// Where it is in the step.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Number of the tile; 0 if it was copied, behind a piece of the step that was not.
    pub(super) tile: u64,
}

impl Progress {
    /// No program has moved anything yet.
    pub(super) fn new(links: usize) -> Self {
        let by_link = || vec![0; links];
        let (used, oldest, looked) = (by_link(), by_link(), vec![0; links]);
        Self { used, oldest, looked, ..Self::default() }
    }

    /// Begins `program`. Tiles that the previous program did not use up stay as they are.
    pub(super) fn start(&mut self, program: &Program) {
        refill(&mut self.done, program.steps.len());
        refill(&mut self.posted, program.steps.len());
        self.lent.iter_mut().for_each(VecDeque::clear);
        self.lent.resize_with(program.sends.len().max(self.lent.len()), VecDeque::new);
        refill(&mut self.patience, program.sends.len());
        refill(&mut self.sent, program.sends.len());
        refill(&mut self.received, program.receives.len());
        let links = self.used.len();
        refill(&mut self.lane_of, links);
        for (index, lane) in program.receives.iter().enumerate() {
            self.lane_of[lane.port.index(links / 2)] = index;
        }
        self.left = program.steps.len();
    }

    /// Notes that the next bytes of a step have left, with this tile, and their memory is still needed.
    pub(super) fn lend(&mut self, lane: usize, step: StepIndex, (bytes, tile): (usize, u64)) {
        let offset = self.posted[step as usize];
        self.lent[lane].push_back(Lent { step, offset, bytes, tile });
    }

    /// Counts `bytes` of `step` as moved; tells whether these were the last.
    pub(super) fn advance(&mut self, program: &Program, step: StepIndex, bytes: usize) -> bool {
        let done = &mut self.done[step as usize];
        *done += bytes;
        let complete = *done == program.steps[step as usize].bytes;
        self.left -= usize::from(complete);
        complete
    }

    /// How many bytes of `step` may have moved now.
    pub(super) fn limit(&self, program: &Program, step: StepIndex) -> usize {
        let this = &program.steps[step as usize];
        let ahead = this.after.iter().map(|before| self.done[*before as usize]);
        ahead.min().unwrap_or(this.bytes)
    }

    /// How many more bytes of a receiving `step` may move now.
    pub(super) fn allowed(&self, program: &Program, step: StepIndex) -> usize {
        self.limit(program, step) - self.done[step as usize]
    }
}

fn refill<T: Copy + Default>(counters: &mut Vec<T>, length: usize) {
    counters.clear();
    counters.resize(length, T::default());
}
