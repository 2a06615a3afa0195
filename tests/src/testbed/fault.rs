//! What can be wrong with a cable, and what has to be done to make it so.
//!
//! Faults of one cable may overlap: [`Condition`] remembers all of them, and [`Condition::steps`]
//! says what the network has to change from one condition to the next. Nothing here touches the
//! network.

use std::fmt;

use super::shape::{Cable, Rate};

/// One way in which a cable is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host's network card is switched off.
    Admin,
    /// The port of the switch is switched off: the host sees no carrier.
    Carrier,
    /// The port does not belong to the switch any more: nothing arrives, the carrier stays.
    Silent,
    /// Packets in one direction are lost, the carrier stays.
    Oneway(Direction),
    /// The cable carries less than it should.
    Slow(Rate),
}

/// A direction as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the switch.
    Outgoing,
    /// From the switch to the host.
    Incoming,
}

/// Whether a fault begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It begins.
    Cut,
    /// It ends.
    Heal,
}

/// A fault of one cable begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Which of the two.
    pub turn: Turn,
    /// The fault.
    pub fault: Fault,
    /// The cable.
    pub cable: Cable,
}

/// Everything that is wrong with one cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    admin: bool,
    carrier: bool,
    silent: bool,
    outgoing: bool,
    incoming: bool,
    slow: Option<Rate>,
}

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

impl Condition {
    /// The condition when, in addition, `fault` has begun or ended.
    #[must_use]
    pub fn after(mut self, turn: Turn, fault: Fault) -> Self {
        let broken = turn == Turn::Cut;
        match fault {
            Fault::Admin => self.admin = broken,
            Fault::Carrier => self.carrier = broken,
            Fault::Silent => self.silent = broken,
            Fault::Oneway(Direction::Outgoing) => self.outgoing = broken,
            Fault::Oneway(Direction::Incoming) => self.incoming = broken,
            Fault::Slow(rate) => self.slow = broken.then_some(rate),
        }
        self
    }

    /// What leads from this condition to `next` where a whole cable carries `rate`.
    #[must_use]
    pub fn steps(self, next: Self, rate: Rate) -> Vec<Step> {
        let facets = |condition: Self| {
            [
                Step::Power(End::Host, !condition.admin),
                Step::Power(End::Switch, !condition.carrier),
                Step::Attached(!condition.silent),
                Step::Queue(End::Host, condition.queue(condition.outgoing, rate)),
                Step::Queue(End::Switch, condition.queue(condition.incoming, rate)),
            ]
        };
        let pairs = facets(self).into_iter().zip(facets(next));
        pairs.filter_map(|(before, after)| (before != after).then_some(after)).collect()
    }

    fn queue(self, loses: bool, rate: Rate) -> Queue {
        if loses { Queue::Blackhole } else { Queue::Shaped(self.slow.unwrap_or(rate)) }
    }
}

impl Fault {
    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Carrier => "carrier",
            Self::Silent => "silent",
            Self::Oneway(_) => "oneway",
            Self::Slow(_) => "slow",
        }
    }
}

impl Turn {
    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Heal => "heal",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Admin | Self::Carrier | Self::Silent => Ok(()),
            Self::Oneway(Direction::Outgoing) => f.write_str(" (outgoing)"),
            Self::Oneway(Direction::Incoming) => f.write_str(" (incoming)"),
            Self::Slow(rate) => write!(f, " ({rate})"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.turn.name(), self.fault, self.cable)
    }
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
            let broken = healthy.after(Turn::Cut, fault);
            assert_eq!(healthy.steps(broken, RATE), cut, "{fault}");
            assert_eq!(broken.after(Turn::Heal, fault), healthy, "{fault}");
            assert_eq!(broken.steps(healthy, RATE), heal, "{fault}");
        }
    }

    #[test]
    fn a_slow_cable_that_loses_everything_is_slow_again_afterwards() {
        let slow = Condition::default().after(Turn::Cut, Fault::Slow(LESS));
        let lost = slow.after(Turn::Cut, Fault::Oneway(Direction::Outgoing));
        let steps = lost.steps(slow, RATE);
        assert_eq!(steps, [Step::Queue(End::Host, Queue::Shaped(LESS))]);
    }

    #[test]
    fn what_is_the_case_already_needs_no_step() {
        let broken = Condition::default().after(Turn::Cut, Fault::Admin);
        assert_eq!(broken.steps(broken.after(Turn::Cut, Fault::Admin), RATE), []);
    }
}
