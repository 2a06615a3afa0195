//! What random patterns of failures cost a training job.

use rayon::prelude::*;
use serde::Serialize;

use super::training::Training;
use crate::cluster::Cluster;
use crate::cluster::montecarlo::{Summary, pattern};
use crate::cluster::price::Strategy;

/// What so many failures cost, by strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Failed NICs.
    pub failures: usize,
    /// Name, and what it adds to an iteration as a share of a healthy one; infinite where hosts that exchange something
    /// have no rail in common.
    pub overheads: Vec<(&'static str, Summary)>,
}

/// A row for every number of failures, each of so many `patterns` from `seed`. The result does not depend on the
/// number of threads; `done` is called after every pattern.
///
/// # Errors
/// There are not so many NICs that can fail, or some hosts cannot talk.
pub fn rows(
    training: &Training,
    cluster: &Cluster,
    failures: std::ops::RangeInclusive<usize>,
    (patterns, seed): (u64, u64),
    done: &(dyn Fn() + Sync),
) -> Result<Vec<Row>, String> {
    let healthy = training.healthy(cluster)?;
    let one = |(count, number): (usize, u64)| {
        let outages = pattern(cluster, count, seed, number)?;
        let overheads = training.overheads_after(cluster, &healthy, &outages);
        done();
        let said = |why: String| format!("pattern {number} of {count} failures: {why}");
        overheads.map(|overheads| overheads.overheads).map_err(said)
    };
    let cases: Vec<(usize, u64)> = failures
        .clone()
        .flat_map(|count| (0..patterns).map(move |number| (count, number)))
        .collect();
    let all: Vec<_> = cases.into_par_iter().map(one).collect::<Result<_, String>>()?;
    let chunks = all.chunks(usize::try_from(patterns).unwrap_or(usize::MAX));
    let row = |(failures, chunk): (usize, &[[f64; Strategy::ALL.len()]])| {
        let of = |strategy: Strategy| -> Vec<f64> {
            chunk.iter().map(|overheads| overheads[strategy as usize]).collect()
        };
        let overheads = Strategy::ALL.map(|s| (s.name(), Summary::of(&of(s))));
        Row { failures, overheads: overheads.to_vec() }
    };
    Ok(failures.zip(chunks).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::training;

    fn small() -> (Training, Cluster) {
        let (variants, mut cluster) = training("train-7b", None).unwrap();
        cluster.hosts = 8;
        (variants[0].clone().on(8), cluster)
    }

    #[test]
    fn the_same_seed_gives_the_same_rows() {
        let (training, cluster) = small();
        let of = |seed| {
            let rows = rows(&training, &cluster, 1..=3, (4, seed), &|| ()).unwrap();
            serde_json::to_string(&rows).unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn one_failure_costs_the_same_wherever_it_is() {
        let (training, cluster) = small();
        let rows = rows(&training, &cluster, 1..=1, (6, 1), &|| ()).unwrap();
        for (name, summary) in &rows[0].overheads {
            assert!((summary.most - summary.mean).abs() < 2e-4, "{name}: {summary:?}");
        }
    }
}
