//! `r2ccl-sim scale`: how the time of planning and simulating grows with the number of hosts.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::table::{Table, duration, json, percent};
use crate::cluster::file::MOST_HOSTS;
use crate::cluster::montecarlo::pattern;
use crate::cluster::plan::{PLANNER, Scene};
use crate::cluster::wide::planned;
use crate::cluster::{Cluster, Ranks};
use crate::flow::command::size;
use crate::presets::{check_is_whole, cluster};
use crate::report::{Plot, draw};

/// The plan of the planner is followed in about so many steps.
const SEGMENTS: usize = 8;

/// What is measured.
#[derive(Args, Clone, Debug)]
pub(super) struct Scale {
    /// A cluster: a file, or a preset.
    #[arg(long, default_value = "a100")]
    cluster: String,
    /// Numbers of hosts, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_HOSTS)),
        default_value = "64,128,256,512,1024,2048,4096,8192"
    )]
    hosts: Vec<u32>,
    /// NICs that have failed among the most hosts; among fewer, in proportion.
    #[arg(long, default_value_t = 1000)]
    failures: usize,
    /// Bytes that every host contributes.
    #[arg(long, value_parser = size, default_value = "16G")]
    bytes: usize,
    /// The same seed draws the same failures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a picture of how time and memory grow.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A size of the cluster.
#[derive(Clone, Debug, Serialize)]
struct Row {
    hosts: u32,
    failures: usize,
    classes: usize,
    /// What the planner takes by itself.
    choice: String,
    choice_seconds: f64,
    plan_seconds: f64,
    simulation_seconds: f64,
    peak_bytes: u64,
    /// What it takes simulated, and what nothing can beat.
    allreduce_seconds: f64,
    bound_seconds: f64,
}

impl Scale {
    pub(super) fn run(&self) -> Result<String, String> {
        let base = cluster(&self.cluster)?;
        check_is_whole(&base)?;
        let most = self.hosts.iter().copied().max().unwrap_or(1);
        if self.svg.is_some() && self.hosts.iter().all(|hosts| *hosts == most) {
            return Err(format!(
                "--svg: there is no curve of {most} hosts alone; name another --hosts"
            ));
        }
        let most = f64::from(most);
        let row = |hosts: &u32| {
            let share = f64::from(*hosts) / most;
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a count"
            )]
            let failures = (self.failures as f64 * share).round() as usize;
            self.row(&Cluster { hosts: *hosts, ..base.clone() }, failures)
        };
        let rows = self.hosts.iter().map(row).collect::<Result<Vec<Row>, String>>()?;
        if let Some(file) = &self.svg {
            let drawn = draw(&plot(&rows))?;
            std::fs::write(file, drawn)
                .map_err(|cause| format!("--svg {}: {cause}", file.display()))?;
        }
        if self.json {
            return json(&rows);
        }
        Ok(table(&rows))
    }

    fn row(&self, cluster: &Cluster, failures: usize) -> Result<Row, String> {
        let outages = pattern(cluster, failures, self.seed, 0)?;
        let scene = Scene::allreduce(cluster, Ranks::Hosts, &outages, self.bytes);
        let planning = now();
        let choice = ccl_algorithms::choose(scene.request(), scene.topology(), scene.model(), None)
            .map_err(|error| format!("{PLANNER}: {error}"))?;
        let plan_seconds = planning.elapsed().as_secs_f64();
        let simulating = now();
        let wide = planned(&scene, choice.name, SEGMENTS)
            .map_err(|why| format!("{} hosts, {failures} failures: {why}", cluster.hosts))?;
        Ok(Row {
            hosts: cluster.hosts,
            failures,
            classes: wide.classes,
            choice: choice.name.to_owned(),
            choice_seconds: choice
                .candidates
                .iter()
                .find(|c| c.name == choice.name)
                .map_or(0.0, |c| c.estimate.seconds),
            plan_seconds,
            simulation_seconds: simulating.elapsed().as_secs_f64(),
            peak_bytes: peak_bytes(),
            allreduce_seconds: wide.seconds,
            bound_seconds: scene.bound_seconds(),
        })
    }
}

#[allow(clippy::disallowed_methods, reason = "how long the simulation takes is no input of it")]
fn now() -> Instant {
    Instant::now()
}

/// The most memory that this process had so far; zero where the system does not tell.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn plot(rows: &[Row]) -> Plot {
    let curve = |name: &str, of: fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (f64::from(row.hosts), of(row)));
        (name.to_owned(), points.collect())
    };
    Plot {
        title: "One AllReduce".to_owned(),
        axes: ("hosts", "seconds, or gigabytes"),
        logarithmic: (true, false),
        curves: vec![
            curve("planned in, seconds", |row| row.plan_seconds),
            curve("simulated in, seconds", |row| row.simulation_seconds),
            curve("memory, gigabytes", |row| row.peak_bytes as f64 / 1e9),
        ],
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        "hosts",
        "failures",
        "classes",
        "planned in",
        "simulated in",
        "memory",
        "choice",
        "predicted",
        "simulated",
        "of bound",
    ]);
    for row in rows {
        table.row([
            row.hosts.to_string(),
            row.failures.to_string(),
            row.classes.to_string(),
            duration(row.plan_seconds),
            duration(row.simulation_seconds),
            format!("{} MB", row.peak_bytes / 1_000_000),
            row.choice.clone(),
            duration(row.choice_seconds),
            duration(row.allreduce_seconds),
            percent(row.bound_seconds / row.allreduce_seconds, 1),
        ]);
    }
    table.text()
}
