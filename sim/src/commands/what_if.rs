//! `r2ccl-sim what-if`: a cluster of one's own, and what its failures would cost.

use std::fmt::Write;

use clap::Args;

use super::table::{Table, duration, percent};
use crate::cluster::plan::{PLANNER, Scene};
use crate::cluster::price::{Prices, Strategy};
use crate::cluster::{Cluster, Outage, Ranks};
use crate::flow::command::size;
use crate::presets::{check, cluster, outages, training};

/// Among more hosts, programs are not run.
const MOST_RUN_HOSTS: u32 = 32;

/// What is asked.
#[derive(Args, Clone, Debug)]
pub(super) struct WhatIf {
    /// The cluster, with what fails: a file, or a preset.
    cluster: String,
    /// A training job that runs on it: a file, or a preset.
    #[arg(long)]
    train: Option<String>,
    /// Sizes of an AllReduce, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "1M,16M,256M,4G")]
    bytes: Vec<usize>,
}

impl WhatIf {
    pub(super) fn run(&self) -> Result<String, String> {
        let cluster = cluster(&self.cluster)?;
        let mut lost: Vec<Outage> = cluster.outages.clone();
        let mut text = String::new();
        if lost.is_empty() {
            text.push_str("The file names no [[failure]]: as if NIC 0 of host 0 failed.\n");
            lost = outages(&[(0, 0)], 0.0);
        }
        check(&cluster, lost.iter())?;
        let _ = writeln!(
            text,
            "{}: {} hosts with {} NICs, {} of them lost\n",
            cluster.name,
            cluster.hosts,
            cluster.nics.per_host,
            lost.len()
        );
        text += &self.sizes(&cluster, &lost)?;
        text += &self.rails(&cluster)?;
        text += &self.moment(&cluster, &lost)?;
        if let Some(job) = &self.train {
            text += &iteration(job, &self.cluster, &lost)?;
        }
        Ok(text)
    }

    /// An AllReduce of every size, planned for what is left.
    fn sizes(&self, cluster: &Cluster, lost: &[Outage]) -> Result<String, String> {
        let heads = Strategy::ALL.map(|strategy| strategy.name().to_owned());
        let first = ["AllReduce".to_owned(), "no failure".to_owned()];
        let mut table = Table::new(first.into_iter().chain(heads));
        for bytes in &self.bytes {
            let whole = Prices::of(cluster, &[], *bytes)?.seconds(Strategy::Ours);
            let prices = Prices::of(cluster, lost, *bytes)?;
            let cells = Strategy::ALL.map(|strategy| duration(prices.seconds(strategy)));
            let first = [format!("{bytes} bytes"), duration(whole)];
            table.row(first.into_iter().chain(cells));
        }
        Ok(format!("When all ranks have planned for what is left:\n{}\n", table.text()))
    }

    /// With more and more NICs of one host lost, each strategy beside itself without a failure.
    fn rails(&self, cluster: &Cluster) -> Result<String, String> {
        let bytes = self.bytes.iter().copied().max().unwrap_or(1 << 30);
        let whole = Prices::of(cluster, &[], bytes)?;
        let mut table = Table::new(["NICs of host 0", "balance", "r2ccl planner"]);
        let most = cluster.nics.per_host.min(u32::from(u8::MAX));
        for count in 1..most {
            let nics: Vec<(u32, u8)> =
                (0..count).map(|rail| (0, u8::try_from(rail).unwrap_or(u8::MAX))).collect();
            let prices = Prices::of(cluster, &outages(&nics, 0.0), bytes)?;
            let keeps = |of| percent(whole.seconds(of) / prices.seconds(of), 1);
            let left = format!("{} of {}", cluster.nics.per_host - count, cluster.nics.per_host);
            table.row([left, keeps(Strategy::Balance), keeps(Strategy::Ours)]);
        }
        Ok(format!(
            "What an AllReduce of {bytes} bytes keeps of its bandwidth:\n{}\n",
            table.text()
        ))
    }

    /// The AllReduce in which the failures happen, and those until all ranks have agreed.
    fn moment(&self, cluster: &Cluster, lost: &[Outage]) -> Result<String, String> {
        let delays = cluster.delays;
        let mut text = format!(
            "From a failure on, lanes of the rail wait {} until they use others, and the next plan comes after {}.\n",
            duration(delays.detection + delays.migration),
            duration(delays.agreement)
        );
        if cluster.hosts > MOST_RUN_HOSTS || cluster.hosts < 2 {
            return Ok(text + "\n");
        }
        let bytes = self.bytes.iter().copied().max().unwrap_or(1 << 30);
        let scene = Scene::allreduce(cluster, Ranks::Hosts, &[], bytes);
        let plan = scene.plan(PLANNER)?;
        let healthy = scene.run(&plan, &[])?.seconds;
        let hit = scene.run(&plan, lost)?.seconds;
        let _ = writeln!(
            text,
            "The AllReduce of {bytes} bytes during which they happen takes {} instead of {}.\n",
            duration(hit),
            duration(healthy)
        );
        Ok(text)
    }
}

/// What it costs a training job.
fn iteration(job: &str, cluster: &str, lost: &[Outage]) -> Result<String, String> {
    let (variants, cluster) = training(job, Some(cluster))?;
    let healthy = variants[0].healthy(&cluster)?;
    let overheads = variants[0].overheads_after(&cluster, &healthy, lost)?;
    let mut table = Table::new(["strategy", "iteration", "overhead"]);
    table.row(["no failure".to_owned(), duration(overheads.healthy.seconds()), "-".to_owned()]);
    for strategy in Strategy::ALL {
        let iteration = overheads.degraded[strategy as usize].seconds();
        table.row([
            strategy.name().to_owned(),
            duration(iteration),
            percent(overheads.of(strategy), 3),
        ]);
    }
    Ok(format!("{} on {} hosts:\n{}", variants[0].name, cluster.hosts, table.text()))
}
