//! What a rank knows at the moment its communicator fails, in a file.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use ccl_core::error::Error;
use ccl_core::health::RailHealth;
use ccl_core::ids::Rank;
use ccl_transport::clock;
use serde_json::{Value, json};

use crate::timeline::RailRecord;

/// What is written.
#[derive(Debug)]
pub(crate) struct Dump<'a> {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) name: Option<&'a str>,
    pub(crate) error: &'a Error,
    /// Collectives called so far, if nobody is inside one.
    pub(crate) calls: Option<u64>,
    pub(crate) rails: Vec<RailHealth>,
    pub(crate) records: Vec<RailRecord>,
}

impl Dump<'_> {
    /// Writes the dump into a folder, under a name of its own, and returns that. Nothing half-written
    /// is left: a full disk is an error.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let name = format!("r2ccl-rank{}-{}.json", self.rank.0, std::process::id());
        let (target, draft) = (folder.join(&name), folder.join(format!(".{name}.draft")));
        let written = std::fs::File::create(&draft)
            .and_then(|mut file| {
                file.write_all(format!("{:#}\n", self.json()).as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&draft, &target));
        if written.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&draft);
        }
        written.map(|()| target)
    }

    fn json(&self) -> Value {
        json!({
            "rank": self.rank.0,
            "size": self.size,
            "communicator": self.name,
            "at_ns": clock::monotonic_ns(clock::now()),
            "error": self.error.to_string(),
            "remedy": self.error.remedy(),
            "calls": self.calls,
            "rails": self.rails.iter().map(rail).collect::<Vec<_>>(),
            "records": self.records,
        })
    }
}

fn rail(health: &RailHealth) -> Value {
    json!({
        "rank": health.rank.0,
        "rail": health.rail.0,
        "state": health.state.name(),
        "verdict": health.verdict.name(),
        "evidence": health.evidence,
        "bytes_per_second": health.bytes_per_second,
        "counters": health.counters,
        "last_fault_ns": health.last_fault.map(|at| at.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(error: &Error) -> Dump<'_> {
        let (rails, records) = (Vec::new(), Vec::new());
        let (rank, name, calls) = (Rank(3), Some("world"), Some(7));
        Dump { rank, size: 4, name, error, calls, rails, records }
    }

    #[test]
    fn a_dump_says_what_happened() {
        let folder = std::env::temp_dir().join(format!("r2ccl-dump-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let error = Error::PeerLost { rank: Rank(1), reason: "a test".into() };
        let file = dump(&error).write(&folder).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["rank"], &value["calls"]), (&json!(3), &json!(7)));
        assert!(value["error"].as_str().unwrap().contains("rank 1"), "{text}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no draft is left");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let error = Error::Internal("a test".into());
        assert!(dump(&error).write(Path::new("/nonexistent/folder")).is_err());
    }
}
