//! What is due, and when: planned faults and chaos in one order.

use std::collections::VecDeque;
use std::iter::Peekable;

use super::chaos::{Chaos, ChaosPlan};
use super::fault::Action;
use super::shape::Shape;
use super::specification::{FaultPlan, Timed};

/// The faults of one run that are still to come.
#[derive(Debug)]
pub struct Timeline {
    planned: VecDeque<Timed>,
    chaos: Option<Peekable<Chaos>>,
}

impl Timeline {
    /// What the command line asks of a bed.
    #[must_use]
    pub fn new(faults: &[FaultPlan], chaos: Option<ChaosPlan>, shape: Shape) -> Self {
        let mut planned: Vec<Timed> =
            faults.iter().flat_map(|FaultPlan(plan)| plan.iter().copied()).collect();
        planned.sort_by_key(|timed| timed.at_ns);
        let chaos = chaos.map(|plan| Chaos::new(plan, shape).peekable());
        Self { planned: planned.into(), chaos }
    }

    /// When the next action is due; `None` if there is none.
    pub fn next_ns(&mut self) -> Option<u64> {
        let planned = self.planned.front().map(|timed| timed.at_ns);
        let chaos = self.chaos.as_mut().and_then(Peekable::peek).map(|timed| timed.at_ns);
        planned.into_iter().chain(chaos).min()
    }

    /// The next action, if it is due `now_ns`.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Action> {
        let next_ns = self.next_ns().filter(|next_ns| *next_ns <= now_ns)?;
        let is_next = |timed: &mut Timed| timed.at_ns == next_ns;
        let planned = self.planned.pop_front_if(is_next);
        let chaos = || self.chaos.as_mut().and_then(Iterator::next);
        planned.or_else(chaos).map(|timed| timed.action)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Turn;
    use super::super::shape::Rate;
    use super::*;

    #[test]
    fn faults_and_chaos_come_in_order() {
        let shape = Shape { hosts: 2, rails: 2, rate: Rate::Unlimited };
        let faults = [
            "carrier:host=0,rail=1,at=900ms,heal=100ms".parse().unwrap(),
            "silent:host=1,rail=0,at=300ms".parse().unwrap(),
        ];
        let mut alone = Timeline::new(&faults, None, shape);
        assert_eq!(alone.next_ns(), Some(300_000_000));
        assert_eq!(alone.take_due(299_999_999), None);
        let turns: Vec<_> = std::iter::from_fn(|| alone.take_due(u64::MAX)).collect();
        assert_eq!(turns.iter().map(|action| action.cable.host).collect::<Vec<_>>(), [1, 0, 0]);
        assert_eq!(turns[2].turn, Turn::Heal);
        assert_eq!(alone.next_ns(), None);

        let mut both = Timeline::new(&faults, Some(ChaosPlan::of(1)), shape);
        let mut last_ns = 0;
        for _ in 0..100 {
            let next_ns = both.next_ns().unwrap();
            assert!(next_ns >= last_ns && both.take_due(next_ns).is_some());
            last_ns = next_ns;
        }
    }
}
