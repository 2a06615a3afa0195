//! Where the chunks of a collective lie in the buffers of each rank.
//!
//! The data of a collective is a grid of *blocks* (what one rank contributes or receives) cut into
//! *parts* (pieces that schedules move separately). Chunk `block * parts + part` is one piece:
//!
//! | collective | blocks | input of rank r | output of rank r |
//! |---|---|---|---|
//! | AllReduce, Barrier | 1 | all | all |
//! | Broadcast | 1 | all, at the root | all |
//! | Reduce | 1 | all | all, at the root |
//! | AllGather | n, one per source | block r | all |
//! | Gather | n, one per source | block r | all, at the root |
//! | ReduceScatter | n, one per target | all | block r |
//! | Scatter | n, one per target | all, at the root | block r |
//! | AllToAll(v) | n², block `source * n + target` | blocks with source r | blocks with target r |

use crate::collective::{Collective, Request};
use crate::ids::{Chunk, Rank};
use crate::schedule::Holdings;

/// Part boundaries are multiples of this many bytes, where parts are larger, so that no two ranks
/// write the same cache line.
const PART_ALIGNMENT_BYTES: usize = 64;

/// A block cut into parts; boundaries in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    bounds: Vec<usize>,
}

impl Partition {
    /// `count` elements of `element_bytes` in `parts` nearly equal parts.
    ///
    /// # Panics
    /// `parts` is zero.
    #[must_use]
    pub fn even(count: usize, element_bytes: usize, parts: u32) -> Self {
        Self::weighted(count, element_bytes, &vec![1.0; parts as usize])
    }

    /// `count` elements of `element_bytes` in parts proportional to `weights`.
    ///
    /// # Panics
    /// There are no weights, one is negative, or all are zero.
    #[must_use]
    pub fn weighted(count: usize, element_bytes: usize, weights: &[f64]) -> Self {
        assert!(!weights.is_empty() && weights.iter().all(|w| *w >= 0.0), "weights {weights:?}");
        let total: f64 = weights.iter().sum();
        assert!(total > 0.0, "some weight must be positive");
        let unit = (PART_ALIGNMENT_BYTES / element_bytes).max(1);
        let unit = if count / weights.len() >= 2 * unit { unit } else { 1 };
        let mut bounds = vec![0];
        let mut sum = 0.0;
        for weight in weights {
            sum += weight;
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a boundary, rounded on purpose"
            )]
            let ideal = (sum / total * count as f64 / unit as f64).round() as usize * unit;
            let last = bounds[bounds.len() - 1];
            bounds.push(ideal.clamp(last, count));
        }
        let end = bounds.len() - 1;
        bounds[end] = count;
        Self { bounds }
    }

    /// Number of parts.
    #[must_use]
    pub fn parts(&self) -> u32 {
        u32::try_from(self.bounds.len() - 1).unwrap_or(u32::MAX)
    }

    /// Elements of the whole block.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bounds[self.bounds.len() - 1]
    }

    fn start(&self, part: u32) -> usize {
        self.bounds[part as usize]
    }

    fn elements(&self, part: u32) -> usize {
        self.bounds[part as usize + 1] - self.bounds[part as usize]
    }
}

/// Counts and displacements of one rank's AllToAllV, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ragged {
    /// Elements and offset of what goes to each rank.
    pub send: Vec<(usize, usize)>,
    /// Elements and offset of what comes from each rank.
    pub receive: Vec<(usize, usize)>,
}

/// Where one collective's chunks lie; see the module. Offsets and lengths are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    collective: Collective,
    ranks: u32,
    root: Rank,
    partition: Partition,
    ragged: Option<(Rank, Ragged)>,
}

impl Layout {
    /// The layout of `request` among `ranks` ranks with its blocks cut by `partition`.
    #[must_use]
    pub fn new(request: &Request, ranks: u32, partition: Partition) -> Self {
        let Request { collective, root, .. } = *request;
        Self { collective, ranks, root, partition, ragged: None }
    }

    /// The layout of an AllToAllV as `me` sees it: only chunks it sends or receives have a length.
    #[must_use]
    pub fn ragged(me: Rank, ranks: u32, counts: Ragged) -> Self {
        Self {
            collective: Collective::AllToAllV,
            ranks,
            root: Rank(0),
            partition: Partition { bounds: vec![0, 0] },
            ragged: Some((me, counts)),
        }
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Parts per block.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.partition.parts()
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        blocks(self.collective, self.ranks)
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.blocks() * self.parts()
    }

    /// Length of `chunk` in elements.
    #[must_use]
    pub fn elements(&self, chunk: Chunk) -> usize {
        match &self.ragged {
            None => self.partition.elements(chunk.0 % self.parts()),
            Some((me, counts)) => {
                let (source, target) = self.ends(chunk.0);
                if source == *me {
                    counts.send[target.index()].0
                } else if target == *me {
                    counts.receive[source.index()].0
                } else {
                    0
                }
            }
        }
    }

    /// Offset of `chunk` in the input of `rank`, if its contribution is there at the start.
    #[must_use]
    pub fn input(&self, rank: Rank, chunk: Chunk) -> Option<usize> {
        let (block, part) = (chunk.0 / self.parts(), chunk.0 % self.parts());
        let offset = match self.collective {
            Collective::AllReduce | Collective::Barrier | Collective::Reduce => Some(0),
            Collective::Broadcast => (rank == self.root).then_some(0),
            Collective::AllGather | Collective::Gather => (block == rank.0).then_some(0),
            Collective::ReduceScatter => Some(block as usize),
            Collective::Scatter => (rank == self.root).then_some(block as usize),
            Collective::AllToAll | Collective::AllToAllV => {
                let (source, target) = self.ends(block);
                if let (true, Some((_, counts))) = (source == rank, &self.ragged) {
                    return Some(counts.send[target.index()].1);
                }
                (source == rank).then_some(target.index())
            }
            Collective::PointToPoint => None,
        };
        offset.map(|block| block * self.partition.count() + self.partition.start(part))
    }

    /// Offset of `chunk` in the output of `rank`, if it must be there at the end.
    #[must_use]
    pub fn output(&self, rank: Rank, chunk: Chunk) -> Option<usize> {
        let (block, part) = (chunk.0 / self.parts(), chunk.0 % self.parts());
        let offset = match self.collective {
            Collective::AllReduce | Collective::Barrier | Collective::Broadcast => Some(0),
            Collective::Reduce => (rank == self.root).then_some(0),
            Collective::AllGather => Some(block as usize),
            Collective::Gather => (rank == self.root).then_some(block as usize),
            Collective::ReduceScatter | Collective::Scatter => (block == rank.0).then_some(0),
            Collective::AllToAll | Collective::AllToAllV => {
                let (source, target) = self.ends(block);
                if let (true, Some((_, counts))) = (target == rank, &self.ragged) {
                    return Some(counts.receive[source.index()].1);
                }
                (target == rank).then_some(source.index())
            }
            Collective::PointToPoint => None,
        };
        offset.map(|block| block * self.partition.count() + self.partition.start(part))
    }

    /// What every place holds before the collective.
    #[must_use]
    pub fn initial(&self) -> Holdings {
        Holdings::new(self.ranks, self.chunks(), |rank, chunk| {
            self.input(rank, chunk).map(|_| rank)
        })
    }

    /// Whether every output holds what the collective promises.
    #[must_use]
    pub fn satisfied(&self, after: &Holdings) -> bool {
        let initial = self.initial();
        let chunks = || (0..self.chunks()).map(Chunk);
        chunks().all(|chunk| {
            let all: Vec<Rank> = (0..self.ranks)
                .map(Rank)
                .filter(|rank| !initial.held(*rank, chunk).is_empty())
                .collect();
            (0..self.ranks)
                .map(Rank)
                .filter(|rank| self.output(*rank, chunk).is_some())
                .all(|rank| after.held(rank, chunk) == all)
        })
    }

    fn ends(&self, block: u32) -> (Rank, Rank) {
        (Rank(block / self.ranks), Rank(block % self.ranks))
    }
}

/// Number of blocks of a collective among `ranks` ranks.
#[must_use]
pub fn blocks(collective: Collective, ranks: u32) -> u32 {
    match collective {
        Collective::AllReduce
        | Collective::Barrier
        | Collective::Broadcast
        | Collective::Reduce => 1,
        Collective::AllGather
        | Collective::Gather
        | Collective::ReduceScatter
        | Collective::Scatter => ranks,
        Collective::AllToAll | Collective::AllToAllV => ranks * ranks,
        Collective::PointToPoint => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_the_block(count in 0usize..100_000, bytes in prop::sample::select(vec![1usize, 2, 4, 8]), weights in prop::collection::vec(0.0f64..4.0, 1..20)) {
            prop_assume!(weights.iter().sum::<f64>() > 0.0);
            let partition = Partition::weighted(count, bytes, &weights);
            let total: usize = (0..partition.parts()).map(|part| partition.elements(part)).sum();
            prop_assert_eq!(total, count);
            prop_assert_eq!(partition.count(), count);
        }
    }

    #[test]
    fn even_parts_differ_little() {
        let partition = Partition::even(1003, 4, 4);
        let sizes: Vec<usize> = (0..4).map(|part| partition.elements(part)).collect();
        assert_eq!(sizes, [256, 240, 256, 251]);
    }
}
