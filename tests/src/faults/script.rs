//! What is due in one measurement, and when. Nothing here reads a clock or touches a network.

use super::wish::{At, Course, Wish};
use crate::testbed::fault::{Action, Turn};

/// What is still to be done in one measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    start_ns: u64,
    /// What waits for a moment of the measurement.
    waiting: Vec<Cue>,
    /// What has a time, in order.
    timed: Vec<Timed>,
}

/// What happens from some moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cue {
    wish: usize,
    when: When,
    actions: Vec<Later>,
}

/// An action, and how many nanoseconds after that moment, or after the action before it was done, it
/// is due. The kernel may take its time, and a cable shall be down for as long as was asked.
type Later = (u64, Action);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Rank 0 begins this iteration.
    Turn(usize),
    /// So many nanoseconds since the start.
    Elapsed(u64),
    /// The measurement is over.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Timed {
    at_ns: u64,
    due: Due,
}

/// An action whose time has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which of the wishes it belongs to.
    pub wish: usize,
    /// What is to be done.
    pub action: Action,
    /// What comes after it.
    rest: Vec<Later>,
}

impl Script {
    /// A measurement of `turns` iterations starts now.
    #[must_use]
    pub fn start(wishes: &[Wish], turns: usize, now_ns: u64) -> Self {
        let waiting =
            wishes.iter().enumerate().flat_map(|(index, wish)| cues(index, wish, turns)).collect();
        Self { start_ns: now_ns, waiting, timed: Vec::new() }
    }

    /// The iterations at whose beginning [`Script::reached`] has something to do.
    #[must_use]
    pub fn turns(&self) -> Vec<usize> {
        let turns = self.waiting.iter().filter_map(|cue| match cue.when {
            When::Turn(turn) => Some(turn),
            When::Elapsed(_) | When::End => None,
        });
        turns.collect()
    }

    /// Rank 0 begins iteration `turn`.
    pub fn reached(&mut self, turn: usize, now_ns: u64) {
        self.release(now_ns, |when| matches!(when, When::Turn(due) if due <= turn));
    }

    /// The measurement is over: what was cut heals, and what was not cut will not be any more.
    /// Returns which wishes these are.
    pub fn end(&mut self, now_ns: u64) -> Vec<usize> {
        let is_cut = |cue: &Cue| cue.actions.iter().any(|(_, action)| action.turn == Turn::Cut);
        let missed: Vec<usize> =
            self.waiting.iter().filter(|cue| is_cut(cue)).map(|cue| cue.wish).collect();
        self.waiting.retain(|cue| !missed.contains(&cue.wish));
        self.release(now_ns, |_| true);
        missed
    }

    /// When something has to be done next, if nothing else happens.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        let elapsed = self.waiting.iter().filter_map(|cue| match cue.when {
            When::Elapsed(ns) => Some(self.start_ns.saturating_add(ns)),
            When::Turn(_) | When::End => None,
        });
        self.timed.first().map(|timed| timed.at_ns).into_iter().chain(elapsed).min()
    }

    /// The next action that is due. [`Script::done`] must be told when it is done.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        let elapsed_ns = now_ns.saturating_sub(self.start_ns);
        self.release(now_ns, |when| matches!(when, When::Elapsed(ns) if ns <= elapsed_ns));
        let is_due = self.timed.first().is_some_and(|timed| timed.at_ns <= now_ns);
        is_due.then(|| self.timed.remove(0).due)
    }

    /// An action was done: the time until the next one of its wish begins.
    pub fn done(&mut self, due: Due, now_ns: u64) {
        self.plan(due.wish, due.rest, now_ns);
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.timed.is_empty()
    }

    /// Gives times to the actions of all cues whose moment has come.
    fn release(&mut self, now_ns: u64, has_come: impl Fn(When) -> bool) {
        let (come, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<Cue>, _>(|cue| has_come(cue.when));
        self.waiting = waiting;
        come.into_iter().for_each(|cue| self.plan(cue.wish, cue.actions, now_ns));
    }

    fn plan(&mut self, wish: usize, mut actions: Vec<Later>, now_ns: u64) {
        if actions.is_empty() {
            return;
        }
        let (later_ns, action) = actions.remove(0);
        let at_ns = now_ns.saturating_add(later_ns);
        let place = self.timed.partition_point(|timed| timed.at_ns <= at_ns);
        self.timed.insert(place, Timed { at_ns, due: Due { wish, action, rest: actions } });
    }
}

/// The moments of one wish.
fn cues(index: usize, wish: &Wish, turns: usize) -> Vec<Cue> {
    let act = |turn| Action { turn, fault: wish.fault, cable: wish.cable };
    let (cut, heal) = (act(Turn::Cut), act(Turn::Heal));
    let when = match wish.at {
        At::Share(share) => When::Turn(share.floor(turns)),
        At::Elapsed { ns } => When::Elapsed(ns),
    };
    let cue = |when, actions| Cue { wish: index, when, actions };
    match wish.course {
        Course::Stays => vec![cue(when, vec![(0, cut)]), cue(When::End, vec![(0, heal)])],
        Course::Heals { after_ns } => vec![cue(when, vec![(0, cut), (after_ns, heal)])],
        Course::HealsAt(share) => {
            let healed = match share.ceil(turns) {
                turn if turn < turns => When::Turn(turn),
                _ => When::End,
            };
            vec![cue(when, vec![(0, cut)]), cue(healed, vec![(0, heal)])]
        }
        Course::Flaps { times, period_ns } => {
            let half_ns = period_ns / 2;
            let halves = (0..2 * u64::from(times)).map(|half| match half {
                0 => (0, cut),
                half if half.is_multiple_of(2) => (half_ns, cut),
                _ => (half_ns, heal),
            });
            vec![cue(when, halves.collect())]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(wishes: &[&str], turns: usize) -> Script {
        let wishes: Vec<Wish> = wishes.iter().map(|text| text.parse().unwrap()).collect();
        Script::start(&wishes, turns, 1000)
    }

    fn due(script: &mut Script, now_ns: u64) -> Vec<(usize, Turn)> {
        let next = || {
            let due = script.take_due(now_ns)?;
            script.done(due.clone(), now_ns);
            Some((due.wish, due.action.turn))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_cut_comes_with_its_iteration_and_heals_after_its_time() {
        let mut script = script(&["down:host=0,rail=1,at=50%,heal=300ns"], 20);
        assert_eq!((script.turns(), script.next_ns()), (vec![10], None));
        script.reached(9, 5000);
        assert_eq!(due(&mut script, 5000), []);
        script.reached(10, 6000);
        assert_eq!(script.next_ns(), Some(6000));
        let cut = script.take_due(6000).unwrap();
        assert_eq!(cut.action.turn, Turn::Cut);
        script.done(cut, 6400);
        assert_eq!(script.end(6500), [0; 0]);
        assert!(!script.is_over());
        assert_eq!(due(&mut script, 6699), []);
        assert_eq!(due(&mut script, 6700), [(0, Turn::Heal)]);
        assert!(script.is_over());
    }

    #[test]
    fn what_stays_heals_at_the_end() {
        let wishes = ["down:host=0,rail=1,at=0%", "silent:host=1,rail=1,at=0%,heal=75%"];
        let mut few = script(&wishes, 1);
        few.reached(0, 1000);
        assert_eq!(due(&mut few, 1000), [(0, Turn::Cut), (1, Turn::Cut)]);
        assert_eq!(few.end(2000), [0; 0]);
        assert_eq!(due(&mut few, 2000), [(0, Turn::Heal), (1, Turn::Heal)]);
        let mut many = script(&wishes, 4);
        many.reached(3, 1000);
        assert_eq!(due(&mut many, 1000), [(0, Turn::Cut), (1, Turn::Cut), (1, Turn::Heal)]);
    }

    #[test]
    fn what_is_not_reached_is_not_made() {
        let mut script =
            script(&["down:host=0,rail=1,at=1s", "slow:host=0,rail=0,at=50ns,rate=1mbit"], 20);
        assert_eq!(script.next_ns(), Some(1050));
        assert_eq!(due(&mut script, 1050), [(1, Turn::Cut)]);
        assert_eq!(script.end(2000), [0]);
        assert_eq!(due(&mut script, u64::MAX), [(1, Turn::Heal)]);
        assert!(script.is_over());
    }

    #[test]
    fn flapping_goes_on_to_its_end() {
        let mut script = script(&["flap:host=0,rail=1,at=5%,times=2,period=200ns"], 20);
        script.reached(1, 5000);
        assert_eq!(script.end(5000), [0; 0]);
        let turns = [5000, 5100, 5200, 5300].map(|now_ns| due(&mut script, now_ns));
        let [cut, heal] = [vec![(0, Turn::Cut)], vec![(0, Turn::Heal)]];
        assert_eq!(turns, [cut.clone(), heal.clone(), cut, heal]);
        assert!(script.is_over());
    }
}
