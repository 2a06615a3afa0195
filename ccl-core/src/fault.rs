//! What can be wrong with the cable of a NIC, and the little language in which faults are asked for.
//!
//! The same text breaks real cables on a testbed and queue pairs in a [`Rehearsal`]. Faults of one cable
//! may overlap, also those of one kind: [`Condition`] counts all of them. Nothing here touches a network.

mod language;
mod rehearsal;

use std::fmt;
use std::str::FromStr;

pub use language::{FaultPlan, Fields, Timed};
pub(crate) use rehearsal::ALLOWED;
pub use rehearsal::Rehearsal;

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

/// The cable between a host and the switch of one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cable {
    /// Its host.
    pub host: usize,
    /// Its rail.
    pub rail: usize,
}

/// How much a cable carries in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As much as the processors can copy.
    Unlimited,
    /// So many bytes per second, headers included.
    Limited {
        /// Never zero.
        bytes_per_second: u64,
    },
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

/// Everything that is wrong with one cable: how many faults of each kind have begun and not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// [`Fault::Admin`].
    pub admin: u32,
    /// [`Fault::Carrier`].
    pub carrier: u32,
    /// [`Fault::Silent`].
    pub silent: u32,
    /// [`Fault::Oneway`] that loses what the host sends.
    pub outgoing: u32,
    /// [`Fault::Oneway`] that loses what the host should receive.
    pub incoming: u32,
    /// [`Fault::Slow`], with what each of them leaves; in order of time.
    slow: Vec<Rate>,
}

impl Condition {
    /// The condition when, in addition, `fault` has begun or ended. The end of a fault that has not begun
    /// changes nothing.
    #[must_use]
    pub fn after(mut self, turn: Turn, fault: Fault) -> Self {
        match fault {
            Fault::Admin => turn.count(&mut self.admin),
            Fault::Carrier => turn.count(&mut self.carrier),
            Fault::Silent => turn.count(&mut self.silent),
            Fault::Oneway(Direction::Outgoing) => turn.count(&mut self.outgoing),
            Fault::Oneway(Direction::Incoming) => turn.count(&mut self.incoming),
            Fault::Slow(rate) => turn.list(&mut self.slow, rate),
        }
        self
    }

    /// The fault of which the host is told by its own kernel.
    #[must_use]
    pub fn severed(&self) -> Option<Fault> {
        let admin = (self.admin > 0).then_some(Fault::Admin);
        admin.or((self.carrier > 0).then_some(Fault::Carrier))
    }

    /// Whether nothing gets through in a direction.
    #[must_use]
    pub fn loses(&self, direction: Direction) -> bool {
        let oneway = match direction {
            Direction::Outgoing => self.outgoing,
            Direction::Incoming => self.incoming,
        };
        oneway > 0 || self.silent > 0 || self.severed().is_some()
    }

    /// What a slow cable carries: of several faults the one that leaves least decides.
    #[must_use]
    pub fn slowest(&self) -> Option<Rate> {
        self.slow.iter().copied().min_by_key(|rate| match rate {
            Rate::Unlimited => u64::MAX,
            Rate::Limited { bytes_per_second } => *bytes_per_second,
        })
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

    /// One fault more, or one less.
    fn count(self, faults: &mut u32) {
        *faults = match self {
            Self::Cut => faults.saturating_add(1),
            Self::Heal => faults.saturating_sub(1),
        }
    }

    /// The same, of faults that are not all alike.
    fn list(self, rates: &mut Vec<Rate>, rate: Rate) {
        match self {
            Self::Cut => rates.push(rate),
            Self::Heal => {
                let place = rates.iter().position(|listed| *listed == rate);
                place.map(|place| rates.remove(place));
            }
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

impl fmt::Display for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} rail {}", self.host, self.rail)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.turn.name(), self.fault, self.cable)
    }
}

/// Units of `tc`, in bits per second.
const UNITS: [(&str, u64); 4] =
    [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        let complaint = || format!("{text:?} is no rate such as 1gbit, 200mbit, 64kbit or none");
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, bits)| Some((text.strip_suffix(name)?, *bits)))
            .ok_or_else(complaint)?;
        let number: u64 = number.parse().map_err(|_| complaint())?;
        match number.checked_mul(unit).map(|bits| bits / 8) {
            None | Some(0) => Err(complaint()),
            Some(bytes_per_second) => Ok(Self::Limited { bytes_per_second }),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Limited { bytes_per_second } = self else { return f.write_str("none") };
        let bits = bytes_per_second * 8;
        let (name, unit) =
            UNITS.into_iter().find(|(_, unit)| bits.is_multiple_of(*unit)).unwrap_or(("bit", 1));
        write!(f, "{}{name}", bits / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for text in ["none", "1gbit", "200mbit", "1500kbit", "8bit"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("1gbit".parse(), Ok(Rate::Limited { bytes_per_second: 125_000_000 }));
        for text in ["", "1", "gbit", "-1gbit", "1tbit", "7bit", "99999999999gbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_gets_through_and_who_is_told() {
        let outgoing = Fault::Oneway(Direction::Outgoing);
        let incoming = Fault::Oneway(Direction::Incoming);
        let slow = Fault::Slow(Rate::Limited { bytes_per_second: 1 });
        for (fault, lost, is_told) in [
            (Fault::Admin, [true, true], true),
            (Fault::Carrier, [true, true], true),
            (Fault::Silent, [true, true], false),
            (outgoing, [true, false], false),
            (incoming, [false, true], false),
            (slow, [false, false], false),
        ] {
            let broken = Condition::default().after(Turn::Cut, fault);
            let loses = [Direction::Outgoing, Direction::Incoming].map(|way| broken.loses(way));
            assert_eq!((loses, broken.severed().is_some()), (lost, is_told), "{fault}");
            assert_eq!(broken.after(Turn::Heal, fault), Condition::default(), "{fault}");
        }
    }

    #[test]
    fn faults_of_one_cable_heal_by_themselves() {
        let both = Condition::default().after(Turn::Cut, Fault::Admin);
        let both = both.after(Turn::Cut, Fault::Carrier);
        assert_eq!(both.severed(), Some(Fault::Admin));
        assert_eq!(both.after(Turn::Heal, Fault::Admin).severed(), Some(Fault::Carrier));
    }

    #[test]
    fn faults_of_one_kind_heal_by_themselves() {
        let oneway = |direction| Fault::Oneway(direction);
        for fault in [
            Fault::Admin,
            Fault::Carrier,
            Fault::Silent,
            oneway(Direction::Outgoing),
            oneway(Direction::Incoming),
            Fault::Slow(Rate::Unlimited),
        ] {
            let once = Condition::default().after(Turn::Cut, fault);
            let twice = once.clone().after(Turn::Cut, fault);
            let healed = twice.after(Turn::Heal, fault);
            assert_eq!(healed, once, "{fault}");
            let whole = healed.after(Turn::Heal, fault);
            assert_eq!(whole, Condition::default(), "{fault}");
            assert_eq!(whole.after(Turn::Heal, fault), Condition::default(), "{fault}");
        }
    }

    #[test]
    fn a_cable_is_as_slow_as_the_worst_of_its_faults() {
        let [slow, slower] = [20, 10].map(|bytes_per_second| Rate::Limited { bytes_per_second });
        let mut condition = Condition::default();
        for (turn, rate, left) in [
            (Turn::Cut, Rate::Unlimited, Some(Rate::Unlimited)),
            (Turn::Cut, slow, Some(slow)),
            (Turn::Cut, slower, Some(slower)),
            (Turn::Heal, slow, Some(slower)),
            (Turn::Cut, slow, Some(slower)),
            (Turn::Heal, slower, Some(slow)),
            (Turn::Heal, slower, Some(slow)),
            (Turn::Heal, slow, Some(Rate::Unlimited)),
            (Turn::Heal, Rate::Unlimited, None),
        ] {
            condition = condition.after(turn, Fault::Slow(rate));
            assert_eq!(condition.slowest(), left, "{} {rate}", turn.name());
        }
    }
}
