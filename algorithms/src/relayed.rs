//! Collectives among hosts of which some have no rail in common: what these exchange goes through other hosts.
//!
//! For every host there is a tree over all hosts, along pairs that have a rail in common ([`Trees`]). What a host gives
//! to all others spreads along it, what it deals out is passed on along it, and the reverse is the same backwards. An
//! AllReduce has [hubs](crate::degraded::hubs) for that. An AllToAllV has nothing: what others send to each other is
//! known to no rank that could pass it on.

use std::sync::Arc;

use ccl_core::collective::Collective;
use ccl_core::ids::{Chunk, Node, Rank};
use ccl_core::schedule::{Mode, Transfer};
use ccl_core::topology::Topology;

use crate::combine::{Listed, Shared, collected, reduction, there_and_back};
use crate::degraded::relay::Trees;
use crate::degraded::{MOST_HOSTS, real};
use crate::hierarchical::Hierarchy;
use crate::scene::Scene;

/// The name of these algorithms.
pub(crate) const NAME: &str = "relayed";

/// An AllToAll of more ranks is not written out: it has the square of their number of transfers.
const MOST_ALLTOALL_RANKS: u32 = 512;

/// The schedule for the collective that is asked for. None if it has none, some hosts cannot be reached at all, or there
/// are very many.
pub(crate) fn relayed(scene: &Scene<'_>) -> Option<Shared> {
    let (request, topology) = (scene.request, scene.topology);
    let hosts = scene.fabric().hosts();
    if hosts > MOST_HOSTS {
        return None;
    }
    let trees = Trees::new(scene.fabric(), &vec![1.0 / real(hosts); hosts])?;
    let hierarchy = Hierarchy::of(topology);
    let broadcast = |root| {
        let home = topology.node_of(root).index();
        hierarchy.broadcast_along(root, &tree(&trees, home))
    };
    let allgather = || hierarchy.allgather_along(&trees.spread());
    let scatter = || written_out(topology, deal(&trees, topology, request.root, |target| target.0));
    match request.collective {
        Collective::Barrier => Some(there_and_back(broadcast(Rank(0)))),
        Collective::Broadcast => Some(broadcast(request.root)),
        Collective::Reduce => Some(reduction(broadcast(request.root))),
        Collective::AllGather => Some(allgather()),
        Collective::ReduceScatter => Some(reduction(allgather())),
        Collective::Scatter => Some(scatter()),
        Collective::Gather => Some(collected(scatter())),
        Collective::AllToAll => alltoall(&trees, topology),
        Collective::AllReduce | Collective::AllToAllV | Collective::PointToPoint => None,
    }
}

/// A broadcast along the tree of host `home`, which is position 0; the others are in order.
fn tree(trees: &Trees, home: usize) -> Shared {
    let position = |host: usize| match host {
        _ if host == home => 0,
        _ if host < home => host + 1,
        _ => host,
    };
    let rank = |host| crate::degraded::host_rank(position(host));
    let mut rounds: Vec<Vec<Transfer>> = Vec::new();
    for (host, parent, hops) in trees.edges(home) {
        add(&mut rounds, hops as usize - 1, store(0, rank(parent), rank(host)));
    }
    Arc::new(Listed::new(crate::degraded::host_rank(trees.hosts()).0, &rounds))
}

/// Chunk `chunk(r)` of `source` goes to rank `r`, through the first ranks of the hosts on its way.
fn deal(
    trees: &Trees,
    topology: &Topology,
    source: Rank,
    chunk: impl Fn(Rank) -> u32,
) -> Vec<Vec<Transfer>> {
    let home = topology.node_of(source).index();
    let mut rounds = Vec::new();
    for target in (0..topology.ranks()).map(Rank).filter(|target| *target != source) {
        let between = trees.between(home, topology.node_of(target).index());
        let mut from = source;
        let relays = between.into_iter().map(|host| topology.leader(node(host)));
        for (hop, to) in relays.chain([target]).enumerate() {
            add(&mut rounds, hop, store(chunk(target), from, to));
            from = to;
        }
    }
    rounds
}

fn alltoall(trees: &Trees, topology: &Topology) -> Option<Shared> {
    let ranks = topology.ranks();
    if ranks > MOST_ALLTOALL_RANKS {
        return None;
    }
    let mut rounds: Vec<Vec<Transfer>> = Vec::new();
    for source in (0..ranks).map(Rank) {
        let own = deal(trees, topology, source, |target| source.0 * ranks + target.0);
        rounds.resize_with(rounds.len().max(own.len()), Vec::new);
        rounds.iter_mut().zip(own).for_each(|(round, own)| round.extend(own));
    }
    Some(written_out(topology, rounds))
}

fn written_out(topology: &Topology, rounds: Vec<Vec<Transfer>>) -> Shared {
    Arc::new(Listed::new(topology.ranks(), &rounds))
}

fn add(rounds: &mut Vec<Vec<Transfer>>, round: usize, transfer: Transfer) {
    rounds.resize_with(rounds.len().max(round + 1), Vec::new);
    rounds[round].push(transfer);
}

fn node(host: usize) -> Node {
    Node(u32::try_from(host).unwrap_or(u32::MAX))
}

fn store(chunk: u32, source: Rank, target: Rank) -> Transfer {
    Transfer::new(Chunk(chunk), source, target, Mode::Store)
}
