//! The end of a ring that fills slots.

use std::sync::atomic::Ordering;

use super::{INLINE_BYTES, KIND_AT, KIND_INLINE, KIND_TILE, LENGTH_AT, Ring};
use crate::{Stamp, TransportError};

#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    readers: Vec<usize>,
    /// Tiles published.
    committed: u64,
    /// Tiles that every reader had released when we last looked.
    acknowledged: u64,
    reserved: bool,
}

impl Writer {
    pub(super) fn new(ring: Ring, readers: Vec<usize>) -> Self {
        assert!(readers.iter().all(|reader| *reader < ring.readers), "readers {readers:?}");
        Self { ring, readers, committed: 0, acknowledged: 0, reserved: false }
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// How many tiles every reader has released.
    pub(super) fn returned(&mut self) -> u64 {
        let consumed = self.readers.iter().map(|reader| self.ring.consumed(*reader));
        self.acknowledged = consumed
            .map(|consumed| consumed.load(Ordering::Acquire))
            .min()
            .unwrap_or(self.committed);
        self.acknowledged
    }

    pub(super) fn reserve(&mut self) -> Result<Option<&mut [u8]>, TransportError> {
        let slots = self.ring.shape.slots as u64;
        if self.committed - self.acknowledged >= slots {
            if self.returned() > self.committed {
                return Err(TransportError::Protocol("released more than was sent".into()));
            }
            if self.committed - self.acknowledged >= slots {
                return Ok(None);
            }
        }
        self.reserved = true;
        let payload = self.ring.payload(self.committed);
        // SAFETY: all readers have released the slot, so only this end touches it until it is
        // published; the borrow of `self` keeps it unpublished.
        let slot =
            unsafe { std::slice::from_raw_parts_mut(payload.as_ptr(), self.ring.shape.tile_bytes) };
        Ok(Some(slot))
    }

    /// Publishes the reserved slot.
    pub(super) fn publish(&mut self, stamp: &Stamp, bytes: usize, kind: u32) {
        assert!(self.reserved, "commit without reserve");
        assert!(bytes <= self.ring.shape.tile_bytes, "{bytes} bytes in a smaller slot");
        let tile = self.committed;
        let kind = if kind == KIND_TILE { self.shorten(tile, bytes) } else { kind };
        #[allow(clippy::cast_possible_truncation, reason = "at most a tile")]
        self.ring.half_word(tile, LENGTH_AT).store(bytes as u32, Ordering::Relaxed);
        self.ring.half_word(tile, KIND_AT).store(kind, Ordering::Relaxed);
        let place = self.ring.stamp(tile);
        // SAFETY: the slot is reserved, so only this end touches it; the place is in its header.
        unsafe { place.write(stamp.encode()) };
        self.ring.published(tile).store(tile + 1, Ordering::Release);
        self.committed += 1;
        self.reserved = false;
    }

    /// Moves a short payload next to the header, so that the readers fetch one line instead of two.
    fn shorten(&mut self, tile: u64, bytes: usize) -> u32 {
        if bytes > INLINE_BYTES {
            return KIND_TILE;
        }
        let (from, to) = (self.ring.payload(tile), self.ring.short_payload(tile));
        // SAFETY: the slot is reserved, so only this end touches it; both places have room for
        // `bytes` bytes and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        KIND_INLINE
    }
}
