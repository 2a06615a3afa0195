//! Nested rings with leaves: the loads of reduction hubs, but with few peers for each host.
//!
//! With the hosts in order of their capacity and the shares `w` of [`hub_shares`], level `k` is a
//! ring among hosts `k..=n`, for the fraction `(n - k + 1)(w_k - w_(k-1))` of the data; so host
//! `i`, which is in levels `1..=i`, owns `w_i` in all. The hosts before `k` are leaves of that
//! level: each hands its contribution to the owner of every shard before the ring gives the results
//! round, and gets them from there. All levels run at the same time, and there are no more rings
//! than different capacities.

use std::sync::Arc;

use ccl_core::ids::Rank;

use super::order::best_ring_of;
use super::{Between, Fabric, host_rank as rank};
use crate::combine::{Items, Shared, Staggered, Subgroup, Together, count, there_and_back};
use crate::pattern::Pattern;
use crate::shares::{hub_shares, sliced};
use crate::spread::{AllGather, Broadcast};

/// Smaller fractions of the data are rounding errors.
const SMALLEST_SHARD: f64 = 1e-9;

/// One ring and its leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The hosts of the ring, in its order.
    pub ring: Vec<usize>,
    /// The hosts that are too slow for it.
    pub leaves: Vec<usize>,
    /// The part of the data that every host of the ring owns in it.
    pub shard: f64,
}

impl Level {
    /// The part of the data that is reduced on this level.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        self.shard * f64::from(count(&self.ring))
    }

    fn works(&self, fabric: &Fabric) -> bool {
        let next = self.ring.iter().skip(1).chain(&self.ring);
        let neighbours = self.ring.iter().zip(next).filter(|(one, other)| one != other);
        let pairs =
            self.leaves.iter().flat_map(|leaf| self.ring.iter().map(move |hub| (leaf, hub)));
        neighbours.chain(pairs).all(|(one, other)| fabric.between(*one, *other) > 0.0)
    }

    /// Shard `j` spreads from the ring's host `j`, to the leaves directly.
    fn spread(&self, hosts: u32) -> Shared {
        let positions = count(&self.ring);
        let around = AllGather { pattern: Pattern::Chain, positions, items: positions };
        let ring = self.ring.iter().copied().map(rank).collect();
        let mut parts = vec![Subgroup::new(Arc::new(around), hosts, ring, Items::Same)];
        if !self.leaves.is_empty() {
            let positions = count(&self.leaves) + 1;
            let star: Shared = Arc::new(Broadcast { pattern: Pattern::Direct, positions });
            parts.extend(self.ring.iter().zip(0..).map(|(owner, shard)| {
                let members = [owner].into_iter().chain(&self.leaves).copied().map(rank);
                let shard = Items::listed(1, |_| [shard]);
                Subgroup::new(Arc::clone(&star), hosts, members.collect(), shard)
            }));
        }
        Arc::new(Together::new(hosts, parts))
    }
}

/// The rings for this fabric, the largest first. None if some hosts cannot reach each other as that
/// needs.
#[must_use]
pub fn levels(fabric: &Fabric) -> Option<Vec<Level>> {
    let capacities = fabric.capacities();
    if fabric.hosts() > 1 && !capacities.iter().all(|capacity| *capacity > 0.0) {
        return None;
    }
    let shares = hub_shares(&capacities);
    let mut order: Vec<usize> = (0..fabric.hosts()).collect();
    order.sort_by(|a, b| shares[*a].total_cmp(&shares[*b]).then(a.cmp(b)));
    let mut levels = Vec::new();
    let mut below = 0.0;
    for (place, host) in order.iter().enumerate() {
        let shard = shares[*host] - below;
        if shard > SMALLEST_SHARD {
            let (leaves, ring) = order.split_at(place);
            levels.push(Level {
                ring: best_ring_of(fabric, &sorted(ring)),
                leaves: sorted(leaves),
                shard,
            });
            below = shares[*host];
        }
    }
    levels.iter().all(|level| level.works(fabric)).then_some(levels)
}

/// An AllReduce over nested rings in `slices` slices. None if some hosts cannot reach each other as
/// that needs, or there are no slices.
#[must_use]
pub fn nested_rings(fabric: &Fabric, slices: u32) -> Option<Between> {
    let levels = levels(fabric).filter(|_| slices > 0)?;
    let hosts = u32::try_from(fabric.hosts()).unwrap_or(u32::MAX);
    let mut shards = Vec::new();
    let mut parts = Vec::new();
    for level in &levels {
        let first = count(&shards);
        shards.extend(vec![level.shard; level.ring.len()]);
        let items = Items::listed(level.ring.len(), |shard| (first..).nth(shard));
        let everyone = (0..hosts).map(Rank).collect();
        parts.push(Subgroup::new(there_and_back(level.spread(hosts)), hosts, everyone, items));
    }
    let inner: Shared = Arc::new(Together::new(hosts, parts));
    let weights = sliced(&shards, slices);
    Some(Between { schedule: Arc::new(Staggered { inner, slices, lag: 1 }), weights })
}

fn sorted(hosts: &[usize]) -> Vec<usize> {
    let mut hosts = hosts.to_vec();
    hosts.sort_unstable();
    hosts
}
