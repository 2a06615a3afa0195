//! What `--fault` asks for: `down:host=0,rail=1,at=50%,heal=100ms`.

use std::str::FromStr;

use ccl::fault::Fields;

use crate::arguments::Arguments;
use crate::testbed::fault::Fault;
use crate::testbed::shape::{Cable, MOST_HOSTS, MOST_RAILS, Shape};

/// One `--fault`, made in every measurement: in every row, out of place and in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// As it was written.
    pub text: String,
    /// `down`, `flap` and so on, as it was written.
    pub kind: String,
    /// What happens to the cable.
    pub fault: Fault,
    /// Which cable.
    pub cable: Cable,
    /// When it is cut.
    pub at: At,
    /// What becomes of it.
    pub course: Course,
}

/// A moment of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    /// When rank 0 begins an iteration.
    Share(Share),
    /// So long after the first iteration has begun.
    Elapsed {
        /// Nanoseconds.
        ns: u64,
    },
}

/// A part of the timed iterations.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(f64);

/// How a fault goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Course {
    /// It stays until the results of the measurement were checked.
    Stays,
    /// It heals so long after the cut.
    Heals {
        /// Nanoseconds.
        after_ns: u64,
    },
    /// It heals when rank 0 begins an iteration.
    HealsAt(Share),
    /// It comes and goes: down for the first half of every period.
    Flaps {
        /// How often it comes.
        times: u32,
        /// From one cut to the next, in nanoseconds.
        period_ns: u64,
    },
}

impl Share {
    /// The first iteration of `turns` that begins at or before this share.
    #[must_use]
    pub fn floor(self, turns: usize) -> usize {
        self.of(turns).floor() as usize
    }

    /// The first iteration that begins at or after it; `turns` if that would be after the last one.
    #[must_use]
    pub fn ceil(self, turns: usize) -> usize {
        self.of(turns).ceil() as usize
    }

    #[allow(clippy::cast_precision_loss, reason = "numbers of iterations are far below 2^53")]
    fn of(self, turns: usize) -> f64 {
        self.0 * turns as f64 / 100.0
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
        match number {
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent)),
            _ => Err("expected a percentage between 0% and 100%".to_owned()),
        }
    }
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = Fields::parse(text)?;
        let kind = fields.kind;
        let cable = fields.cable()?;
        let at = at(&mut fields)?;
        let (fault, course) = if kind == "flap" {
            let of = fields.take::<String>("fault")?.unwrap_or_else(|| "down".to_owned());
            let times = fields.need("times")?;
            let period_ns = fields.need_ns("period")?;
            (fields.fault(&of)?, Course::Flaps { times, period_ns })
        } else {
            (fields.fault(kind)?, course(&mut fields, at)?)
        };
        fields.finish()?;
        Ok(Self { text: text.to_owned(), kind: kind.to_owned(), fault, cable, at, course })
    }
}

fn at(fields: &mut Fields<'_>) -> Result<At, String> {
    if !fields.is_share("at") {
        return fields.need_ns("at").map(|ns| At::Elapsed { ns });
    }
    match fields.need("at")? {
        Share(percent) if percent >= 100.0 => {
            Err("at= must be less than 100%: nothing is measured any more then".to_owned())
        }
        share => Ok(At::Share(share)),
    }
}

fn course(fields: &mut Fields<'_>, at: At) -> Result<Course, String> {
    if !fields.is_share("heal") {
        let heal = fields.take_ns("heal")?;
        return Ok(heal.map_or(Course::Stays, |after_ns| Course::Heals { after_ns }));
    }
    match (at, fields.need("heal")?) {
        (At::Share(cut), heal) if heal <= cut => Err("heal= must come after at=".to_owned()),
        (At::Share(_), heal) => Ok(Course::HealsAt(heal)),
        (At::Elapsed { .. }, _) => {
            Err("heal= can be a percentage only where at= is one".to_owned())
        }
    }
}

/// The testbed that a command line with faults needs.
#[must_use]
pub fn shape(arguments: &Arguments) -> Shape {
    let number = |given: Option<std::num::NonZeroUsize>| given.map_or(1, Into::into);
    Shape {
        hosts: number(arguments.hosts),
        rails: number(arguments.rails),
        rate: arguments.rate.unwrap_or(super::RATE),
    }
}

/// Processes on every host of the testbed.
#[must_use]
pub fn processes_per_host(arguments: &Arguments) -> usize {
    arguments.ranks.map_or(1, Into::into) / shape(arguments).hosts
}

/// Ranks on every host of the testbed.
#[must_use]
pub fn ranks_per_host(arguments: &Arguments) -> usize {
    processes_per_host(arguments) * arguments.local_ranks()
}

/// The lines above the table that say what will break.
#[must_use]
pub fn lines(arguments: &Arguments) -> Vec<String> {
    let Shape { hosts, rails, rate } = shape(arguments);
    let bed = format!("# Testbed of {hosts} hosts with {rails} rails, rate of each: {rate}");
    let faults = arguments.faults.iter().map(|wish| format!("# Fault: {}", wish.text));
    let lines = std::iter::once(bed).chain(faults);
    lines.filter(|_| !arguments.faults.is_empty()).collect()
}

/// Refuses faults that cannot be made with the rest of the command line.
///
/// # Errors
/// The sentence says why.
pub fn check(arguments: &Arguments) -> Result<(), String> {
    if arguments.faults.is_empty() {
        return Ok(());
    }
    let shape = shape(arguments);
    let ranks: usize = arguments.ranks.map_or(1, Into::into);
    if !(2..=MOST_HOSTS).contains(&shape.hosts) || shape.rails > MOST_RAILS {
        return Err(format!(
            "--fault needs 2 to {MOST_HOSTS} --hosts with at most {MOST_RAILS} --rails"
        ));
    }
    if !ranks.is_multiple_of(shape.hosts) {
        let hosts = shape.hosts;
        return Err(format!(
            "--fault needs as many ranks on every host: {hosts} hosts cannot have {ranks} --ranks"
        ));
    }
    let checks = arguments.faults.iter().map(|wish| (wish, shape.check(wish.cable)));
    let complaint = checks.filter_map(|(wish, outcome)| Some((wish, outcome.err()?))).next();
    complaint.map_or(Ok(()), |(wish, complaint)| Err(format!("--fault {}: {complaint}", wish.text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::fault::Direction;

    const MILLISECOND_NS: u64 = 1_000_000;

    fn wish(text: &str) -> Wish {
        text.parse().unwrap_or_else(|complaint| panic!("{text}: {complaint}"))
    }

    #[test]
    fn faults_are_read() {
        let down = wish("down:host=0,rail=1,at=50%");
        assert_eq!((down.fault, down.cable), (Fault::Carrier, Cable { host: 0, rail: 1 }));
        assert_eq!((down.at, down.course), (At::Share(Share(50.0)), Course::Stays));
        let silent = wish("silent:host=2,rail=0,at=5ms,heal=100ms");
        assert_eq!(silent.at, At::Elapsed { ns: 5 * MILLISECOND_NS });
        assert_eq!(silent.course, Course::Heals { after_ns: 100 * MILLISECOND_NS });
        let slow = wish("slow:host=0,rail=1,at=12.5%,heal=75%,rate=50mbit");
        assert_eq!(slow.fault, Fault::Slow("50mbit".parse().unwrap()));
        assert_eq!(slow.course, Course::HealsAt(Share(75.0)));
        let flap = wish("flap:host=0,rail=1,at=0%,times=3,period=20ms");
        assert_eq!(flap.fault, Fault::Carrier);
        assert_eq!(flap.course, Course::Flaps { times: 3, period_ns: 20 * MILLISECOND_NS });
        let oneway = wish("oneway:host=0,rail=1,at=0%,lose=incoming");
        assert_eq!(oneway.fault, Fault::Oneway(Direction::Incoming));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, named) in [
            ("down:host=0,rail=1", "needs at="),
            ("down:host=0,rail=1,at=100%", "less than 100%"),
            ("down:host=0,rail=1,at=-1%", "at=-1%"),
            ("down:host=0,rail=1,at=5", "at=5"),
            ("down:host=0,rail=1,at=50%,heal=50%", "after at="),
            ("down:host=0,rail=1,at=50%,heal=101%", "heal=101%"),
            ("down:host=0,rail=1,at=1ms,heal=50%", "only where at="),
            ("down:host=0,rail=1,at=50%,times=2", "times="),
            ("flap:host=0,rail=1,at=50%,period=1ms", "needs times="),
            ("slow:host=0,rail=1,at=50%", "needs rate="),
            ("storm:host=0,rail=1,at=50%", "\"storm\""),
        ] {
            let complaint = text.parse::<Wish>().unwrap_err();
            assert!(complaint.contains(named), "{text}: {complaint}");
        }
    }

    #[test]
    fn shares_are_iterations() {
        let share = |text: &str| text.parse::<Share>().unwrap();
        assert_eq!((share("50%").floor(20), share("50%").floor(1)), (10, 0));
        assert_eq!((share("75%").ceil(20), share("75%").ceil(1)), (15, 1));
        assert_eq!((share("51%").ceil(20), share("99.9%").floor(3)), (11, 2));
    }
}
