//! `r2ccl-sim train`: what lost NICs cost an iteration.

use clap::Args;
use serde::Serialize;

use super::table::{Table, duration, json, percent};
use crate::cluster::file::MOST_HOSTS;
use crate::cluster::montecarlo::pattern;
use crate::cluster::price::Strategy;
use crate::cluster::{Cluster, Outage};
use crate::flow::command::lost;
use crate::presets::{check, check_is_whole, outages, training};
use crate::workload::Training;
use crate::workload::training::RESTART_SECONDS;

/// What is simulated.
#[derive(Args, Clone, Debug)]
pub(super) struct Train {
    /// A training job: a file, or a preset.
    #[arg(default_value = "train-7b")]
    job: String,
    /// A cluster instead of that of the job: a file, or a preset.
    #[arg(long)]
    cluster: Option<String>,
    /// So many hosts instead of those of the job.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_HOSTS)))]
    hosts: Option<u32>,
    /// NICs that are lost, as HOST:RAIL separated by commas; 0:0 if none is named here or in the file.
    #[arg(long, value_parser = lost, value_delimiter = ',')]
    lost: Vec<(u32, u8)>,
    /// So many random ones instead.
    #[arg(long, conflicts_with = "lost")]
    random: Option<usize>,
    /// The same seed draws the same.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A value, and the least and the most of all variants of a job.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    value: f64,
    least: f64,
    most: f64,
}

/// A way to live with failures.
#[derive(Clone, Debug, Serialize)]
struct Row {
    strategy: &'static str,
    iteration_seconds: Option<Spread>,
    overhead: Option<Spread>,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { value: values[0], least, most }
    }

    fn text(self, show: impl Fn(f64) -> String) -> String {
        let [value, least, most] = [self.value, self.least, self.most].map(show);
        if least == most { value } else { format!("{value} ({least} to {most})") }
    }
}

impl Train {
    pub(super) fn run(&self) -> Result<String, String> {
        let (mut variants, mut cluster) = training(&self.job, self.cluster.as_deref())?;
        if let Some(hosts) = self.hosts {
            cluster.hosts = hosts;
            variants = variants.into_iter().map(|training| training.on(hosts)).collect();
        }
        if let Some(bad) = variants.iter().find(|training| hosts_do_not_fit(training)) {
            return Err(format!(
                "{} hosts do not fit: {} stages, {} sequences in microbatches of {}; let replicas times micro \
                 divide the sequences",
                bad.hosts, bad.pipeline, bad.sequences, bad.micro
            ));
        }
        let lost = self.outages(&cluster)?;
        let rows = rows(&variants, &cluster, &lost)?;
        if self.json {
            return json(&rows);
        }
        let shares = exposed(&variants, &cluster)?;
        Ok(text(&variants[0], &lost, &shares, &rows))
    }

    fn outages(&self, cluster: &Cluster) -> Result<Vec<Outage>, String> {
        if let Some(count) = self.random {
            check_is_whole(cluster)?;
            return pattern(cluster, count, self.seed, 0);
        }
        let mut lost = cluster.outages.clone();
        lost.extend(outages(&self.lost, 0.0));
        if lost.is_empty() {
            lost = outages(&[(0, 0)], 0.0);
        }
        check(cluster, lost.iter())?;
        Ok(lost)
    }
}

fn hosts_do_not_fit(training: &Training) -> bool {
    training.hosts == 0 || !training.is_divisible()
}

/// The share of an iteration in which gradients are waited for, without failure.
fn exposed(variants: &[Training], cluster: &Cluster) -> Result<Spread, String> {
    let share = |training: &Training| {
        let healthy = training.healthy(cluster)?;
        Ok(healthy[Strategy::Ours as usize].exposed())
    };
    Ok(Spread::of(&variants.iter().map(share).collect::<Result<Vec<f64>, String>>()?))
}

fn rows(variants: &[Training], cluster: &Cluster, lost: &[Outage]) -> Result<Vec<Row>, String> {
    let all = variants
        .iter()
        .map(|training| {
            let healthy = training.healthy(cluster)?;
            training.overheads_after(cluster, &healthy, lost)
        })
        .collect::<Result<Vec<_>, String>>()?;
    let spread = |value: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..variants.len()).map(value).collect();
        Some(Spread::of(&values))
    };
    let healthy = Row {
        strategy: "no failure",
        iteration_seconds: spread(&|number| all[number].healthy.seconds()),
        overhead: None,
    };
    let ways = Strategy::ALL.map(|strategy| Row {
        strategy: strategy.name(),
        iteration_seconds: spread(&|n| all[n].degraded[strategy as usize].seconds()),
        overhead: spread(&|number| all[number].of(strategy)),
    });
    let adapcc = variants.iter().zip(&all);
    let adapcc = adapcc.map(|(training, all)| training.adapcc_overhead(cluster, &all.healthy));
    let adapcc: Option<Vec<f64>> = adapcc.collect();
    let excluded = Row {
        strategy: "adapcc, at least",
        iteration_seconds: None,
        overhead: adapcc.map(|overheads| Spread::of(&overheads)),
    };
    Ok([healthy].into_iter().chain(ways).chain([excluded]).collect())
}

fn text(training: &Training, lost: &[Outage], exposed: &Spread, rows: &[Row]) -> String {
    let mut table = Table::new(["strategy", "iteration", "overhead"]);
    for row in rows {
        let iteration =
            row.iteration_seconds.map_or("-".to_owned(), |spread| spread.text(duration));
        let overhead = row.overhead.map_or("-".to_owned(), |o| o.text(|share| percent(share, 3)));
        table.row([row.strategy.to_owned(), iteration, overhead]);
    }
    format!(
        "{}: {:.2} billion parameters, {} hosts, {} replicas, {} NICs lost; gradients are waited for in {} of a \
         healthy iteration\n\n{}\nA job that starts again from a checkpoint loses {:.0} minutes in the median, and \
         what it has computed since.\n",
        training.name,
        training.parameters() / 1e9,
        training.hosts,
        training.replicas(),
        lost.len(),
        exposed.text(|share| percent(share, 1)),
        table.text(),
        RESTART_SECONDS / 60.0
    )
}
