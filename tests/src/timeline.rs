//! What happened to the rails during a run, written for people and programs.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use ccl::{Communicator, RailRecord};
use serde::Serialize;

use crate::Outcome;
use crate::error::Failure;

/// Room for the records of one rank that rank 0 shows.
const SHOWN_BYTES: usize = 16 << 10;

#[derive(Serialize)]
struct Line<'a> {
    rank: u32,
    #[serde(flatten)]
    record: &'a RailRecord,
}

/// Appends the records of a rank to a file, one JSON object in each line. All ranks may append to the
/// same file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn append(path: &Path, rank: u32, records: &[RailRecord]) -> Outcome<()> {
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::Input(format!("--timeline {}: {cause}", path.display()))
    };
    let mut file =
        OpenOptions::new().create(true).append(true).open(path).map_err(|cause| failed(&cause))?;
    for record in records {
        let mut line =
            serde_json::to_string(&Line { rank, record }).map_err(|cause| failed(&cause))?;
        line.push('\n');
        // One write for each line: lines of several ranks do not mix.
        file.write_all(line.as_bytes()).map_err(|cause| failed(&cause))?;
    }
    Ok(())
}

/// The records of all ranks in order of time, for the end of a table; the same on every rank.
///
/// # Errors
/// The library failed.
pub(crate) fn gather(
    world: &Communicator,
    records: &[RailRecord],
) -> Result<Vec<String>, ccl::Error> {
    let mut own: Vec<u8> = Vec::new();
    for record in records {
        let line = format!("{}\t{}\n", record.at_ns, describe(world.rank().0, record));
        if own.len() + line.len() <= SHOWN_BYTES {
            own.extend_from_slice(line.as_bytes());
        }
    }
    own.resize(SHOWN_BYTES, 0);
    let mut all = vec![0; SHOWN_BYTES * world.size() as usize];
    world.all_gather(&own, &mut all)?;
    let text = String::from_utf8_lossy(&all).replace('\0', "");
    let mut lines: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(at, words)| Some((at.parse().ok()?, words)))
        .collect();
    lines.sort_by_key(|(at, _)| *at);
    let first = lines.first().map_or(0, |(at, _)| *at);
    #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
    let shown = lines
        .iter()
        .map(|(at, words)| format!("# {:>12.3} ms  {words}", (at - first) as f64 / 1e6));
    Ok(shown.collect())
}

fn describe(rank: u32, record: &RailRecord) -> String {
    let RailRecord { event, path, evidence, cause, tiles, bytes, .. } = record;
    let mut words = format!("rank {rank} {path}: {event}");
    if let (Some(evidence), Some(cause)) = (evidence, cause) {
        words.push_str(&format!(" ({evidence}: {})", cause.replace(['\n', '\t'], " ")));
    }
    if *tiles > 0 {
        words.push_str(&format!(", {tiles} tiles, {bytes} bytes"));
    }
    words
}
