//! What happened to the rails during a run, written for people and programs.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use ccl::{Communicator, RailHealth, RailRecord, RailState, ReduceOp, Verdict};
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::error::Failure;
use crate::faults::saboteur::Strike;

/// More lines are left out where people read.
const MOST_LINES: usize = 500;

/// Something that happened to a path between two ranks; see [`RailRecord`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Who saw it.
    pub(crate) rank: u32,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// `given-up`, `resumed` and so on.
    pub(crate) event: String,
    /// Both ends, in words.
    pub(crate) path: String,
    /// How a fault was found out.
    #[serde(default)]
    pub(crate) evidence: Option<String>,
    /// What exactly was seen.
    #[serde(default)]
    pub(crate) cause: Option<String>,
    /// Tiles lost or sent again.
    #[serde(default)]
    pub(crate) tiles: usize,
    /// Their bytes.
    #[serde(default)]
    pub(crate) bytes: usize,
    /// Measured part of the nominal capacity.
    #[serde(default)]
    pub(crate) percent: Option<u8>,
}

#[derive(Serialize)]
struct Line<'a> {
    rank: u32,
    #[serde(flatten)]
    record: &'a RailRecord,
}

/// A cut or a healing as a line of the file.
#[derive(Serialize)]
struct StrikeLine {
    event: &'static str,
    fault: String,
    host: usize,
    rail: usize,
    at_ns: u64,
    ended_ns: u64,
    row_bytes: usize,
    form: &'static str,
}

impl StrikeLine {
    fn new(strike: &Strike) -> Self {
        let Strike { action, measured, began_ns, ended_ns, .. } = strike;
        Self {
            event: action.turn.name(),
            fault: action.fault.to_string(),
            host: action.cable.host,
            rail: action.cable.rail,
            at_ns: *began_ns,
            ended_ns: *ended_ns,
            row_bytes: measured.row_bytes,
            form: measured.form,
        }
    }
}

/// Appends the records of a rank to a file, one JSON object in each line. All ranks may append to the
/// same file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn append(
    path: &Path,
    rank: u32,
    records: &[RailRecord],
    strikes: &[Strike],
) -> Outcome<()> {
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::Input(format!("--timeline {}: {cause}", path.display()))
    };
    let mut file =
        OpenOptions::new().create(true).append(true).open(path).map_err(|cause| failed(&cause))?;
    let lines = records.iter().map(|record| serde_json::to_string(&Line { rank, record }));
    let strikes = strikes.iter().map(|strike| serde_json::to_string(&StrikeLine::new(strike)));
    for line in lines.chain(strikes) {
        let line = line.map_err(|cause| failed(&cause))? + "\n";
        // One write for each line: lines of several ranks do not mix.
        file.write_all(line.as_bytes()).map_err(|cause| failed(&cause))?;
    }
    Ok(())
}

/// The records of all ranks in order of time; the same on every rank.
///
/// # Errors
/// The library failed.
pub(crate) fn gather(
    world: &Communicator,
    records: &[RailRecord],
) -> Result<Vec<Entry>, ccl::Error> {
    let rank = world.rank().0;
    let lines =
        records.iter().filter_map(|record| serde_json::to_string(&Line { rank, record }).ok());
    let mut own = lines.collect::<Vec<_>>().join("\n").into_bytes();
    let mut longest = [0];
    world.all_reduce(&[own.len() as u64], &mut longest, ReduceOp::Max)?;
    // JSON has no zeros, and a line of them is none.
    own.resize(usize::try_from(longest[0]).unwrap_or(usize::MAX) + 1, 0);
    let mut all = vec![0; own.len() * world.size() as usize];
    world.all_gather(&own, &mut all)?;
    let text = String::from_utf8_lossy(&all).replace('\0', "\n");
    let mut entries: Vec<Entry> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    entries.sort_by_key(|entry| entry.at_ns);
    Ok(entries)
}

/// The lines for the end of a table: what was done to the cables, and what the ranks saw. A suspicion
/// that came to nothing is left out.
pub(crate) fn show(entries: &[Entry], strikes: &[Strike]) -> Vec<String> {
    let seen = entries.iter().enumerate().filter(|(place, entry)| {
        entry.event != "suspected" || is_confirmed(entry, &entries[place + 1..])
    });
    let seen = seen.map(|(_, entry)| (entry.at_ns, describe(entry)));
    let done = strikes.iter().map(|strike| (strike.began_ns, describe_strike(strike)));
    let mut lines: Vec<(u64, String)> = done.chain(seen).collect();
    lines.sort_by_key(|(at_ns, _)| *at_ns);
    let first_ns = lines.first().map_or(0, |(at_ns, _)| *at_ns);
    #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
    let line = |(at_ns, words): &(u64, String)| {
        format!("# {:>12.3} ms  {words}", (at_ns - first_ns) as f64 / 1e6)
    };
    let shown = lines.iter().take(MOST_LINES).map(line);
    let left_out = lines.len().saturating_sub(MOST_LINES);
    let rest = format!("# and {left_out} more, which --timeline FILE writes to a file");
    shown.chain((left_out > 0).then_some(rest)).collect()
}

/// The lines about rails that failed, or do not work as they should.
pub(crate) fn troubled(rails: &[RailHealth]) -> Vec<String> {
    let is_odd = |rail: &&RailHealth| {
        rail.state != RailState::Up || rail.verdict != Verdict::Unknown || rail.counters.faults > 0
    };
    let line = |health: &RailHealth| {
        let RailHealth { rank, rail, state, verdict, evidence, counters, .. } = health;
        let (state, faults) = (state.name(), counters.faults);
        let mut line = format!("# rank {rank} rail {rail}: {state}, {faults} faults");
        if *verdict != Verdict::Unknown {
            line.push_str(&format!("; at fault: {}", verdict.name()));
        }
        if !evidence.is_empty() {
            line.push_str(&format!(" ({})", evidence.replace(['\n', '\t'], " ")));
        }
        line
    };
    rails.iter().filter(is_odd).map(line).collect()
}

/// Whether the path was given up next.
fn is_confirmed(suspicion: &Entry, later: &[Entry]) -> bool {
    let of_path = |entry: &&Entry| (entry.rank, &entry.path) == (suspicion.rank, &suspicion.path);
    later.iter().find(of_path).is_some_and(|next| next.event == "given-up")
}

fn describe_strike(strike: &Strike) -> String {
    let Strike { action, measured, .. } = strike;
    format!("{action} ({} bytes, {})", measured.row_bytes, measured.form)
}

fn describe(entry: &Entry) -> String {
    let Entry { rank, event, path, evidence, cause, tiles, bytes, percent, .. } = entry;
    let mut words = format!("rank {rank} {path}: {event}");
    if let (Some(evidence), Some(cause)) = (evidence, cause) {
        words.push_str(&format!(" ({evidence}: {})", cause.replace(['\n', '\t'], " ")));
    }
    if let Some(percent) = percent {
        words.push_str(&format!(" at {percent} % of its nominal capacity"));
    }
    if *tiles > 0 {
        words.push_str(&format!(", {tiles} tiles, {bytes} bytes"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspicions_are_shown_where_they_were_right() {
        let entry = |rank, event: &str, at_ns| Entry {
            rank,
            at_ns,
            event: event.to_owned(),
            path: "rail 0".to_owned(),
            ..Entry::default()
        };
        let entries = [
            entry(0, "suspected", 1_000_000),
            entry(1, "suspected", 2_000_000),
            entry(0, "given-up", 3_500_000),
            entry(1, "suspected", 4_000_000),
        ];
        let expected = [
            "#        0.000 ms  rank 0 rail 0: suspected",
            "#        2.500 ms  rank 0 rail 0: given-up",
        ];
        assert_eq!(show(&entries, &[]), expected);
    }

    #[test]
    fn long_timelines_are_cut() {
        let entry = Entry { event: "resumed".to_owned(), ..Entry::default() };
        let lines = show(&vec![entry; MOST_LINES + 2], &[]);
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert!(lines[MOST_LINES].starts_with("# and 2 more"), "{}", lines[MOST_LINES]);
    }
}
