//! The strategies by name, with the time for which each keeps the network busy.

use std::sync::Arc;

use ccl_core::cost::{CostModel, Network};
use ccl_core::ids::Node;
use ccl_core::topology::Topology;

use super::nested::{levels, nested_rings};
use super::order::{best_ring, ring_capacity};
use super::paper::{
    Share, balance, bridge_order, bridge_ring, recursive, recursive_time, two_stage, two_stage_time,
};
use super::rails::hubs;
use super::rounds::{best_slices, hub_shares_in_rounds};
use super::{Between, Fabric, Reach};
use crate::combine::{Items, there_and_back};
use crate::pattern::Pattern;
use crate::spread::AllGather;

/// All names: ours, then those of the R²CCL paper.
pub(crate) const NAMES: [&str; 8] = [
    "hub_shares",
    "nested_rings",
    "best_ring",
    "balance",
    "r2ccl_two_stage",
    "r2ccl_two_stage_printed",
    "r2ccl_recursive",
    "r2ccl_bridge_ring",
];

/// More hosts than this are not put in the best order: looking for it takes too long.
const ORDERED_HOSTS: usize = 128;

impl Fabric {
    /// The rails of `topology`. Hosts with as many rails as each other reach each other's rail by rail.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let nodes = || (0..topology.nodes()).map(Node);
        let rails = |node| topology.rails(node).iter();
        let rates = nodes().map(|node| {
            rails(node).map(|rail| if rail.up { rail.bytes_per_second } else { 0.0 }).collect()
        });
        let count = topology.rails(Node(0)).len();
        let alike = nodes().all(|node| topology.rails(node).len() == count);
        Self::new(rates.collect(), if alike { Reach::RailOnly } else { Reach::Switched })
    }

    /// Whether all hosts have the same rails, equally fast.
    #[must_use]
    pub fn is_even(&self) -> bool {
        (1..self.hosts()).all(|host| self.rails(host) == self.rails(0))
    }
}

/// The strategy called `name` for `bytes` of data, and how long it keeps the network busy. None if there
/// is no such strategy, or hosts that have to cannot talk. A strategy that has nothing to do because
/// no host is degraded is a plain ring.
pub(crate) fn between(
    name: &str,
    fabric: &Fabric,
    bytes: usize,
    model: &CostModel,
) -> Option<(Between, Network)> {
    if fabric.hosts() == 1 {
        let alone = AllGather { pattern: Pattern::Direct, positions: 1, items: 1 };
        let schedule = there_and_back(Arc::new(alone));
        return NAMES
            .contains(&name)
            .then(|| (Between { schedule, weights: vec![1.0] }, Network::Tiles));
    }
    let size = real(bytes);
    let in_order = || (0..fabric.hosts()).collect::<Vec<_>>();
    let ring = |plan: Option<Between>, order: &[usize]| {
        Some((plan?, Network::Busy(ring_seconds(fabric, order) * size)))
    };
    let or_ring = |plan: Option<Between>, seconds: Option<f64>| match (plan, seconds) {
        (Some(plan), Some(seconds)) => Some((plan, Network::Busy(seconds * size))),
        _ => ring(balance(fabric), &in_order()),
    };
    let staged = |share| or_ring(two_stage(fabric, share), two_stage_time(fabric, share));
    match name {
        "hub_shares" => {
            let seconds = hubs(fabric)?.seconds_per_byte() * size;
            let slices = best_slices(fabric.hosts(), bytes, seconds, &model.network);
            let plan = hub_shares_in_rounds(fabric, slices)?;
            Some((plan, Network::Busy(filled(seconds, slices))))
        }
        "nested_rings" if fabric.hosts() <= ORDERED_HOSTS => {
            let seconds = super::rails::lower_bound(fabric) * size;
            let slices = best_slices(fabric.hosts(), bytes, seconds, &model.network);
            let rings_seconds = levels(fabric)?
                .iter()
                .map(|level| level.fraction() * ring_seconds(fabric, &level.ring) * size)
                .fold(seconds, f64::max);
            let plan = nested_rings(fabric, slices)?;
            Some((plan, Network::Busy(filled(rings_seconds, slices))))
        }
        "best_ring" if fabric.hosts() <= ORDERED_HOSTS => {
            let order = best_ring(fabric);
            ring(in_this_order(fabric, &order), &order)
        }
        "balance" => ring(balance(fabric), &in_order()),
        "r2ccl_two_stage" => staged(Share::Corrected),
        "r2ccl_two_stage_printed" => staged(Share::Printed),
        "r2ccl_recursive" => or_ring(recursive(fabric), recursive_time(fabric)),
        "r2ccl_bridge_ring" => ring(bridge_ring(fabric), &bridge_order(fabric)),
        _ => None,
    }
}

/// Rounds of which each but the last overlaps with the next.
fn filled(seconds: f64, slices: u32) -> f64 {
    let slices = f64::from(slices);
    seconds * (slices + 1.0) / slices
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

#[allow(clippy::cast_precision_loss, reason = "a size in a model")]
fn real(number: usize) -> f64 {
    number as f64
}
