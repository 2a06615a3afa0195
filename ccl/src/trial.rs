//! Which of two ways is faster for calls of one kind, found out by doing them both ways.
//!
//! Which one it is depends on more than a model knows: in which pages the buffers lie, how far the processors are from
//! each other, how many ranks share one, who else uses the caches. So the first calls go one way, the next ones the other,
//! and then the faster one is taken, for longer each time it has been confirmed.
//!
//! Where all ranks have to go the same way, they count their calls alike, and decide from the same numbers: what all have
//! measured, which they tell each other in the call before that the trial ends.

use std::time::Duration;

/// A way to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The one that needs no trial.
    Usual,
    /// The one that has to be faster.
    Other,
}

/// What the next call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It goes this way.
    Go(Way),
    /// It goes the way on which is [decided](Trial::decide) before.
    Decide,
}

/// The turns of a trial.
///
/// What a call finds in the caches the call before has left there, and what the system copies from a process is first moved to
/// where it can be had from: two calls that go another way than those before do not count. With a new buffer the first three or
/// four calls are slow, which is why the usual way comes again in the end: else it lost trials that it should win, for 128 calls.
const TRIAL: [Turn; 11] = [
    Turn::Go(Way::Usual),
    Turn::Go(Way::Usual),
    Turn::Go(Way::Other),
    Turn::Go(Way::Other),
    Turn::Go(Way::Other),
    Turn::Go(Way::Other),
    Turn::Go(Way::Usual),
    Turn::Go(Way::Usual),
    Turn::Go(Way::Usual),
    Turn::Go(Way::Usual),
    Turn::Decide,
];

/// Which of the calls before it is decided go the other way.
#[cfg(test)]
pub(crate) const TRIED: [bool; TRIAL.len() - 1] =
    [false, false, true, true, true, true, false, false, false, false];

/// So many calls of a way do not count before others do.
const UNCOUNTED: usize = 2;

/// Calls that go the way that was found, the first time and at most.
const CALLS: (u32, u32) = (128, 8192);

/// The other way has to be faster by a tenth: what is measured twice differs by less.
const GAIN: (u64, u64) = (10, 9);

/// Nanoseconds of all calls that count together, by way; `u64::MAX` if none has gone that way. Not the shortest call: of ranks that
/// share a processor each in turn has what it needs from the call before, so that every other one is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) usual: u64,
    pub(crate) other: u64,
}

impl Times {
    const NONE: Self = Self { usual: u64::MAX, other: u64::MAX };

    /// The smaller of each: who comes last to calls waits for nobody in them.
    fn least(self, told: Self) -> Self {
        Self { usual: self.usual.min(told.usual), other: self.other.min(told.other) }
    }

    fn better(self) -> Way {
        let other = u128::from(self.other) * u128::from(GAIN.0);
        if other < u128::from(self.usual) * u128::from(GAIN.1) { Way::Other } else { Way::Usual }
    }
}

/// Where a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next call does this turn of [`TRIAL`].
    Trying { turn: usize },
    /// So many calls go this way, then all begins again.
    Settled { way: Way, left: u32 },
}

/// What was found out about calls of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    state: State,
    times: Times,
    /// Calls for which the next verdict holds.
    holds: u32,
}

impl Default for Trial {
    fn default() -> Self {
        Self { state: State::Trying { turn: 0 }, times: Times::NONE, holds: CALLS.0 }
    }
}

impl Trial {
    /// What the next call does.
    pub(crate) fn turn(&mut self) -> Turn {
        match self.state {
            State::Trying { turn } => {
                // A call that fails before it decides leaves that to the next one.
                self.state = State::Trying { turn: (turn + 1).min(TRIAL.len() - 1) };
                TRIAL[turn]
            }
            State::Settled { way, left: 0 } => {
                self.times = Times::NONE;
                self.state = State::Trying { turn: 1 };
                let first = TRIAL[0];
                debug_assert_eq!(first, Turn::Go(Way::Usual), "{way:?} is compared anew");
                first
            }
            State::Settled { way, left } => {
                self.state = State::Settled { way, left: left - 1 };
                Turn::Go(way)
            }
        }
    }

    /// Whether the call whose turn it was last goes the way that was found: nobody needs to measure it.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled { .. })
    }

    /// The call whose turn it was last has gone this way in that time.
    pub(crate) fn record(&mut self, way: Way, took: Duration) {
        if !self.counts() {
            return;
        }
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let time = match way {
            Way::Usual => &mut self.times.usual,
            Way::Other => &mut self.times.other,
        };
        *time = if *time == u64::MAX { took } else { time.saturating_add(took) };
    }

    /// Whether the call whose turn it was last is part of the trial, and went the same way as those before.
    fn counts(&self) -> bool {
        match self.state {
            State::Trying { turn } => {
                let last = &TRIAL[turn.saturating_sub(UNCOUNTED + 1)..turn];
                last.len() > UNCOUNTED && last.iter().all(|one| *one == last[0])
            }
            State::Settled { .. } => false,
        }
    }

    /// What this rank has measured in this trial.
    pub(crate) fn times(&self) -> Times {
        self.times
    }

    /// The way to go from now on, by what all ranks have measured.
    pub(crate) fn decide(&mut self, told: impl IntoIterator<Item = Times>) -> Way {
        let way = told.into_iter().fold(Times::NONE, Times::least).better();
        self.settle(way);
        way
    }

    /// The other way was not to be had in this call.
    pub(crate) fn fail(&mut self) {
        self.settle(Way::Usual);
    }

    fn settle(&mut self, way: Way) {
        self.state = State::Settled { way, left: self.holds };
        self.holds = (2 * self.holds).min(CALLS.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Turn = Turn::Go(Way::Usual);
    const OTHER: Turn = Turn::Go(Way::Other);

    fn times(usual: u64, other: u64) -> Times {
        Times { usual, other }
    }

    #[test]
    fn both_ways_are_tried_before_one_is_taken() {
        let tried = TRIED.map(|is_other| if is_other { OTHER } else { USUAL });
        let all: Vec<Turn> = tried.into_iter().chain([Turn::Decide]).collect();
        let mut trial = Trial::default();
        let turns = |trial: &mut Trial| -> Vec<Turn> { all.iter().map(|_| trial.turn()).collect() };
        assert_eq!(turns(&mut trial), all);
        assert_eq!(trial.decide([times(100, 50)]), Way::Other);
        assert!((0..CALLS.0).all(|_| trial.turn() == OTHER && trial.is_settled()));
        assert_eq!(turns(&mut trial), all, "and again");
        assert!(!trial.is_settled());
        assert_eq!(trial.turn(), Turn::Decide, "the last call failed");
    }

    #[test]
    fn the_least_of_all_ranks_counts_and_a_tie_is_for_the_usual() {
        let verdict = |told: &[Times]| Trial::default().decide(told.iter().copied());
        assert_eq!(verdict(&[times(100, 89)]), Way::Other);
        assert_eq!(verdict(&[times(100, 90)]), Way::Usual);
        assert_eq!(verdict(&[times(100, 300), times(200, 80)]), Way::Other);
        assert_eq!(verdict(&[times(100, 80), times(80, 100)]), Way::Usual);
        assert_eq!(verdict(&[Times::NONE]), Way::Usual);
        assert_eq!(verdict(&[times(u64::MAX, 7)]), Way::Other);
        assert_eq!(verdict(&[]), Way::Usual);
    }

    #[test]
    fn what_was_measured_are_the_calls_that_follow_two_of_their_way() {
        let mut trial = Trial::default();
        for took in [1, 1, 1, 1, 5, 20, 1, 1, 7, 30] {
            let Turn::Go(way) = trial.turn() else { unreachable!("the last turn") };
            trial.record(way, Duration::from_nanos(took));
        }
        assert_eq!(trial.times(), times(37, 25));
        assert_eq!(trial.turn(), Turn::Decide);
        trial.decide([trial.times()]);
        for _ in 0..CALLS.0 {
            let Turn::Go(way) = trial.turn() else { unreachable!("it has been decided") };
            trial.record(way, Duration::from_nanos(1));
        }
        assert_eq!(trial.times(), times(37, 25), "these calls were not part of it");
        trial.turn();
        assert_eq!(trial.times(), Times::NONE, "a new trial");
    }

    #[test]
    fn a_verdict_holds_for_longer_each_time() {
        let mut trial = Trial::default();
        let lengths = [(); 9].map(|()| {
            trial.fail();
            // The next trial begins with two usual ones.
            (0..).find(|_| trial.turn() != USUAL).map(|turns: u32| turns - 2)
        });
        let expected = [128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192];
        assert_eq!(lengths, expected.map(Some));
    }
}
