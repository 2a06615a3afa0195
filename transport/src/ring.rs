//! Two rings of slots in memory that both ends can reach: the machinery of [`crate::memory`] and
//! [`crate::shm`].
//!
//! One direction is a ring of `slots` slots, written by one end and read by the other:
//!
//! ```text
//!   line 0   consumed: u64, written by the reader
//!   slot i   line 0   published: u64, bytes: u32, kind: u32, then the stamp; written by the writer
//!            then     tile_bytes of payload, or the description of a loan
//! ```
//!
//! Tile `t` lies in slot `t % slots` and is published by storing `t + 1`: one cache line carries
//! the flag, the length and the stamp of a tile. The writer may fill the slot again once
//! `consumed > t`. Nothing else is shared, so there is nothing to lock.

use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ccl_core::wire::STAMP_BYTES;

use crate::shm::{COOKIE_BYTES, Map, SegmentAddress, open};
use crate::{HEADER_BYTES, Link, Loan, Stamp, Tile, TransportError};

const LINE_BYTES: usize = 64;
const LENGTH_AT: usize = 8;
const KIND_AT: usize = 12;
const STAMP_AT: usize = 16;

/// The payload of the slot is the tile.
const KIND_TILE: u32 = 0;
/// The payload of the slot says where the tile is.
const KIND_LOAN: u32 = 1;

/// Description of a loan: process, descriptor, cookie, offset and length.
const LOAN_BYTES: usize = 8 + COOKIE_BYTES + 16;

/// Memory of the peer that stays mapped for the next loan of it.
const REMEMBERED_LOANS: usize = 16;

/// Size and number of the slots of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Payload of a slot, in bytes; a multiple of 64.
    pub tile_bytes: usize,
    /// Slots per direction.
    pub slots: usize,
}

impl RingShape {
    /// Memory that one direction needs, in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        LINE_BYTES + self.slots * (HEADER_BYTES + self.tile_bytes)
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

/// One direction of a link, as one end sees it.
#[derive(Clone, Debug)]
struct Ring {
    memory: Arc<dyn Memory>,
    offset: usize,
    shape: RingShape,
}

impl Ring {
    fn new(memory: Arc<dyn Memory>, offset: usize, shape: RingShape) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES) && shape.tile_bytes.is_multiple_of(LINE_BYTES));
        assert!(offset + shape.bytes() <= memory.bytes(), "the ring must lie in its memory");
        Self { memory, offset, shape }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.shape.bytes());
        // SAFETY: `new` checked that the ring lies in the memory, and the offset lies in the ring.
        unsafe { self.memory.start().add(self.offset + offset) }
    }

    fn slot(&self, tile: u64) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "the remainder is a slot index")]
        let index = (tile % self.shape.slots as u64) as usize;
        LINE_BYTES + index * (HEADER_BYTES + self.shape.tile_bytes)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: lines are aligned to 64 bytes, zeroed at first, and only used as atomics.
        unsafe { self.at(offset).cast::<AtomicU64>().as_ref() }
    }

    fn half_word(&self, tile: u64, at: usize) -> &AtomicU32 {
        // SAFETY: as above; length and kind have their own aligned words in the line.
        unsafe { self.at(self.slot(tile) + at).cast::<AtomicU32>().as_ref() }
    }

    fn stamp(&self, tile: u64) -> NonNull<[u8; STAMP_BYTES]> {
        self.at(self.slot(tile) + STAMP_AT).cast()
    }

    fn payload(&self, tile: u64) -> NonNull<u8> {
        self.at(self.slot(tile) + HEADER_BYTES)
    }

    fn consumed(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn published(&self, tile: u64) -> &AtomicU64 {
        self.word(self.slot(tile))
    }
}

/// One end of a pair of rings.
#[derive(Debug)]
pub struct RingLink {
    outgoing: Ring,
    incoming: Ring,
    /// Tiles committed.
    committed: u64,
    /// Tiles the peer had released when we last looked.
    acknowledged: u64,
    reserved: bool,
    /// Tiles released by us.
    released: u64,
    /// Whether the peer can open this process' shared memory.
    lends: bool,
    /// Memory of the peer that was lent before, the latest last.
    borrowed: RefCell<Vec<(SegmentAddress, Map)>>,
    /// What was found wrong while looking at the oldest tile.
    wrong: RefCell<Option<TransportError>>,
}

impl RingLink {
    /// The end that writes at `outgoing` and reads at `incoming`, both offsets into their memory.
    pub(crate) fn new(
        outgoing: (Arc<dyn Memory>, usize),
        incoming: (Arc<dyn Memory>, usize),
        shape: RingShape,
    ) -> Self {
        Self {
            outgoing: Ring::new(outgoing.0, outgoing.1, shape),
            incoming: Ring::new(incoming.0, incoming.1, shape),
            committed: 0,
            acknowledged: 0,
            reserved: false,
            released: 0,
            lends: false,
            borrowed: RefCell::default(),
            wrong: RefCell::default(),
        }
    }

    /// As [`Self::new`], between processes that can open each other's shared memory.
    pub(crate) fn lending(
        outgoing: (Arc<dyn Memory>, usize),
        incoming: (Arc<dyn Memory>, usize),
        shape: RingShape,
    ) -> Self {
        Self { lends: true, ..Self::new(outgoing, incoming, shape) }
    }

    /// Publishes the reserved slot.
    fn publish(&mut self, stamp: &Stamp, bytes: usize, kind: u32) {
        let tile = self.committed;
        #[allow(clippy::cast_possible_truncation, reason = "at most a tile")]
        self.outgoing.half_word(tile, LENGTH_AT).store(bytes as u32, Ordering::Relaxed);
        self.outgoing.half_word(tile, KIND_AT).store(kind, Ordering::Relaxed);
        let place = self.outgoing.stamp(tile);
        // SAFETY: the slot is reserved, so only this end touches it; the place is in its header.
        unsafe { place.write(stamp.encode()) };
        self.outgoing.published(tile).store(tile + 1, Ordering::Release);
        self.committed += 1;
        self.reserved = false;
    }

    /// The bytes that a loan in the payload of a slot describes.
    fn borrow(&self, description: &[u8]) -> Result<&[u8], TransportError> {
        let invalid = || TransportError::Protocol("a slot holds no valid loan".into());
        let loan = decode_loan(description).ok_or_else(invalid)?;
        let mut borrowed = self.borrowed.borrow_mut();
        let known = borrowed.iter().position(|(segment, _)| *segment == loan.segment);
        let index = match known {
            Some(index) => index,
            None => {
                borrowed.push((loan.segment, open(&loan.segment, 0)?));
                borrowed.len() - 1
            }
        };
        let start = borrowed[index].1.behind_head(loan.offset, loan.bytes).ok_or_else(invalid)?;
        // SAFETY: the bytes lie in the mapping, which stays until `release` at least; the peer does
        // not change them before that.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), loan.bytes) })
    }

    /// The oldest tile, if one is published.
    fn oldest(&self) -> Result<Option<Tile<'_>>, TransportError> {
        let tile = self.released;
        if self.incoming.published(tile).load(Ordering::Acquire) != tile + 1 {
            return Ok(None);
        }
        let invalid = || TransportError::Protocol("a slot holds no valid header".into());
        let bytes = self.incoming.half_word(tile, LENGTH_AT).load(Ordering::Relaxed) as usize;
        let kind = self.incoming.half_word(tile, KIND_AT).load(Ordering::Relaxed);
        // SAFETY: the tile is published and not released, so the peer leaves its slot alone.
        let encoded = unsafe { self.incoming.stamp(tile).read() };
        let stamp = Stamp::decode(&encoded).filter(|_| bytes <= self.tile_bytes());
        let stamp = stamp.ok_or_else(invalid)?;
        let start = self.incoming.payload(tile);
        // SAFETY: as above, and the length was checked against the slot.
        let slot = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        let payload = match kind {
            KIND_TILE => slot,
            KIND_LOAN => self.borrow(slot)?,
            _ => return Err(invalid()),
        };
        Ok(Some(Tile { stamp, payload }))
    }

    fn full(&self) -> bool {
        self.committed - self.acknowledged >= self.outgoing.shape.slots as u64
    }
}

impl Link for RingLink {
    fn tile_bytes(&self) -> usize {
        self.outgoing.shape.tile_bytes
    }

    fn reserve(&mut self) -> Result<Option<&mut [u8]>, TransportError> {
        if self.full() {
            self.acknowledged = self.outgoing.consumed().load(Ordering::Acquire);
            if self.acknowledged > self.committed {
                return Err(TransportError::Protocol("released more than was sent".into()));
            }
            if self.full() {
                return Ok(None);
            }
        }
        self.reserved = true;
        let payload = self.outgoing.payload(self.committed);
        // SAFETY: the peer has released the slot, so only this end touches it until it is
        // published; the borrow of `self` keeps it unpublished.
        let slot = unsafe {
            std::slice::from_raw_parts_mut(payload.as_ptr(), self.outgoing.shape.tile_bytes)
        };
        Ok(Some(slot))
    }

    fn commit(&mut self, stamp: &Stamp, bytes: usize) -> Result<(), TransportError> {
        assert!(self.reserved, "commit without reserve");
        assert!(bytes <= self.tile_bytes(), "{bytes} bytes in a smaller slot");
        self.publish(stamp, bytes, KIND_TILE);
        Ok(())
    }

    fn lends(&self) -> bool {
        self.lends
    }

    fn lend(&mut self, stamp: &Stamp, loan: &Loan) -> Result<Option<u64>, TransportError> {
        assert!(self.lends, "the peer cannot open this process' memory");
        let Some(slot) = self.reserve()? else { return Ok(None) };
        slot[..LOAN_BYTES].copy_from_slice(&encode_loan(loan));
        self.publish(stamp, LOAN_BYTES, KIND_LOAN);
        Ok(Some(self.committed))
    }

    fn returned(&mut self) -> u64 {
        self.acknowledged = self.outgoing.consumed().load(Ordering::Acquire);
        self.acknowledged
    }

    fn peek(&self) -> Option<Tile<'_>> {
        match self.oldest() {
            Ok(tile) => tile,
            Err(cause) => {
                *self.wrong.borrow_mut() = Some(cause);
                None
            }
        }
    }

    fn release(&mut self) -> Result<(), TransportError> {
        let published = self.incoming.published(self.released).load(Ordering::Relaxed);
        assert!(published == self.released + 1, "release without a tile");
        self.released += 1;
        let borrowed = self.borrowed.get_mut();
        if borrowed.len() > REMEMBERED_LOANS {
            borrowed.remove(0);
        }
        self.incoming.consumed().store(self.released, Ordering::Release);
        Ok(())
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        match self.wrong.get_mut().take() {
            Some(cause) => Err(cause),
            None => Ok(false),
        }
    }
}

fn encode_loan(loan: &Loan) -> [u8; LOAN_BYTES] {
    let mut bytes = [0; LOAN_BYTES];
    let SegmentAddress { pid, descriptor, cookie } = loan.segment;
    bytes[0..4].copy_from_slice(&pid.to_le_bytes());
    bytes[4..8].copy_from_slice(&descriptor.to_le_bytes());
    bytes[8..24].copy_from_slice(&cookie);
    bytes[24..32].copy_from_slice(&(loan.offset as u64).to_le_bytes());
    bytes[32..40].copy_from_slice(&(loan.bytes as u64).to_le_bytes());
    bytes
}

fn decode_loan(bytes: &[u8]) -> Option<Loan> {
    let bytes: &[u8; LOAN_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| bytes[at..at + 4].try_into().ok();
    let long = |at: usize| {
        let value = bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes)?;
        usize::try_from(value).ok()
    };
    let segment = SegmentAddress {
        pid: u32::from_le_bytes(word(0)?),
        descriptor: i32::from_le_bytes(word(4)?),
        cookie: bytes[8..24].try_into().ok()?,
    };
    Some(Loan { segment, offset: long(24)?, bytes: long(32)? })
}
