//! `r2ccl-sim report`: the figures of the paper.

use std::path::PathBuf;

use clap::Args;

use super::table::Table;
use crate::report::{LEFT_OUT, Report as Figures, page, tally};

/// What is written.
#[derive(Args, Clone, Debug)]
pub(super) struct Report {
    /// Write one HTML file with all pictures.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Patterns for each number of failures.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    patterns: u64,
    /// The same seed draws the same patterns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Report {
    pub(super) fn run(&self) -> Result<String, String> {
        let report = Figures::simulate(self.patterns, self.seed)?;
        if let Some(file) = &self.out {
            let how = format!("r2ccl-sim report --patterns {} --seed {}", self.patterns, self.seed);
            let page = page(&report, &how)?;
            std::fs::write(file, page)
                .map_err(|cause| format!("--out {}: {cause}", file.display()))?;
        }
        let mut table = Table::new(["figure, what", "paper", "ours", "tolerance", "verdict"]);
        for row in &report.rows {
            let name = format!("{:3} {}", row.figure, row.what);
            let verdict = row.verdict().name().to_owned();
            table.row([name, row.paper.to_owned(), row.ours(), row.tolerance(), verdict]);
        }
        Ok(format!("{}\n{}.\n{LEFT_OUT}\n", table.text(), tally(&report.rows)))
    }
}
