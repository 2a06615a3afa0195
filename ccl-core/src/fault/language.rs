//! The little language of faults: `kind:key=value,key=value`.
//!
//! It is the same for the cables of a testbed (`--fault carrier:host=0,rail=1,at=2s,heal=1s`), for its
//! orders (`cut silent:host=0,rail=1`), for faults in a benchmark and for a rehearsal.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use super::{Action, Cable, Direction, Fault, Rate, Turn};

/// An action and when it is due, counted from the start of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// What happens then.
    pub action: Action,
}

/// What one `--fault` asks for, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan(pub Vec<Timed>);

/// One kind, and the values that have not been asked for yet.
#[derive(Debug)]
pub struct Fields<'a> {
    /// What stands before the colon.
    pub kind: &'a str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Fields<'a> {
    /// Takes a text apart.
    ///
    /// # Errors
    /// The sentence says what is not `key=value`, or given twice.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let (kind, list) = text.split_once(':').unwrap_or((text, ""));
        let mut values = BTreeMap::new();
        for pair in list.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("{pair:?} is not key=value"))?;
            if values.insert(name, value).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(Self { kind, values })
    }

    /// A value that may be there.
    ///
    /// # Errors
    /// It is there and none; the sentence has name, value and reason.
    pub fn take<T: FromStr<Err: Display>>(&mut self, name: &str) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|error| format!("{name}={text}: {error}"));
        self.values.remove(name).map(parse).transpose()
    }

    /// A value that must be there.
    ///
    /// # Errors
    /// It is not there, or none.
    pub fn need<T: FromStr<Err: Display>>(&mut self, name: &str) -> Result<T, String> {
        self.take(name)?.ok_or_else(|| format!("{} needs {name}=", self.kind))
    }

    /// Whether a value is a percentage.
    #[must_use]
    pub fn is_share(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| value.ends_with('%'))
    }

    /// A time that may be there.
    ///
    /// # Errors
    /// It is there and none; the sentence has name, value and reason.
    pub fn take_ns(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(time) = self.take::<humantime::Duration>(name)? else { return Ok(None) };
        nanoseconds(*time).map(Some)
    }

    /// A time that must be there.
    ///
    /// # Errors
    /// It is not there, or none.
    pub fn need_ns(&mut self, name: &str) -> Result<u64, String> {
        self.take_ns(name)?.ok_or_else(|| format!("{} needs {name}=", self.kind))
    }

    /// The cable that every fault has.
    ///
    /// # Errors
    /// It is not there, or none.
    pub fn cable(&mut self) -> Result<Cable, String> {
        Ok(Cable { host: self.need("host")?, rail: self.need("rail")? })
    }

    /// The fault that `kind` names, with the values that belong to it.
    ///
    /// # Errors
    /// It is not there, or none.
    pub fn fault(&mut self, kind: &str) -> Result<Fault, String> {
        match kind {
            "admin" => Ok(Fault::Admin),
            "carrier" | "down" => Ok(Fault::Carrier),
            "silent" => Ok(Fault::Silent),
            "oneway" => Ok(Fault::Oneway(self.take("lose")?.unwrap_or(Direction::Outgoing))),
            "slow" => Ok(Fault::Slow(self.need::<Rate>("rate")?)),
            _ => Err(format!(
                "{kind:?} is none of admin, carrier (or down), silent, oneway, slow, flap"
            )),
        }
    }

    /// Refuses values that nobody has asked for.
    ///
    /// # Errors
    /// The sentence names the first of them.
    pub fn finish(self) -> Result<(), String> {
        match self.values.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("{} does not know {name}=", self.kind)),
        }
    }
}

fn nanoseconds(time: Duration) -> Result<u64, String> {
    u64::try_from(time.as_nanos()).map_err(|_| format!("{time:?} is too long"))
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "outgoing" => Ok(Self::Outgoing),
            "incoming" => Ok(Self::Incoming),
            _ => Err("expected outgoing or incoming".to_owned()),
        }
    }
}

impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = Fields::parse(text)?;
        // First, so that an unknown kind is told before what it lacks.
        let fault = (fields.kind != "flap").then(|| fields.fault(fields.kind)).transpose()?;
        let cable = fields.cable()?;
        let at_ns = fields.need_ns("at")?;
        let plan = match fault {
            Some(fault) => single(&mut fields, fault, cable, at_ns)?,
            None => flap(&mut fields, cable, at_ns)?,
        };
        fields.finish()?;
        Ok(Self(plan))
    }
}

fn single(
    fields: &mut Fields<'_>,
    fault: Fault,
    cable: Cable,
    at_ns: u64,
) -> Result<Vec<Timed>, String> {
    let cut = Timed { at_ns, action: Action { turn: Turn::Cut, fault, cable } };
    let heal = fields.take_ns("heal")?.map(|later_ns| Timed {
        at_ns: at_ns.saturating_add(later_ns),
        action: Action { turn: Turn::Heal, fault, cable },
    });
    Ok([cut].into_iter().chain(heal).collect())
}

/// Down for the first half of every period, up for the second.
fn flap(fields: &mut Fields<'_>, cable: Cable, at_ns: u64) -> Result<Vec<Timed>, String> {
    let kind = fields.take::<String>("fault")?.unwrap_or_else(|| "carrier".to_owned());
    let fault = fields.fault(&kind)?;
    let times: u32 = fields.need("times")?;
    let period_ns = fields.need_ns("period")?;
    let turns = (0..2 * u64::from(times)).map(|half| {
        let turn = if half % 2 == 0 { Turn::Cut } else { Turn::Heal };
        let at_ns = at_ns.saturating_add((period_ns / 2).saturating_mul(half));
        Timed { at_ns, action: Action { turn, fault, cable } }
    });
    Ok(turns.collect())
}

impl FromStr for Action {
    type Err = String;

    /// `cut FAULT` or `heal FAULT`, without times.
    fn from_str(text: &str) -> Result<Self, String> {
        let (turn, rest) = text.trim().split_once(' ').unwrap_or((text, ""));
        let turn = match turn {
            "cut" => Turn::Cut,
            "heal" => Turn::Heal,
            _ => return Err(format!("{text:?} begins with neither cut nor heal")),
        };
        let mut fields = Fields::parse(rest.trim())?;
        let cable = fields.cable()?;
        let fault = fields.fault(fields.kind)?;
        fields.finish()?;
        Ok(Self { turn, fault, cable })
    }
}

impl Action {
    /// The request that asks a testbed for this, as its own reader understands it.
    #[must_use]
    pub fn request(&self) -> String {
        let Self { turn, fault, cable: Cable { host, rail } } = self;
        let value = match fault {
            Fault::Admin | Fault::Carrier | Fault::Silent => String::new(),
            Fault::Oneway(Direction::Outgoing) => ",lose=outgoing".to_owned(),
            Fault::Oneway(Direction::Incoming) => ",lose=incoming".to_owned(),
            Fault::Slow(rate) => format!(",rate={rate}"),
        };
        format!("{} {}:host={host},rail={rail}{value}", turn.name(), fault.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const CABLE: Cable = Cable { host: 0, rail: 1 };

    fn plan(text: &str) -> Vec<(u64, Turn, Fault)> {
        let FaultPlan(plan) = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(plan.iter().all(|timed| timed.action.cable == CABLE));
        plan.iter().map(|timed| (timed.at_ns, timed.action.turn, timed.action.fault)).collect()
    }

    #[test]
    fn a_fault_begins_and_may_end() {
        let healed = plan("carrier:host=0,rail=1,at=2s,heal=1s");
        let cut = (2 * SECOND_NS, Turn::Cut, Fault::Carrier);
        assert_eq!(healed, [cut, (3 * SECOND_NS, Turn::Heal, Fault::Carrier)]);
        let at = "host=0,rail=1,at=0s";
        for (text, fault) in [
            (format!("admin:{at}"), Fault::Admin),
            (format!("silent:{at}"), Fault::Silent),
            (format!("oneway:{at}"), Fault::Oneway(Direction::Outgoing)),
            (format!("oneway:{at},lose=incoming"), Fault::Oneway(Direction::Incoming)),
            (format!("slow:{at},rate=8kbit"), Fault::Slow("8kbit".parse().unwrap())),
        ] {
            assert_eq!(plan(&text), [(0, Turn::Cut, fault)]);
        }
    }

    #[test]
    fn flapping_is_many_faults() {
        let turns = plan("flap:host=0,rail=1,at=1s,times=2,period=200ms,fault=admin");
        let times: Vec<u64> = turns.iter().map(|turn| turn.0 / 1_000_000).collect();
        assert_eq!(times, [1000, 1100, 1200, 1300]);
        assert_eq!(turns[3], (1_300_000_000, Turn::Heal, Fault::Admin));
    }

    #[test]
    fn requests_have_no_times() {
        let action = Action { turn: Turn::Heal, fault: Fault::Silent, cable: CABLE };
        assert_eq!("heal silent:host=0,rail=1".parse(), Ok(action));
        let faults = [
            Fault::Admin,
            Fault::Carrier,
            Fault::Oneway(Direction::Outgoing),
            Fault::Oneway(Direction::Incoming),
            Fault::Slow("50mbit".parse().unwrap()),
        ];
        for fault in faults {
            let action = Action { turn: Turn::Cut, fault, cable: CABLE };
            assert_eq!(action.request().parse(), Ok(action));
        }
        assert!("cut silent:host=0,rail=1,at=1s".parse::<Action>().is_err());
        assert!("silent:host=0,rail=1".parse::<Action>().is_err());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, named) in [
            ("foo", "none of admin"),
            ("carrier", "needs host="),
            ("carrier:host=0,rail=1", "needs at="),
            ("carrier:host=x,rail=1,at=1s", "host=x"),
            ("carrier:host=0,rail=1,at=soon", "at=soon"),
            ("carrier:host=0,rail=1,at=1s,for=2s", "for="),
            ("carrier:host=0,host=0", "twice"),
            ("carrier:0", "key=value"),
            ("thunder:host=0,rail=1,at=1s", "\"thunder\""),
            ("slow:host=0,rail=1,at=1s", "rate="),
            ("oneway:host=0,rail=1,at=1s,lose=all", "lose=all"),
        ] {
            let complaint = text.parse::<FaultPlan>().unwrap_err();
            assert!(complaint.contains(named), "{text}: {complaint}");
        }
    }
}
