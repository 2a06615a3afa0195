//! AllReduces that are not a reduction followed by its reverse.

use std::sync::Arc;

use ccl_core::ids::{Chunk, Rank};
use ccl_core::schedule::{Mode, Schedule, Transfer};

use crate::combine::{InSequence, Items, Reversed, Shared, Subgroup};

/// Everybody reduces chunk 0 into everybody, in one round. The executor makes one reduction in order
/// of rank of what arrives, so all ranks compute the same bits.
#[derive(Clone, Copy, Debug)]
pub struct OneShot {
    /// Size of the group.
    pub ranks: u32,
}

impl Schedule for OneShot {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        u32::from(self.ranks > 1)
    }

    fn transfers(&self, _round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        for peer in (0..self.ranks).map(Rank).filter(|peer| *peer != rank) {
            into.push(accumulate(rank, peer));
            into.push(accumulate(peer, rank));
        }
    }
}

/// Pairs at distance 1, 2, 4, … exchange all they have and both reduce. Both sides of a pair add the
/// same two values, and addition commutes, so all ranks end with the same bits.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// Binary logarithm of the size of the group.
    levels: u32,
}

impl Schedule for Exchange {
    fn ranks(&self) -> u32 {
        1 << self.levels
    }

    fn rounds(&self) -> u32 {
        self.levels
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let peer = Rank(rank.0 ^ (1 << round));
        into.extend([accumulate(rank, peer), accumulate(peer, rank)]);
    }
}

/// The last positions hand their contribution to the first ones and step aside.
#[derive(Clone, Copy, Debug)]
struct Fold {
    ranks: u32,
    /// Positions that stay.
    kept: u32,
}

impl Schedule for Fold {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        u32::from(self.ranks > self.kept)
    }

    fn transfers(&self, _round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        if rank.0 >= self.kept {
            into.push(accumulate(rank, Rank(rank.0 - self.kept)));
        } else if rank.0 + self.kept < self.ranks {
            into.push(accumulate(Rank(rank.0 + self.kept), rank));
        }
    }
}

/// Recursive doubling of chunk 0 among any number of positions: the ones beyond the largest power of
/// two are folded into the others before, and given the result after.
#[must_use]
pub fn recursive_doubling(positions: u32) -> Shared {
    let levels = positions.max(1).ilog2();
    let kept = 1 << levels;
    let fold: Shared = Arc::new(Fold { ranks: positions, kept });
    let members = (0..kept).map(Rank).collect();
    let exchange = Subgroup::new(Arc::new(Exchange { levels }), positions, members, Items::Same);
    let unfold = Reversed { inner: Arc::clone(&fold), mode: Mode::Store };
    Arc::new(InSequence::new(vec![fold, Arc::new(exchange), Arc::new(unfold)]))
}

fn accumulate(source: Rank, target: Rank) -> Transfer {
    Transfer::new(Chunk(0), source, target, Mode::Accumulate)
}
