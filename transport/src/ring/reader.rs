//! The end of a ring that empties slots.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use super::{INLINE_BYTES, KIND_AT, KIND_INLINE, KIND_LOAN, KIND_TILE, LENGTH_AT, Ring, loan};
use crate::shm::{Map, SegmentAddress, open};
use crate::{Tile, TransportError};

/// Memory of the writer that stays mapped for the next loan of it.
const REMEMBERED_LOANS: usize = 16;

#[derive(Debug)]
pub(super) struct Reader {
    ring: Ring,
    index: usize,
    /// Tiles released.
    released: u64,
    /// Memory of the writer that was lent before, the latest last.
    borrowed: RefCell<Vec<(SegmentAddress, Map)>>,
    /// What was found wrong while looking at the oldest tile.
    wrong: RefCell<Option<TransportError>>,
}

impl Reader {
    pub(super) fn new(ring: Ring, index: usize) -> Self {
        assert!(index < ring.readers, "reader {index} of {}", ring.readers);
        let (borrowed, wrong) = (RefCell::default(), RefCell::default());
        Self { ring, index, released: 0, borrowed, wrong }
    }

    /// The oldest tile. If something is wrong with it, there is none, and [`Self::wrong`] tells.
    pub(super) fn peek(&self) -> Option<Tile<'_>> {
        if self.ring.published(self.released).load(Ordering::Acquire) != self.released + 1 {
            return None;
        }
        match self.oldest() {
            Ok(tile) => Some(tile),
            Err(cause) => {
                *self.wrong.borrow_mut() = Some(cause);
                None
            }
        }
    }

    pub(super) fn release(&mut self) {
        let published = self.ring.published(self.released).load(Ordering::Relaxed);
        assert!(published == self.released + 1, "release without a tile");
        self.released += 1;
        let borrowed = self.borrowed.get_mut();
        if borrowed.len() > REMEMBERED_LOANS {
            borrowed.remove(0);
        }
        self.ring.consumed(self.index).store(self.released, Ordering::Release);
    }

    /// What was found wrong, once.
    pub(super) fn wrong(&mut self) -> Option<TransportError> {
        self.wrong.get_mut().take()
    }

    /// The oldest tile, which is published.
    fn oldest(&self) -> Result<Tile<'_>, TransportError> {
        let tile = self.released;
        let invalid = || TransportError::Protocol("a slot holds no valid header".into());
        let bytes = self.ring.half_word(tile, LENGTH_AT).load(Ordering::Relaxed) as usize;
        let kind = self.ring.half_word(tile, KIND_AT).load(Ordering::Relaxed);
        // SAFETY: the tile is published and not released, so the writer leaves its slot alone.
        let stamp = unsafe { self.ring.stamp(tile).as_ref() };
        let (start, room) = match kind {
            KIND_INLINE => (self.ring.short_payload(tile), INLINE_BYTES),
            KIND_TILE | KIND_LOAN => (self.ring.payload(tile), self.ring.shape.tile_bytes),
            _ => return Err(invalid()),
        };
        if bytes > room {
            return Err(invalid());
        }
        // SAFETY: as above, and the length was checked against the room there is.
        let slot = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        let payload = if kind == KIND_LOAN { self.borrow(slot)? } else { slot };
        Ok(Tile { stamp, payload })
    }

    /// The bytes that a loan in the payload of a slot describes.
    fn borrow(&self, description: &[u8]) -> Result<&[u8], TransportError> {
        let invalid = || TransportError::Protocol("a slot holds no valid loan".into());
        let loan = loan::decode(description).ok_or_else(invalid)?;
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
        // SAFETY: the bytes lie in the mapping, which stays until `release` at least; the writer
        // does not change them before that.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), loan.bytes) })
    }
}
