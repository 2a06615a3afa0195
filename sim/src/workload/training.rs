//! How long an iteration of training takes, and what lost rails add to it.
//!
//! An iteration is the pipeline of its microbatches ([`super::pipeline`]), with activations and their gradients
//! between hosts of successive stages, and then the sum of the gradients of all replicas, stage by stage: an
//! AllReduce between the hosts of a stage. Tensor parallelism stays inside the hosts and is part of the
//! utilisation of the GPUs. What a host sums inside itself overlaps with what it sends, and is left out.

use std::collections::BTreeSet;

use ccl_core::ids::Node;

use super::pipeline::Pipeline;
use super::training_file::{cluster_of, parse};
use crate::cluster::price::{Prices, Strategy};
use crate::cluster::wrong::Wrong;
use crate::cluster::{Cluster, Outage};

/// Activations are numbers of two bytes.
const ACTIVATION_BYTES: f64 = 2.0;

/// The median time in which a job with checkpoints is back after a network failure, in seconds: 68 minutes, which
/// the R²CCL paper takes from He et al. 2023 and Jiang et al. 2024.
pub const RESTART_SECONDS: f64 = 68.0 * 60.0;

/// A training job, with a value for everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// What it is called.
    pub name: String,
    /// The cluster on which it runs, by name.
    pub cluster: String,
    /// Hosts.
    pub hosts: u32,
    /// GPUs of every host.
    pub gpus: u32,
    /// Layers of the transformer.
    pub layers: u32,
    /// Size of its hidden state.
    pub hidden: u32,
    /// Words that it knows.
    pub vocabulary: u32,
    /// GPUs that share a layer.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// Sequences of an iteration.
    pub sequences: u32,
    /// Sequences of a microbatch.
    pub micro: u32,
    /// Tokens of a sequence.
    pub tokens: u32,
    /// Bytes for every parameter of the AllReduce that sums gradients, or of every gather if it is sharded.
    pub gradient_bytes: f64,
    /// Which part of it is hidden behind computation.
    pub overlap: f64,
    /// Whether parameters are gathered for every pass and gradients scattered, instead of an AllReduce.
    pub is_sharded: bool,
    /// Useful operations of a GPU, each second.
    pub flops: f64,
}

/// The parts of an iteration, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// The pipeline: computation, bubbles, and what passes between stages.
    pub pipeline: f64,
    /// Communication of gradients (and parameters) that nothing hides.
    pub gradients: f64,
}

impl Iteration {
    /// All of it.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.pipeline + self.gradients
    }

    /// The share of what the network is waited for.
    #[must_use]
    pub fn exposed(&self) -> f64 {
        self.gradients / self.seconds()
    }
}

/// Iterations by each strategy, and without any failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Overheads {
    /// With all rails, by the planner of this library.
    pub healthy: Iteration,
    /// By strategy; infinite where hosts that exchange something have no rail in common.
    pub degraded: [Iteration; Strategy::ALL.len()],
    /// What every strategy adds to an iteration, as a share of a healthy one of its own kind.
    pub overheads: [f64; Strategy::ALL.len()],
}

impl Overheads {
    /// What a strategy adds, as a share of an iteration.
    #[must_use]
    pub fn of(&self, strategy: Strategy) -> f64 {
        self.overheads[strategy as usize]
    }
}

impl Training {
    /// Reads the text of a file, for hosts with so many GPUs; `name` is for messages. The first is the job if
    /// nothing else is said; all of them are what it may be.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn parse(name: &str, text: &str, gpus: u32) -> Result<Vec<Self>, Wrong> {
        parse(name, text, gpus)
    }

    /// The name of the cluster in such a file.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn cluster_of(name: &str, text: &str) -> Result<String, Wrong> {
        cluster_of(name, text)
    }

    /// The same on another number of hosts.
    #[must_use]
    pub fn on(mut self, hosts: u32) -> Self {
        self.hosts = hosts;
        self
    }

    /// Copies of the model.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.hosts * self.gpus / (self.tensor * self.pipeline)
    }

    /// Whether everything can be divided as it is to be.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        let stages = self.hosts.is_multiple_of(self.pipeline);
        let tensors = self.gpus.is_multiple_of(self.tensor);
        let group = u64::from(self.replicas().max(1)) * u64::from(self.micro);
        stages && tensors && u64::from(self.sequences).is_multiple_of(group)
    }

    /// Parameters: 12 matrices of hidden by hidden in every layer, with their biases and norms, and the embedding.
    #[must_use]
    pub fn parameters(&self) -> f64 {
        let [layers, hidden, vocabulary] =
            [self.layers, self.hidden, self.vocabulary].map(f64::from);
        12.0 * layers * hidden * hidden * (1.0 + 13.0 / (12.0 * hidden)) + vocabulary * hidden
    }

    /// Operations of an iteration without recomputation, by Narayanan et al. 2021.
    #[must_use]
    pub fn operations(&self) -> f64 {
        let [layers, hidden, vocabulary] =
            [self.layers, self.hidden, self.vocabulary].map(f64::from);
        let tokens = f64::from(self.tokens);
        let attention = tokens / (6.0 * hidden);
        let logits = vocabulary / (12.0 * layers * hidden);
        let words = f64::from(self.sequences) * tokens;
        72.0 * words * layers * hidden * hidden * (1.0 + attention + logits)
    }

    /// Bytes that every host of a stage sums with the others of that stage.
    #[must_use]
    pub fn bytes_of_host(&self) -> f64 {
        self.parameters() / f64::from(self.pipeline) * self.gradient_bytes
    }

    /// Hosts of a stage.
    #[must_use]
    pub fn stage_hosts(&self) -> u32 {
        self.hosts / self.pipeline
    }

    /// An iteration without any failure, by strategy: those of the paper are a ring then.
    ///
    /// # Errors
    /// Some hosts cannot talk.
    pub fn healthy(&self, cluster: &Cluster) -> Result<[Iteration; Strategy::ALL.len()], String> {
        self.iterations(cluster, &[])
    }

    /// What the strategies add to an iteration after `lost` have failed; `healthy` is [`Self::healthy`].
    ///
    /// # Errors
    /// Some hosts cannot talk.
    pub fn overheads_after(
        &self,
        cluster: &Cluster,
        healthy: &[Iteration; Strategy::ALL.len()],
        lost: &[Outage],
    ) -> Result<Overheads, String> {
        let degraded = self.iterations(cluster, lost)?;
        let overhead = |strategy: Strategy| {
            let (before, after) = (healthy[strategy as usize], degraded[strategy as usize]);
            after.seconds() / before.seconds() - 1.0
        };
        Ok(Overheads {
            healthy: healthy[Strategy::Ours as usize],
            degraded,
            overheads: Strategy::ALL.map(overhead),
        })
    }

    fn iterations(
        &self,
        cluster: &Cluster,
        lost: &[Outage],
    ) -> Result<[Iteration; Strategy::ALL.len()], String> {
        let prices = self.stage_prices(cluster, lost)?;
        Ok(Strategy::ALL.map(|strategy| self.iteration(cluster, lost, strategy, &prices)))
    }

    /// What AdapCC adds when it leaves a replica with a failed GPU out: the others have its sequences too. How the
    /// gradients that are lost are made up for is not counted.
    #[must_use]
    pub fn adapcc_overhead(&self, cluster: &Cluster, healthy: &Iteration) -> Option<f64> {
        let replicas = f64::from(self.replicas());
        (self.replicas() > 1).then(|| {
            let seconds = |more| self.pipeline_seconds(&[], cluster, more);
            let longer = seconds(replicas / (replicas - 1.0)) / seconds(1.0) - 1.0;
            longer * healthy.pipeline / healthy.seconds()
        })
    }

    /// What the AllReduce of every stage takes.
    fn stage_prices(&self, cluster: &Cluster, lost: &[Outage]) -> Result<Vec<Prices>, String> {
        let hosts = self.stage_hosts();
        let cluster = Cluster { hosts, ..cluster.clone() };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        let bytes = self.bytes_of_host() as usize;
        let mut known: Vec<(Vec<Outage>, Prices)> = Vec::new();
        let mut prices = Vec::new();
        for stage in 0..self.pipeline {
            let lost = of_stage(lost, stage, hosts);
            let found = known.iter().find(|(outages, _)| *outages == lost);
            let price = match found {
                Some((_, price)) => *price,
                None => Prices::of(&cluster, &lost, bytes)?,
            };
            known.push((lost, price));
            prices.push(price);
        }
        Ok(prices)
    }

    fn iteration(
        &self,
        cluster: &Cluster,
        lost: &[Outage],
        strategy: Strategy,
        prices: &[Prices],
    ) -> Iteration {
        let gradients = prices.iter().map(|price| self.communication(price, strategy));
        let gradients = gradients.fold(0.0, f64::max) * (1.0 - self.overlap);
        let rates = self.hop_rates(cluster, lost, strategy);
        Iteration { pipeline: self.pipeline_seconds(&rates, cluster, 1.0), gradients }
    }

    /// What gradients and parameters of a stage take. A gather or a scatter moves half of what an AllReduce does,
    /// and there are three; dividing bytes by capacity is optimal for each of them, so only hot repair differs.
    fn communication(&self, price: &Prices, strategy: Strategy) -> f64 {
        if !self.is_sharded {
            return price.seconds(strategy);
        }
        let divided = if strategy == Strategy::HotRepair { strategy } else { Strategy::Balance };
        1.5 * price.seconds(divided)
    }

    /// Bytes per second between every stage and the next, where that is slowest. A host hands its activations to the
    /// one in its place of the next stage, over the rails that both have left: zero if there are none.
    fn hop_rates(&self, cluster: &Cluster, lost: &[Outage], strategy: Strategy) -> Vec<f64> {
        let rails = cluster.nics.per_host as usize;
        let rate = |ends: [Node; 2]| {
            let here = lost.iter().filter(|outage| ends.contains(&outage.node));
            let gone = here.map(|outage| outage.rail).collect::<BTreeSet<_>>().len();
            let left = rails as f64 - gone as f64;
            let is_hot = strategy == Strategy::HotRepair && gone < rails;
            let left = if is_hot { rails as f64 / (1.0 + gone as f64) } else { left };
            left * cluster.nics.bytes_per_second
        };
        let hosts = self.stage_hosts();
        let slowest = |stage: u32| {
            let pairs = (stage * hosts..(stage + 1) * hosts).map(|host| [host - hosts, host]);
            pairs.map(|pair| rate(pair.map(Node))).fold(f64::INFINITY, f64::min)
        };
        (1..self.pipeline).map(slowest).collect()
    }

    /// The pipeline, with hops at these rates, where every replica has `more` to do.
    fn pipeline_seconds(&self, rates: &[f64], cluster: &Cluster, more: f64) -> f64 {
        let microbatches = self.sequences / (self.replicas() * self.micro);
        let gpus = f64::from(self.hosts * self.gpus);
        let each = more * self.operations() / (gpus * self.flops) / f64::from(microbatches);
        let copies = f64::from(self.gpus / self.tensor * self.micro);
        let bytes = copies * f64::from(self.tokens) * f64::from(self.hidden) * ACTIVATION_BYTES;
        let hop = |rate: f64| bytes / rate + cluster.nics.alpha;
        let mut hops: Vec<f64> = rates.iter().map(|rate| hop(*rate)).collect();
        hops.resize(self.pipeline as usize - 1, cluster.nics.alpha);
        Pipeline { microbatches, forward: each / 3.0, backward: each * 2.0 / 3.0, hops }.seconds()
    }
}

/// What has failed among the hosts of a stage, whose hosts are numbered from 0 on.
fn of_stage(lost: &[Outage], stage: u32, hosts: u32) -> Vec<Outage> {
    let here = lost.iter().filter(|outage| outage.node.0 / hosts == stage);
    here.map(|outage| Outage { node: Node(outage.node.0 % hosts), ..*outage }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::ids::Rail;

    #[test]
    fn stages_hand_over_on_the_rails_that_both_ends_have_left() {
        let (variants, cluster) = crate::presets::training("train-175b", None).unwrap();
        let training = Training { pipeline: 2, ..variants[0].clone().on(4) };
        let eighths = |lost: &[(u32, u8)], strategy| {
            let outage =
                |(node, rail): &(u32, u8)| Outage { at: 0.0, node: Node(*node), rail: Rail(*rail) };
            let lost: Vec<Outage> = lost.iter().map(outage).collect();
            let rates = training.hop_rates(&cluster, &lost, strategy);
            rates.iter().map(|rate| rate / cluster.nics.bytes_per_second).collect::<Vec<f64>>()
        };
        let (ours, hot) = (Strategy::Ours, Strategy::HotRepair);
        assert_eq!(eighths(&[], ours), [8.0]);
        assert_eq!(eighths(&[(0, 0), (2, 0)], ours), [7.0]);
        assert_eq!(eighths(&[(0, 0), (2, 1)], ours), [6.0]);
        assert_eq!(eighths(&[(0, 0), (3, 1)], ours), [7.0], "they hand nothing to each other");
        assert_eq!(eighths(&[(0, 0), (2, 1), (2, 2)], hot), [2.0]);
        let all: Vec<(u32, u8)> = (0..8).map(|rail| (2 * u32::from(rail % 2), rail)).collect();
        assert_eq!([ours, hot].map(|strategy| eighths(&all, strategy)), [[0.0], [0.0]]);
    }
}
