//! The end of a ring that empties it.

use std::cell::{Cell, RefCell};

use super::atomics::Ordering;
use super::{
    Header, INLINE_AT, INLINE_BYTES, KIND_INLINE, KIND_LOAN, KIND_TILE, LINE_BYTES, Ring, cache,
    loan,
};
use crate::shm::{Map, SegmentAddress, open};
use crate::{Tile, TransportError};

/// Memory of the writer that stays mapped for the next loan of it, as long as it has not freed it.
const REMEMBERED_LOANS: usize = 16;

#[derive(Debug)]
pub(super) struct Reader {
    ring: Ring,
    index: usize,
    /// Tiles released.
    released: u64,
    /// Of the oldest tile that is not.
    header: Header,
    /// Somebody has looked for it in vain.
    has_waited: Cell<bool>,
    /// Memory of the writer that was lent before, the latest last.
    borrowed: RefCell<Vec<(SegmentAddress, Map)>>,
    /// What was found wrong while looking at the oldest tile.
    wrong: RefCell<Option<TransportError>>,
}

impl Reader {
    pub(super) fn new(ring: Ring, index: usize) -> Self {
        assert!(index < ring.readers, "reader {index} of {}", ring.readers);
        let header = ring.first();
        let (borrowed, wrong) = (RefCell::default(), RefCell::default());
        Self { ring, index, released: 0, header, has_waited: Cell::new(false), borrowed, wrong }
    }

    /// The oldest tile. If something is wrong with it, there is none, and [`Self::wrong`] tells.
    pub(super) fn peek(&self) -> Option<Tile<'_>> {
        if self.ring.published(self.header).load(Ordering::Acquire) != self.released + 1 {
            self.has_waited.set(true);
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
        let published = self.ring.published(self.header).load(Ordering::Relaxed);
        assert!(published == self.released + 1, "release without a tile");
        let is_of_a_line = self.is_of_a_line();
        self.released += 1;
        self.header = self.ring.behind(self.header);
        // Of a writer that is ahead, it comes while the caller does something else.
        cache::fetch(self.ring.at(self.header.0));
        let has_waited = self.has_waited.take();
        if is_of_a_line && !has_waited {
            cache::fetch(self.ring.at(self.ring.behind(self.header).0));
        }
        let borrowed = self.borrowed.get_mut();
        if borrowed.len() > REMEMBERED_LOANS {
            borrowed.remove(0);
        }
        self.ring.consumed(self.index).store(self.released, Ordering::Release);
    }

    /// Whether the oldest tile, which is published, is memory of the writer.
    pub(super) fn is_lent(&self) -> bool {
        self.ring.kind(self.header).load(Ordering::Relaxed) == KIND_LOAN
    }

    /// Whether the oldest tile, which is published, is so short that it takes no more than a line. A writer that is ahead has
    /// two of these ready in the time in which one line comes. Longer ones it has not: whoever asks for the line of the second
    /// takes it from the writer.
    fn is_of_a_line(&self) -> bool {
        let bytes = self.ring.length(self.header).load(Ordering::Relaxed) as usize;
        let kind = self.ring.kind(self.header).load(Ordering::Relaxed);
        kind == KIND_INLINE && bytes <= LINE_BYTES - INLINE_AT
    }

    /// What was found wrong, once.
    pub(super) fn wrong(&mut self) -> Option<TransportError> {
        self.wrong.get_mut().take()
    }

    /// The oldest tile, which is published.
    fn oldest(&self) -> Result<Tile<'_>, TransportError> {
        let invalid = || TransportError::Protocol("a tile has no valid header".into());
        let bytes = self.ring.length(self.header).load(Ordering::Relaxed) as usize;
        let kind = self.ring.kind(self.header).load(Ordering::Relaxed);
        // SAFETY: the tile is published and not released, so the writer leaves its header alone.
        let stamp = unsafe { self.ring.stamp(self.header).as_ref() };
        let start = match kind {
            KIND_INLINE | KIND_LOAN if bytes <= INLINE_BYTES => {
                self.ring.short_payload(self.header)
            }
            KIND_TILE => {
                // SAFETY: as above.
                let offset = unsafe { self.ring.place_of_payload(self.header).read() } as usize;
                // A peer must not lead us off the floor.
                if offset.saturating_add(bytes) > self.ring.floor_bytes() || bytes == 0 {
                    return Err(invalid());
                }
                self.ring.payload(offset)
            }
            _ => return Err(invalid()),
        };
        // SAFETY: as above, and the room there is was checked.
        let written = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        let payload = if kind == KIND_LOAN { self.borrow(written)? } else { written };
        Ok(Tile { stamp, payload, has_landed: false })
    }

    /// The bytes that a loan describes.
    fn borrow(&self, description: &[u8]) -> Result<&[u8], TransportError> {
        let invalid = || TransportError::Protocol("a tile holds no valid loan".into());
        let loan = loan::decode(description).ok_or_else(invalid)?;
        let mut borrowed = self.borrowed.borrow_mut();
        let known = borrowed.iter().position(|(segment, _)| *segment == loan.segment);
        let index = match known {
            Some(index) => index,
            None => {
                borrowed.retain(|(_, map)| !map.is_freed());
                borrowed.push((loan.segment, open(&loan.segment, 0)?));
                borrowed.len() - 1
            }
        };
        let start = borrowed[index].1.memory_at(loan.offset, loan.bytes).ok_or_else(invalid)?;
        // SAFETY: the bytes lie in the mapping, which stays until `release` at least; the writer does not change them before
        // that, or renounces first, and then nobody uses what was read of them.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), loan.bytes) })
    }
}
