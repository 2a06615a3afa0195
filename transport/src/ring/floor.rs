//! Where payloads lie in a ring.

use super::{LINE_BYTES, RingShape};

/// So much of the floors of all who write to each other is filled, where they are that long, before their beginning is
/// filled again: of each of two twice what the cache of one core holds. With less, lines are filled again that a reader still
/// has in its own cache, and take up to three times as long to store as those that have left it; with more, what all ranks of
/// a host use of their floors does not stay in the cache that they share.
const ALL_REUSED_BYTES: usize = 4 << 20;
/// The least of one floor.
const LEAST_REUSED_BYTES: usize = 512 << 10;

/// How much of a floor is filled before its beginning is, while so many ranks fill theirs. A reader reads those of all others
/// before it comes to a line again.
pub(super) fn reused_bytes(writers: usize) -> usize {
    (ALL_REUSED_BYTES / writers.max(2)).max(LEAST_REUSED_BYTES)
}

/// How much so many ranks of a host put on all of their floors before they use the first places again.
#[must_use]
pub fn floors_bytes(ranks: usize) -> usize {
    ranks.max(2) * reused_bytes(ranks)
}

/// Where payloads are put.
///
/// They follow each other in lines, until one does not fit before the end any more: it lies at the beginning. So tiles of
/// the largest size lie where they would in a ring of slots. Those that are at most half as long have a part to
/// themselves: as much as lets lines leave the caches of the readers, or else the first half. Whoever sends such tiles
/// has reason not to put much on the way, as it would not stay in the cache that all share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    /// Behind what was put there last.
    next: usize,
    shape: RingShape,
    /// See [`reused_bytes`].
    reused: usize,
}

impl Floor {
    pub(super) fn new(shape: RingShape) -> Self {
        Self { next: 0, shape, reused: reused_bytes(1) }
    }

    /// From now on so many ranks fill their floors at a time.
    pub(super) fn share(&mut self, writers: usize) {
        self.reused = reused_bytes(writers);
    }

    /// Where a payload of `bytes` bytes, at most a tile, finds room while others lie there, the oldest of them at `oldest`.
    pub(super) fn room(self, bytes: usize, oldest: Option<usize>) -> Option<usize> {
        let behind = self.next + bytes.next_multiple_of(LINE_BYTES);
        let is_behind = behind <= self.end_for(bytes);
        match oldest {
            None => Some(if is_behind { self.next } else { 0 }),
            // What lies there is in one piece.
            Some(oldest) if oldest < self.next => {
                if is_behind {
                    Some(self.next)
                } else {
                    (bytes <= oldest).then_some(0)
                }
            }
            Some(oldest) => (behind <= oldest).then_some(self.next),
        }
    }

    /// Puts a payload where it has found room.
    pub(super) fn put(&mut self, start: usize, bytes: usize) {
        self.next = start + bytes.next_multiple_of(LINE_BYTES);
    }

    /// Whether so much has been filled that its beginning had better be filled again.
    pub(super) fn is_filled(self) -> bool {
        self.next >= self.reused
    }

    /// Begins anew, while nothing lies there, if it is filled.
    pub(super) fn rewind(&mut self) {
        if self.is_filled() {
            self.next = 0;
        }
    }

    /// The end of the part of the floor that payloads of this length use.
    fn end_for(self, bytes: usize) -> usize {
        let RingShape { tile_bytes, slots, .. } = self.shape;
        let all = slots * tile_bytes;
        if slots == 1 || bytes > tile_bytes / 2 {
            all
        } else if all >= self.reused {
            self.reused
        } else {
            all / 2
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tiles_of_the_largest_size_lie_in_slots() {
        let shape = RingShape { tile_bytes: 256, slots: 3, tiles: 8 };
        let mut floor = Floor::new(shape);
        let mut lying = VecDeque::new();
        for tile in 0..20 {
            let start = floor.room(256, lying.front().copied()).unwrap();
            assert_eq!(start, tile % 3 * 256);
            floor.put(start, 256);
            lying.push_back(start);
            if lying.len() == 3 {
                assert_eq!(floor.room(256, lying.pop_front()), None, "three fit, and no more");
            }
        }
    }

    #[test]
    fn shorter_tiles_use_the_first_half() {
        let mut floor = Floor::new(RingShape { tile_bytes: 256, slots: 4, tiles: 99 });
        let starts = [128, 128, 100, 128, 128, 129, 256, 256, 128].map(|bytes| {
            let start = floor.room(bytes, None).unwrap();
            floor.put(start, bytes);
            start
        });
        assert_eq!(starts, [0, 128, 256, 384, 0, 128, 320, 576, 0]);
    }

    #[test]
    fn a_floor_is_used_as_far_as_lines_leave_the_caches_of_readers() {
        let reused = [1, 2, 4, 8, 64].map(|writers| reused_bytes(writers) >> 10);
        assert_eq!(reused, [2048, 2048, 1024, 512, 512]);
        for writers in [1, 4, 8] {
            let all = reused_bytes(writers);
            let end = |tile_bytes, slots, bytes| {
                let mut floor = Floor::new(RingShape { tile_bytes, slots, tiles: 9 });
                floor.share(writers);
                floor.end_for(bytes)
            };
            let tile = all / 4;
            assert_eq!([tile, tile / 2, 64].map(|bytes| end(tile, 4, bytes)), [all; 3]);
            assert_eq!(end(tile, 12, tile / 2), all, "they have left the caches by then");
            assert_eq!(end(tile, 12, tile), 3 * all, "those of the largest size use all of it");
            assert_eq!(end(tile, 3, tile / 2), 3 * tile / 2, "they stay there in either case");
            assert_eq!(end(all, 1, 64), all);
        }
    }

    #[test]
    fn a_floor_is_begun_anew_once_enough_is_filled() {
        let mut floor = Floor::new(RingShape { tile_bytes: 256 << 10, slots: 8, tiles: 9 });
        floor.share(4);
        let mut next = || {
            floor.put(floor.next, 256 << 10);
            floor.rewind();
            floor.next >> 10
        };
        assert_eq!([next(), next(), next(), next()], [256, 512, 768, 0]);
    }

    proptest! {
        /// Whatever comes and goes, payloads do not overlap, lie on the floor, and find room in the end.
        #[test]
        fn payloads_never_overlap(slots in 1usize..6, lines in 1usize..9, moves in prop::collection::vec((any::<bool>(), 0usize..600), 1..300)) {
            let shape = RingShape { tile_bytes: lines * 64, slots, tiles: 1000 };
            let mut floor = Floor::new(shape);
            let mut lying: VecDeque<(usize, usize)> = VecDeque::new();
            for (comes, bytes) in moves {
                let bytes = 1 + bytes % shape.tile_bytes;
                let oldest = lying.front().map(|(start, _)| *start);
                if bytes.is_multiple_of(5) {
                    floor.reused = bytes % 37 * 64;
                }
                if !comes {
                    lying.pop_front();
                    if lying.is_empty() && bytes.is_multiple_of(2) {
                        floor.rewind();
                    }
                } else if let Some(start) = floor.room(bytes, oldest) {
                    prop_assert!(start + bytes <= slots * shape.tile_bytes);
                    let apart = |(other, length): &(usize, usize)| {
                        other + length <= start || start + bytes <= *other
                    };
                    prop_assert!(lying.iter().all(apart), "{start} among {lying:?}");
                    lying.push_back((start, bytes));
                    floor.put(start, bytes);
                } else {
                    prop_assert!(!lying.is_empty(), "{bytes} bytes find no room on an empty floor");
                }
            }
        }
    }
}
