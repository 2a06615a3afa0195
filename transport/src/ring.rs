//! Rings of slots in memory that both ends can reach: the machinery of [`crate::memory`] and
//! [`crate::shm`].
//!
//! A ring has one writer and one or several readers, each of which gets every tile:
//!
//! ```text
//!   reader r   two lines   consumed: u64, written by the reader
//!   header i   two lines   published: u64, bytes: u32, kind: u32, the stamp, and the payload if it
//!                          is short, else where it begins on the floor, or the description of a loan;
//!                          by the writer
//!   floor                  slots * tile_bytes, on which longer payloads lie
//! ```
//!
//! Tile `t` has header `t % tiles` and is published by storing `t + 1`: one cache line carries
//! the flag, the length and the stamp of a tile, and the whole of a small one. The writer may fill
//! the header again once every reader's `consumed` exceeds `t`. Nothing else is shared, so there is
//! nothing to lock.
//!
//! A payload takes as much of the floor as it is long, so that many small tiles are on the way in the
//! room of a few large ones. Where one begins is for the writer to say; see [`Floor`].

pub(crate) mod atomics;
mod cache;
mod distance;
mod floor;
pub(crate) mod loan;
#[cfg(all(loom, test))]
mod model;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod writer;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::wire::STAMP_BYTES;

use self::atomics::{AtomicU32, AtomicU64};
use self::distance::Distance;
use self::floor::Floor;
pub use self::floor::floors_bytes;
use self::reader::Reader;
use self::writer::Writer;
use crate::bell::Bell;
use crate::shm::{Renunciation, Writing};
use crate::{Link, Loan, Stamp, Tile, TransportError};

const LINE_BYTES: usize = 64;
/// Lines that processors fetch together: what one rank writes lies apart from what another does.
pub(crate) const PAIR_BYTES: usize = 2 * LINE_BYTES;
const LENGTH_AT: usize = size_of::<AtomicU64>();
const KIND_AT: usize = LENGTH_AT + size_of::<AtomicU32>();
const STAMP_AT: usize = KIND_AT + size_of::<AtomicU32>();
const INLINE_AT: usize = STAMP_AT + STAMP_BYTES;
const HEADER_BYTES: usize = PAIR_BYTES;
/// Payloads up to this length travel in the header.
const INLINE_BYTES: usize = HEADER_BYTES - INLINE_AT;

/// The tile lies on the floor.
const KIND_TILE: u32 = 0;
/// What stands behind the stamp says where the tile is.
const KIND_LOAN: u32 = 1;
/// The tile is short and stands behind the stamp.
const KIND_INLINE: u32 = 2;

/// How much can be on the way in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Largest payload of a tile, in bytes; a multiple of 64.
    pub tile_bytes: usize,
    /// How many of the largest tiles fit.
    pub slots: usize,
    /// How many tiles of any length are on the way at most, in a direction.
    pub tiles: usize,
}

impl RingShape {
    /// Memory that a ring with `readers` readers needs, in bytes.
    #[must_use]
    pub fn bytes(self, readers: usize) -> usize {
        self.floor_at(readers) + self.slots * self.tile_bytes
    }

    fn floor_at(self, readers: usize) -> usize {
        readers * PAIR_BYTES + self.tiles * HEADER_BYTES
    }
}

/// Memory that outlives the links in it: zeroed, aligned to 64 bytes, at a fixed address.
///
/// # Safety
/// `start` must be valid for reads and writes of `bytes` bytes while the value lives.
pub(crate) unsafe trait Memory: Send + Sync + fmt::Debug {
    fn start(&self) -> NonNull<u8>;
    fn bytes(&self) -> usize;
}

/// Where a ring lies.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// The first byte of the ring.
    start: NonNull<u8>,
    /// Keeps that byte valid.
    _memory: Arc<dyn Memory>,
    shape: RingShape,
    readers: usize,
}

// SAFETY: the memory may be used from any thread; what is in it is accessed by the protocol above.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// The ring at `offset` in `memory`.
    pub(crate) fn new(
        memory: Arc<dyn Memory>,
        offset: usize,
        shape: RingShape,
        readers: usize,
    ) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES) && shape.tile_bytes.is_multiple_of(LINE_BYTES));
        assert!(offset + shape.bytes(readers) <= memory.bytes(), "the ring must lie in its memory");
        // SAFETY: checked just before.
        let start = unsafe { memory.start().add(offset) };
        Self { start, _memory: memory, shape, readers }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.shape.bytes(self.readers));
        // SAFETY: `new` checked that the ring lies in its memory, and the offset lies in the ring.
        unsafe { self.start.add(offset) }
    }

    /// A word of the ring.
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: lines are aligned to 64 bytes, zeroed at first, and their words only used as atomics.
        unsafe { self.at(offset).cast::<AtomicU64>().as_ref() }
    }

    fn consumed(&self, reader: usize) -> &AtomicU64 {
        self.word(reader * PAIR_BYTES)
    }

    /// The first header.
    fn first(&self) -> Header {
        Header(self.readers * PAIR_BYTES)
    }

    /// The header behind this one.
    fn behind(&self, header: Header) -> Header {
        let next = header.0 + HEADER_BYTES;
        if next == self.shape.floor_at(self.readers) { self.first() } else { Header(next) }
    }

    fn published(&self, header: Header) -> &AtomicU64 {
        self.word(header.0)
    }

    fn length(&self, header: Header) -> &AtomicU32 {
        self.half_word(header.0 + LENGTH_AT)
    }

    fn kind(&self, header: Header) -> &AtomicU32 {
        self.half_word(header.0 + KIND_AT)
    }

    fn half_word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above; length and kind have their own aligned words in the line.
        unsafe { self.at(offset).cast::<AtomicU32>().as_ref() }
    }

    fn stamp(&self, header: Header) -> NonNull<[u8; STAMP_BYTES]> {
        self.at(header.0 + STAMP_AT).cast()
    }

    fn short_payload(&self, header: Header) -> NonNull<u8> {
        self.at(header.0 + INLINE_AT)
    }

    /// Where on the floor a payload begins that is not short.
    fn place_of_payload(&self, header: Header) -> NonNull<u32> {
        self.short_payload(header).cast()
    }

    /// Bytes of the floor.
    fn floor_bytes(&self) -> usize {
        self.shape.slots * self.shape.tile_bytes
    }

    /// The payload at `offset` on the floor.
    fn payload(&self, offset: usize) -> NonNull<u8> {
        self.at(self.shape.floor_at(self.readers) + offset)
    }
}

/// Where a header begins in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header(usize);

/// An end of one or two rings: a writer, a reader, or both.
#[derive(Debug)]
pub struct RingLink {
    writer: Option<Writer>,
    reader: Option<Reader>,
    tile_bytes: usize,
    /// Whether the readers can open this process' shared memory.
    lends: bool,
    /// Of those at the other ends, if they sleep on one.
    bells: Vec<Bell>,
    /// Of this rank, and of the one whose tiles come here, if they can read each other's memory.
    own: Option<Renunciation>,
    theirs: Option<Renunciation>,
}

impl RingLink {
    /// The end that writes into `outgoing` for the readers with these indices, and reads `incoming`
    /// as the reader with this index.
    pub(crate) fn new(
        outgoing: Option<(Ring, Vec<usize>)>,
        incoming: Option<(Ring, usize)>,
        lends: bool,
    ) -> Self {
        let rings =
            outgoing.as_ref().map(|(ring, _)| ring).or(incoming.as_ref().map(|(ring, _)| ring));
        let tile_bytes = rings.map_or(0, |ring| ring.shape.tile_bytes);
        Self {
            writer: outgoing.map(|(ring, readers)| Writer::new(ring, readers)),
            reader: incoming.map(|(ring, reader)| Reader::new(ring, reader)),
            tile_bytes,
            lends,
            bells: Vec::new(),
            own: None,
            theirs: None,
        }
    }

    /// Those at the other ends sleep on these.
    pub(crate) fn ringing(self, bells: Vec<Bell>) -> Self {
        Self { bells, ..self }
    }

    /// This rank renounces by `own`, the one whose tiles come here by `theirs`.
    pub(crate) fn renouncing(
        self,
        own: Option<Renunciation>,
        theirs: Option<Renunciation>,
    ) -> Self {
        Self { own, theirs, ..self }
    }

    fn ring_bells(&self) {
        self.bells.iter().for_each(Bell::ring);
    }

    fn writer(&mut self) -> &mut Writer {
        let Some(writer) = &mut self.writer else { panic!("this end only reads") };
        writer
    }
}

impl Link for RingLink {
    fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        self.writer().reserve(bytes)
    }

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        self.writer().commit(stamp);
        self.ring_bells();
        Ok(())
    }

    fn share(&mut self, writers: usize) {
        self.writer().share(writers);
    }

    fn is_far(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::is_far)
    }

    fn lends(&self) -> bool {
        self.lends
    }

    fn lend(&mut self, stamp: &Stamp, loan: &Loan) -> Result<Option<u64>, TransportError> {
        assert!(self.lends, "the peer cannot open this process' memory");
        let tile = self.writer().lend(stamp, loan)?;
        if tile.is_some() {
            self.ring_bells();
        }
        Ok(tile)
    }

    fn returned(&mut self) -> u64 {
        self.writer().returned()
    }

    fn renounce(&self) {
        self.own.iter().for_each(Renunciation::declare);
    }

    fn has_renounced(&self) -> bool {
        self.theirs.as_ref().is_some_and(Renunciation::is_declared)
    }

    fn begin_to_write(&self) -> Result<Option<Writing>, TransportError> {
        self.theirs.as_ref().map(Renunciation::begin_to_write).transpose()
    }

    fn is_written(&self) -> bool {
        self.own.as_ref().is_some_and(Renunciation::is_written)
    }

    fn check_loan(&self) -> Result<(), TransportError> {
        let is_lent = self.reader.as_ref().is_some_and(Reader::is_lent);
        if is_lent && self.has_renounced() {
            return Err(TransportError::renounced());
        }
        Ok(())
    }

    fn peek(&self) -> Option<Tile<'_>> {
        self.reader.as_ref().and_then(Reader::peek)
    }

    fn release(&mut self) -> Result<(), TransportError> {
        let Some(reader) = &mut self.reader else { panic!("this end only writes") };
        reader.release();
        self.ring_bells();
        Ok(())
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        self.reader.as_mut().and_then(Reader::wrong).map_or(Ok(false), Err)
    }
}
