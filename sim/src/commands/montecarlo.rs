//! `r2ccl-sim montecarlo`: random patterns of failures.

use std::io::IsTerminal as _;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::table::{Table, json, percent};
use crate::cluster::Cluster;
use crate::cluster::price::Strategy;
use crate::presets::{check_is_whole, training};
use crate::workload::patterns::{Row, rows};

/// No cluster has more NICs.
const MOST_FAILURES: usize = 1 << 22;
/// All results are kept.
const MOST_PATTERNS: u64 = 10_000_000;

/// What is drawn.
#[derive(Args, Clone, Debug)]
pub(super) struct MonteCarlo {
    /// A training job: a file, or a preset.
    #[arg(long, default_value = "train-7b")]
    train: String,
    /// A cluster instead of that of the job: a file, or a preset.
    #[arg(long)]
    cluster: Option<String>,
    /// Numbers of failures, as FIRST..LAST.
    #[arg(long, value_parser = range, default_value = "1..10")]
    failures: (usize, usize),
    /// Patterns for each number.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    patterns: u64,
    /// The same seed draws the same patterns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are processors if it is missing.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl MonteCarlo {
    pub(super) fn run(&self) -> Result<String, String> {
        let (variants, cluster) = training(&self.train, self.cluster.as_deref())?;
        check_is_whole(&cluster)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.jobs.unwrap_or(0)).build();
        let pool = pool.map_err(|cause| cause.to_string())?;
        let (first, last) = self.failures;
        let total = (last - first + 1) as u64 * self.patterns;
        if total > MOST_PATTERNS {
            return Err(format!("{total} patterns in all: let there be {MOST_PATTERNS} at most"));
        }
        let bar = bar(total);
        let rows = pool.install(|| {
            rows(&variants[0], &cluster, first..=last, (self.patterns, self.seed), &|| bar.inc(1))
        });
        bar.finish_and_clear();
        let rows = rows?;
        if self.json {
            return json(&rows);
        }
        Ok(self.table(&cluster, &rows))
    }

    fn table(&self, cluster: &Cluster, rows: &[Row]) -> String {
        let heads = Strategy::ALL.map(|strategy| strategy.name().to_owned());
        let mut table = Table::new(["failures".to_owned()].into_iter().chain(heads));
        for row in rows {
            let cells = row.overheads.iter().map(|(_, summary)| {
                format!("{} / {}", percent(summary.mean, 2), percent(summary.p95, 2))
            });
            table.row([row.failures.to_string()].into_iter().chain(cells));
        }
        format!(
            "{} on {} hosts: what failures add to an iteration, mean / 95th percentile of {} patterns, seed {}\n\n{}",
            self.train,
            cluster.hosts,
            self.patterns,
            self.seed,
            table.text()
        )
    }
}

/// A bar on a terminal, or none.
fn bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} patterns, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

/// `FIRST..LAST`, or one number.
fn range(text: &str) -> Result<(usize, usize), String> {
    let parse = || {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    parse()
        .filter(|(first, last)| first <= last && *last <= MOST_FAILURES)
        .ok_or_else(|| format!("{text:?} is not FIRST..LAST, up to {MOST_FAILURES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!((range("1..10"), range("3")), (Ok((1, 10)), Ok((3, 3))));
        assert!(range("3..1").is_err() && range("x").is_err());
        assert!(range("0..18446744073709551615").unwrap_err().contains("up to"));
    }
}
