//! A collective of ranks on one host, each with a device, without the host: every rank has a region of
//! device memory that all others have mapped, with mailboxes, arrivals, marks and staging memory.
//!
//! Always true: what a rank tells another one is in the addresses of the other; and calls of one rank
//! run one after the other, on whichever streams, because they count in the same state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::Error;
use super::looked::{Laggards, Looked};
use super::mapped::{Invitation, Mapped, Shared};
use super::marks::MARK_BYTES;
use super::memory::{DeviceRegion, Pinned};
use super::messages::Quarrel;
use super::stream::{Event, Stream};
use super::{Gpu, Shape};
use crate::cuda::{
    ARRIVAL_BYTES, Arithmetic, Entry, Family, LETTER_BYTES, LOW_LATENCY_THREADS,
    LowLatencyParameters, MOST_BLOCKS, MOST_RANKS, PushParameters, State,
};

const LINE_BYTES: usize = 16;
/// Threads of a block, at least: more than there are ranks.
const LEAST_THREADS: u32 = 32;
const MOST_THREADS: u32 = 512;
/// Parts of a region begin at multiples of this.
const ALIGNMENT: usize = 256;

/// Where things are in the region of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// From 2 to [`MOST_RANKS`].
    pub ranks: usize,
    /// Bytes of the largest call with low latency, a multiple of 8.
    pub small_bytes: usize,
    /// Bytes of each of the two staging parts.
    pub staging_bytes: usize,
}

impl Layout {
    const STATES: usize = MOST_BLOCKS * MOST_RANKS * ARRIVAL_BYTES;
    pub(super) const LETTERS: usize = Self::STATES + Protocol::ALL.len() * Protocol::STATE_BYTES;
    pub(super) const MARKS: usize = Self::LETTERS + MOST_BLOCKS * MOST_RANKS * LETTER_BYTES;
    pub(super) const MAILBOXES: usize = Self::MARKS + MARK_BYTES.next_multiple_of(ALIGNMENT);

    /// Bytes of a region.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.staging(Side::Output) + self.staging_bytes
    }

    /// Data and flags.
    pub(super) fn slot_bytes(&self) -> usize {
        2 * self.small_bytes
    }

    fn staging(&self, side: Side) -> usize {
        let first = Self::MAILBOXES + 2 * self.ranks * self.slot_bytes();
        let skipped = if side == Side::Output { self.staging_bytes } else { 0 };
        (first + skipped).next_multiple_of(ALIGNMENT)
    }
}

/// Of staging memory: what the others read, or what they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// They read it.
    Input,
    /// They write it.
    Output,
}

/// The protocols, each of which counts its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Through mailboxes.
    LowLatency,
    /// Through mapped memory.
    Push,
    /// Messages, from mapped memory.
    Pull,
}

impl Protocol {
    /// In the order of their states.
    const ALL: [Self; 3] = [Self::LowLatency, Self::Push, Self::Pull];
    /// Of the states of all blocks.
    const STATE_BYTES: usize = MOST_BLOCKS * size_of::<State>();

    /// Where its states are, beginning with that of the first block.
    pub(super) fn states(self) -> usize {
        Layout::STATES + self as usize * Self::STATE_BYTES
    }
}

/// An address of memory of this rank, as another rank has mapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told(pub(super) u64);

impl Told {
    /// So many bytes behind it; whoever asks knows how far the memory goes.
    #[must_use]
    pub fn at(self, offset: usize) -> Self {
        Self(self.0 + offset as u64)
    }
}

/// What a rank says in a push, and does in it.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What each rank takes from this one.
    pub sources: [Option<Told>; MOST_RANKS],
    /// Where the result of each rank goes at this one.
    pub destinations: [Option<Told>; MOST_RANKS],
    /// Elements that this rank combines of a piece.
    pub count: usize,
    /// Elements from the first of these to behind the last one of all pieces that follow.
    pub reach: usize,
    /// Bytes from a piece to the next one.
    pub stride_bytes: usize,
    /// Pieces that the kernel does, all of which this rank has where it tells, and turns of each.
    pub pieces: usize,
    /// As many as ranks, if each takes from one rank after the other; else 1.
    pub turns: usize,
    /// Elements that a rank combines at most: equal on all ranks.
    pub largest: usize,
    /// How contributions are changed.
    pub arithmetic: Arithmetic,
}

/// The memory of a rank, before it has met the others.
#[derive(Debug)]
pub struct Own {
    layout: Layout,
    region: Shared,
    abort: Pinned,
    quarrels: Pinned,
    looked: Looked,
}

impl Own {
    /// Zeroed memory. Waits for the device.
    ///
    /// # Errors
    ///
    /// There is not so much.
    ///
    /// # Panics
    ///
    /// If there are more ranks than [`MOST_RANKS`].
    pub fn new(gpu: &Gpu, layout: Layout) -> Result<Self, Error> {
        assert!((2..=MOST_RANKS).contains(&layout.ranks), "{} ranks", layout.ranks);
        let region = Shared::new(gpu.allocate(layout.bytes())?);
        let looked = Looked::new(gpu, layout.ranks)?;
        let (abort, quarrels) = (gpu.pin(size_of::<u32>())?, gpu.pin(Quarrel::BYTES)?);
        Ok(Self { layout, region, abort, quarrels, looked })
    }

    /// What others need to map the region.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn invitation(&self) -> Result<Invitation, Error> {
        self.region.invitation()
    }
}

/// A rank that has met the others.
#[derive(Debug)]
pub struct Exchange {
    gpu: Arc<Gpu>,
    own: Own,
    rank: usize,
    blocks: u32,
    /// Those of the others.
    mapped: Vec<Option<Mapped>>,
    /// Where each rank has this one's region.
    seen: Vec<u64>,
}

impl Exchange {
    /// Of the memory of this rank, `mapped` of the others, by rank, and where they have `seen` this one's.
    /// Kernels have `blocks` blocks at most: equal on all ranks, and those of all ranks can run together.
    #[must_use]
    pub fn new(
        gpu: Arc<Gpu>,
        own: Own,
        rank: usize,
        blocks: u32,
        (mapped, seen): (Vec<Option<Mapped>>, Vec<u64>),
    ) -> Self {
        let blocks = blocks.clamp(1, MOST_BLOCKS as u32);
        Self { gpu, own, rank, blocks, mapped, seen }
    }

    /// Bytes of the largest call with low latency.
    #[must_use]
    pub fn small_bytes(&self) -> usize {
        self.own.layout.small_bytes
    }

    /// Bytes of staging memory on each side.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.own.layout.staging_bytes
    }

    /// Staging memory of this rank.
    #[must_use]
    pub fn staging(&self, side: Side) -> DeviceRegion<'_> {
        let layout = &self.own.layout;
        self.own.region.region().part(layout.staging(side), layout.staging_bytes)
    }

    /// The same, as a rank has mapped it.
    #[must_use]
    pub fn told_staging(&self, side: Side, rank: usize) -> Told {
        let start = if rank == self.rank { self.region(rank) } else { self.seen[rank] };
        Told(start + self.own.layout.staging(side) as u64)
    }

    /// Lets all kernels that wait or will wait give up.
    pub fn give_up(&self) {
        self.own.abort.word(0).store(1, Ordering::SeqCst);
    }

    /// AllReduce of a few elements. Regions may be the same.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the regions differ in size, are empty or too large; or the kernel cannot be launched.
    pub fn low_latency(
        &self,
        stream: &Stream,
        entry: Entry,
        arithmetic: Arithmetic,
        (input, output): (DeviceRegion<'_>, DeviceRegion<'_>),
    ) -> Result<(), Error> {
        let Entry::Elements { family: Family::LowLatency, datatype, .. } = entry else {
            return Err(Error::Misuse(format!("{} has no low latency", entry.name())));
        };
        let bytes = input.bytes();
        let fits = (1..=self.small_bytes()).contains(&bytes);
        if !fits || output.bytes() != bytes || !bytes.is_multiple_of(datatype.bytes()) {
            return Err(Error::Misuse(format!("no call with low latency has {bytes} bytes")));
        }
        let parameters = LowLatencyParameters {
            input: input.address(),
            output: output.address(),
            mailboxes: self.in_regions(Layout::MAILBOXES),
            state: self.state(Protocol::LowLatency),
            abort: self.abort(),
            count: (bytes / datatype.bytes()) as u64,
            slot_bytes: self.own.layout.slot_bytes() as u64,
            arithmetic,
            rank: self.rank as u32,
            ranks: self.own.layout.ranks as u32,
            most_blocks: self.blocks,
            most_threads: LOW_LATENCY_THREADS,
        };
        let (blocks, threads) = parameters.shape(datatype);
        let shape = Shape { blocks, threads };
        // SAFETY: regions of all ranks are mapped as long as this lives, and freeing waits for the device;
        // whoever made the input and the output answers for them.
        unsafe { self.gpu.launch(stream, entry, shape, &parameters) }
    }

    /// A push.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the entry is no push; or the kernel cannot be launched.
    pub fn push(&self, stream: &Stream, entry: Entry, part: &Part) -> Result<(), Error> {
        let Entry::Elements { family: Family::Push, datatype, .. } = entry else {
            return Err(Error::Misuse(format!("{} does not push", entry.name())));
        };
        let addresses =
            |told: &[Option<Told>; MOST_RANKS]| told.map(|told| told.map_or(0, |told| told.0));
        let parameters = PushParameters {
            sources: addresses(&part.sources),
            destinations: addresses(&part.destinations),
            arrivals: self.in_regions(0),
            state: self.state(Protocol::Push),
            abort: self.abort(),
            count: part.count as u64,
            reach: part.reach as u64,
            stride_bytes: part.stride_bytes as u64,
            arithmetic: part.arithmetic,
            rank: self.rank as u32,
            ranks: self.own.layout.ranks as u32,
            pieces: part.pieces as u32,
            turns: part.turns as u32,
        };
        let shape = self.shape((part.largest * datatype.bytes()).div_ceil(LINE_BYTES));
        // SAFETY: as above; what the others tell is memory of theirs that this rank has mapped, for as long as
        // they are in the call.
        unsafe { self.gpu.launch(stream, entry, shape, &parameters) }
    }

    /// Begins to look who has come to the call that waits.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn look(&self) -> Result<Event, Error> {
        self.own.looked.look(self.own.region.region(), &self.own.layout)
    }

    /// For whom the call waits, after the look has happened; nobody if it is over.
    #[must_use]
    pub fn awaited(&self, protocol: Protocol) -> Laggards {
        let others = (0..self.own.layout.ranks).filter(|rank| *rank != self.rank);
        self.own.looked.awaited(protocol, &self.own.layout, others)
    }

    /// Begins to look at all marks, and nothing else.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn look_at_marks(&self) -> Result<Event, Error> {
        self.own.looked.look_at_marks(self.own.region.region())
    }

    /// What that has found, after it has happened.
    pub(super) fn looked_mark(&self, offset: usize) -> u32 {
        self.own.looked.mark(offset)
    }

    /// The region of this rank, and where what was seen of it lies.
    pub(super) fn looked_at(&self) -> (&Looked, DeviceRegion<'_>) {
        (&self.own.looked, self.own.region.region())
    }

    /// A stream that never waits.
    pub(super) fn side_stream(&self) -> &Stream {
        self.own.looked.stream()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.own.layout
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Of a kernel, at most.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(super) fn abort(&self) -> u64 {
        self.own.abort.region().address()
    }

    pub(super) fn quarrels(&self) -> &Pinned {
        &self.own.quarrels
    }

    /// Threads for so many pieces of work.
    fn shape(&self, pieces: usize) -> Shape {
        let pieces = u32::try_from(pieces.max(1)).unwrap_or(u32::MAX / 2);
        let threads = pieces.next_power_of_two().clamp(LEAST_THREADS, MOST_THREADS);
        Shape { blocks: pieces.div_ceil(threads).clamp(1, self.blocks), threads }
    }

    /// Where the region of a rank is here.
    pub(super) fn region(&self, rank: usize) -> u64 {
        self.mapped[rank]
            .as_ref()
            .map_or_else(|| self.own.region.region().address(), Mapped::address)
    }

    pub(super) fn in_regions(&self, offset: usize) -> [u64; MOST_RANKS] {
        std::array::from_fn(|rank| match rank < self.own.layout.ranks {
            true => self.region(rank) + offset as u64,
            false => 0,
        })
    }

    pub(super) fn state(&self, protocol: Protocol) -> u64 {
        self.own.region.region().address() + protocol.states() as u64
    }
}
