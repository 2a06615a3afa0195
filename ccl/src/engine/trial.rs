//! Which of two ways is faster for calls of one kind, found out by doing them both ways.
//!
//! Which one it is depends on more than a model knows: in which pages the buffers lie, how far the processors are from
//! each other, how many ranks share one, what the system does before it copies. So the first calls go one way, the next
//! ones the other, and then the faster one is taken, for longer each time it has been confirmed.
//!
//! All ranks have to go the same way. They count their calls alike, and decide from the same numbers: what all have
//! measured, which they tell each other in the call before that the trial ends.

use std::time::Duration;

/// A way to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Tiles in shared memory: nobody has to be asked.
    Tiles,
    /// The system copies from process to process.
    Attached,
}

/// What the next call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It goes this way.
    Go(Way),
    /// Ranks tell each other what they have measured, and decide.
    Decide,
}

/// The turns of a trial. Memory that nobody has touched yet is slow either way, and so is what the call before, which went
/// the other way, has put out of the caches: each way has two calls, one after the other. With a new buffer the first
/// three or four calls are slow, so tiles have two more, which are as warm as the two attached ones: else they lost
/// trials that they should win, for 128 calls.
const TRIAL: [Turn; 7] = [
    Turn::Go(Way::Tiles),
    Turn::Go(Way::Tiles),
    Turn::Go(Way::Attached),
    Turn::Go(Way::Attached),
    Turn::Go(Way::Tiles),
    Turn::Go(Way::Tiles),
    Turn::Decide,
];

/// Calls that go the way that was found, the first time and at most.
const CALLS: (u32, u32) = (128, 8192);

/// Being attached has to be faster by a tenth: what is as good needs nobody's leave.
const GAIN: (u64, u64) = (10, 9);

/// The least nanoseconds of a call, by way; `u64::MAX` if none has gone that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) tiles: u64,
    pub(super) attached: u64,
}

impl Times {
    const NONE: Self = Self { tiles: u64::MAX, attached: u64::MAX };

    /// The smaller of each: who comes last to a call waits for nobody in it.
    fn least(self, other: Self) -> Self {
        Self { tiles: self.tiles.min(other.tiles), attached: self.attached.min(other.attached) }
    }

    fn better(self) -> Way {
        let attached = u128::from(self.attached) * u128::from(GAIN.0);
        if attached < u128::from(self.tiles) * u128::from(GAIN.1) {
            Way::Attached
        } else {
            Way::Tiles
        }
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
pub(super) struct Trial {
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
    pub(super) fn turn(&mut self) -> Turn {
        match self.state {
            State::Trying { turn } => {
                self.state = State::Trying { turn: turn + 1 };
                TRIAL[turn]
            }
            State::Settled { way, left: 0 } => {
                self.times = Times::NONE;
                self.state = State::Trying { turn: 1 };
                let first = TRIAL[0];
                debug_assert_eq!(first, Turn::Go(Way::Tiles), "{way:?} is compared anew");
                first
            }
            State::Settled { way, left } => {
                self.state = State::Settled { way, left: left - 1 };
                Turn::Go(way)
            }
        }
    }

    /// A call has gone this way in that time.
    pub(super) fn record(&mut self, way: Way, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let least = match way {
            Way::Tiles => &mut self.times.tiles,
            Way::Attached => &mut self.times.attached,
        };
        *least = took.min(*least);
    }

    /// What this rank has measured in this trial.
    pub(super) fn times(&self) -> Times {
        self.times
    }

    /// The way to go from now on, by what all ranks have measured.
    pub(super) fn decide(&mut self, told: impl IntoIterator<Item = Times>) -> Way {
        let way = told.into_iter().fold(Times::NONE, Times::least).better();
        self.settle(way);
        way
    }

    /// Somebody could not be attached in this call.
    pub(super) fn fail(&mut self) {
        self.settle(Way::Tiles);
    }

    fn settle(&mut self, way: Way) {
        self.state = State::Settled { way, left: self.holds };
        self.holds = (2 * self.holds).min(CALLS.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Turn = Turn::Go(Way::Tiles);
    const ATTACHED: Turn = Turn::Go(Way::Attached);

    fn times(tiles: u64, attached: u64) -> Times {
        Times { tiles, attached }
    }

    #[test]
    fn both_ways_are_tried_before_one_is_taken() {
        let mut trial = Trial::default();
        let all = [TILES, TILES, ATTACHED, ATTACHED, TILES, TILES, Turn::Decide];
        let turns: Vec<_> = all.iter().map(|_| trial.turn()).collect();
        assert_eq!(turns, all);
        assert_eq!(trial.decide([times(100, 50)]), Way::Attached);
        assert!((0..CALLS.0).all(|_| trial.turn() == ATTACHED));
        let turns: Vec<_> = all.iter().map(|_| trial.turn()).collect();
        assert_eq!(turns, all, "and again");
    }

    #[test]
    fn the_least_of_all_ranks_counts_and_a_tie_is_for_tiles() {
        let verdict = |told: &[Times]| Trial::default().decide(told.iter().copied());
        assert_eq!(verdict(&[times(100, 89)]), Way::Attached);
        assert_eq!(verdict(&[times(100, 90)]), Way::Tiles);
        assert_eq!(verdict(&[times(100, 300), times(200, 80)]), Way::Attached);
        assert_eq!(verdict(&[times(100, 80), times(80, 100)]), Way::Tiles);
        assert_eq!(verdict(&[Times::NONE]), Way::Tiles);
        assert_eq!(verdict(&[times(u64::MAX, 7)]), Way::Attached);
        assert_eq!(verdict(&[]), Way::Tiles);
    }

    #[test]
    fn what_was_measured_is_the_least_of_this_trial() {
        let mut trial = Trial::default();
        for (way, took) in
            [(Way::Tiles, 9), (Way::Tiles, 7), (Way::Attached, 5), (Way::Attached, 6)]
        {
            trial.turn();
            trial.record(way, Duration::from_nanos(took));
        }
        assert_eq!(trial.times(), times(7, 5));
        trial.decide([trial.times()]);
        assert!((0..=CALLS.0).all(|_| matches!(trial.turn(), Turn::Go(_))));
        assert_eq!(trial.times(), Times::NONE, "a new trial");
    }

    #[test]
    fn a_verdict_holds_for_longer_each_time() {
        let mut trial = Trial::default();
        let lengths = [(); 9].map(|()| {
            trial.fail();
            // The next trial begins with two tiles.
            (0..).find(|_| trial.turn() != TILES).map(|turns: u32| turns - 2)
        });
        let expected = [128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192];
        assert_eq!(lengths, expected.map(Some));
    }
}
