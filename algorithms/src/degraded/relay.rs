//! How every host reaches every hub, although some pairs of hosts have no common rail.
//!
//! A host without a rail to a hub gives its contribution to a relay: a host that adds it to its own
//! contribution before it sends that, and passes the result back. So for every hub there is a tree
//! over all hosts, and a relay costs the network nothing: what the hub no longer exchanges with the
//! host, the relay does.

use std::sync::Arc;

use ccl_core::ids::Chunk;
use ccl_core::schedule::{Mode, Transfer};

use super::{Fabric, host_rank as rank};
use crate::combine::{Listed, Shared};
use crate::pattern::Pattern;
use crate::spread::AllGather;

/// For every hub, a tree over all hosts along pairs that have common rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trees {
    hosts: usize,
    /// By hub and host: the host nearer to the hub, and how many hops the hub is away. The hub is
    /// its own parent.
    parents: Vec<Option<(usize, u32)>>,
}

impl Trees {
    /// Direct where there is a common rail; elsewhere through relays, those with the most head-room
    /// when hub `h` has the share `shares[h]` of the data. None if some hosts cannot be reached at
    /// all.
    pub(crate) fn new(fabric: &Fabric, shares: &[f64]) -> Option<Self> {
        let hosts = fabric.hosts();
        if hosts > 1 && !fabric.capacities().iter().all(|capacity| *capacity > 0.0) {
            return None;
        }
        let direct = |hub, host| {
            let hops = u32::from(hub != host);
            (hops == 0 || fabric.between(hub, host) > 0.0).then_some((hub, hops))
        };
        let pairs = (0..hosts).flat_map(|hub| (0..hosts).map(move |host| (hub, host)));
        let parents = pairs.map(|(hub, host)| direct(hub, host)).collect();
        let mut trees = Self { hosts, parents };
        trees.relay(fabric, shares).then_some(trees)
    }

    /// Whether nothing is relayed.
    pub(crate) fn are_direct(&self) -> bool {
        self.parents.iter().all(|parent| parent.is_some_and(|(_, hops)| hops <= 1))
    }

    /// Number of hosts.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts
    }

    /// The hosts between `hub` and `host`, in this order.
    pub(crate) fn between(&self, hub: usize, host: usize) -> Vec<usize> {
        let parent = |host: &usize| self.parents[hub * self.hosts + host].map(|(parent, _)| parent);
        let way = std::iter::successors(parent(&host), parent);
        let mut way: Vec<usize> = way.take_while(|host| *host != hub).collect();
        way.reverse();
        way
    }

    /// The pairs of hosts that exchange something for `hub`: the farther and the nearer, and how many hops the farther
    /// is away.
    pub(crate) fn edges(&self, hub: usize) -> impl Iterator<Item = (usize, usize, u32)> {
        let row = &self.parents[hub * self.hosts..(hub + 1) * self.hosts];
        let parent = |(host, parent): (usize, &Option<(usize, u32)>)| {
            parent.map(|(parent, hops)| (host, parent, hops))
        };
        row.iter().enumerate().filter_map(parent).filter(|(.., hops)| *hops > 0)
    }

    /// What every pair of hosts exchanges in each direction, in proportion to the data, by
    /// [`pair`].
    pub(crate) fn volumes(&self, shares: &[f64]) -> Vec<f64> {
        let mut volumes = vec![0.0; self.hosts * self.hosts.saturating_sub(1) / 2];
        for (hub, share) in shares.iter().enumerate() {
            for (host, parent, _) in self.edges(hub) {
                volumes[pair(self.hosts, host, parent)] += share;
            }
        }
        volumes
    }

    /// Item `h` spreads from hub `h` to all.
    pub(crate) fn spread(&self) -> Shared {
        let hosts = u32::try_from(self.hosts).unwrap_or(u32::MAX);
        if self.are_direct() {
            let pattern = Pattern::Direct;
            return Arc::new(AllGather { pattern, positions: hosts, items: hosts });
        }
        let mut rounds: Vec<Vec<Transfer>> = Vec::new();
        for (hub, item) in (0..self.hosts).zip(0..) {
            for (host, parent, hops) in self.edges(hub) {
                rounds.resize_with(rounds.len().max(hops as usize), Vec::new);
                rounds[hops as usize - 1].push(store(item, parent, host));
            }
        }
        Arc::new(Listed::new(hosts, &rounds))
    }

    /// Finds parents for hosts that have none yet; whether there is one for all.
    fn relay(&mut self, fabric: &Fabric, shares: &[f64]) -> bool {
        let mut totals = self.totals(shares);
        for (hub, share) in shares.iter().enumerate() {
            while let Some(host) = self.missing(fabric, hub) {
                let Some((relay, hops)) = self.best_relay(fabric, &totals, hub, host) else {
                    return false;
                };
                self.parents[hub * self.hosts + host] = Some((relay, hops + 1));
                totals[relay] += share;
                totals[host] += share;
            }
            if self.parents[hub * self.hosts..][..self.hosts].contains(&None) {
                return false;
            }
        }
        true
    }

    /// What every host exchanges with all others.
    fn totals(&self, shares: &[f64]) -> Vec<f64> {
        let mut totals = vec![0.0; self.hosts];
        for (hub, share) in shares.iter().enumerate() {
            for (host, parent, _) in self.edges(hub) {
                totals[host] += share;
                totals[parent] += share;
            }
        }
        totals
    }

    /// The first host that does not reach `hub` yet, but has a common rail with one that does.
    fn missing(&self, fabric: &Fabric, hub: usize) -> Option<usize> {
        let reaches = |host: &usize| self.parents[hub * self.hosts + host].is_some();
        (0..self.hosts).filter(|host| !reaches(host)).find(|host| {
            (0..self.hosts).filter(reaches).any(|relay| fabric.between(relay, *host) > 0.0)
        })
    }

    /// The nearest to `hub` of those that can relay for `host`; among these, the one that would be
    /// done first.
    fn best_relay(
        &self,
        fabric: &Fabric,
        totals: &[f64],
        hub: usize,
        host: usize,
    ) -> Option<(usize, u32)> {
        let hops = |relay: usize| self.parents[hub * self.hosts + relay].map(|(_, hops)| hops);
        let can = |relay: &usize| fabric.between(*relay, host) > 0.0;
        let time = |relay: usize| totals[relay] / fabric.capacity(relay);
        let relays = (0..self.hosts).filter(|relay| *relay != host).filter(can);
        let relays = relays.filter_map(|relay| hops(relay).map(|hops| (relay, hops)));
        relays.min_by(|a, b| a.1.cmp(&b.1).then(time(a.0).total_cmp(&time(b.0))))
    }
}

/// Index of a pair of hosts among all pairs, in the order (0, 1), (0, 2), …, (1, 2), ….
pub(crate) fn pair(hosts: usize, one: usize, other: usize) -> usize {
    let (low, high) = (one.min(other), one.max(other));
    low * (2 * hosts - low - 1) / 2 + high - low - 1
}

fn store(item: u32, source: usize, target: usize) -> Transfer {
    Transfer::new(Chunk(item), rank(source), rank(target), Mode::Store)
}
