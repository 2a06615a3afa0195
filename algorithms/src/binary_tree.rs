//! A binary tree in which the even positions are inside and the odd ones are leaves.
//!
//! With the positions shifted by one (or mirrored) the roles change, so that two such trees, each with
//! half of the data, load everybody alike (Sanders, Speck and Träff, "Two-tree algorithms", 2009).

use ccl_core::ids::{Chunk, Rank};
use ccl_core::schedule::{Mode, Schedule, Transfer};

/// Item 0 goes from position 0 down the tree, one level in each round.
#[derive(Clone, Copy, Debug)]
pub struct BinaryTree {
    positions: u32,
    rounds: u32,
}

impl BinaryTree {
    /// The tree over `positions` positions.
    #[must_use]
    pub fn new(positions: u32) -> Self {
        let mut tree = Self { positions, rounds: 0 };
        tree.rounds = (0..positions).map(|at| tree.depth(at)).max().unwrap_or(0);
        tree
    }

    /// Positions are in order inside the tree, and a position's height is the number of trailing zero
    /// bits: its parent is the neighbour, among those one higher, that exists.
    fn parent(self, at: u32) -> Option<u32> {
        if at == 0 {
            return None;
        }
        let bit = at & at.wrapping_neg();
        let right = (at ^ bit) | (bit << 1);
        Some(if right < self.positions { right } else { at ^ bit })
    }

    /// The children below position 0, which has one, and below the others, which have up to two.
    fn children(self, at: u32) -> impl Iterator<Item = u32> {
        let height = if at == 0 { u32::BITS - 1 } else { at.trailing_zeros() };
        let below = (0..height).rev().map(|level| 1u32 << level);
        let left = below.clone().find_map(move |distance| {
            let child = at.checked_sub(distance)?;
            (self.parent(child) == Some(at)).then_some(child)
        });
        let right = below.into_iter().find_map(move |distance| {
            let child = at.checked_add(distance).filter(|child| *child < self.positions)?;
            (self.parent(child) == Some(at)).then_some(child)
        });
        left.into_iter().chain(right)
    }

    fn depth(self, at: u32) -> u32 {
        let parent = |at: &u32| self.parent(*at);
        u32::try_from(std::iter::successors(Some(at), parent).count() - 1).unwrap_or(u32::MAX)
    }
}

impl Schedule for BinaryTree {
    fn ranks(&self) -> u32 {
        self.positions
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let store =
            |source, target| Transfer::new(Chunk(0), Rank(source), Rank(target), Mode::Store);
        let depth = self.depth(rank.0);
        if depth == round {
            into.extend(self.children(rank.0).map(|child| store(rank.0, child)));
        } else if depth == round + 1 {
            into.extend(self.parent(rank.0).map(|parent| store(parent, rank.0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::levels;

    #[test]
    fn parents_and_children_agree_and_odd_positions_are_leaves() {
        for tree in (1..=200).map(BinaryTree::new) {
            let mut parents = vec![None; tree.positions as usize];
            for at in 0..tree.positions {
                let children: Vec<u32> = tree.children(at).collect();
                assert!(children.len() <= 2 && (at % 2 == 0 || children.is_empty()));
                for child in children {
                    assert_eq!(parents[child as usize].replace(at), None, "{tree:?} {child}");
                }
            }
            let expected: Vec<Option<u32>> =
                (0..tree.positions).map(|at| tree.parent(at)).collect();
            assert_eq!(parents, expected, "{tree:?}");
            assert!(tree.rounds <= levels(tree.positions) + 1, "{tree:?}");
        }
    }
}
