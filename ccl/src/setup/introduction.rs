//! What ranks tell each other about themselves before they connect, and what all of them conclude from that alike.

use std::collections::{BTreeMap, BTreeSet};

use ccl_core::ids::{Node, Rank};
use ccl_core::settings::Settings;
use ccl_core::topology::{Host, RailCapacity, Topology};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use super::sizes::Sizes;
use crate::health::Paths;
use crate::hosts::reach::Look;
use crate::hosts::reach::{Offer, Party};
use crate::hosts::{HostIdentity, Nic, booted_system};

/// What a rank tells the others about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// The machine, which ranks that pretend to live on different hosts may share.
    pub(super) machine: String,
    pub(super) host: String,
    /// Processors it may run on.
    processors: Vec<u32>,
    /// How many of them it may keep busy: a control group may allow fewer.
    allowance: u32,
    pub(super) rails: Vec<f64>,
    pub(super) broken: Vec<bool>,
    /// Its interfaces that are whole, and how fast they are, in bytes per second.
    whole: BTreeMap<String, u64>,
    shared_memory: bool,
    hot_repair: bool,
    pub(super) sizes: Sizes,
    offer: Offer,
}

impl Introduction {
    /// Of this process, which makes these rails of what it has seen.
    pub(super) fn new(settings: &Settings, rails: &[Nic], look: &Look) -> Self {
        let whole = look.nics.iter().filter(|nic| !nic.is_broken);
        let speed = |nic: &Nic| (nic.interface.clone(), nic.speed_bytes_per_second);
        Self {
            machine: booted_system(),
            host: HostIdentity::of_this_process(settings).as_str().to_owned(),
            processors: processors(),
            allowance: allowance(),
            #[allow(clippy::cast_precision_loss, reason = "speeds are approximate")]
            rails: rails.iter().map(|nic| nic.speed_bytes_per_second as f64).collect(),
            broken: rails.iter().map(|nic| nic.is_broken).collect(),
            whole: whole.map(speed).collect(),
            shared_memory: settings.shared_memory,
            hot_repair: settings.hot_repair,
            sizes: Sizes::new(settings),
            offer: look.offer.clone(),
        }
    }
}

/// The ranks, for decisions about their ways to each other.
pub(super) fn parties(introductions: &[Introduction]) -> Vec<Party<'_>> {
    let memory = |rank: &Introduction| rank.shared_memory;
    introductions
        .iter()
        .map(|rank| Party { offer: &rank.offer, memory: memory(rank).then_some(&rank.host) })
        .collect()
}

/// The interfaces of a rank that are broken while others like them, on other hosts, are whole, and how fast those are, in
/// bytes per second: without them its rails would be opposite to other ones than they belong to. None without repair, which
/// makes them rails again.
pub(super) fn broken(introductions: &[Introduction], rank: usize) -> BTreeMap<&str, u64> {
    let parties = parties(introductions);
    let of = |broken: &'_ str| {
        let others = introductions.iter().zip(&parties);
        let others = others.filter(|(_, other)| parties[rank].is_apart(**other));
        others.filter_map(|(other, _)| other.whole.get(broken).copied()).max()
    };
    if introductions[rank].rails.is_empty() || !are_repaired(introductions) {
        return BTreeMap::new();
    }
    introductions[rank].offer.broken().filter_map(|name| Some((name, of(name)?))).collect()
}

/// Without repair, which takes two, all rails are needed from the beginning, also those that are broken.
pub(super) fn need_broken_rails(introductions: &mut [Introduction]) {
    if !are_repaired(introductions) {
        introductions.iter_mut().for_each(|rank| rank.broken.fill(false));
    }
}

/// Whether rails are made again that die, on all ranks.
fn are_repaired(introductions: &[Introduction]) -> bool {
    introductions.iter().all(|rank| rank.hot_repair)
}

/// How many paths this rank has over each of its rails, and to how many hosts.
pub(super) fn paths(
    introductions: &[Introduction],
    topology: &Topology,
    me: Rank,
    remote: &[Rank],
) -> Vec<Paths> {
    let mine = introductions[me.index()].rails.len();
    let over = |rail: usize, peer: &Rank| {
        let connections = mine.max(introductions[peer.index()].rails.len());
        (rail..connections).step_by(mine).count()
    };
    let on_rail = |rail: usize| {
        let mut by_host = BTreeMap::new();
        for peer in remote.iter().filter(|peer| over(rail, peer) > 0) {
            *by_host.entry(topology.node_of(*peer)).or_default() += over(rail, peer);
        }
        Paths::new(by_host.into_values())
    };
    (0..mine).map(on_rail).collect()
}

/// How many processors this process may keep busy; affinity and control groups count.
fn allowance() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

/// Processors this process may run on.
fn processors() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    let limit = u32::try_from(CpuSet::MAX_CPU).unwrap_or(u32::MAX);
    (0..limit).filter(|processor| set.is_set(*processor as usize)).collect()
}

/// How many processors these ranks, which share a machine, can keep busy. A launcher may have bound
/// each of them to processors of its own.
pub(super) fn usable_processors<'a>(ranks: impl Iterator<Item = &'a Introduction>) -> u32 {
    let mut union: BTreeSet<u32> = BTreeSet::new();
    let mut allowance = u32::MAX;
    for rank in ranks {
        union.extend(&rank.processors);
        if (rank.allowance as usize) < rank.processors.len() {
            allowance = allowance.min(rank.allowance);
        }
    }
    u32::try_from(union.len()).unwrap_or(u32::MAX).min(allowance).max(1)
}

/// Ranks with the same host share a node if they all use shared memory; any other rank is a node
/// of its own.
pub(super) fn topology(introductions: &[Introduction]) -> Topology {
    let mut hosts: Vec<Host> = Vec::new();
    let mut names: Vec<Option<&str>> = Vec::new();
    let mut node_of = Vec::new();
    for introduction in introductions {
        let name = introduction.shared_memory.then_some(introduction.host.as_str());
        let known = names.iter().position(|other| name.is_some() && *other == name);
        let node = known.unwrap_or_else(|| {
            let rails = introduction.rails.iter().map(|rate| RailCapacity::up(*rate)).collect();
            let here = introductions.iter().filter(|other| other.host == introduction.host);
            hosts.push(Host { rails, cores: usable_processors(here) });
            names.push(name);
            hosts.len() - 1
        });
        node_of.push(Node(u32::try_from(node).unwrap_or(u32::MAX)));
    }
    Topology::new(node_of, hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::UNKNOWN_SPEED_BYTES_PER_SECOND;
    use crate::hosts::reach::tests::looked;

    /// Of two hosts, the first of which has lost a NIC. Both make so many rails of each.
    fn introductions(settings: &Settings, connections: u64) -> Vec<Introduction> {
        let of = |(host, state): (u32, &str)| {
            let lines = [&format!("eth7 {state} 10.0.0.1"), "eth8 ur 10.0.1.1"];
            let look = looked(host, &lines, settings);
            let part = |nic: &Nic| Nic {
                speed_bytes_per_second: nic.speed_bytes_per_second / connections,
                ..nic.clone()
            };
            let rails = (0..connections).flat_map(|_| look.nics.iter().map(part));
            let introduction = Introduction::new(settings, &rails.collect::<Vec<_>>(), &look);
            Introduction { host: format!("host{host}"), ..introduction }
        };
        [(0, "u"), (1, "ur")].map(of).into()
    }

    #[test]
    fn what_is_broken_is_as_fast_as_what_is_whole() {
        for connections in [1, 4] {
            let introductions = introductions(&Settings::default(), connections);
            let broken = broken(&introductions, 0);
            assert_eq!(broken, BTreeMap::from([("eth7", UNKNOWN_SPEED_BYTES_PER_SECOND)]));
            assert_eq!(super::broken(&introductions, 1), BTreeMap::new());
        }
    }

    #[test]
    fn what_is_broken_is_no_rail_where_it_is_not_repaired() {
        let settings = Settings::parse([("R2CCL_HOT_REPAIR", "0")]).unwrap().settings;
        let mut introductions = introductions(&Settings::default(), 1);
        assert!(!broken(&introductions, 0).is_empty());
        // All conclude the same, whoever it is.
        introductions[1].hot_repair = settings.hot_repair;
        assert!(broken(&introductions, 0).is_empty());
    }

    /// One end would not come, and the other one would wait for it.
    #[test]
    fn a_broken_rail_is_left_out_only_if_all_repair_it() {
        let mut introductions = introductions(&Settings::default(), 1);
        let mut is_left_out = |is_repaired| {
            introductions[0].broken = vec![true];
            introductions[1].hot_repair = is_repaired;
            need_broken_rails(&mut introductions);
            introductions[0].broken == [true]
        };
        assert!(is_left_out(true));
        assert!(!is_left_out(false));
    }
}
