//! `r2ccl-sim collective`: a row per strategy.

use ccl_core::collective::Collective as Kind;
use clap::Args;
use serde::Serialize;

use super::table::{Table, duration, json, percent};
use crate::cluster::execution::{Execution, Fairness};
use crate::cluster::plan::{PLANNER, Scene, healing};
use crate::cluster::{Cluster, Outage, Ranks};
use crate::flow::command::{lost, seconds, size};
use crate::presets::{check, cluster, outages};

/// Among more hosts, programs are not run.
const MOST_RUN_HOSTS: u32 = 1024;

/// What is simulated.
#[derive(Args, Clone, Debug)]
pub(super) struct Collective {
    /// A cluster: a file, or a preset.
    #[arg(long, default_value = "a100")]
    cluster: String,
    /// So many hosts instead of those of the file.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RUN_HOSTS)))]
    hosts: Option<u32>,
    /// A rank for every GPU, instead of one for every host.
    #[arg(long)]
    gpus: bool,
    /// NICs that are down when it is planned, as HOST:RAIL separated by commas, beside those of the file.
    #[arg(long, value_parser = lost, value_delimiter = ',')]
    lost: Vec<(u32, u8)>,
    /// NICs that fail while it runs, planned for when all worked.
    #[arg(long, value_parser = lost, value_delimiter = ',')]
    fails: Vec<(u32, u8)>,
    /// When they do, after the beginning.
    #[arg(long, value_parser = seconds, default_value = "0s")]
    at: f64,
    /// Which collective, by the name of its function.
    #[arg(long, default_value = "allreduce", value_parser = kind)]
    collective: Kind,
    /// Bytes that every rank contributes, or of a block.
    #[arg(long, value_parser = size, default_value = "1G")]
    bytes: usize,
    /// Algorithms, separated by commas; for an AllReduce those of the paper and the planner's if none is named.
    #[arg(long, value_delimiter = ',')]
    algo: Vec<String>,
    /// What links that share a NIC get of it: as much as each other, or in proportion to what they carry.
    #[arg(long, value_enum, default_value = "links")]
    fairness: Fairness,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One strategy.
#[derive(Clone, Debug, Serialize)]
struct Row {
    strategy: String,
    /// Infinite if it cannot work here.
    seconds: f64,
    /// Seconds without any failure, if the strategy makes sense then.
    healthy_seconds: Option<f64>,
    bound_seconds: f64,
    segments: u64,
    fillings: u64,
    /// Why it cannot work.
    left_out: Option<String>,
}

/// Of a strategy that cannot work.
const NEVER: Execution = Execution { seconds: f64::INFINITY, segments: 0, fillings: 0 };

impl Collective {
    pub(super) fn run(&self) -> Result<String, String> {
        let mut cluster = cluster(&self.cluster)?;
        cluster.hosts = self.hosts.unwrap_or(cluster.hosts);
        if cluster.hosts > MOST_RUN_HOSTS {
            let hosts = cluster.hosts;
            return Err(format!(
                "{hosts} hosts: let there be {MOST_RUN_HOSTS} at most, by --hosts"
            ));
        }
        let of_file = cluster.outages.iter();
        let (mut before, mut during): (Vec<Outage>, Vec<Outage>) =
            of_file.partition(|outage| outage.at <= 0.0);
        before.extend(outages(&self.lost, 0.0));
        during.extend(outages(&self.fails, self.at));
        check(&cluster, before.iter().chain(&during))?;
        let rows = self.rows(&cluster, &before, &during)?;
        if self.json { json(&rows) } else { Ok(table(&rows)) }
    }

    fn rows(
        &self,
        cluster: &Cluster,
        before: &[Outage],
        during: &[Outage],
    ) -> Result<Vec<Row>, String> {
        let ranks = if self.gpus { Ranks::Gpus } else { Ranks::Hosts };
        let scene = |lost: &[Outage]| {
            Scene::new(cluster, ranks, lost, self.collective, self.bytes).sharing(self.fairness)
        };
        let (degraded, healthy) = (scene(before), scene(&[]));
        let asked: Vec<&str> = match (self.algo.is_empty(), self.collective) {
            (true, Kind::AllReduce) => degraded.compared(during).to_vec(),
            (true, _) => vec![PLANNER],
            (false, _) => self.algo.iter().map(String::as_str).collect(),
        };
        let executed = |name: &str| -> Result<Execution, String> {
            degraded.run_healing(&degraded.plan(name)?, during, healing(name))
        };
        let one = |name: &str| -> Result<Row, String> {
            let (execution, left_out) = match executed(name) {
                Ok(execution) => (execution, None),
                Err(why) if self.algo.is_empty() && name != PLANNER => (NEVER, Some(why)),
                Err(why) => return Err(format!("{name}: {why}")),
            };
            let whole = healthy.plan(name).ok().and_then(|plan| healthy.run(&plan, &[]).ok());
            Ok(Row {
                strategy: name.to_owned(),
                seconds: execution.seconds,
                healthy_seconds: whole.map(|whole| whole.seconds),
                bound_seconds: degraded.bound_seconds(),
                segments: execution.segments,
                fillings: execution.fillings,
                left_out,
            })
        };
        asked.into_iter().map(one).collect()
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(["strategy", "time", "of healthy", "of bound"]);
    let share = |of: f64, row: &Row| match of > 0.0 && row.seconds > 0.0 && row.seconds.is_finite()
    {
        true => percent(of / row.seconds, 1),
        false => "-".to_owned(),
    };
    for row in rows {
        table.row([
            row.strategy.clone(),
            duration(row.seconds),
            share(row.healthy_seconds.unwrap_or(0.0), row),
            share(row.bound_seconds, row),
        ]);
    }
    let reasons = rows.iter().filter_map(|row| Some((&row.strategy, row.left_out.as_ref()?)));
    let reasons = reasons.map(|(strategy, why)| format!("left out: {strategy}: {why}\n"));
    table.text() + &reasons.collect::<String>()
}

fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    found.filter(|kind| !matches!(kind, Kind::AllToAllV | Kind::PointToPoint)).ok_or_else(|| {
        "allreduce, allgather, reducescatter, broadcast, reduce, alltoall, gather, scatter, barrier"
            .to_owned()
    })
}
