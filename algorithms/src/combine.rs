//! Schedules made of schedules.

use std::sync::Arc;

use ccl_core::ids::{Chunk, Rank};
use ccl_core::schedule::{Mode, Schedule, Transfer};

/// A schedule that several owners may keep.
pub type Shared = Arc<dyn Schedule>;

/// The inner schedule backwards in time, with every transfer turned round.
///
/// Something that spreads along a tree to all becomes a reduction along the same tree (`Accumulate`);
/// something dealt out becomes something collected (`Store`).
#[derive(Clone, Debug)]
pub struct Reversed {
    /// What is reversed; its own modes are forgotten.
    pub inner: Shared,
    /// The mode of the reversed transfers.
    pub mode: Mode,
}

impl Schedule for Reversed {
    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn rounds(&self) -> u32 {
        self.inner.rounds()
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let start = into.len();
        self.inner.transfers(self.rounds() - 1 - round, rank, into);
        for transfer in &mut into[start..] {
            std::mem::swap(&mut transfer.source, &mut transfer.target);
            transfer.mode = self.mode;
        }
    }
}

/// One schedule after the other, on the same ranks and chunks.
#[derive(Clone, Debug)]
pub struct InSequence {
    stages: Vec<(u32, Shared)>,
    ranks: u32,
    rounds: u32,
}

impl InSequence {
    /// The stages in this order.
    ///
    /// # Panics
    /// There are none, or they are for groups of different size.
    #[must_use]
    pub fn new(stages: Vec<Shared>) -> Self {
        let ranks = stages[0].ranks();
        assert!(stages.iter().all(|stage| stage.ranks() == ranks), "stages of different size");
        let mut rounds = 0;
        let mut starts = Vec::with_capacity(stages.len());
        for stage in stages {
            let start = rounds;
            rounds += stage.rounds();
            starts.push((start, stage));
        }
        Self { stages: starts, ranks, rounds }
    }
}

impl Schedule for InSequence {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let running = self.stages.iter().find(|(start, stage)| round - start < stage.rounds());
        if let Some((start, stage)) = running {
            stage.transfers(round - start, rank, into);
        }
    }
}

/// Which chunks an item of an inner schedule stands for.
#[derive(Clone, Debug)]
pub enum Items {
    /// Item `i` is chunk `i`.
    Same,
    /// Item `i` is these chunks, perhaps none.
    Listed(Arc<Vec<Vec<Chunk>>>),
}

impl Items {
    /// Item `i` is the chunks `of(i)`.
    pub fn listed<I>(count: usize, of: impl Fn(usize) -> I) -> Self
    where
        I: IntoIterator<Item = u32>,
    {
        let list = |item| of(item).into_iter().map(Chunk).collect();
        Self::Listed(Arc::new((0..count).map(list).collect()))
    }
}

/// A schedule on some of the ranks and chunks.
#[derive(Clone, Debug)]
pub struct Subgroup {
    inner: Shared,
    ranks: u32,
    members: Vec<Rank>,
    /// Every member with its position, by rank.
    positions: Vec<(Rank, u32)>,
    items: Items,
}

impl Subgroup {
    /// `inner` with its position `i` played by `members[i]`, in a group of `ranks`.
    ///
    /// # Panics
    /// `inner` is not for that many members.
    #[must_use]
    pub fn new(inner: Shared, ranks: u32, members: Vec<Rank>, items: Items) -> Self {
        assert_eq!(inner.ranks() as usize, members.len(), "members of a subgroup");
        let mut positions: Vec<(Rank, u32)> = members.iter().copied().zip(0..).collect();
        positions.sort_unstable();
        Self { inner, ranks, members, positions, items }
    }
}

/// Replaces the items from `start` on by their chunks, within the list.
fn expand(start: usize, chunks: &[Vec<Chunk>], into: &mut Vec<Transfer>) {
    let end = into.len();
    for index in start..end {
        let transfer = into[index];
        let chunks = &chunks[transfer.chunk.index()];
        into.extend(chunks.iter().map(|chunk| Transfer { chunk: *chunk, ..transfer }));
    }
    into.drain(start..end);
}

impl Schedule for Subgroup {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        self.inner.rounds()
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let Ok(found) = self.positions.binary_search_by_key(&rank, |(member, _)| *member) else {
            return;
        };
        let start = into.len();
        self.inner.transfers(round, Rank(self.positions[found].1), into);
        for transfer in &mut into[start..] {
            transfer.source = self.members[transfer.source.index()];
            transfer.target = self.members[transfer.target.index()];
        }
        if let Items::Listed(chunks) = &self.items {
            expand(start, chunks, into);
        }
    }
}

/// Several subgroups at once. They must not write the same place in the same round.
#[derive(Clone, Debug)]
pub struct Together {
    parts: Vec<Subgroup>,
    /// The parts to which every rank belongs.
    parts_of: Vec<Vec<u32>>,
    rounds: u32,
}

impl Together {
    /// The parts side by side in a group of `ranks`.
    #[must_use]
    pub fn new(ranks: u32, parts: Vec<Subgroup>) -> Self {
        let mut parts_of = vec![Vec::new(); ranks as usize];
        for (number, part) in (0..).zip(&parts) {
            for rank in &part.members {
                parts_of[rank.index()].push(number);
            }
        }
        let rounds = parts.iter().map(Schedule::rounds).max().unwrap_or(0);
        Self { parts, parts_of, rounds }
    }
}

impl Schedule for Together {
    fn ranks(&self) -> u32 {
        u32::try_from(self.parts_of.len()).unwrap_or(u32::MAX)
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        for part in self.parts_of[rank.index()].iter().map(|number| &self.parts[*number as usize]) {
            if round < part.rounds() {
                part.transfers(round, rank, into);
            }
        }
    }
}

/// `inner` backwards as a reduction.
pub(crate) fn reduction(inner: Shared) -> Shared {
    Arc::new(Reversed { inner, mode: Mode::Accumulate })
}

/// First reduce along `spread` backwards, then spread the result.
pub(crate) fn there_and_back(spread: Shared) -> Shared {
    Arc::new(InSequence::new(vec![reduction(Arc::clone(&spread)), spread]))
}

/// `inner` with position `i` played by `order[i]`, which is every rank once.
pub(crate) fn in_order(inner: Shared, order: Vec<Rank>, items: Items) -> Shared {
    let identity = order.iter().copied().eq((0..).map(Rank).take(order.len()));
    if identity && matches!(items, Items::Same) {
        return inner;
    }
    Arc::new(Subgroup::new(inner, count(&order), order, items))
}

pub(crate) fn count<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}
