//! Where payloads lie in a ring.

use super::{LINE_BYTES, RingShape};

/// The place of the next payload.
///
/// Payloads follow each other in lines. One begins only where the largest tile would fit before the end of
/// the floor, and else at its beginning: the writer reserves room before it knows the length. That is all
/// there is to it, so both ends find the same places without telling each other, and tiles of the largest
/// size lie where they would in a ring of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    next: usize,
    tile_bytes: usize,
    end: usize,
}

impl Floor {
    pub(super) fn new(shape: RingShape) -> Self {
        Self { next: 0, tile_bytes: shape.tile_bytes, end: shape.slots * shape.tile_bytes }
    }

    /// Where the next payload begins.
    pub(super) fn next(self) -> usize {
        self.next
    }

    /// Puts a payload of `bytes` bytes, at most a tile, on the floor.
    pub(super) fn put(&mut self, bytes: usize) {
        let end = self.next + bytes.next_multiple_of(LINE_BYTES);
        self.next = if end + self.tile_bytes > self.end { 0 } else { end };
    }

    /// Whether there is room for a payload while others lie there, the oldest of them at `oldest`.
    pub(super) fn has_room(self, oldest: Option<usize>) -> bool {
        oldest.is_none_or(|oldest| oldest < self.next || self.next + self.tile_bytes <= oldest)
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
        for tile in 0..20 {
            assert_eq!(floor.next(), tile % 3 * 256);
            let oldest = floor.next();
            floor.put(256);
            assert!(floor.has_room(Some(oldest)), "three fit");
        }
        assert!(!floor.has_room(Some(floor.next())), "and no more");
    }

    proptest! {
        /// Whatever comes and goes, payloads do not overlap, lie on the floor, and find room in the end.
        #[test]
        fn payloads_never_overlap(slots in 1usize..6, lines in 1usize..9, moves in prop::collection::vec((any::<bool>(), 0usize..600), 1..300)) {
            let shape = RingShape { tile_bytes: lines * 64, slots, tiles: 1000 };
            let mut floor = Floor::new(shape);
            let mut lying: VecDeque<(usize, usize)> = VecDeque::new();
            for (comes, bytes) in moves {
                let oldest = lying.front().map(|(start, _)| *start);
                if !comes {
                    lying.pop_front();
                } else if floor.has_room(oldest) {
                    let (start, bytes) = (floor.next(), 1 + bytes % shape.tile_bytes);
                    prop_assert!(start + shape.tile_bytes <= slots * shape.tile_bytes);
                    let apart = |(other, length): &(usize, usize)| {
                        other + length <= start || start + shape.tile_bytes <= *other
                    };
                    prop_assert!(lying.iter().all(apart), "{start} among {lying:?}");
                    lying.push_back((start, bytes));
                    floor.put(bytes);
                } else {
                    prop_assert!(lying.len() + 1 >= slots, "{} tiles fill {slots} slots", lying.len());
                }
            }
        }
    }
}
