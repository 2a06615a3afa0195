//! What a link receives: tiles of any path, delivered in order, once.

use super::layout::{ANNOUNCEMENT_BYTES, Announcement, Geometry, Notice, TileHeader};
use crate::verbs::Memory;
use crate::{EncodedStamp, HEADER_BYTES};

/// A tile that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) stamp: EncodedStamp,
    pub(super) payload_bytes: usize,
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
}

impl Inbound {
    pub(super) fn new(geometry: Geometry, memory: Memory) -> Self {
        Self { memory, geometry, consumed: 0, arrived: vec![None; geometry.shape.slots] }
    }

    /// A tile has been written into its slot, whatever its place in the order: checks and returns its
    /// header. A tile that is there already, or was consumed, has come twice and is nothing new.
    pub(super) fn inspect(
        &self,
        low: u32,
        bytes: usize,
    ) -> Result<Option<TileHeader>, &'static str> {
        let Some(ahead) = Notice::ahead(low, self.consumed) else { return Ok(None) };
        if ahead >= self.geometry.slots() {
            return Err("a tile out of turn");
        }
        let sequence = self.consumed + ahead;
        let slot = self.geometry.index(sequence);
        if self.arrived[slot].is_some() {
            return Ok(None);
        }
        let mut header = [0; HEADER_BYTES];
        self.memory.read(self.geometry.slot(sequence), &mut header);
        let header = TileHeader::decode(&header)
            .filter(|header| header.sequence == sequence)
            .filter(|header| header.payload_bytes <= self.geometry.shape.tile_bytes)
            .filter(|header| header.payload_bytes + HEADER_BYTES == bytes)
            .ok_or("a tile that is not what was announced")?;
        Ok(Some(header))
    }

    /// Notes a tile that was inspected.
    pub(super) fn deliver(&mut self, header: &TileHeader) {
        let TileHeader { stamp, payload_bytes, sequence, .. } = *header;
        self.arrived[self.geometry.index(sequence)] = Some(Arrived { stamp, payload_bytes });
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
        self.consumed += 1;
    }
}
