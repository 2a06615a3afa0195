//! How long the tiles inside a host are, and how many can be on the way.
//!
//! Long ones cost less for each byte, but the ranks of a host use all their rings in turn, and what is in none of their
//! caches any more costs more than that. Measured with two, four and eight ranks that share 32 MiB: tiles of 128 KiB in
//! place of 32 make calls of 1 and 16 MB up to a third faster as long as all rings together have 8 MiB, and with 32 MiB
//! twice as slow.

use super::{KIB, MIB, Settings};

/// Of the rings between two ranks of a host each, or of those to all ranks.
#[derive(Clone, Copy, Debug)]
struct Rings {
    /// What all of them may have together, as far as that is chosen.
    cached_bytes: usize,
    /// The longest tile that is chosen.
    longest: usize,
}

/// Two ranks have rings of 2 MiB with it, so that lines have left the reader's own cache when they are written again.
const PAIRS: Rings = Rings { cached_bytes: 8 * MIB, longest: 512 * KIB };
/// Where only one rank sends, tiles that are twice as long make a broadcast faster by 3 to 14 %; where all of three or
/// more do, tiles are half as long.
const MULTICASTS: Rings = Rings { cached_bytes: 16 * MIB, longest: 512 * KIB };
/// So many tiles make up the 2 MiB of a ring between two ranks.
const SLOTS_OF_TWO: usize = 4;
/// Whoever has several peers goes on with another one while a reader is behind. Two tiles in place of four half as long
/// take 0.84 to 0.97 of the time among eight ranks, 256 KB to 1 MB, and 0.93 to 1.06 among four.
const SLOTS_OF_MORE: usize = 2;
/// The slowest of all readers decides what is free, and where ranks outnumber processors a writer should not run out of
/// room before others have had their turn.
const MULTICAST_SLOTS: usize = 8;
/// The shortest tile that is chosen.
const SHORTEST: usize = 32 * KIB;

/// What all rings may have together for tiles that somebody asked for, or that cannot be shorter.
const MOST_BYTES: usize = 512 * MIB;
const SMALLEST_BYTES: usize = 4 * KIB;

impl Settings {
    /// Payload of a tile between two of the `ranks` of a host, in bytes.
    #[must_use]
    pub fn pair_tile_bytes(&self, ranks: usize) -> usize {
        self.tile(PAIRS, ranks * ranks * self.pair_slots(ranks))
    }

    /// Tiles of that size in flight in each direction between two of the `ranks` of a host.
    #[must_use]
    pub fn pair_slots(&self, ranks: usize) -> usize {
        match self.shm_slots {
            0 if ranks <= 2 => SLOTS_OF_TWO,
            0 => SLOTS_OF_MORE,
            asked => asked,
        }
    }

    /// Payload of a tile from one of the `ranks` of a host to all others, in bytes.
    #[must_use]
    pub fn multicast_tile_bytes(&self, ranks: usize) -> usize {
        self.tile(MULTICASTS, ranks * self.multicast_slots())
    }

    /// Tiles of that size in flight from a rank to all others of its host.
    #[must_use]
    pub fn multicast_slots(&self) -> usize {
        match self.shm_slots {
            0 => MULTICAST_SLOTS,
            asked => 2 * asked,
        }
    }

    /// Of rings that have so many `slots` together.
    fn tile(&self, rings: Rings, slots: usize) -> usize {
        let fitting = |bytes: usize| bytes / slots.max(1) / SMALLEST_BYTES * SMALLEST_BYTES;
        let wanted = match self.tile_bytes {
            0 => fitting(rings.cached_bytes).clamp(SHORTEST, rings.longest),
            asked => asked,
        };
        wanted.min(fitting(MOST_BYTES)).max(SMALLEST_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_long_as_all_rings_stay_in_the_cache() {
        let settings = Settings::default();
        let lengths = |ranks| {
            let bytes = [settings.pair_tile_bytes(ranks), settings.multicast_tile_bytes(ranks)];
            bytes.map(|bytes| bytes / KIB)
        };
        assert_eq!([1, 2, 4, 5].map(lengths), [[512, 512], [512, 512], [256, 512], [160, 408]]);
        assert_eq!([8, 16, 64].map(lengths), [[64, 256], [32, 128], [32, 32]]);
        assert_eq!(lengths(256), [4, 32], "rings of a host have a limit");
        let beside_the_limit =
            [90, 91, 181, 182].map(|ranks| settings.pair_tile_bytes(ranks) / KIB);
        assert_eq!(beside_the_limit, [32, 28, 8, 4], "docs/configuration.md says where");
        assert_eq!(lengths(1000), [4, 32]);
        let room = |ranks| settings.pair_slots(ranks) * settings.pair_tile_bytes(ranks) / KIB;
        assert_eq!([2, 4, 8, 16].map(room), [2048, 512, 128, 64]);
    }

    #[test]
    fn what_is_asked_for_is_given_if_there_is_room() {
        let settings = Settings { tile_bytes: MIB, ..Settings::default() };
        assert_eq!([2, 8].map(|ranks| settings.pair_tile_bytes(ranks)), [MIB; 2]);
        assert_eq!(settings.pair_tile_bytes(64), 64 * KIB);
        let settings = Settings { shm_slots: 3, ..Settings::default() };
        assert_eq!([2, 8].map(|ranks| settings.pair_slots(ranks)), [3; 2]);
        assert_eq!(settings.multicast_slots(), 6);
    }
}
