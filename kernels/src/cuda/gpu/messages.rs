//! Messages of any length between all ranks that have met: each takes what the others have for it.
//!
//! Always true: what a rank is told is compared with what it expects before anything is stored; and ranks that do not
//! agree stay in the call until they are told to give up.

use std::sync::atomic::Ordering;

use super::Shape;
use super::error::Error;
use super::exchange::{Exchange, Layout, Protocol, Side, Told};
use super::memory::{DeviceRegion, Pinned};
use super::stream::Stream;
use crate::cuda::{Entry, MOST_RANKS, PullParameters, QUARREL_NUMBERS};

/// Bytes of a message for which it gets another block: enough that meeting costs less than moving them.
const PART_BYTES: usize = 32 << 10;
/// Bytes of a piece that goes through staging memory, at least, where a message has several parts.
const LEAST_PIECE_BYTES: usize = 256;
/// What one access of a kernel moves, at most.
const VECTOR_BYTES: usize = 16;
/// Threads of a block, at least: more than there are ranks.
const LEAST_THREADS: u32 = 32;
const MOST_THREADS: u32 = 512;

/// Where a message is.
#[derive(Clone, Copy, Debug)]
pub enum Ground<'a> {
    /// Its receiver has mapped it.
    Mapped(Told),
    /// Nobody else has; it goes through staging memory.
    Staged(DeviceRegion<'a>),
}

/// What a rank sends and receives, by rank. What it sends to itself is as long as what it receives from itself.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    /// From where, and how many bytes.
    pub sent: Vec<(Ground<'a>, usize)>,
    /// What this rank sends to itself.
    pub own: DeviceRegion<'a>,
    /// Where to.
    pub received: Vec<DeviceRegion<'a>>,
}

/// A message that is not as long as its receiver expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarrel {
    /// Who sends it.
    pub sender: usize,
    /// Its bytes.
    pub sent: u64,
    /// What is expected.
    pub expected: u64,
}

impl Quarrel {
    pub(super) const BYTES: usize = MOST_RANKS * QUARREL_NUMBERS * size_of::<u64>();

    /// The first in this memory, if a kernel has told one.
    pub(super) fn first(told: &Pinned) -> Option<Self> {
        let number = |rank: usize, at: usize| {
            told.counter((rank * QUARREL_NUMBERS + at) * size_of::<u64>()).load(Ordering::Acquire)
        };
        let sender = (0..MOST_RANKS).find(|rank| number(*rank, 0) != 0)?;
        Some(Self { sender, sent: number(sender, 1), expected: number(sender, 2) })
    }
}

/// How messages are cut, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Of staging memory for each rank.
    staging_bytes: usize,
    most_parts: u32,
}

impl Cut {
    fn new(layout: &Layout, blocks: u32) -> Self {
        let staging_bytes = layout.staging_bytes / layout.ranks / VECTOR_BYTES * VECTOR_BYTES;
        let parts = u32::try_from(staging_bytes / LEAST_PIECE_BYTES).unwrap_or(u32::MAX);
        Self { staging_bytes, most_parts: parts.clamp(1, blocks) }
    }
}

impl Exchange {
    /// Takes what all others have for this rank, and lets them take what it has for them.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if not every rank has a message, or this rank sends itself something else than it
    /// receives; or the kernel cannot be launched.
    pub fn pull(&self, stream: &Stream, messages: &Messages<'_>) -> Result<(), Error> {
        let ranks = self.layout().ranks;
        let cut = Cut::new(self.layout(), self.blocks());
        if [messages.sent.len(), messages.received.len()] != [ranks; 2] {
            return Err(Error::Misuse(format!(
                "there are {ranks} ranks, and not as many messages"
            )));
        }
        if messages.own.bytes() != messages.received[self.rank()].bytes() {
            return Err(Error::Misuse(
                "a rank sends itself something else than it receives".into(),
            ));
        }
        let parameters = self.pull_parameters(messages, cut);
        let lengths = || parameters.sent.iter().chain(&parameters.received);
        let longest = lengths().max().copied().unwrap_or(0);
        let vectors = longest.div_ceil(VECTOR_BYTES as u64).min(u64::from(MOST_THREADS));
        let threads = (vectors as u32).next_power_of_two().max(LEAST_THREADS);
        let shape = Shape { blocks: parameters.parts(longest), threads };
        // SAFETY: whoever made the regions answers for them; regions of all ranks are mapped as long as this lives, and
        // what the others tell is memory of theirs that this rank has mapped, for as long as they are in the call.
        unsafe { self.gpu().launch(stream, Entry::Pull, shape, &parameters) }
    }

    fn pull_parameters(&self, messages: &Messages<'_>, cut: Cut) -> PullParameters {
        let ranks = self.layout().ranks;
        let of = |number: &dyn Fn(usize) -> u64| -> [u64; MOST_RANKS] {
            std::array::from_fn(|rank| if rank < ranks { number(rank) } else { 0 })
        };
        let staged = |rank: usize| match &messages.sent[rank].0 {
            Ground::Staged(region) if rank != self.rank() => Some(region.address()),
            Ground::Staged(_) | Ground::Mapped(_) => None,
        };
        let offset = |rank: usize| rank * cut.staging_bytes;
        let staging = self.staging(Side::Input).address();
        PullParameters {
            sources: of(&|rank| match messages.sent[rank].0 {
                _ if rank == self.rank() => messages.own.address(),
                Ground::Mapped(told) => told.0,
                Ground::Staged(_) => self.told_staging(Side::Input, rank).at(offset(rank)).0,
            }),
            sent: of(&|rank| messages.sent[rank].1 as u64),
            destinations: of(&|rank| messages.received[rank].address()),
            received: of(&|rank| messages.received[rank].bytes() as u64),
            inputs: of(&|rank| staged(rank).unwrap_or(0)),
            staging: of(&|rank| staged(rank).map_or(0, |_| staging + offset(rank) as u64)),
            letters: self.in_regions(Layout::LETTERS),
            quarrels: self.quarrels().region().address(),
            state: self.state(Protocol::Pull),
            abort: self.abort(),
            staging_bytes: cut.staging_bytes as u64,
            part_bytes: PART_BYTES as u64,
            most_parts: cut.most_parts,
            rank: self.rank() as u32,
            ranks: ranks as u32,
            unused: 0,
        }
    }

    /// What a kernel of this rank has found out: a message that is not as long as it expects.
    #[must_use]
    pub fn quarrel(&self) -> Option<Quarrel> {
        Quarrel::first(self.quarrels())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_piece_of_staging_memory() {
        for (ranks, staging_bytes, blocks) in
            [(2, 4096, 64), (8, 4096, 64), (3, 4096, 1), (8, 8 << 20, 64), (7, 12288, 16)]
        {
            let layout = Layout { ranks, small_bytes: 1024, staging_bytes };
            let Cut { staging_bytes: each, most_parts } = Cut::new(&layout, blocks);
            assert!(each * ranks <= staging_bytes);
            assert!((1..=blocks).contains(&most_parts));
            assert!(each / most_parts as usize >= VECTOR_BYTES, "{layout:?}");
            assert!(most_parts == blocks || each < (most_parts as usize + 1) * LEAST_PIECE_BYTES);
        }
    }
}
