//! The end of a ring that fills it.

use std::collections::VecDeque;

use super::atomics::Ordering;
use super::{Floor, Header, INLINE_BYTES, KIND_INLINE, KIND_LOAN, KIND_TILE, Ring, cache, loan};
use crate::{Loan, Stamp, TransportError};

#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    readers: Vec<usize>,
    /// Tiles published.
    committed: u64,
    /// Tiles that every reader had released when we last looked.
    acknowledged: u64,
    /// Of the next tile.
    header: Header,
    floor: Floor,
    /// Payloads on the floor that were not all released when we last looked: number of the tile, and where
    /// it begins.
    lying: VecDeque<(u64, usize)>,
    reserved: bool,
}

impl Writer {
    pub(super) fn new(ring: Ring, readers: Vec<usize>) -> Self {
        assert!(readers.iter().all(|reader| *reader < ring.readers), "readers {readers:?}");
        let (header, floor) = (ring.first(), Floor::new(ring.shape));
        let lying = VecDeque::with_capacity(ring.shape.tiles);
        let (committed, acknowledged, reserved) = (0, 0, false);
        Self { ring, readers, committed, acknowledged, header, floor, lying, reserved }
    }

    /// How many tiles every reader has released.
    pub(super) fn returned(&mut self) -> u64 {
        let consumed = self.readers.iter().map(|reader| self.ring.consumed(*reader));
        self.acknowledged = consumed
            .map(|consumed| consumed.load(Ordering::Acquire))
            .min()
            .unwrap_or(self.committed);
        while self.lying.front().is_some_and(|(tile, _)| *tile < self.acknowledged) {
            self.lying.pop_front();
        }
        self.acknowledged
    }

    pub(super) fn reserve(&mut self) -> Result<Option<&mut [u8]>, TransportError> {
        if !self.find_room(|writer| writer.has_header() && writer.has_floor())? {
            return Ok(None);
        }
        self.reserved = true;
        let payload = self.ring.payload(self.floor.next());
        // SAFETY: no tile that a reader may look at lies there, so only this end touches the room for one
        // until it is published; the borrow of `self` keeps it unpublished.
        let room =
            unsafe { std::slice::from_raw_parts_mut(payload.as_ptr(), self.ring.shape.tile_bytes) };
        Ok(Some(room))
    }

    /// Publishes the reserved tile.
    pub(super) fn commit(&mut self, stamp: &Stamp, bytes: usize) {
        assert!(self.reserved, "commit without reserve");
        assert!(bytes <= self.ring.shape.tile_bytes, "{bytes} bytes in a smaller tile");
        let start = self.floor.next();
        let kind = if bytes <= INLINE_BYTES {
            let (from, to) = (self.ring.payload(start), self.ring.short_payload(self.header));
            // SAFETY: the tile is reserved, so only this end touches it; both places have room for
            // `bytes` bytes and do not overlap. So the readers fetch fewer lines.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
            KIND_INLINE
        } else {
            self.lying.push_back((self.committed, start));
            self.floor.put(bytes);
            KIND_TILE
        };
        self.publish(stamp, bytes, kind);
    }

    /// Publishes a tile that says where the bytes are; returns its number, counted from 1.
    pub(super) fn lend(
        &mut self,
        stamp: &Stamp,
        loan: &Loan,
    ) -> Result<Option<u64>, TransportError> {
        if !self.find_room(Self::has_header)? {
            return Ok(None);
        }
        let place = self.ring.short_payload(self.header).cast();
        // SAFETY: all readers have released the header, so only this end touches it until it is published;
        // a description of a loan fits behind the stamp.
        unsafe { place.write(loan::encode(loan)) };
        self.publish(stamp, loan::LOAN_BYTES, KIND_LOAN);
        Ok(Some(self.committed))
    }

    /// Whether the condition holds, once we have looked what the readers have released if need be.
    fn find_room(&mut self, is_there: impl Fn(&Self) -> bool) -> Result<bool, TransportError> {
        if is_there(self) {
            return Ok(true);
        }
        if self.returned() > self.committed {
            return Err(TransportError::Protocol("released more than was sent".into()));
        }
        Ok(is_there(self))
    }

    fn has_header(&self) -> bool {
        self.committed - self.acknowledged < self.ring.shape.tiles as u64
    }

    fn has_floor(&self) -> bool {
        self.floor.has_room(self.lying.front().map(|(_, start)| *start))
    }

    fn publish(&mut self, stamp: &Stamp, bytes: usize, kind: u32) {
        #[allow(clippy::cast_possible_truncation, reason = "at most a tile")]
        self.ring.length(self.header).store(bytes as u32, Ordering::Relaxed);
        self.ring.kind(self.header).store(kind, Ordering::Relaxed);
        let place = self.ring.stamp(self.header);
        // SAFETY: all readers have released the header, so only this end touches it; the place is in it.
        unsafe { place.write(stamp.encode()) };
        self.committed += 1;
        self.ring.published(self.header).store(self.committed, Ordering::Release);
        self.header = self.ring.behind(self.header);
        // The readers have it from its last tile. To take it away from them takes as long as to bring a tile
        // to one, and can happen now, while the caller does something else.
        cache::fetch_to_write(self.ring.at(self.header.0));
        self.reserved = false;
    }
}
