//! What has to be done to a network so that a cable is as broken as it should be.
//!
//! [`steps`] says what has to change from one [`Condition`] of a cable to the next. Nothing here touches
//! the network.

pub use ccl::fault::{Action, Condition, Direction, Fault, Turn};

use super::shape::Rate;

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The network card.
    Host,
    /// The port.
    Switch,
}

/// What happens to packets that leave one end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// They leave at this rate.
    Shaped(Rate),
    /// They vanish.
    Blackhole,
}

/// One change of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Switches an end on or off.
    Power(End, bool),
    /// Makes the port belong to the switch of its rail, or to none.
    Attached(bool),
    /// Changes what happens to packets that leave an end.
    Queue(End, Queue),
}

/// What leads from one condition to another where a whole cable carries `rate`.
#[must_use]
pub fn steps(before: &Condition, after: &Condition, rate: Rate) -> Vec<Step> {
    let pairs = facets(before, rate).into_iter().zip(facets(after, rate));
    pairs.filter_map(|(before, after)| (before != after).then_some(after)).collect()
}

/// What makes a network have this condition, one step for everything that can be changed.
fn facets(condition: &Condition, rate: Rate) -> [Step; 5] {
    let queue = |loses| match loses {
        true => Queue::Blackhole,
        false => Queue::Shaped(condition.slowest().unwrap_or(rate)),
    };
    [
        Step::Power(End::Host, condition.admin == 0),
        Step::Power(End::Switch, condition.carrier == 0),
        Step::Attached(condition.silent == 0),
        Step::Queue(End::Host, queue(condition.outgoing > 0)),
        Step::Queue(End::Switch, queue(condition.incoming > 0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::Limited { bytes_per_second: 1000 };
    const LESS: Rate = Rate::Limited { bytes_per_second: 10 };

    #[test]
    fn every_fault_changes_its_own_facet_and_heals_it() {
        let outgoing = Fault::Oneway(Direction::Outgoing);
        let incoming = Fault::Oneway(Direction::Incoming);
        let slow = |rate| {
            vec![
                Step::Queue(End::Host, Queue::Shaped(rate)),
                Step::Queue(End::Switch, Queue::Shaped(rate)),
            ]
        };
        let whole = Queue::Shaped(RATE);
        let table = [
            (Fault::Admin, vec![Step::Power(End::Host, false)], vec![Step::Power(End::Host, true)]),
            (
                Fault::Carrier,
                vec![Step::Power(End::Switch, false)],
                vec![Step::Power(End::Switch, true)],
            ),
            (Fault::Silent, vec![Step::Attached(false)], vec![Step::Attached(true)]),
            (
                outgoing,
                vec![Step::Queue(End::Host, Queue::Blackhole)],
                vec![Step::Queue(End::Host, whole)],
            ),
            (
                incoming,
                vec![Step::Queue(End::Switch, Queue::Blackhole)],
                vec![Step::Queue(End::Switch, whole)],
            ),
            (Fault::Slow(LESS), slow(LESS), slow(RATE)),
        ];
        for (fault, cut, heal) in table {
            let healthy = Condition::default();
            let broken = healthy.clone().after(Turn::Cut, fault);
            assert_eq!(steps(&healthy, &broken, RATE), cut, "{fault}");
            assert_eq!(broken.clone().after(Turn::Heal, fault), healthy, "{fault}");
            assert_eq!(steps(&broken, &healthy, RATE), heal, "{fault}");
        }
    }

    #[test]
    fn a_slow_cable_that_loses_everything_is_slow_again_afterwards() {
        let slow = Condition::default().after(Turn::Cut, Fault::Slow(LESS));
        let lost = slow.clone().after(Turn::Cut, Fault::Oneway(Direction::Outgoing));
        let steps = steps(&lost, &slow, RATE);
        assert_eq!(steps, [Step::Queue(End::Host, Queue::Shaped(LESS))]);
    }

    #[test]
    fn what_is_the_case_already_needs_no_step() {
        let broken = Condition::default().after(Turn::Cut, Fault::Admin);
        let twice = broken.clone().after(Turn::Cut, Fault::Admin);
        assert_eq!(steps(&broken, &twice, RATE), []);
        assert_eq!(steps(&twice, &broken, RATE), [], "one of the two is left");
    }
}
