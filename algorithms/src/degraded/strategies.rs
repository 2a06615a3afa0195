//! The strategies by name, with the time for which each keeps the network busy.

use std::sync::Arc;

use ccl_core::cost::{LinkCost, Network};
use ccl_core::ids::Node;
use ccl_core::topology::Topology;

use super::nested::{levels, nested_rings};
use super::order::{best_ring, ring_capacity};
use super::paper::{
    Share, balance, bridge_order, bridge_ring, hot_repair, recursive, recursive_time, two_stage,
    two_stage_time,
};
use super::pipeline::{Pipeline, best_lead, best_slices};
use super::rails::Division;
use super::rounds::in_rounds;
use super::{Between, Fabric, MOST_HOSTS, Reach, real};
use crate::candidates::joined;
use crate::combine::{Items, there_and_back};
use crate::pattern::Pattern;
use crate::scene::Scene;
use crate::spread::AllGather;

const OURS: [&str; 3] = ["hub_shares", "nested_rings", "best_ring"];

/// Names of those of the R²CCL paper, which are compared with ours and never better.
pub(crate) const BASELINES: [&str; 6] = [
    "balance",
    "r2ccl_hot_repair",
    "r2ccl_two_stage",
    "r2ccl_two_stage_printed",
    "r2ccl_recursive",
    "r2ccl_bridge_ring",
];

/// All names.
pub(crate) const NAMES: [&str; 9] = joined(&OURS, &BASELINES);

/// A strategy for the hosts of a scene.
#[derive(Debug)]
pub(crate) struct Strategy {
    pub(crate) between: Between,
    pub(crate) network: Network,
    /// The same in one slice, if there are several.
    pub(crate) unsliced: Option<Between>,
    /// Seconds that the other slices cost, apart from the bytes.
    pub(crate) slices_seconds: f64,
    /// Which rails carry what, if that is not by capacity.
    pub(crate) division: Option<Division>,
}

impl Strategy {
    fn new(between: Between, network: Network) -> Self {
        Self { between, network, unsliced: None, slices_seconds: 0.0, division: None }
    }
}

impl Fabric {
    /// The rails of `topology`. Hosts with as many rails as each other reach each other's rail by rail, others in turn,
    /// which is how links connect them.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let nodes = || (0..topology.nodes()).map(Node);
        let rails = |node| topology.rails(node).iter();
        let rates = nodes().map(|node| {
            rails(node).map(|rail| if rail.up { rail.bytes_per_second } else { 0.0 }).collect()
        });
        let count = topology.rails(Node(0)).len();
        let alike = nodes().all(|node| topology.rails(node).len() == count);
        Self::new(rates.collect(), if alike { Reach::RailOnly } else { Reach::InTurn })
    }

    /// Whether all hosts have the same rails, equally fast.
    #[must_use]
    pub fn is_even(&self) -> bool {
        (1..self.hosts()).all(|host| self.rails(host) == self.rails(0))
    }
}

/// Fewer seconds than these no plan of this name takes; nothing if it is not known without making it.
pub(crate) fn least_seconds(name: &str, scene: &Scene<'_>) -> f64 {
    let LinkCost { alpha, overhead, .. } = scene.model.network;
    let peers = f64::from(scene.topology.nodes() - 1);
    match name {
        "hub_shares" => 2.0 * (alpha + peers * overhead),
        _ => 2.0 * peers * (alpha + overhead),
    }
}

/// The strategy called `name`, and how long it keeps the network busy. None if there is no such strategy,
/// or hosts that have to cannot talk. A strategy that has nothing to do because no host is degraded is
/// a plain ring.
pub(crate) fn named(name: &str, scene: &Scene<'_>) -> Option<Strategy> {
    let fabric = scene.fabric();
    if fabric.hosts() == 1 {
        let alone = AllGather { pattern: Pattern::Direct, positions: 1, items: 1 };
        let schedule = there_and_back(Arc::new(alone));
        let between = Between { schedule, weights: vec![1.0] };
        return NAMES.contains(&name).then(|| Strategy::new(between, Network::Tiles));
    }
    let size = real(scene.request.bytes());
    let in_order = || (0..fabric.hosts()).collect::<Vec<_>>();
    let ring = |plan: Option<Between>, order: &[usize]| {
        Some(Strategy::new(plan?, Network::Busy(ring_seconds(fabric, order) * size)))
    };
    let or_ring = |plan: Option<Between>, seconds: Option<f64>| match (plan, seconds) {
        (Some(plan), Some(seconds)) => Some(Strategy::new(plan, Network::Busy(seconds * size))),
        _ => ring(balance(fabric), &in_order()),
    };
    let staged = |share| or_ring(two_stage(fabric, share), two_stage_time(fabric, share));
    match name {
        "hub_shares" if fabric.hosts() <= MOST_HOSTS => {
            let hubs = scene.hubs()?;
            let plan = |slices| in_rounds(hubs, slices, best_lead(slices));
            let strategy = sliced(scene, hubs.pipeline().times(size), plan)?;
            Some(Strategy { division: hubs.division().cloned(), ..strategy })
        }
        "nested_rings" if fabric.hosts() <= MOST_HOSTS => {
            let seconds = super::hubs::lower_bound(fabric) * size;
            let busy = levels(fabric)?
                .iter()
                .map(|level| level.fraction() * ring_seconds(fabric, &level.ring) * size)
                .fold(seconds, f64::max);
            // At either end, a slice goes round all rings alone.
            let pipeline = Pipeline { busy, idle: busy, ends: 2.0 * busy };
            sliced(scene, pipeline, |slices| nested_rings(fabric, slices))
        }
        "best_ring" if fabric.hosts() <= MOST_HOSTS => {
            let order = best_ring(fabric);
            ring(in_this_order(fabric, &order), &order)
        }
        "balance" => ring(balance(fabric), &in_order()),
        "r2ccl_hot_repair" => {
            let (between, division) = hot_repair(fabric)?;
            let network = Network::Busy(division.busiest() * size);
            Some(Strategy { division: Some(division), ..Strategy::new(between, network) })
        }
        "r2ccl_two_stage" => staged(Share::Corrected),
        "r2ccl_two_stage_printed" => staged(Share::Printed),
        "r2ccl_recursive" => or_ring(recursive(fabric), recursive_time(fabric)),
        "r2ccl_bridge_ring" => ring(bridge_ring(fabric), &bridge_order(fabric)),
        _ => None,
    }
}

/// A strategy in as many slices as are best.
fn sliced(
    scene: &Scene<'_>,
    pipeline: Pipeline,
    plan: impl Fn(u32) -> Option<Between>,
) -> Option<Strategy> {
    let (fabric, model) = (scene.fabric(), scene.model);
    let slices = best_slices(fabric, scene.request.bytes(), pipeline, model);
    Some(Strategy {
        between: plan(slices)?,
        network: Network::Busy(pipeline.in_slices(slices)),
        unsliced: if slices > 1 { plan(1) } else { None },
        slices_seconds: pipeline.slices_seconds(slices, fabric.hosts() - 1, model.network),
        division: None,
    })
}

/// Seconds for each byte of a ring AllReduce in this order.
fn ring_seconds(fabric: &Fabric, order: &[usize]) -> f64 {
    let hosts = real(order.len());
    2.0 * (hosts - 1.0) / hosts / ring_capacity(fabric, order)
}

/// A ring AllReduce in this order; none if neighbours cannot talk.
fn in_this_order(fabric: &Fabric, order: &[usize]) -> Option<Between> {
    let positions = u32::try_from(order.len()).unwrap_or(u32::MAX);
    let around = AllGather { pattern: Pattern::Chain, positions, items: positions };
    let members = order.iter().map(|host| super::host_rank(*host)).collect();
    let schedule = crate::combine::in_order(there_and_back(Arc::new(around)), members, Items::Same);
    (ring_capacity(fabric, order) > 0.0)
        .then(|| Between { schedule, weights: vec![1.0; order.len()] })
}
