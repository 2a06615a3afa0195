//! Where things are in the memory of a link, and what stands there.
//!
//! Each end has two blocks of memory of the same layout, one that it fills and one that the peer
//! fills: an announcement and a credit word per path, and the slots. Every path has its own credit
//! word, so that a credit that was delayed on one path cannot replace a newer one.

use ccl_core::failover::fence::{Fence, LAST_INCARNATION};
use ccl_core::wire::STAMP_BYTES;

use super::LinkShape;
use crate::verbs::{Depth, RemoteAddress, RemoteKey};
use crate::{EncodedStamp, HEADER_BYTES};

/// Slots and words start at multiples of this.
const ALIGNMENT: usize = 64;
/// Room for operations that carry no tile.
const SPARE_DEPTH: usize = 64;

pub(super) const ANNOUNCEMENT_BYTES: usize = 56;
pub(super) const CREDIT_BYTES: usize = 8;

const ANNOUNCEMENT_MAGIC: u64 = 0x474e_4952_4c43_4332;
const TILE_MAGIC: u32 = 0x454c_4954;

/// The layout of a link with so many rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) rails: usize,
    pub(super) shape: LinkShape,
}

impl Geometry {
    /// Where a rail's announcement is.
    pub(super) fn announcement(self, rail: usize) -> usize {
        rail * ALIGNMENT
    }

    /// Where a path's credit word is.
    pub(super) fn credit(self, path: usize) -> usize {
        (self.rails + path) * ALIGNMENT
    }

    /// Where the slot of a tile is.
    pub(super) fn slot(self, sequence: u64) -> usize {
        2 * self.rails * ALIGNMENT + self.index(sequence) * self.stride()
    }

    /// Which slot a tile has.
    pub(super) fn index(self, sequence: u64) -> usize {
        let index = sequence % self.slots();
        usize::try_from(index).expect("smaller than the number of slots")
    }

    pub(super) fn slots(self) -> u64 {
        self.shape.slots as u64
    }

    /// Length of a block.
    pub(super) fn bytes(self) -> usize {
        2 * self.rails * ALIGNMENT + self.shape.slots * self.stride()
    }

    /// Bytes on the way in one direction, at most.
    pub(super) fn window_bytes(self) -> usize {
        self.shape.slots * self.stride()
    }

    /// What a queue pair must hold: all tiles may be on one rail, and tiles that were consumed may
    /// not be acknowledged yet.
    pub(super) fn depth(self) -> Depth {
        let sends = 2 * self.shape.slots + SPARE_DEPTH;
        Depth { sends, receives: self.shape.slots + SPARE_DEPTH }
    }

    fn stride(self) -> usize {
        (HEADER_BYTES + self.shape.tile_bytes).next_multiple_of(ALIGNMENT)
    }
}

/// What the two ends of a rail tell each other first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) geometry: Geometry,
    /// Start of the block that the other end fills.
    pub(super) block: RemoteAddress,
}

impl Announcement {
    pub(super) fn encode(&self) -> [u8; ANNOUNCEMENT_BYTES] {
        let words = [
            ANNOUNCEMENT_MAGIC,
            self.geometry.rails as u64,
            self.geometry.shape.tile_bytes as u64,
            self.geometry.shape.slots as u64,
            u64::from(self.block.key.0),
            self.block.address,
            HEADER_BYTES as u64,
        ];
        let mut bytes = [0; ANNOUNCEMENT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads an announcement; `None` if no correct peer wrote it.
    pub(super) fn decode(bytes: &[u8; ANNOUNCEMENT_BYTES]) -> Option<Self> {
        let word = |index: usize| {
            u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("8 bytes"))
        };
        if word(0) != ANNOUNCEMENT_MAGIC || word(6) != HEADER_BYTES as u64 {
            return None;
        }
        let size = |index| usize::try_from(word(index)).ok();
        let shape = LinkShape { tile_bytes: size(2)?, slots: size(3)? };
        let key = RemoteKey(u32::try_from(word(4)).ok()?);
        let block = RemoteAddress { key, address: word(5) };
        Some(Self { geometry: Geometry { rails: size(1)?, shape }, block })
    }
}

/// What the immediate of a write says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A tile was written; the low bits of its sequence number.
    Tile(u32),
    /// A path must be given up before anything that follows is taken.
    Fence(Fence),
    /// The peer closes the link on purpose.
    Goodbye,
}

/// Bits of a sequence number that an immediate has room for.
const SEQUENCE_BITS: u32 = 31;
const CONTROL: u32 = 1 << SEQUENCE_BITS;
const GOODBYE: u32 = 1 << 30;
const PATH_SHIFT: u32 = 24;

impl Notice {
    /// The notice of a tile.
    pub(super) fn of_tile(sequence: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
        Self::Tile(sequence as u32 & (CONTROL - 1))
    }

    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Tile(low) => low,
            Self::Goodbye => CONTROL | GOODBYE,
            Self::Fence(Fence { path, below }) => {
                let path = u32::try_from(path).expect("fewer paths than rails");
                CONTROL | path << PATH_SHIFT | below
            }
        }
    }

    pub(super) fn decode(immediate: u32) -> Self {
        if immediate & CONTROL == 0 {
            return Self::Tile(immediate);
        }
        if immediate & GOODBYE != 0 {
            return Self::Goodbye;
        }
        let path = ((immediate & !CONTROL) >> PATH_SHIFT) as usize;
        Self::Fence(Fence { path, below: immediate & LAST_INCARNATION })
    }

    /// How far a tile with these low bits is ahead of `sequence`; `None` if it is behind.
    pub(super) fn ahead(low: u32, sequence: u64) -> Option<u64> {
        let Self::Tile(here) = Self::of_tile(sequence) else { return None };
        let ahead = low.wrapping_sub(here) & (CONTROL - 1);
        (ahead < CONTROL / 2).then_some(u64::from(ahead))
    }
}

/// What stands in front of the payload of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileHeader {
    pub(super) stamp: EncodedStamp,
    pub(super) sequence: u64,
    pub(super) payload_bytes: usize,
    /// Tiles of the other direction that its sender has consumed: the credit that costs nothing.
    pub(super) consumed: u64,
}

impl TileHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = u32::try_from(self.payload_bytes).expect("tiles are shorter than 4 GiB");
        bytes[..STAMP_BYTES].copy_from_slice(&self.stamp);
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&length.to_le_bytes());
        bytes[36..40].copy_from_slice(&TILE_MAGIC.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.consumed.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if no correct peer wrote it.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        if half(36) != TILE_MAGIC {
            return None;
        }
        Some(Self {
            stamp: *bytes.first_chunk()?,
            sequence: word(24),
            payload_bytes: usize::try_from(half(32)).ok()?,
            consumed: word(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::collective::{Collective, Signature};
    use proptest::prelude::*;

    use super::super::MAX_RAILS;
    use super::*;
    use crate::Stamp;

    proptest! {
        #[test]
        fn notices_survive_the_wire(sequence: u64, path in 0usize..MAX_RAILS, below in 0..=LAST_INCARNATION) {
            let notices = [Notice::of_tile(sequence), Notice::Fence(Fence { path, below }), Notice::Goodbye];
            for notice in notices {
                prop_assert_eq!(Notice::decode(notice.encode()), notice);
            }
        }

        #[test]
        fn a_tile_is_ahead_or_behind(sequence in 1u64 << 20..u64::MAX / 2, ahead in 0u64..1 << 20) {
            let Notice::Tile(low) = Notice::of_tile(sequence + ahead) else { unreachable!() };
            prop_assert_eq!(Notice::ahead(low, sequence), Some(ahead));
            let Notice::Tile(low) = Notice::of_tile(sequence - 1 - ahead) else { unreachable!() };
            prop_assert_eq!(Notice::ahead(low, sequence), None);
        }

        #[test]
        fn headers_survive_the_wire(sequence: u64, payload: u32, call: u32, count: u64, consumed: u64) {
            let signature = Signature {
                collective: Collective::Gather,
                datatype: 1,
                reduction: 2,
                root: 3,
                count,
                plan: !call,
            };
            let stamp = Stamp { sequence: call, signature }.encode();
            let header = TileHeader { stamp, sequence, payload_bytes: payload as usize, consumed };
            prop_assert_eq!(TileHeader::decode(&header.encode()), Some(header));
            prop_assert_eq!(TileHeader::decode(&[payload as u8; HEADER_BYTES]), None);
        }

        #[test]
        fn announcements_survive_the_wire(rails in 0usize..99, slots: u32, key: u32, address: u64) {
            let shape = LinkShape { tile_bytes: 7, slots: slots as usize };
            let block = RemoteAddress { key: RemoteKey(key), address };
            let announcement = Announcement { geometry: Geometry { rails, shape }, block };
            prop_assert_eq!(Announcement::decode(&announcement.encode()), Some(announcement));
        }

        #[test]
        fn places_do_not_overlap(rails in 1usize..9, tile_bytes in 1usize..500, slots in 1usize..9) {
            let geometry = Geometry { rails, shape: LinkShape { tile_bytes, slots } };
            let mut places: Vec<_> = (0..rails)
                .map(|rail| (geometry.announcement(rail), ANNOUNCEMENT_BYTES))
                .chain((0..rails).map(|path| (geometry.credit(path), CREDIT_BYTES)))
                .chain((0..slots as u64).map(|at| (geometry.slot(at), HEADER_BYTES + tile_bytes)))
                .chain([(geometry.bytes(), 0)])
                .collect();
            places.sort_unstable();
            for pair in places.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?}", pair);
            }
        }
    }
}
