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
            transfer.turn = -transfer.turn;
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

/// Copies of the inner schedule, each on its own slice of every item and begun later than the one
/// before, so that what a copy does at its end overlaps with what the next one does at its start.
///
/// Item `i` of slice `s` is chunk `i * slices + s`: the slices of an item lie side by side.
#[derive(Clone, Debug)]
pub struct Staggered {
    /// What every slice goes through.
    pub inner: Shared,
    /// Number of slices.
    pub slices: u32,
    /// How many rounds a slice begins later than the one before.
    pub lag: u32,
}

impl Schedule for Staggered {
    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn rounds(&self) -> u32 {
        match (self.inner.rounds(), self.slices) {
            (0, _) | (_, 0) => 0,
            (rounds, slices) => rounds + (slices - 1) * self.lag,
        }
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        for slice in 0..self.slices {
            let Some(round) = round.checked_sub(slice * self.lag) else { break };
            if round < self.inner.rounds() {
                let start = into.len();
                self.inner.transfers(round, rank, into);
                for transfer in &mut into[start..] {
                    transfer.chunk = Chunk(transfer.chunk.0 * self.slices + slice);
                }
            }
        }
    }
}

/// Rounds in which nothing moves: what comes after is later than it must be. In a [`Staggered`]
/// schedule the slices between run ahead of it.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// Size of the group.
    pub ranks: u32,
    /// How many rounds.
    pub rounds: u32,
}

impl Schedule for Pause {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn transfers(&self, _round: u32, _rank: Rank, _into: &mut Vec<Transfer>) {}
}

/// A schedule written out, for plans that follow no formula.
#[derive(Clone, Debug)]
pub struct Listed {
    ranks: u32,
    /// By round and rank: the transfers at whose source or target the rank is.
    parts: Vec<Vec<Vec<Transfer>>>,
}

impl Listed {
    /// The transfers of every round, each of them once, in a group of `ranks`.
    #[must_use]
    pub fn new(ranks: u32, rounds: &[Vec<Transfer>]) -> Self {
        let part = |round: &Vec<Transfer>| {
            let mut part = vec![Vec::new(); ranks as usize];
            for transfer in round {
                part[transfer.source.index()].push(*transfer);
                part[transfer.target.index()].push(*transfer);
            }
            part
        };
        Self { ranks, parts: rounds.iter().map(part).collect() }
    }
}

impl Schedule for Listed {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        count(&self.parts)
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        into.extend(&self.parts[round as usize][rank.index()]);
    }
}

/// `inner` backwards as a reduction.
pub(crate) fn reduction(inner: Shared) -> Shared {
    Arc::new(Reversed { inner, mode: Mode::Accumulate })
}

/// `inner`, which deals something out, backwards: it is collected.
pub(crate) fn collected(inner: Shared) -> Shared {
    Arc::new(Reversed { inner, mode: Mode::Store })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use crate::spread::AllGather;
    use ccl_core::schedule::{Holdings, round, run};

    fn shards(positions: u32) -> Shared {
        let pattern = Pattern::Direct;
        there_and_back(Arc::new(AllGather { pattern, positions, items: positions }))
    }

    #[test]
    fn slices_follow_each_other_and_together_do_the_whole() {
        for (slices, lag) in [(1, 1), (2, 0), (3, 1), (4, 2), (5, 3)] {
            let staggered = Staggered { inner: shards(3), slices, lag };
            assert_eq!(staggered.rounds(), 2 + (slices - 1) * lag);
            let own = Holdings::new(3, 3 * slices, |rank, _| [rank]);
            let all = Holdings::new(3, 3 * slices, |_, _| (0..3).map(Rank));
            assert_eq!(run(&own, &staggered), Ok(all), "{slices} slices, lag {lag}");
        }
        assert_eq!(Staggered { inner: shards(1), slices: 4, lag: 1 }.rounds(), 0);
        assert_eq!(Staggered { inner: shards(3), slices: 0, lag: 1 }.rounds(), 0);
    }

    #[test]
    fn while_one_slice_is_given_back_the_next_is_reduced() {
        let staggered = Staggered { inner: shards(3), slices: 2, lag: 1 };
        let modes = |number| -> Vec<(Chunk, Mode)> {
            let mut modes: Vec<(Chunk, Mode)> =
                round(&staggered, number).iter().map(|t| (t.chunk, t.mode)).collect();
            modes.dedup();
            modes
        };
        let kinds = |slice: u32, mode| [0, 1, 2].map(|item| (Chunk(item * 2 + slice), mode));
        assert_eq!(modes(0), kinds(0, Mode::Accumulate));
        let mut both = [kinds(0, Mode::Store), kinds(1, Mode::Accumulate)].concat();
        both.sort_unstable();
        assert_eq!(modes(1), both);
        assert_eq!(modes(2), kinds(1, Mode::Store));
    }

    #[test]
    fn what_comes_last_in_a_round_comes_first_when_it_is_reversed() {
        let inner: Shared =
            Arc::new(AllGather { pattern: Pattern::Doubling, positions: 8, items: 8 });
        let in_turn = |schedule: &dyn Schedule, number| -> Vec<Chunk> {
            let mut sent = round(schedule, number);
            sent.retain(|transfer| (transfer.source.0, transfer.target.0) == (0, 4));
            sent.sort_unstable_by_key(|transfer| transfer.turn);
            sent.iter().map(|transfer| transfer.chunk).collect()
        };
        assert_eq!(in_turn(&*inner, 2), [0, 7, 6, 5].map(Chunk), "its own, and as they came");
        let backwards = Reversed { inner, mode: Mode::Accumulate };
        assert_eq!(in_turn(&backwards, 0), [1, 2, 3, 4].map(Chunk));
    }

    #[test]
    fn a_schedule_can_be_written_out() {
        let inner = shards(4);
        let rounds: Vec<Vec<Transfer>> =
            (0..inner.rounds()).map(|number| round(&*inner, number)).collect();
        let listed = Listed::new(4, &rounds);
        let own = Holdings::new(4, 4, |rank, _| [rank]);
        assert_eq!(run(&own, &listed), run(&own, &*inner));
        assert_eq!(listed.rounds(), 2);
    }
}
