//! What a link receives: tiles of any path, delivered in order, once.

use std::ops::Range;

use super::layout::{ANNOUNCEMENT_BYTES, Announcement, Geometry, Notice, TileHeader};
use crate::verbs::Memory;
use crate::{EncodedStamp, HEADER_BYTES};

/// A tile that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) stamp: EncodedStamp,
    pub(super) payload_bytes: usize,
    /// The payload went where the application wants it, and not into the slot.
    pub(super) has_landed: bool,
}

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Filled by the peer.
    pub(super) memory: Memory,
    geometry: Geometry,
    /// Tiles the application has released.
    pub(super) consumed: u64,
    /// By slot.
    arrived: Vec<Option<Arrived>>,
    landings: Vec<Landed>,
}

/// What is known of a tile that goes where the application wants it, before it has arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Landed {
    /// Length of its payload, of which a part has landed.
    begun: Option<usize>,
    /// All of it has.
    is_complete: bool,
}

impl Inbound {
    pub(super) fn new(geometry: Geometry, memory: Memory) -> Self {
        let slots = geometry.shape.slots;
        let (arrived, landings) = (vec![None; slots], vec![Landed::default(); slots]);
        Self { memory, geometry, consumed: 0, arrived, landings }
    }

    /// A tile has been written into its slot, whatever its place in the order: checks and returns its
    /// header. A tile that is there already, or was consumed, has come twice and is nothing new.
    pub(super) fn inspect(
        &self,
        low: u32,
        bytes: usize,
    ) -> Result<Option<TileHeader>, &'static str> {
        let Some(sequence) = self.awaited(low)? else { return Ok(None) };
        let mut header = [0; HEADER_BYTES];
        self.memory.read(self.geometry.slot(sequence), &mut header);
        self.check(&header, sequence, bytes)
            .map(Some)
            .ok_or("a tile that is not what was announced")
    }

    /// The sequence number of a tile with these low bits that has not arrived; `None` if it has.
    fn awaited(&self, low: u32) -> Result<Option<u64>, &'static str> {
        let Some(ahead) = Notice::ahead(low, self.consumed) else { return Ok(None) };
        if ahead >= self.geometry.slots() {
            return Err("a tile out of turn");
        }
        let sequence = self.consumed + ahead;
        let is_new = self.arrived[self.geometry.index(sequence)].is_none();
        Ok(is_new.then_some(sequence))
    }

    /// The header of a tile, if it is that of this one, which is so long with its header.
    fn check(&self, head: &[u8; HEADER_BYTES], sequence: u64, bytes: usize) -> Option<TileHeader> {
        TileHeader::decode(head)
            .filter(|header| header.sequence == sequence)
            .filter(|header| header.payload_bytes <= self.geometry.shape.tile_bytes)
            .filter(|header| header.payload_bytes + HEADER_BYTES == bytes)
    }

    /// Notes a tile that was inspected.
    pub(super) fn deliver(&mut self, header: &TileHeader) {
        let TileHeader { stamp, payload_bytes, sequence, .. } = *header;
        let slot = self.geometry.index(sequence);
        let has_landed = self.landings[slot].is_complete;
        self.arrived[slot] = Some(Arrived { stamp, payload_bytes, has_landed });
    }

    /// The header of a tile that comes and has not arrived, from its first bytes.
    pub(super) fn preview(
        &self,
        low: u32,
        head: &[u8; HEADER_BYTES],
        bytes: usize,
    ) -> Option<TileHeader> {
        let sequence = self.awaited(low).ok().flatten()?;
        self.check(head, sequence, bytes)
    }

    /// Where the payload of a tile is among those of all from the oldest on that was not released; `None` while one before it
    /// is not known.
    pub(super) fn range(&self, header: &TileHeader) -> Option<Range<usize>> {
        let mut start = 0;
        for sequence in self.consumed..header.sequence {
            let slot = self.geometry.index(sequence);
            let arrived = self.arrived[slot].as_ref().filter(|tile| tile.stamp == header.stamp);
            start += arrived.map(|tile| tile.payload_bytes).or(self.landings[slot].begun)?;
        }
        Some(start..start + header.payload_bytes)
    }

    /// A part of a tile has gone where the application wants it.
    pub(super) fn begin_landing(&mut self, header: &TileHeader) {
        let slot = self.geometry.index(header.sequence);
        self.landings[slot].begun = Some(header.payload_bytes);
    }

    /// All of it has.
    pub(super) fn end_landing(&mut self, low: u32) {
        if let Ok(Some(sequence)) = self.awaited(low) {
            self.landings[self.geometry.index(sequence)].is_complete = true;
        }
    }

    /// The peer has said on a path where its memory is.
    pub(super) fn announcement(
        &self,
        path: usize,
        bytes: usize,
    ) -> Result<Announcement, &'static str> {
        let mut announcement = [0; ANNOUNCEMENT_BYTES];
        self.memory.read(self.geometry.announcement(path), &mut announcement);
        Announcement::decode(&announcement)
            .filter(|_| bytes == ANNOUNCEMENT_BYTES)
            .ok_or("not an announcement")
    }

    /// What the peer has written into the credit word of a path.
    pub(super) fn credit(&self, path: usize) -> u64 {
        self.memory.load(self.geometry.credit(path))
    }

    pub(super) fn oldest(&self) -> Option<&Arrived> {
        self.arrived[self.geometry.index(self.consumed)].as_ref()
    }

    /// The bytes of the oldest tile, which is `payload_bytes` long.
    pub(super) fn payload(&self, payload_bytes: usize) -> &[u8] {
        let start = self.geometry.slot(self.consumed) + HEADER_BYTES;
        // SAFETY: the memory is registered with queue pairs of one link only, and those write into it
        // only when they are polled, which takes a `&mut` of the link that owns this value.
        unsafe { self.memory.lend(start..start + payload_bytes) }
    }

    pub(super) fn release(&mut self) {
        let slot = self.geometry.index(self.consumed);
        self.arrived[slot].take().expect("a tile has arrived before it is released");
        self.landings[slot] = Landed::default();
        self.consumed += 1;
    }
}
