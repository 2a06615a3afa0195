//! The cluster that is asked about: one that was measured, or one that is made up.

use std::path::Path;

use ccl_core::cost::CostModel;
use ccl_core::ids::{Node, Rail};
use ccl_core::settings::Settings;
use ccl_core::topology::{Host, RailCapacity, Topology};
use ccl_core::tuning::{Format, Tuning, model};

use crate::arguments::{Explain, Lost};

/// A rail of 25 Gbit/s, if nothing is said.
const DEFAULT_RATE: f64 = 25e9 / 8.0;
/// Processors of a node that is made up, for each of its ranks.
const CORES_PER_RANK: u32 = 4;

/// Where plans are made for, and what they are priced with.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// With all rails.
    pub(crate) healthy: Topology,
    /// With those that are left.
    pub(crate) topology: Topology,
    pub(crate) model: CostModel,
}

impl Cluster {
    /// # Errors
    /// The file of measurements cannot be used, a lost rail does not exist, or a node has none left.
    pub(crate) fn of(wish: &Explain) -> Result<Self, String> {
        let (healthy, mut model) = match &wish.tuning {
            Some(file) => measured(file)?,
            None => made_up(wish),
        };
        if let Some(alpha) = wish.alpha {
            model.network.alpha = alpha / 1e6;
        }
        if let Some(overhead) = wish.overhead {
            model.network.overhead = overhead / 1e6;
        }
        let mut topology = healthy.clone();
        for lost in &wish.lost {
            let node = Node(lost.node);
            exists(&healthy, *lost)?;
            topology = topology.with_rail(node, Rail(lost.rail), false);
        }
        let dead = (0..topology.nodes()).find(|node| topology.capacity(Node(*node)) <= 0.0);
        match dead.filter(|_| topology.nodes() > 1) {
            Some(node) => Err(format!("node {node} has no rail left: nothing reaches it")),
            None => Ok(Self { healthy, topology, model }),
        }
    }
}

/// # Errors
/// There is no such rail; the text says which there are.
fn exists(topology: &Topology, Lost { node, rail }: Lost) -> Result<(), String> {
    let no = |what: String, count: usize| {
        Err(format!("--lost {node}:{rail}: {what} are 0 to {}", count.saturating_sub(1)))
    };
    if node >= topology.nodes() {
        return no("nodes".to_owned(), topology.nodes() as usize);
    }
    match topology.rails(Node(node)).len() {
        0 => Err(format!("--lost {node}:{rail}: node {node} has no rails")),
        rails if usize::from(rail) >= rails => no(format!("rails of node {node}"), rails),
        _ => Ok(()),
    }
}

fn measured(file: &Path) -> Result<(Topology, CostModel), String> {
    let failed = |cause: &dyn std::fmt::Display| format!("--tuning {}: {cause}", file.display());
    let text = std::fs::read(file).map_err(|cause| failed(&cause))?;
    let format: Format = serde_json::from_slice(&text).map_err(|cause| failed(&cause))?;
    format.check().map_err(|cause| failed(&cause))?;
    let tuning: Tuning = serde_json::from_slice(&text).map_err(|cause| failed(&cause))?;
    let mut node_of = Vec::new();
    let mut hosts = Vec::new();
    for (node, host) in (0..).map(Node).zip(&tuning.hosts) {
        node_of.extend(std::iter::repeat_n(node, host.ranks));
        let cores = u32::try_from(host.ranks).unwrap_or(u32::MAX).saturating_mul(CORES_PER_RANK);
        hosts.push(Host {
            rails: host.rails.iter().map(|rate| RailCapacity::up(*rate)).collect(),
            cores,
        });
    }
    if tuning.hosts.iter().any(|host| host.ranks == 0) || hosts.is_empty() {
        return Err(failed(&"a node without ranks"));
    }
    let topology = Topology::new(node_of, hosts);
    tuning.check(&topology).map_err(|cause| failed(&cause))?;
    let model = model(&topology, &Settings::default(), Some(&tuning));
    Ok((tuning.topology(&topology), model))
}

fn made_up(wish: &Explain) -> (Topology, CostModel) {
    let rate = match (&wish.rate, &wish.preset) {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        (Some(rate), _) => rate.as_u64() as f64,
        (None, Some(preset)) => preset.rail_bytes_per_second,
        (None, None) => DEFAULT_RATE,
    };
    let host = Host {
        rails: vec![RailCapacity::up(rate); wish.rails as usize],
        cores: wish.ranks_per_node.saturating_mul(CORES_PER_RANK),
    };
    let node_of = (0..wish.nodes)
        .flat_map(|node| std::iter::repeat_n(Node(node), wish.ranks_per_node as usize))
        .collect();
    let topology = Topology::new(node_of, vec![host; wish.nodes as usize]);
    let mut model = match wish.preset {
        Some(preset) => preset.model(wish.rails),
        None => model(&topology, &Settings::default(), None),
    };
    model.network.bytes_per_second = rate * f64::from(wish.rails);
    if wish.preset.is_none() {
        // The network is what is asked about; processors are taken to keep up with it.
        model.network_cpu_bytes_per_second =
            f64::max(model.network_cpu_bytes_per_second, 4.0 * model.network.bytes_per_second);
    }
    (topology, model)
}
