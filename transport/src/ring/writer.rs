//! The end of a ring that fills it.

use std::collections::VecDeque;

use super::atomics::Ordering;
use super::{
    Distance, Floor, Header, INLINE_BYTES, KIND_INLINE, KIND_LOAN, KIND_TILE, Ring, cache, loan,
};
use crate::{Loan, Stamp, TransportError};

/// Where a payload lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Behind the stamp.
    Header,
    /// At this offset on the floor.
    Floor(usize),
}

/// A tile that is not published yet.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    place: Place,
    bytes: usize,
}

/// Somebody who gets every tile.
#[derive(Debug)]
struct Follower {
    /// Among the readers of the ring.
    index: usize,
    /// Tiles that it had released when we last looked.
    released: u64,
}

#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    readers: Vec<Follower>,
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
    /// Bytes put on the floor since we have seen how far a reader is.
    unseen: usize,
    distance: Distance,
    reserved: Option<Reserved>,
}

impl Writer {
    pub(super) fn new(ring: Ring, readers: Vec<usize>) -> Self {
        assert!(readers.iter().all(|reader| *reader < ring.readers), "readers {readers:?}");
        let (header, floor) = (ring.first(), Floor::new(ring.shape));
        let lying = VecDeque::with_capacity(ring.shape.tiles);
        let follower = |index| Follower { index, released: 0 };
        Self {
            ring,
            readers: readers.into_iter().map(follower).collect(),
            committed: 0,
            acknowledged: 0,
            header,
            floor,
            lying,
            unseen: 0,
            distance: Distance::new(),
            reserved: None,
        }
    }

    /// See [`Link::share`](crate::Link::share).
    pub(super) fn share(&mut self, writers: usize) {
        self.floor.share(writers);
    }

    /// Whether tiles had better be stored past the caches.
    pub(super) fn is_far(&self) -> bool {
        self.distance.is_far()
    }

    /// How often we have looked how far a reader is.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.distance.looks()
    }

    /// How many tiles every reader has released.
    pub(super) fn returned(&mut self) -> u64 {
        for Follower { index, released } in &mut self.readers {
            *released = self.ring.consumed(*index).load(Ordering::Acquire);
        }
        let released = self.readers.iter().map(|reader| reader.released);
        self.acknowledged = released.min().unwrap_or(self.committed);
        while self.lying.front().is_some_and(|(tile, _)| *tile < self.acknowledged) {
            self.lying.pop_front();
        }
        self.acknowledged
    }

    pub(super) fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        assert!(bytes <= self.ring.shape.tile_bytes, "{bytes} bytes in a smaller tile");
        if bytes > INLINE_BYTES {
            self.prepare();
        }
        if self.place(bytes).is_none() {
            self.look()?;
        }
        let Some(place) = self.place(bytes) else { return Ok(None) };
        self.reserved = Some(Reserved { place, bytes });
        let start = match place {
            Place::Header => self.ring.short_payload(self.header),
            Place::Floor(offset) => self.ring.payload(offset),
        };
        // SAFETY: no tile that a reader may look at lies there, so only this end touches the room until it is published;
        // the borrow of `self` keeps it unpublished.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }))
    }

    /// Publishes the reserved tile.
    pub(super) fn commit(&mut self, stamp: &Stamp) {
        let Some(Reserved { place, bytes }) = self.reserved.take() else {
            panic!("commit without reserve")
        };
        let kind = match place {
            Place::Header => KIND_INLINE,
            Place::Floor(start) => {
                self.lying.push_back((self.committed, start));
                self.floor.put(start, bytes);
                self.unseen += bytes;
                #[allow(clippy::cast_possible_truncation, reason = "rings have less than 4 GiB")]
                let offset = start as u32;
                // SAFETY: all readers have released the header, so only this end touches it until it is published.
                unsafe { self.ring.place_of_payload(self.header).write(offset) };
                KIND_TILE
            }
        };
        self.publish(stamp, bytes, kind);
    }

    /// Publishes a tile that says where the bytes are; returns its number, counted from 1.
    pub(super) fn lend(
        &mut self,
        stamp: &Stamp,
        loan: &Loan,
    ) -> Result<Option<u64>, TransportError> {
        if !self.has_header() {
            self.look()?;
        }
        if !self.has_header() {
            return Ok(None);
        }
        let place = self.ring.short_payload(self.header).cast();
        // SAFETY: all readers have released the header, so only this end touches it until it is published;
        // a description of a loan fits behind the stamp.
        unsafe { place.write(loan::encode(loan)) };
        self.publish(stamp, loan::LOAN_BYTES, KIND_LOAN);
        Ok(Some(self.committed))
    }

    /// Before a payload is put on the floor.
    fn prepare(&mut self) {
        if self.unseen >= self.distance.pause_bytes() {
            self.look_around();
        }
        // What was used not long ago is still in a cache.
        if self.floor.is_filled() && self.returned() == self.committed {
            self.floor.rewind();
        }
    }

    /// Sees how far one of the readers is, who take turns. A writer that waits for its readers looks until one has released
    /// something.
    fn look_around(&mut self) {
        let turn = self.distance.looks() % self.readers.len().max(1);
        if let Some(Follower { index, released }) = self.readers.get_mut(turn)
            && self.distance.look(self.ring.consumed(*index), released)
        {
            self.unseen = 0;
        }
        // Also of those whose turn it was not: AllGathers of 4 MB among four far ranks take 1.2 times as long without.
        self.returned();
    }

    /// Looks what the readers have released.
    fn look(&mut self) -> Result<(), TransportError> {
        if self.returned() > self.committed {
            return Err(TransportError::Protocol("released more than was sent".into()));
        }
        Ok(())
    }

    fn has_header(&self) -> bool {
        self.committed - self.acknowledged < self.ring.shape.tiles as u64
    }

    /// Where there is room for a payload of so many bytes, by what the readers had released when we last looked.
    fn place(&self, bytes: usize) -> Option<Place> {
        if !self.has_header() {
            return None;
        }
        if bytes <= INLINE_BYTES {
            return Some(Place::Header);
        }
        let oldest = self.lying.front().map(|(_, start)| *start);
        self.floor.room(bytes, oldest).map(Place::Floor)
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
    }
}
