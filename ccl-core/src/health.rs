//! How rails are doing, and whose fault it is when one is not.
//!
//! A rail that fails is seen from its two ends, and neither end can tell by itself whether its own NIC,
//! the other one or something between them is broken: all three look like silence. A third node can.
//! [`localise`] weighs what the three found out.

use serde::{Deserialize, Serialize};

use crate::ids::{Rail, Rank, Timestamp};

/// Whether a rail carries data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RailState {
    /// It works.
    #[default]
    Up,
    /// Something is odd; it is being probed. Plans still count on it.
    Suspect,
    /// It does not work; it is probed until it does.
    Down,
    /// It works, but has failed too often lately to be trusted yet.
    Quarantined,
}

impl RailState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Up, Self::Suspect, Self::Down, Self::Quarantined];

    /// Whether plans count on the rail. A suspicion changes no plan: most pass within milliseconds.
    #[must_use]
    pub fn is_usable(self) -> bool {
        match self {
            Self::Up | Self::Suspect => true,
            Self::Down | Self::Quarantined => false,
        }
    }

    /// The name for logs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Quarantined => "quarantined",
        }
    }
}

/// What is broken, seen from the rank that reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// This end's NIC, or its cable.
    LocalNic,
    /// The other end's.
    RemoteNic,
    /// Something between the two: both ends reach others.
    Path,
    /// Nothing is, or the evidence does not say what.
    #[default]
    Unknown,
}

impl Verdict {
    /// The name for logs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalNic => "local NIC",
            Self::RemoteNic => "remote NIC",
            Self::Path => "path",
            Self::Unknown => "unknown",
        }
    }
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// Nobody tried, or the result is not known.
    #[default]
    Missing,
    /// The NIC answered.
    Answered,
    /// It did not in time, or the attempt failed at once.
    Unanswered,
}

/// Probes around one rail between a near and a far NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Probes {
    /// From the near NIC to the far one.
    pub outward: Probe,
    /// From the far NIC to the near one.
    pub inward: Probe,
    /// From a third node to the near NIC.
    pub third_to_near: Probe,
    /// From a third node to the far NIC.
    pub third_to_far: Probe,
}

/// The one broken thing that explains all probes, if there is exactly one:
///
/// | broken | outward, inward | third to near | third to far |
/// |---|---|---|---|
/// | near NIC: [`Verdict::LocalNic`] | none answered | not answered | answered |
/// | far NIC: [`Verdict::RemoteNic`] | none answered | answered | not answered |
/// | between: [`Verdict::Path`] | at most one answered | answered | answered |
///
/// A probe that is missing fits all rows, but somebody must have failed to reach the other end: what a
/// third node alone sees may be its own fault. Several rows or none: [`Verdict::Unknown`], as in a
/// group of two nodes, or with two faults at once.
#[must_use]
pub fn localise(probes: Probes) -> Verdict {
    use Probe::{Answered, Unanswered};
    let Probes { outward, inward, third_to_near, third_to_far } = probes;
    if outward != Unanswered && inward != Unanswered {
        return Verdict::Unknown;
    }
    let silent = outward != Answered && inward != Answered;
    let near = silent && third_to_near != Answered && third_to_far != Unanswered;
    let far = silent && third_to_near != Unanswered && third_to_far != Answered;
    let between = third_to_near != Unanswered && third_to_far != Unanswered;
    match (near, far, between) {
        (true, false, false) => Verdict::LocalNic,
        (false, true, false) => Verdict::RemoteNic,
        (false, false, true) => Verdict::Path,
        _ => Verdict::Unknown,
    }
}

/// What has happened on a rail since its communicator was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailCounters {
    /// Times the rail went down.
    pub faults: u64,
    /// Times it came back.
    pub returns: u64,
    /// Tiles sent on it.
    pub tiles: u64,
    /// Bytes sent on it.
    pub bytes: u64,
    /// Tiles sent again after a fault, on any rail, that had been sent on this one.
    pub resent_tiles: u64,
    /// Their bytes.
    pub resent_bytes: u64,
}

/// One rail of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RailHealth {
    /// Whose rail.
    pub rank: Rank,
    /// Its number there.
    pub rail: Rail,
    /// Whether it carries data.
    pub state: RailState,
    /// Bytes per second in each direction while it does.
    pub bytes_per_second: f64,
    /// What is broken, or was at the last fault.
    pub verdict: Verdict,
    /// What speaks for the verdict, for people; empty without a fault.
    pub evidence: String,
    /// Of this rank: up to now. Of others: as of their last report, which comes with every change.
    pub counters: RailCounters,
    /// When it failed last, on the clock of its rank, counted from the start of the communicator.
    pub last_fault: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const OUTCOMES: [Probe; 3] = [Probe::Missing, Probe::Answered, Probe::Unanswered];

    fn all() -> impl Iterator<Item = Probes> {
        (0..81usize).map(|number| {
            let outcome = |place: u32| OUTCOMES[number / 3usize.pow(place) % 3];
            Probes {
                outward: outcome(3),
                inward: outcome(2),
                third_to_near: outcome(1),
                third_to_far: outcome(0),
            }
        })
    }

    /// Rows: outward and inward; columns: third to near and to far; `-` missing, `+` answered, `x` not.
    const TABLE: &str = "\
        \x20     -- -+ -x +- ++ +x x- x+ xx
        --    ?  ?  ?  ?  ?  ?  ?  ?  ?
        -+    ?  ?  ?  ?  ?  ?  ?  ?  ?
        -x    ?  ?  R  ?  P  R  L  L  ?
        +-    ?  ?  ?  ?  ?  ?  ?  ?  ?
        ++    ?  ?  ?  ?  ?  ?  ?  ?  ?
        +x    P  P  ?  P  P  ?  ?  ?  ?
        x-    ?  ?  R  ?  P  R  L  L  ?
        x+    P  P  ?  P  P  ?  ?  ?  ?
        xx    ?  ?  R  ?  P  R  L  L  ?
";

    #[test]
    fn the_whole_table() {
        let sign = |probe| match probe {
            Probe::Missing => '-',
            Probe::Answered => '+',
            Probe::Unanswered => 'x',
        };
        let letter = |verdict| match verdict {
            Verdict::LocalNic => 'L',
            Verdict::RemoteNic => 'R',
            Verdict::Path => 'P',
            Verdict::Unknown => '?',
        };
        let mut rows: BTreeMap<usize, String> = BTreeMap::new();
        for (number, probes) in all().enumerate() {
            let row = rows
                .entry(number / 9)
                .or_insert_with(|| format!("{}{}  ", sign(probes.outward), sign(probes.inward)));
            row.push_str(&format!("  {}", letter(localise(probes))));
        }
        let table: Vec<String> = rows.into_values().collect();
        let expected: Vec<&str> = TABLE.lines().skip(1).map(str::trim).collect();
        assert_eq!(table, expected);
    }

    #[test]
    fn both_ends_see_the_same_fault() {
        for probes in all() {
            let from_the_far_end = Probes {
                outward: probes.inward,
                inward: probes.outward,
                third_to_near: probes.third_to_far,
                third_to_far: probes.third_to_near,
            };
            let mirrored = match localise(probes) {
                Verdict::LocalNic => Verdict::RemoteNic,
                Verdict::RemoteNic => Verdict::LocalNic,
                same @ (Verdict::Path | Verdict::Unknown) => same,
            };
            assert_eq!(localise(from_the_far_end), mirrored, "{probes:?}");
        }
    }

    #[test]
    fn only_a_rail_that_is_believed_to_work_is_planned_with() {
        let usable: Vec<&str> = RailState::ALL
            .into_iter()
            .filter(|state| state.is_usable())
            .map(RailState::name)
            .collect();
        assert_eq!(usable, ["up", "suspect"]);
    }
}
