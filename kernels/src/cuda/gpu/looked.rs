//! Who has come to a call that waits: a copy of what the others tell this rank, and of what its own blocks wait for.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use super::Gpu;
use super::error::Error;
use super::exchange::{Layout, Protocol};
use super::marks::{MARK_BYTES, ROW_BYTES};
use super::memory::{DeviceRegion, Pinned};
use super::stream::{Event, Stream};
use crate::cuda::{ARRIVAL_BYTES, LETTER_BYTES, MOST_BLOCKS, MOST_RANKS, State};

const LINE_BYTES: usize = 16;
/// Where the number of the call is in a letter.
const CALL: usize = 5 * size_of::<u64>();

/// The ranks that a call waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Laggards {
    /// They have not come.
    pub late: Vec<usize>,
    /// They have not done what a block waits for, and all have come.
    pub slow: Vec<usize>,
}

/// Where the copy of a region lies, and the stream on which it is made, which never waits: all that is before the
/// mailboxes, in the same order, and behind it the first line of every slot of both boxes.
#[derive(Debug)]
pub(super) struct Looked {
    pinned: Pinned,
    stream: Stream,
    /// A row of marks, copied by the streams of calls.
    reported: Pinned,
}

impl Looked {
    pub(super) fn new(gpu: &Gpu, ranks: usize) -> Result<Self, Error> {
        let pinned = gpu.pin(Layout::MAILBOXES + 2 * ranks * LINE_BYTES)?;
        Ok(Self { pinned, stream: gpu.stream()?, reported: gpu.pin(ROW_BYTES)? })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Begins to look at all of a region.
    pub(super) fn look(&self, region: DeviceRegion<'_>, layout: &Layout) -> Result<Event, Error> {
        let line = |slot: usize| {
            let from = Layout::MAILBOXES + slot * layout.slot_bytes();
            (from, Layout::MAILBOXES + slot * LINE_BYTES, LINE_BYTES)
        };
        let lines = (0..2 * layout.ranks).map(line);
        self.copy(region, [(0, 0, Layout::MAILBOXES)].into_iter().chain(lines))
    }

    /// Begins to look at the marks.
    pub(super) fn look_at_marks(&self, region: DeviceRegion<'_>) -> Result<Event, Error> {
        self.copy(region, [(Layout::MARKS, Layout::MARKS, MARK_BYTES)].into_iter())
    }

    /// Lets the stream copy a row of marks, so many bytes behind the first one.
    pub(super) fn report(
        &self,
        stream: &Stream,
        region: DeviceRegion<'_>,
        offset: usize,
    ) -> Result<(), Error> {
        stream.copy(region.part(Layout::MARKS + offset, ROW_BYTES), self.reported.region())
    }

    /// A mark of that row, so many bytes behind its first one.
    pub(super) fn reported(&self, offset: usize) -> u32 {
        self.reported.word(offset).load(Ordering::SeqCst)
    }

    /// From where to where, and how many bytes.
    fn copy(
        &self,
        region: DeviceRegion<'_>,
        mut pieces: impl Iterator<Item = (usize, usize, usize)>,
    ) -> Result<Event, Error> {
        pieces.try_for_each(|(from, to, bytes)| {
            self.stream.copy(region.part(from, bytes), self.pinned.region().part(to, bytes))
        })?;
        self.stream.mark()
    }

    /// A mark, so many bytes behind the first one.
    pub(super) fn mark(&self, offset: usize) -> u32 {
        self.word(Layout::MARKS + offset)
    }

    /// For whom of these the call waits. Blocks of a push meet all ranks, so all of them know; in the other protocols
    /// only the first one does for sure.
    pub(super) fn awaited(
        &self,
        protocol: Protocol,
        layout: &Layout,
        others: impl Iterator<Item = usize> + Clone,
    ) -> Laggards {
        let blocks = if protocol == Protocol::Push { MOST_BLOCKS } else { 1 };
        let waiting = (0..blocks).map(|block| self.waiting(protocol, block));
        let waiting: Vec<Waiting> = waiting.filter(|waiting| waiting.awaited != 0).collect();
        let ranks_that = |wanted: Stage| -> Vec<usize> {
            let stage = |rank| {
                waiting.iter().map(move |waiting| self.stage(waiting, protocol, layout, rank)).min()
            };
            others.clone().filter(|rank| stage(*rank) == Some(wanted)).collect()
        };
        let late = ranks_that(Stage::Away);
        let slow = if late.is_empty() { ranks_that(Stage::Inside) } else { Vec::new() };
        Laggards { late, slow }
    }

    fn waiting(&self, protocol: Protocol, block: usize) -> Waiting {
        let state = protocol.states() + block * size_of::<State>();
        let calls = self.number(state + offset_of!(State, calls));
        Waiting { block, calls, awaited: self.number(state + offset_of!(State, awaited)) }
    }

    /// How far a rank has come to what a block waits for.
    fn stage(&self, waiting: &Waiting, protocol: Protocol, layout: &Layout, rank: usize) -> Stage {
        let Waiting { block, calls, awaited } = *waiting;
        let place = block * MOST_RANKS + rank;
        match protocol {
            Protocol::LowLatency => {
                let slot = (calls % 2) as usize * layout.ranks + rank;
                let flag = self.word(Layout::MAILBOXES + slot * LINE_BYTES + 4);
                if u64::from(flag) == awaited { Stage::There } else { Stage::Away }
            }
            Protocol::Push => match self.number(place * ARRIVAL_BYTES) {
                ticket if ticket >= awaited => Stage::There,
                ticket if ticket > calls.saturating_mul(2) => Stage::Inside,
                _ => Stage::Away,
            },
            Protocol::Pull => {
                let call = self.number(Layout::LETTERS + place * LETTER_BYTES + CALL);
                if call >= awaited { Stage::There } else { Stage::Away }
            }
        }
    }

    fn word(&self, offset: usize) -> u32 {
        self.pinned.word(offset).load(Ordering::SeqCst)
    }

    fn number(&self, offset: usize) -> u64 {
        self.pinned.counter(offset).load(Ordering::SeqCst)
    }
}

/// A block, the calls that it has finished, and what it waits for.
struct Waiting {
    block: usize,
    calls: u64,
    awaited: u64,
}

/// How far a rank has come, as seen by a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Not to the call.
    Away,
    /// To the call, not to what the block waits for.
    Inside,
    /// Nobody waits for it.
    There,
}
