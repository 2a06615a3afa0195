//! Faults that the library imitates in its own queue pairs: which cable is how broken, and when.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{Cable, Condition, Fault, FaultPlan, Timed};

/// What may be written, for people.
pub(crate) const ALLOWED: &str = "faults separated by semicolons, such as \
    `silent:host=0,rail=1,at=5s,heal=2s`, of the kinds admin, carrier (or down), silent, oneway and flap";

/// A sequence of faults that queue pairs can imitate. It prints as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    text: String,
    /// In order of time.
    turns: Vec<Timed>,
    /// How each cable is from when on, in order of time.
    courses: BTreeMap<Cable, Vec<(u64, Condition)>>,
}

impl Rehearsal {
    /// Everything that happens, in order of time.
    #[must_use]
    pub fn turns(&self) -> &[Timed] {
        &self.turns
    }

    /// Whether anything ever happens to a cable.
    #[must_use]
    pub fn concerns(&self, cable: Cable) -> bool {
        self.courses.contains_key(&cable)
    }

    /// How a cable is so many nanoseconds after the start.
    #[must_use]
    pub fn condition(&self, cable: Cable, elapsed_ns: u64) -> Condition {
        let Some(course) = self.courses.get(&cable) else { return Condition::default() };
        let next = course.partition_point(|(from_ns, _)| *from_ns <= elapsed_ns);
        next.checked_sub(1).map_or_else(Condition::default, |present| course[present].1.clone())
    }

    /// Whether all cables exist where the hosts have so many rails each.
    ///
    /// # Errors
    /// The sentence names the first that does not, and what there is.
    pub fn check(&self, rails: &[usize]) -> Result<(), String> {
        self.courses.keys().try_for_each(|cable| match rails.get(cable.host) {
            None => {
                let hosts = rails.len();
                Err(format!("there is no {cable}; hosts are counted from 0, and there are {hosts}"))
            }
            Some(rails) if cable.rail >= *rails => {
                let host = cable.host;
                Err(format!(
                    "there is no {cable}; rails are counted from 0, and host {host} has {rails}"
                ))
            }
            Some(_) => Ok(()),
        })
    }
}

impl FromStr for Rehearsal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut turns = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            turns.extend(imitable(part).map_err(|cause| format!("{part}: {cause}"))?);
        }
        if turns.is_empty() {
            return Err("it names no fault".to_owned());
        }
        turns.sort_by_key(|timed| timed.at_ns);
        let courses = courses(&turns);
        Ok(Self { text: text.to_owned(), turns, courses })
    }
}

impl fmt::Display for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What one fault is, if a queue pair can imitate it.
fn imitable(text: &str) -> Result<Vec<Timed>, String> {
    let FaultPlan(plan) = text.parse()?;
    let is_slow = |timed: &Timed| matches!(timed.action.fault, Fault::Slow(_));
    if plan.iter().any(is_slow) {
        let text = "slow cannot be rehearsed: a queue pair cannot make its cable slow; \
                    the testbed can";
        return Err(text.to_owned());
    }
    Ok(plan)
}

/// What becomes of each cable.
fn courses(turns: &[Timed]) -> BTreeMap<Cable, Vec<(u64, Condition)>> {
    let mut courses: BTreeMap<Cable, Vec<(u64, Condition)>> = BTreeMap::new();
    for Timed { at_ns, action } in turns {
        let course = courses.entry(action.cable).or_default();
        let before =
            course.last().map_or_else(Condition::default, |(_, condition)| condition.clone());
        course.push((*at_ns, before.after(action.turn, action.fault)));
    }
    courses
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, Turn};
    use super::*;

    const MS: u64 = 1_000_000;

    fn rehearsal(text: &str) -> Rehearsal {
        text.parse().unwrap_or_else(|cause| panic!("{text}: {cause}"))
    }

    fn cable(host: usize, rail: usize) -> Cable {
        Cable { host, rail }
    }

    #[test]
    fn a_cable_is_as_its_faults_make_it() {
        let both = rehearsal(
            "silent:host=0,rail=1,at=5ms,heal=10ms; admin:host=0,rail=1,at=10ms;\
             oneway:host=1,rail=0,at=0s,lose=incoming;",
        );
        let table = [(4, (false, None)), (5, (true, None)), (10, (true, Some(Fault::Admin)))];
        for (ms, expected) in table {
            let condition = both.condition(cable(0, 1), ms * MS);
            assert_eq!((condition.silent > 0, condition.severed()), expected, "after {ms} ms");
        }
        let last = both.condition(cable(0, 1), u64::MAX);
        assert_eq!((last.silent, last.severed()), (0, Some(Fault::Admin)));
        let oneway = both.condition(cable(1, 0), 0);
        let lost = [Direction::Outgoing, Direction::Incoming].map(|way| oneway.loses(way));
        assert_eq!(lost, [false, true]);
        assert_eq!(both.condition(cable(1, 1), u64::MAX), Condition::default());
        assert!(both.concerns(cable(1, 0)) && !both.concerns(cable(1, 1)));
    }

    #[test]
    fn faults_of_one_kind_that_overlap_heal_by_themselves() {
        let both = rehearsal(
            "silent:host=0,rail=0,at=5ms,heal=10ms; silent:host=0,rail=0,at=10ms,heal=20ms",
        );
        for (ms, is_lost) in
            [(4, false), (5, true), (10, true), (15, true), (29, true), (30, false)]
        {
            let condition = both.condition(cable(0, 0), ms * MS);
            assert_eq!(condition.loses(Direction::Outgoing), is_lost, "after {ms} ms");
        }
    }

    #[test]
    fn what_happens_comes_in_order_of_time() {
        let text = "flap:host=0,rail=0,at=10ms,times=2,period=20ms;silent:host=1,rail=0,at=15ms";
        let turns: Vec<_> = rehearsal(text)
            .turns()
            .iter()
            .map(|timed| (timed.at_ns / MS, timed.action.cable.host, timed.action.turn))
            .collect();
        let (cut, heal) = (Turn::Cut, Turn::Heal);
        assert_eq!(turns, [(10, 0, cut), (15, 1, cut), (20, 0, heal), (30, 0, cut), (40, 0, heal)]);
        assert_eq!(rehearsal(text).to_string(), text);
    }

    #[test]
    fn what_cannot_be_rehearsed_is_refused_by_name() {
        for (text, named) in [
            ("", "no fault"),
            (" ; ", "no fault"),
            ("slow:host=0,rail=1,at=1s,rate=50mbit", "slow cannot be rehearsed"),
            ("flap:host=0,rail=1,at=1s,times=3,period=1s,fault=slow,rate=1mbit", "slow cannot"),
            ("silent:host=0,rail=0,at=0s;thunder:host=0,rail=1,at=1s", "\"thunder\" is none of"),
            ("silent:host=0,rail=0,at=0s;admin:host=0,rail=1", "admin:host=0,rail=1: "),
            ("silent:host=0,rail=0,at=50%", "at=50%"),
        ] {
            let complaint = text.parse::<Rehearsal>().unwrap_err();
            assert!(complaint.contains(named), "{text}: {complaint}");
        }
    }

    #[test]
    fn cables_that_do_not_exist_are_named() {
        let last = rehearsal("silent:host=1,rail=2,at=0s");
        assert_eq!(last.check(&[1, 3]), Ok(()));
        for (rails, named) in [(&[3][..], "there are 1"), (&[3, 2], "host 1 has 2")] {
            let complaint = last.check(rails).unwrap_err();
            assert!(complaint.contains("no host 1 rail 2"), "{complaint}");
            assert!(complaint.contains(named), "{complaint}");
        }
    }
}
