//! How much has been carried, stretch by stretch, and where nothing was.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use ccl::vqp::Event;
use serde_json::json;

use super::plan::Plan;
use crate::Outcome;
use crate::error::Failure;
use crate::stopwatch::Stopwatch;
use crate::testbed::clock::now_ns;

/// What one stretch of time has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// When it began, in seconds since the queue pairs were connected.
    pub start_s: f64,
    /// When it ended.
    pub end_s: f64,
    /// Bytes of operations that completed.
    pub bytes: u64,
    /// Operations that completed.
    pub operations: u64,
    /// The rail of the first queue pair at its end.
    pub rail: usize,
}

/// The longest time without a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gap {
    /// When it began, in seconds since the queue pairs were connected.
    pub start_s: f64,
    /// How long it was.
    pub seconds: f64,
}

/// Counts over time.
#[derive(Debug)]
pub struct Meter {
    watch: Stopwatch,
    start_ns: u64,
    interval_s: Option<f64>,
    current: Interval,
    intervals: Vec<Interval>,
    last_s: Option<f64>,
    gap: Gap,
}

impl Meter {
    /// One that begins now; without an interval only gaps are measured.
    #[must_use]
    pub fn new(interval: Option<Duration>) -> Self {
        Self {
            watch: Stopwatch::start(),
            start_ns: now_ns(),
            interval_s: interval.map(|interval| interval.as_secs_f64()),
            current: Interval::default(),
            intervals: Vec::new(),
            last_s: None,
            gap: Gap::default(),
        }
    }

    /// A row begins: the time before it was no gap.
    pub fn begin(&mut self) {
        self.last_s = Some(self.watch.wall_s());
    }

    /// Seconds since the queue pairs were connected.
    #[must_use]
    pub fn now_s(&self) -> f64 {
        self.watch.wall_s()
    }

    /// So much has completed since the last call, on this rail.
    pub fn count(&mut self, operations: u64, bytes: u64, rail: usize) {
        let now_s = self.watch.wall_s();
        self.count_at(now_s, (operations, bytes), rail);
    }

    fn count_at(&mut self, now_s: f64, (operations, bytes): (u64, u64), rail: usize) {
        if operations > 0 {
            let before = self.last_s.replace(now_s).unwrap_or(now_s);
            if now_s - before > self.gap.seconds {
                self.gap = Gap { start_s: before, seconds: now_s - before };
            }
        }
        let Some(interval_s) = self.interval_s else { return };
        while now_s >= self.current.start_s + interval_s {
            let end_s = self.current.start_s + interval_s;
            self.intervals.push(Interval { end_s, rail, ..self.current });
            self.current = Interval { start_s: end_s, ..Interval::default() };
        }
        self.current.bytes += bytes;
        self.current.operations += operations;
    }

    /// The stretches that are over.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// The longest time without a completion, within a row.
    #[must_use]
    pub fn gap(&self) -> Gap {
        self.gap
    }

    /// When something happened, in seconds since the queue pairs were connected.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "times of a run are far below 2^53 ns")]
    pub fn seconds_of(&self, event: &Event) -> f64 {
        (event.at_ns as f64 - self.start_ns as f64) * 1e-9
    }

    /// Everything in a file, one JSON object in each line.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path, plan: &Plan, events: &[Vec<Event>]) -> Outcome<()> {
        let failed = |cause| Failure::system(format!("writing {}", path.display()), cause);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let mut lines = vec![json!({
            "record": "run", "test": plan.test.name(), "evidence": plan.evidence,
            "faults": plan.faults, "sizes": plan.sizes, "queue_pairs": plan.pairs,
            "longest_gap_s": self.gap.seconds, "longest_gap_at_s": self.gap.start_s,
        })];
        lines.extend(self.intervals.iter().map(|interval| {
            json!({
                "record": "interval", "start_s": interval.start_s, "end_s": interval.end_s,
                "bytes": interval.bytes, "operations": interval.operations, "rail": interval.rail,
            })
        }));
        for (pair, events) in events.iter().enumerate() {
            lines.extend(events.iter().map(|event| {
                json!({
                    "record": "event", "at_s": self.seconds_of(event), "queue_pair": pair,
                    "kind": event.kind.name(), "rail": event.rail,
                })
            }));
        }
        for line in lines {
            writeln!(file, "{line}").map_err(failed)?;
        }
        file.flush().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_completes_counts_for_its_stretch_and_silence_is_a_stretch_too() {
        let mut meter = Meter::new(Some(Duration::from_millis(500)));
        meter.last_s = Some(0.0);
        for (now_s, operations, rail) in [(0.1, 2, 0), (0.4, 1, 0), (0.6, 0, 0), (1.7, 4, 1)] {
            meter.count_at(now_s, (operations, 10 * operations), rail);
        }
        let seen: Vec<_> = meter.intervals().iter().map(|one| (one.end_s, one.bytes)).collect();
        assert_eq!(seen, [(0.5, 30), (1.0, 0), (1.5, 0)]);
        assert_eq!((meter.intervals()[0].operations, meter.intervals()[2].rail), (3, 1));
        let Gap { start_s, seconds } = meter.gap();
        assert!((start_s - 0.4).abs() < 1e-9 && (seconds - 1.3).abs() < 1e-9);
    }
}
