//! What was measured on a group: how fast each rail of each host is, and what a message costs. Plans are
//! made with it instead of what the kernel says of the NICs.

use serde::{Deserialize, Serialize};

use crate::cost::CostModel;
use crate::ids::Node;
use crate::queue::{queue_bytes, tile_bytes};
use crate::settings::Settings;
use crate::topology::{Host, RailCapacity, Topology};

/// The format of this version.
const VERSION: u32 = 1;

/// Measurements of equal rails differ by so much of their rate.
const SCATTER: f64 = 0.05;

/// Measurements of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    version: u32,
    /// The hosts, in order of node.
    pub hosts: Vec<TunedHost>,
    /// Seconds from a send to its arrival on another host, apart from the bytes.
    pub alpha: f64,
    /// Seconds of CPU at either end for each further message.
    pub overhead: f64,
}

/// Measurements of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedHost {
    /// How many ranks it has.
    pub ranks: usize,
    /// Bytes per second of every rail, in each direction.
    pub rails: Vec<f64>,
}

/// What a file of measurements says first: the rest is of use only if this version knows it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Format {
    version: u32,
}

impl Format {
    /// Whether this version knows it.
    ///
    /// # Errors
    /// It does not; for people.
    pub fn check(&self) -> Result<(), String> {
        match self.version {
            VERSION => Ok(()),
            other => Err(format!("it has format {other}, and this is format {VERSION}")),
        }
    }
}

/// What plans for `topology` are priced with.
#[must_use]
pub fn model(topology: &Topology, settings: &Settings, tuning: Option<&Tuning>) -> CostModel {
    let mut model = CostModel::default_for(topology);
    let largest = (0..topology.nodes()).map(|node| topology.ranks_of(Node(node)).len()).max();
    model.tile_bytes = settings.pair_tile_bytes(largest.unwrap_or(1));
    model.network_tile_bytes = settings.net_tile_bytes;
    tuning.map_or(model, |tuning| tuning.model(model))
}

impl Tuning {
    /// What was measured.
    #[must_use]
    pub fn new(hosts: Vec<TunedHost>, alpha: f64, overhead: f64) -> Self {
        Self { version: VERSION, hosts, alpha, overhead }
    }

    /// Whether it is for a group like this one, and makes sense.
    ///
    /// # Errors
    /// What does not fit, for people.
    pub fn check(&self, topology: &Topology) -> Result<(), String> {
        Format { version: self.version }.check()?;
        let shape = |hosts: &[(usize, usize)]| {
            let words = hosts.iter().map(|(ranks, rails)| format!("{ranks} ranks × {rails} rails"));
            words.collect::<Vec<_>>().join(", ")
        };
        let ours: Vec<(usize, usize)> = (0..topology.nodes())
            .map(|node| (topology.ranks_of(Node(node)).len(), topology.rails(Node(node)).len()))
            .collect();
        let theirs: Vec<(usize, usize)> =
            self.hosts.iter().map(|host| (host.ranks, host.rails.len())).collect();
        if ours != theirs {
            let (ours, theirs) = (shape(&ours), shape(&theirs));
            return Err(format!("it is for hosts with {theirs}; these have {ours}"));
        }
        let positive = |rate: &f64| rate.is_finite() && *rate > 0.0;
        let rates = || self.hosts.iter().flat_map(|host| &host.rails);
        if !rates().all(positive) || !positive(&self.alpha) || self.overhead.is_nan() {
            return Err("it contains a rate or a latency that is not a positive number".to_owned());
        }
        Ok(())
    }

    /// `topology` with the rails as fast as they were measured. Those that are about as fast as most are
    /// alike: plans for hosts that differ a little would be worse than those for equal ones.
    #[must_use]
    pub fn topology(&self, topology: &Topology) -> Topology {
        let node_of = (0..topology.ranks()).map(|rank| topology.node_of(crate::ids::Rank(rank)));
        let median = self.median();
        let hosts = self.hosts.iter().zip(0..).map(|(tuned, node)| {
            let node = Node(node);
            let rails = topology.rails(node).iter().zip(&tuned.rails);
            let rails = rails.map(|(rail, rate)| {
                let scatters = (rate / median - 1.0).abs() <= SCATTER;
                let bytes_per_second = if scatters { median } else { *rate };
                RailCapacity { bytes_per_second, ..*rail }
            });
            Host { rails: rails.collect(), cores: topology.cores(node) }
        });
        Topology::new(node_of.collect(), hosts.collect())
    }

    /// The rate that half of the rails exceed, or have.
    fn median(&self) -> f64 {
        let rates = self.hosts.iter().flat_map(|host| host.rails.iter().copied());
        let mut rates: Vec<f64> = rates.collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }

    /// `model` with what messages between hosts were measured to cost.
    #[must_use]
    pub fn model(&self, mut model: CostModel) -> CostModel {
        let fastest = self.hosts.iter().map(|host| host.rails.iter().sum::<f64>());
        model.network.alpha = self.alpha;
        model.network.overhead = self.overhead.max(0.0);
        model.network.bytes_per_second = fastest.fold(0.0, f64::max);
        let rails = self.hosts.iter().flat_map(|host| host.rails.iter().copied());
        let queue =
            queue_bytes(rails.fold(f64::INFINITY, f64::min), self.hosts.len().saturating_sub(1));
        model.network_tile_bytes = tile_bytes(queue, model.network_tile_bytes);
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        let host = Host { rails: vec![RailCapacity::up(1e9); 2], cores: 2 };
        Topology::new(vec![Node(0), Node(0), Node(1)], vec![host.clone(), host])
    }

    fn tuned(ranks: usize, rails: &[f64]) -> TunedHost {
        TunedHost { ranks, rails: rails.to_vec() }
    }

    #[test]
    fn measurements_replace_what_the_kernel_says() {
        let hosts = vec![tuned(2, &[1e8, 2e8]), tuned(1, &[3e8, 3e8])];
        let tuning = Tuning::new(hosts, 1e-5, 2e-6);
        let topology = topology().with_rail(Node(1), crate::ids::Rail(0), false);
        assert_eq!(tuning.check(&topology), Ok(()));
        assert_eq!(tuning.topology(&topology).capacities(), [3e8, 3e8], "a rail is down");
        let model = tuning.model(CostModel::default_for(&topology));
        assert_eq!(model.network_tile_bytes, 128 << 10);
        assert_eq!((model.network.alpha, model.network.bytes_per_second), (1e-5, 6e8));
        let slow = Tuning::new(vec![tuned(2, &[1e8; 2]), tuned(1, &[1e8, 1e6])], 1e-5, 2e-6);
        let model = slow.model(CostModel::default_for(&topology));
        assert_eq!(model.network_tile_bytes, 8 << 10, "as small as the slowest rail wants");
    }

    #[test]
    fn rails_that_are_about_as_fast_as_most_are_alike() {
        let hosts = vec![tuned(2, &[1e8, 1.04e8]), tuned(1, &[0.97e8, 0.8e8])];
        let tuned = Tuning::new(hosts, 1e-5, 2e-6).topology(&topology());
        let rates = |node| tuned.rails(node).iter().map(|rail| rail.bytes_per_second);
        assert!(rates(Node(0)).eq([1e8, 1e8]) && rates(Node(1)).eq([1e8, 0.8e8]), "{tuned:?}");
        assert_eq!(Tuning::new(Vec::new(), 1e-5, 0.0).median(), 0.0);
    }

    #[test]
    fn what_was_measured_elsewhere_is_refused() {
        let good = vec![tuned(2, &[1e8; 2]), tuned(1, &[1e8; 2])];
        for (tuning, named) in [
            (Tuning::new(good[..1].to_vec(), 1e-5, 0.0), "2 ranks × 2 rails; these have"),
            (Tuning::new(vec![tuned(2, &[1e8; 2]), tuned(1, &[1e8])], 1e-5, 0.0), "1 ranks × 1"),
            (Tuning::new(vec![tuned(2, &[1e8; 2]), tuned(1, &[0.0, 1e8])], 1e-5, 0.0), "positive"),
            (Tuning::new(good.clone(), f64::NAN, 0.0), "positive"),
            (Tuning { version: 9, ..Tuning::new(good, 1e-5, 0.0) }, "format 9"),
        ] {
            let refused = tuning.check(&topology()).expect_err(named);
            assert!(refused.contains(named), "{refused}");
        }
    }
}
