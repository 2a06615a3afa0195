//! How something that one position has reaches the others: a tree of edges, in rounds.
//!
//! Positions are offsets from the one that has it, so offset 0 is the source, and the same pattern
//! serves a broadcast (one source) and an all-gather (every rank is the source of its own tree, and
//! all trees are rotations of one).

/// A family of trees over the offsets `0..n`, for any `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The source reaches everybody in one round.
    Direct,
    /// The source reaches one more in each of `n - 1` rounds.
    Pairwise,
    /// Each hands on to the next in `n - 1` rounds; on all ranks at once this is a ring.
    Chain,
    /// `⌈log2 n⌉` rounds; whoever has it sends, to the nearest first. This is Bruck's order: on all
    /// ranks at once the messages double from round to round.
    Doubling,
    /// `⌈log2 n⌉` rounds to the farthest first, so that the large messages go to near ranks and the
    /// offsets behind an edge are contiguous.
    Halving,
    /// `Halving` with at most this many edges in a round: the messages stay bounded as in PAT
    /// (arXiv 2506.20252), for a number of rounds that is logarithmic plus `n` over the bound.
    Bounded(u32),
}

/// What moves from one offset to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The offset that sends.
    pub from: u32,
    /// The offset that receives.
    pub to: u32,
    end: u32,
    step: u32,
}

impl Edge {
    /// When it is the turn of this edge among those that a rank has in a round, one in each of its trees: what it has had for
    /// longest goes first. That is its own; then, in the order in which it came, what [`Pattern::Doubling`] has brought.
    #[must_use]
    pub fn turn(self) -> i32 {
        i32::try_from(self.from).unwrap_or(i32::MAX)
    }

    /// The offsets that are reached through this edge, `to` first.
    pub fn reached(self) -> impl Iterator<Item = u32> {
        (self.to..self.end).step_by(self.step as usize)
    }
}

/// The edges of one round: an arithmetic progression.
#[derive(Clone, Copy)]
struct Progression {
    first: Edge,
    count: u32,
    from_stride: u32,
    to_stride: u32,
    reach: u32,
}

impl Pattern {
    /// Number of rounds among `n` positions.
    #[must_use]
    pub fn rounds(self, n: u32) -> u32 {
        match self {
            Self::Direct => u32::from(n > 1),
            Self::Pairwise | Self::Chain => n.saturating_sub(1),
            Self::Doubling | Self::Halving => levels(n),
            Self::Bounded(limit) => {
                (0..levels(n)).map(|level| halving_edges(n, level).div_ceil(limit)).sum()
            }
        }
    }

    /// The edges of `round` among `n` positions.
    pub fn edges(self, n: u32, round: u32) -> impl Iterator<Item = Edge> {
        let all = self.progression(n, round);
        (0..all.count).map(move |index| {
            let to = all.first.to + index * all.to_stride;
            let from = all.first.from + index * all.from_stride;
            Edge { from, to, end: to.saturating_add(all.reach).min(n), step: all.first.step }
        })
    }

    fn progression(self, n: u32, round: u32) -> Progression {
        let edge = |from, to| Edge { from, to, end: n, step: 1 };
        let one =
            |first, reach| Progression { first, count: 1, from_stride: 0, to_stride: 0, reach };
        match self {
            Self::Direct => Progression {
                first: edge(0, 1),
                count: n - 1,
                from_stride: 0,
                to_stride: 1,
                reach: 1,
            },
            Self::Pairwise => one(edge(0, round + 1), 1),
            Self::Chain => one(edge(round, round + 1), n),
            Self::Doubling => {
                let distance = 1 << round;
                let first = Edge { step: 2 * distance, ..edge(0, distance) };
                let count = distance.min(n - distance);
                Progression { first, count, from_stride: 1, to_stride: 1, reach: n }
            }
            Self::Halving => halving(n, levels(n) - 1 - round, 0, u32::MAX),
            Self::Bounded(limit) => {
                let mut left = round;
                let mut level = levels(n) - 1;
                while left >= halving_edges(n, level).div_ceil(limit) {
                    left -= halving_edges(n, level).div_ceil(limit);
                    level -= 1;
                }
                halving(n, level, left * limit, limit)
            }
        }
    }
}

/// `limit` edges over `2^level` positions, beginning with the one numbered `skip`.
fn halving(n: u32, level: u32, skip: u32, limit: u32) -> Progression {
    let (distance, stride) = (1 << level, 2 << level);
    let from = skip * stride;
    let first = Edge { from, to: from + distance, end: n, step: 1 };
    let count = (halving_edges(n, level) - skip).min(limit);
    Progression { first, count, from_stride: stride, to_stride: stride, reach: distance }
}

fn halving_edges(n: u32, level: u32) -> u32 {
    (n - (1 << level)).div_ceil(2 << level)
}

/// `⌈log2 n⌉`.
pub(crate) fn levels(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [Pattern; 7] = [
        Pattern::Direct,
        Pattern::Pairwise,
        Pattern::Chain,
        Pattern::Doubling,
        Pattern::Halving,
        Pattern::Bounded(1),
        Pattern::Bounded(3),
    ];

    #[test]
    fn every_offset_is_reached_once_by_one_that_was_reached_before() {
        for (pattern, n) in ALL.into_iter().flat_map(|p| (1..=40).map(move |n| (p, n))) {
            let mut reached = BTreeSet::from([0]);
            for round in 0..pattern.rounds(n) {
                let edges: Vec<Edge> = pattern.edges(n, round).collect();
                assert!(!edges.is_empty(), "{pattern:?}, n = {n}: round {round} is empty");
                assert!(edges.iter().all(|edge| reached.contains(&edge.from)), "{pattern:?} {n}");
                assert!(edges.iter().all(|edge| reached.insert(edge.to)), "{pattern:?} {n}");
            }
            assert_eq!(reached.into_iter().collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_edge_knows_what_lies_behind_it() {
        for (pattern, n) in ALL.into_iter().flat_map(|p| (1..=40).map(move |n| (p, n))) {
            let mut behind: Vec<BTreeSet<u32>> = (0..n).map(|at| BTreeSet::from([at])).collect();
            for round in (0..pattern.rounds(n)).rev() {
                for edge in pattern.edges(n, round) {
                    let expected = behind[edge.to as usize].clone();
                    assert_eq!(edge.reached().collect::<BTreeSet<_>>(), expected);
                    behind[edge.from as usize].extend(expected);
                }
            }
        }
    }

    #[test]
    fn rounds_are_as_promised() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(levels), [0, 1, 2, 2, 3, 3, 4]);
        assert_eq!([1, 2, 9].map(|n| Pattern::Direct.rounds(n)), [0, 1, 1]);
        assert_eq!([1, 2, 9].map(|n| Pattern::Chain.rounds(n)), [0, 1, 8]);
        assert_eq!([1, 2, 9].map(|n| Pattern::Doubling.rounds(n)), [0, 1, 4]);
        assert_eq!(Pattern::Bounded(8).rounds(64), 1 + 1 + 1 + 1 + 2 + 4);
        let largest = (0..10).map(|round| Pattern::Bounded(8).edges(64, round).count()).max();
        assert_eq!(largest, Some(8));
    }
}
