//! Which of two ways is faster for calls of one kind, found out by doing them both ways.
//!
//! Which one it is depends on more than a model knows: in which pages the buffers lie, how far the processors are from
//! each other, how many ranks share one, who else uses the caches. So the first calls go one way, the next ones the other
//! (see [`Course`]), and then the faster one is taken, for longer each time it has been confirmed.
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

/// How many calls a trial takes: the first ones go the usual way, the next ones the other way, and then the usual way again.
///
/// Calls with new buffers are slow whichever way they go, and those that go another way than the calls before: what they need
/// is not where they would have left it. None of them counts. The usual way is measured last, so that nothing is new to it.
///
/// Before the first trial of these calls there may be [more](Self::after_first_touch), which no later one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    /// Calls that go the usual way before the first trial.
    first: u32,
    /// Calls that go the usual way at first in each trial.
    cold: u32,
    /// Calls of each way then, before any counts.
    settling: u32,
    /// Calls of each way that count.
    counted: u32,
    /// The other way is taken if it is faster by one part in so many: what is measured twice differs by less.
    gain: u32,
    /// A verdict holds for so many times as many calls where one way takes more than half as long again as the other: chance does not
    /// explain that, and trying it again is expensive.
    clear: u32,
    /// Calls for which the first verdict holds if it is not clear: few, where a trial is cheap and early calls say little of later ones.
    holds: u32,
}

impl Course {
    /// For calls that take milliseconds, of which a few tell how long they all take.
    pub(crate) const OF_MILLISECONDS: Self =
        Self { first: 0, cold: 2, settling: 3, counted: 3, gain: 10, clear: 8, holds: 128 };

    /// How results are stored is tried like that. What is clear there may be so because of what the buffers hold: some processors
    /// store zeros past their caches in half the time.
    pub(crate) const OF_STORES: Self = Self { clear: 1, ..Self::OF_MILLISECONDS };

    /// For shorter ones.
    pub(crate) const OF_MICROSECONDS: Self =
        Self { first: 0, cold: 3, settling: 3, counted: 4, gain: 10, clear: 32, holds: 32 };

    /// For those of ranks that share processors. Each in turn has what it needs from the call before: a call takes 30 µs, the
    /// next three 180. And the first dozen calls take longer than those that follow.
    pub(crate) const OF_THE_CROWDED: Self =
        Self { first: 0, cold: 8, settling: 4, counted: 8, gain: 20, clear: 8, holds: 128 };

    /// None of so many calls of the usual way count: they are the first that touch what it needs.
    pub(crate) const fn after_first_touch(self, calls: u32) -> Self {
        let calls = if calls < MOST_FIRST { calls } else { MOST_FIRST };
        Self { first: calls.saturating_sub(self.cold + self.settling), ..self }
    }

    /// Begins when another trial of the same calls has ended: how well the usual way does may depend on what that finds.
    pub(crate) const fn after(self, other: Self) -> Self {
        Self { cold: other.calls() + 1 + self.cold, ..self }
    }

    /// Calls of each way, after the first ones.
    const fn compared(self) -> u32 {
        self.settling + self.counted
    }

    /// Calls before any goes the other way.
    const fn before(self) -> u32 {
        self.first + self.cold
    }

    /// Calls before it is decided, the first time.
    pub(crate) const fn calls(self) -> u32 {
        self.before() + 2 * self.compared()
    }

    /// The way of the call before which so many were done, if it is not decided by then.
    const fn way(self, calls: u32) -> Way {
        if calls >= self.before() && calls < self.before() + self.compared() {
            Way::Other
        } else {
            Way::Usual
        }
    }

    /// What that call does.
    const fn turn(self, calls: u32) -> Turn {
        if calls < self.calls() { Turn::Go(self.way(calls)) } else { Turn::Decide }
    }

    /// Whether that call counts.
    const fn counts(self, calls: u32) -> bool {
        calls >= self.before()
            && calls < self.calls()
            && (calls - self.before()) % self.compared() >= self.settling
    }
}

/// Which of the calls of the shortest trial go the other way.
#[cfg(test)]
pub(crate) const TRIED: [bool; Course::OF_MILLISECONDS.calls() as usize] = {
    let mut tried = [true; Course::OF_MILLISECONDS.calls() as usize];
    let mut call = 0;
    while call < tried.len() {
        #[allow(clippy::cast_possible_truncation, reason = "there are few")]
        let way = Course::OF_MILLISECONDS.way(call as u32);
        tried[call] = matches!(way, Way::Other);
        call += 1;
    }
    tried
};

/// Calls of the usual way before one counts, however long it takes to touch everything: the other way may be much faster.
const MOST_FIRST: u32 = 64;

/// Calls for which a verdict holds at most.
const MOST_HELD: u32 = 8192;

/// Of so many calls that go as usual, ranks meet in one, to make sure that they still know what calls these are.
const SURE: u32 = 16;

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

    /// The other way, if it is faster by one part in so many.
    fn better(self, gain: u32) -> Way {
        let [usual, other, gain] = [self.usual, self.other, gain.into()].map(u128::from);
        if other * gain < usual * (gain - 1) { Way::Other } else { Way::Usual }
    }

    /// Whether one way takes more than half as long again as the other.
    fn are_clear(self) -> bool {
        let [usual, other] = [self.usual, self.other].map(u128::from);
        usual.max(other) * 2 > usual.min(other) * 3
    }
}

/// Where a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many calls of the [`Course`] were done.
    Trying { calls: u32 },
    /// So many calls go this way, then all begins again.
    Settled { way: Way, left: u32 },
}

/// What was found out about calls of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    course: Course,
    state: State,
    times: Times,
    /// Calls for which the next verdict holds.
    holds: u32,
}

impl Trial {
    pub(crate) const fn new(course: Course) -> Self {
        let state = State::Trying { calls: 0 };
        Self { course, state, times: Times::NONE, holds: course.holds }
    }

    /// What the next call does.
    pub(crate) fn turn(&mut self) -> Turn {
        match self.state {
            State::Trying { calls } => {
                // A call that fails before it decides leaves that to the next one.
                self.state = State::Trying { calls: (calls + 1).min(self.course.calls() + 1) };
                self.course.turn(calls)
            }
            State::Settled { left: 0, .. } => {
                self.times = Times::NONE;
                self.state = State::Trying { calls: self.course.first + 1 };
                self.course.turn(self.course.first)
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

    /// Whether the call whose turn it was last is one of those that are compared: nothing else may be tried in it.
    pub(crate) fn compares(&self) -> bool {
        matches!(self.state, State::Trying { calls } if calls > self.course.before())
    }

    /// What was found, while that holds.
    pub(crate) fn verdict(&self) -> Option<Way> {
        match self.state {
            State::Trying { .. } => None,
            State::Settled { way, .. } => Some(way),
        }
    }

    /// Whether in the call whose turn it was last ranks should make sure that it is one of those that this is the trial of: in one
    /// of so many that go as usual.
    pub(crate) fn makes_sure(&self) -> bool {
        matches!(self.state, State::Settled { way: Way::Usual, left } if left % SURE == 0)
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

    /// Whether the call whose turn it was last is one that counts.
    fn counts(&self) -> bool {
        match self.state {
            State::Trying { calls } => calls > 0 && self.course.counts(calls - 1),
            State::Settled { .. } => false,
        }
    }

    /// What this rank has measured in this trial.
    pub(crate) fn times(&self) -> Times {
        self.times
    }

    /// The way to go from now on, by what all ranks have measured.
    pub(crate) fn decide(&mut self, told: impl IntoIterator<Item = Times>) -> Way {
        let least = told.into_iter().fold(Times::NONE, Times::least);
        let way = least.better(self.course.gain);
        self.settle(way, if least.are_clear() { self.course.clear } else { 1 });
        way
    }

    /// The other way was not to be had in this call.
    pub(crate) fn fail(&mut self) {
        self.settle(Way::Usual, 1);
    }

    fn settle(&mut self, way: Way, times: u32) {
        self.state = State::Settled { way, left: (times * self.holds).min(MOST_HELD) };
        self.holds = (2 * self.holds).min(MOST_HELD);
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
        for (course, cold, compared) in
            [(Course::OF_MILLISECONDS, 2, 6), (Course::OF_THE_CROWDED, 8, 12)]
        {
            let turns = |trial: &mut Trial, calls: u32| -> Vec<Turn> {
                (0..calls).map(|_| trial.turn()).collect()
            };
            let ways = [vec![USUAL; cold], vec![OTHER; compared], vec![USUAL; compared]].concat();
            let all = [ways, vec![Turn::Decide]].concat();
            let length = course.calls() + 1;
            let mut trial = Trial::new(course);
            assert_eq!(turns(&mut trial, length), all);
            assert_eq!(trial.decide([times(100, 70)]), Way::Other);
            assert!((0..course.holds).all(|_| trial.turn() == OTHER && trial.is_settled()));
            assert_eq!(turns(&mut trial, length), all, "and again");
            assert!(!trial.is_settled());
            assert_eq!(trial.turn(), Turn::Decide, "the last call failed");
        }
    }

    #[test]
    fn the_least_of_all_ranks_counts_and_a_tie_is_for_the_usual() {
        let verdict =
            |told: &[Times]| Trial::new(Course::OF_MILLISECONDS).decide(told.iter().copied());
        assert_eq!(verdict(&[times(100, 89)]), Way::Other);
        assert_eq!(verdict(&[times(100, 90)]), Way::Usual);
        assert_eq!(verdict(&[times(100, 300), times(200, 80)]), Way::Other);
        assert_eq!(verdict(&[times(100, 80), times(80, 100)]), Way::Usual);
        assert_eq!(verdict(&[Times::NONE]), Way::Usual);
        assert_eq!(verdict(&[times(u64::MAX, 7)]), Way::Other);
        assert_eq!(verdict(&[]), Way::Usual);
        let after_a_long_one = |told| Trial::new(Course::OF_THE_CROWDED).decide([told]);
        assert_eq!(after_a_long_one(times(100, 94)), Way::Other);
        assert_eq!(after_a_long_one(times(100, 95)), Way::Usual);
    }

    #[test]
    fn what_was_measured_are_the_calls_that_count() {
        let mut trial = Trial::new(Course::OF_MILLISECONDS);
        for took in [1, 1, 1, 1, 1, 5, 10, 10, 1, 1, 1, 7, 10, 20] {
            let Turn::Go(way) = trial.turn() else { unreachable!("the last turn") };
            trial.record(way, Duration::from_nanos(took));
        }
        assert_eq!(trial.times(), times(37, 25));
        assert_eq!(trial.turn(), Turn::Decide);
        trial.record(Way::Usual, Duration::from_nanos(1));
        assert_eq!(trial.times(), times(37, 25), "none that comes when it is decided");
        trial.decide([trial.times()]);
        for _ in 0..Course::OF_MILLISECONDS.holds {
            let Turn::Go(way) = trial.turn() else { unreachable!("it has been decided") };
            trial.record(way, Duration::from_nanos(1));
        }
        assert_eq!(trial.times(), times(37, 25), "these calls were not part of it");
        trial.turn();
        assert_eq!(trial.times(), Times::NONE, "a new trial");
    }

    #[test]
    fn of_a_longer_trial_as_many_calls_of_each_way_count() {
        let course = Course::OF_THE_CROWDED;
        let mut trial = Trial::new(course);
        for call in 0..course.calls() {
            let Turn::Go(way) = trial.turn() else { unreachable!("the last turn") };
            let is_warm = (12..20).contains(&call) || call >= 24;
            trial.record(way, Duration::from_nanos(if is_warm { 1 } else { 1000 }));
        }
        assert_eq!(trial.times(), times(8, 8));
    }

    #[test]
    fn nothing_counts_until_what_the_usual_way_needs_has_been_touched() {
        for (first, course, cold) in [
            (4, Course::OF_MICROSECONDS, 3),
            (16, Course::OF_MICROSECONDS, 13),
            (u32::MAX, Course::OF_MICROSECONDS, 61),
            (12, Course::OF_THE_CROWDED, 8),
            (16, Course::OF_THE_CROWDED, 12),
            (0, Course::OF_MILLISECONDS, 2),
        ] {
            let mut trial = Trial::new(course.after_first_touch(first));
            let mut until_tried = || (0..).find(|_| trial.turn() != USUAL);
            assert_eq!(until_tried(), Some(cold), "{first} {course:?}");
            trial.fail();
            let again = (0..).find(|_| trial.turn() != USUAL);
            assert_eq!(
                again,
                Some(course.holds + course.cold),
                "they have been touched: {course:?}"
            );
        }
    }

    #[test]
    fn nothing_is_compared_before_another_trial_has_ended() {
        let (course, other) = (Course::OF_MICROSECONDS, Course::OF_STORES);
        let mut trial = Trial::new(course.after(other));
        let mut others = Trial::new(other);
        while !others.is_settled() {
            assert_eq!(trial.turn(), USUAL);
            assert!(!trial.compares() && trial.verdict().is_none());
            if others.turn() == Turn::Decide {
                others.decide([times(2, 1)]);
            }
        }
        let usual = (0..).find(|_| trial.turn() != USUAL || trial.compares());
        assert_eq!(usual, Some(course.cold), "and calls that are not compared go on");
        let compared = (1..).find(|_| !trial.compares() || trial.turn() == Turn::Decide);
        assert_eq!(compared, Some(course.calls() - course.cold));
        trial.decide([times(2, 1)]);
        assert!(!trial.compares());
        assert_eq!(trial.verdict(), Some(Way::Other));
    }

    #[test]
    fn a_verdict_holds_for_longer_each_time() {
        let mut trial = Trial::new(Course::OF_MILLISECONDS);
        let lengths = [(); 9].map(|()| {
            trial.fail();
            let usual = (0..).find(|_| trial.turn() != USUAL);
            usual.map(|calls: u32| calls - Course::OF_MILLISECONDS.cold)
        });
        let expected = [128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192];
        assert_eq!(lengths, expected.map(Some));
    }

    #[test]
    fn a_clear_verdict_holds_for_longer() {
        let calls = |course, told: Times, trials: usize| {
            let mut trial = Trial::new(course);
            for _ in 0..trials {
                trial.decide([told]);
            }
            let is_over = |_: &u32| {
                trial.turn();
                !trial.is_settled()
            };
            (0..).find(is_over)
        };
        let course = Course::OF_MICROSECONDS;
        for told in [times(151, 100), times(100, 151)] {
            assert_eq!(calls(course, told, 1), Some(1024));
            assert_eq!(calls(course, told, 2), Some(2048));
            assert_eq!(calls(course, told, 5), Some(8192), "and no longer");
            assert_eq!(calls(Course::OF_STORES, told, 1), Some(128));
        }
        for told in [times(150, 100), times(100, 150)] {
            assert_eq!(calls(course, told, 1), Some(32));
        }
    }
}
