//! Symbolic execution: instead of numbers, every place holds the set of ranks summed into it.

use super::{Mode, Schedule, Transfer};
use crate::ids::{Chunk, Rank};

/// Whose contributions every rank's copy of every chunk holds.
///
/// The same type describes the start of a collective, its goal, and the state in which a
/// failure interrupted it. That is why an ordinary run and a repair need one verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    ranks: u32,
    chunks: u32,
    /// Words of one place's set.
    words: usize,
    sets: Vec<u64>,
}

/// Why a schedule is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Contributions would be counted twice in the target.
    CountedTwice(Transfer),
    /// One round both stores into a place and writes it again.
    Race(Transfer),
    /// The transfer reads a place that holds nothing.
    ReadsNothing(Transfer),
    /// Something else of the round is written into or read from the same place in another turn.
    OutOfTurn(Transfer),
    /// The two ends do not report the transfer alike, or it goes from a rank to itself.
    OneSided(Transfer),
    /// A rank, chunk or round outside the group.
    OutOfRange(Transfer),
}

impl Holdings {
    /// Every place holds what `held(rank, chunk)` lists.
    pub fn new<I>(ranks: u32, chunks: u32, held: impl Fn(Rank, Chunk) -> I) -> Self
    where
        I: IntoIterator<Item = Rank>,
    {
        let words = ranks.div_ceil(64) as usize;
        let sets = vec![0; ranks as usize * chunks as usize * words];
        let mut holdings = Self { ranks, chunks, words, sets };
        for rank in (0..ranks).map(Rank) {
            for chunk in (0..chunks).map(Chunk) {
                for owner in held(rank, chunk) {
                    let at = holdings.at(rank, chunk) + owner.index() / 64;
                    holdings.sets[at] |= 1 << (owner.0 % 64);
                }
            }
        }
        holdings
    }

    /// Whether `rank`'s copy of `chunk` holds exactly the same contributions here and in `other`.
    #[must_use]
    pub fn agrees(&self, other: &Self, rank: Rank, chunk: Chunk) -> bool {
        self.set(rank, chunk) == other.set(rank, chunk)
    }

    /// Whose contributions `rank`'s copy of `chunk` holds.
    #[must_use]
    pub fn held(&self, rank: Rank, chunk: Chunk) -> Vec<Rank> {
        let set = self.set(rank, chunk);
        let holds = |owner: &Rank| set[owner.index() / 64] >> (owner.0 % 64) & 1 == 1;
        (0..self.ranks).map(Rank).filter(holds).collect()
    }

    fn at(&self, rank: Rank, chunk: Chunk) -> usize {
        (rank.index() * self.chunks as usize + chunk.index()) * self.words
    }

    fn set(&self, rank: Rank, chunk: Chunk) -> &[u64] {
        let at = self.at(rank, chunk);
        &self.sets[at..at + self.words]
    }

    fn covers(&self, transfer: &Transfer) -> bool {
        transfer.source.0 < self.ranks
            && transfer.target.0 < self.ranks
            && transfer.chunk.0 < self.chunks
    }
}

/// Runs `schedule` on `before` and returns what every place holds afterwards.
///
/// # Errors
/// The first transfer that is wrong.
pub fn run(before: &Holdings, schedule: &dyn Schedule) -> Result<Holdings, Fault> {
    let mut state = before.clone();
    for round in 0..schedule.rounds() {
        let transfers = super::round(schedule, round);
        check_ends(schedule, round, &transfers)?;
        check_turns(transfers.clone())?;
        let read = state.clone();
        let mut written: Option<Transfer> = None;
        let mut by_target = transfers;
        by_target.sort_unstable_by_key(|t| (t.target, t.chunk, t.mode, t.source));
        for transfer in by_target {
            if !state.covers(&transfer) {
                return Err(Fault::OutOfRange(transfer));
            }
            let same = |w: &Transfer| w.target == transfer.target && w.chunk == transfer.chunk;
            let stored = |w: &Transfer| w.mode == Mode::Store || transfer.mode == Mode::Store;
            if written.as_ref().is_some_and(|w| same(w) && stored(w)) {
                return Err(Fault::Race(transfer));
            }
            apply(&transfer, &read, &mut state)?;
            written = Some(transfer);
        }
    }
    Ok(state)
}

/// Source and target must report the same transfers, each once.
fn check_ends(schedule: &dyn Schedule, round: u32, sent: &[Transfer]) -> Result<(), Fault> {
    let mut received = Vec::new();
    let mut part = Vec::new();
    for rank in (0..schedule.ranks()).map(Rank) {
        schedule.transfers(round, rank, &mut part);
        received.extend(part.drain(..).filter(|transfer| transfer.target == rank));
    }
    received.sort_unstable();
    let differs = sent.iter().zip(&received).find(|(a, b)| a != b).map(|(a, _)| a);
    let longer = if sent.len() > received.len() { sent } else { &received };
    let extra = longer.get(sent.len().min(received.len()));
    let selfish = sent.iter().find(|transfer| transfer.source == transfer.target);
    match differs.or(extra).or(selfish) {
        Some(transfer) => Err(Fault::OneSided(*transfer)),
        None => Ok(()),
    }
}

/// Both ends of a link take what it carries in a round in the same order only if turns belong to places.
fn check_turns(mut transfers: Vec<Transfer>) -> Result<(), Fault> {
    for place in [|t: &Transfer| (t.source, t.chunk), |t: &Transfer| (t.target, t.chunk)] {
        transfers.sort_unstable_by_key(place);
        let mut neighbours = transfers.windows(2);
        let strays =
            |two: &[Transfer]| place(&two[0]) == place(&two[1]) && two[0].turn != two[1].turn;
        if let Some(two) = neighbours.find(|two| strays(two)) {
            return Err(Fault::OutOfTurn(two[1]));
        }
    }
    Ok(())
}

fn apply(transfer: &Transfer, read: &Holdings, state: &mut Holdings) -> Result<(), Fault> {
    let incoming = read.set(transfer.source, transfer.chunk);
    if incoming.iter().all(|word| *word == 0) {
        return Err(Fault::ReadsNothing(*transfer));
    }
    let at = state.at(transfer.target, transfer.chunk);
    for (held, more) in state.sets[at..].iter_mut().zip(incoming) {
        match transfer.mode {
            Mode::Store => *held = *more,
            Mode::Accumulate if *held & more != 0 => return Err(Fault::CountedTwice(*transfer)),
            Mode::Accumulate => *held |= more,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule written out, for tests of the verifier itself.
    #[derive(Debug)]
    struct Listed(u32, Vec<Vec<Transfer>>);

    impl Schedule for Listed {
        fn ranks(&self) -> u32 {
            self.0
        }

        fn rounds(&self) -> u32 {
            u32::try_from(self.1.len()).unwrap()
        }

        fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
            let touches = |t: &&Transfer| t.source == rank || t.target == rank;
            into.extend(self.1[round as usize].iter().filter(touches));
        }
    }

    fn transfer(source: u32, target: u32, mode: Mode) -> Transfer {
        Transfer::new(Chunk(0), Rank(source), Rank(target), mode)
    }

    fn own(ranks: u32) -> Holdings {
        Holdings::new(ranks, 1, |rank, _| [rank])
    }

    #[test]
    fn an_exchange_sums_both() {
        let exchange = vec![transfer(0, 1, Mode::Accumulate), transfer(1, 0, Mode::Accumulate)];
        let after = run(&own(2), &Listed(2, vec![exchange])).unwrap();
        assert_eq!(after, Holdings::new(2, 1, |_, _| [Rank(0), Rank(1)]));
    }

    #[test]
    fn a_replayed_reduction_is_caught() {
        let once = vec![transfer(0, 1, Mode::Accumulate)];
        let fault = run(&own(2), &Listed(2, vec![once.clone(), once.clone()]));
        assert_eq!(fault, Err(Fault::CountedTwice(once[0])));
    }

    #[test]
    fn two_stores_into_one_place_race() {
        let both = vec![transfer(0, 2, Mode::Store), transfer(1, 2, Mode::Store)];
        assert_eq!(run(&own(3), &Listed(3, vec![both.clone()])), Err(Fault::Race(both[1])));
    }

    #[test]
    fn reading_nothing_is_caught() {
        let empty = Holdings::new(2, 1, |rank, _| (rank.0 == 0).then_some(rank));
        let send = vec![transfer(1, 0, Mode::Store)];
        assert_eq!(run(&empty, &Listed(2, vec![send.clone()])), Err(Fault::ReadsNothing(send[0])));
    }

    #[test]
    fn a_place_has_one_turn_in_a_round() {
        let late = |transfer| Transfer { turn: 1, ..transfer };
        let add = Mode::Accumulate;
        for [first, second] in [[(0, 2), (1, 2)], [(0, 1), (0, 2)]] {
            let pair = |turn: fn(Transfer) -> Transfer| {
                vec![transfer(first.0, first.1, add), turn(transfer(second.0, second.1, add))]
            };
            assert!(run(&own(3), &Listed(3, vec![pair(|transfer| transfer)])).is_ok());
            let stray = pair(late);
            assert_eq!(
                run(&own(3), &Listed(3, vec![stray.clone()])),
                Err(Fault::OutOfTurn(stray[1]))
            );
        }
    }

    #[test]
    fn a_transfer_to_oneself_is_caught() {
        let send = vec![transfer(1, 1, Mode::Store)];
        assert_eq!(run(&own(2), &Listed(2, vec![send.clone()])), Err(Fault::OneSided(send[0])));
    }
}
