//! The algorithms by name: how each is put together, and how it cuts the data.

use std::sync::Arc;

use ccl_core::collective::{Collective, Request};
use ccl_core::cost::Network;
use ccl_core::ids::{Node, Rank};
use ccl_core::layout::Partition;
use ccl_core::topology::Topology;

use crate::allreduce::{OneShot, recursive_doubling};
use crate::binary_tree::BinaryTree;
use crate::combine::{
    InSequence, Items, Shared, Staggered, Subgroup, Together, collected, in_order, reduction,
    there_and_back,
};
use crate::degraded::hubs::direct_seconds;
use crate::degraded::pipeline::Pipeline;
use crate::degraded::rails::Division;
use crate::degraded::strategies::{self, Strategy};
use crate::degraded::{Between, real};
use crate::hierarchical::Hierarchy;
use crate::pattern::Pattern;
use crate::relayed::{self, relayed};
use crate::scene::Scene;
use crate::shares::{hub_shares, sliced};
use crate::spread::{AllGather, AllToAll, Broadcast, Scatter};

/// Largest number of blocks in one message of `pat`.
const PAT_BLOCKS: u32 = 8;

/// A schedule, the cut of the data it is meant for, and how it is to be priced.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) schedule: Shared,
    pub(crate) partition: Partition,
    pub(crate) network: Network,
    /// The same in one slice: it moves the same bytes, and is quickly gone through.
    pub(crate) unsliced: Option<(Shared, Partition)>,
    /// Seconds that the slices cost.
    pub(crate) slices_seconds: f64,
    /// Which rails carry what between hosts, if that is not by capacity.
    pub(crate) division: Option<Division>,
}

impl Plan {
    fn new(schedule: Shared, partition: Partition) -> Self {
        let network = Network::Tiles;
        let (unsliced, slices_seconds, division) = (None, 0.0, None);
        Self { schedule, partition, network, unsliced, slices_seconds, division }
    }

    /// What is gone through to price it.
    pub(crate) fn priced(&self) -> (&Shared, &Partition) {
        let own = (&self.schedule, &self.partition);
        self.unsliced.as_ref().map_or(own, |(schedule, partition)| (schedule, partition))
    }
}

/// A smaller share of two ranks of a host is still in a cache when it is given back.
const LEAST_SLICED_BYTES: usize = 16 << 20;

/// A slice of a larger one: small beside caches, long beside a tile.
const PAIR_SLICE_BYTES: usize = 1 << 20;

/// More slices than this gain nothing, and make a program long.
const MOST_PAIR_SLICES: u32 = 256;

/// The algorithms of AllReduce that are of use where hosts are alike.
const PLAIN: [&str; 11] = [
    "one_shot",
    "two_shot",
    "recursive_doubling",
    "rabenseifner",
    "ring",
    "double_binary_tree",
    "hierarchical",
    "hierarchical_one_shot",
    "hierarchical_recursive_doubling",
    "hierarchical_rabenseifner",
    "hierarchical_ring",
];

const ALLREDUCE: [&str; 20] = joined(&PLAIN, &strategies::NAMES);

/// One list after the other; together they have `ALL` names.
pub(crate) const fn joined<const ALL: usize>(
    first: &[&'static str],
    second: &[&'static str],
) -> [&'static str; ALL] {
    assert!(first.len() + second.len() == ALL, "the number of names");
    let mut all = [""; ALL];
    let mut place = 0;
    while place < ALL {
        let is_first = place < first.len();
        all[place] = if is_first { first[place] } else { second[place - first.len()] };
        place += 1;
    }
    all
}

/// The algorithms of a collective. Among equally fast ones the first is taken.
#[must_use]
pub fn names(collective: Collective) -> &'static [&'static str] {
    match collective {
        Collective::AllReduce => &ALLREDUCE,
        Collective::AllGather => {
            &["direct", "ring", "bruck", "pat", "hierarchical", "hierarchical_bruck", "relayed"]
        }
        Collective::ReduceScatter => &[
            "direct",
            "ring",
            "recursive_halving",
            "pat",
            "hierarchical",
            "hierarchical_recursive_halving",
            "relayed",
        ],
        Collective::Broadcast => {
            &["direct", "binomial", "scatter_allgather", "chain", "hierarchical", "relayed"]
        }
        Collective::Reduce => {
            &["direct", "binomial", "reduce_scatter_gather", "chain", "hierarchical", "relayed"]
        }
        Collective::AllToAll => &["direct", "pairwise", "bruck", "relayed"],
        Collective::AllToAllV => &["direct", "pairwise"],
        Collective::Gather | Collective::Scatter => &["direct", "binomial", "relayed"],
        Collective::Barrier => &["one_shot", "recursive_doubling", "hierarchical", "relayed"],
        Collective::PointToPoint => &[],
    }
}

/// Whether the algorithm can differ from a flat one here; the others are built only on demand.
pub(crate) fn is_sensible(name: &str, scene: &Scene<'_>) -> bool {
    let topology = scene.topology;
    if strategies::NAMES.contains(&name) {
        return scene.is_degraded();
    }
    if name == relayed::NAME {
        return scene.has_hosts_apart();
    }
    let hosts_matter = topology.nodes() > 1 && topology.nodes() < topology.ranks();
    hosts_matter || !name.starts_with("hierarchical")
}

/// The algorithm called `name`, if the collective has one.
pub(crate) fn build(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let (request, topology) = (scene.request, scene.topology);
    let whole = || even(request, 1);
    let plan = |schedule: Option<Shared>| schedule.map(|schedule| Plan::new(schedule, whole()));
    let root = request.root;
    if name == relayed::NAME {
        return plan(relayed(scene));
    }
    match request.collective {
        Collective::AllReduce => allreduce(name, scene),
        Collective::Barrier => plan(barrier(name, topology)),
        Collective::AllGather => plan(allgather(name, topology)),
        Collective::ReduceScatter => plan(reduce_scatter(name, topology)),
        Collective::Broadcast => broadcast(name, request, topology),
        Collective::Reduce => reduce(name, request, topology),
        Collective::Scatter => plan(scatter(name, topology, root)),
        Collective::Gather => plan(scatter(name, topology, root).map(collected)),
        Collective::AllToAll | Collective::AllToAllV => plan(alltoall(name, topology)),
        Collective::PointToPoint => None,
    }
}

fn allreduce(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let (request, topology) = (scene.request, scene.topology);
    let n = topology.ranks();
    let cut = |schedule, parts| Some(Plan::new(schedule, even(request, parts)));
    match name {
        "one_shot" => cut(Arc::new(OneShot { ranks: n }), 1),
        "recursive_doubling" => cut(folding_slowest(topology), 1),
        "two_shot" => Some(two_shot(scene)),
        "rabenseifner" => {
            cut(in_order(shards(Pattern::Doubling, n), by_host(topology), Items::Same), n)
        }
        "ring" => cut(in_order(shards(Pattern::Chain, n), by_host(topology), Items::Same), n),
        "double_binary_tree" => cut(double_binary_tree(topology), 2),
        _ if strategies::NAMES.contains(&name) => degraded(name, scene),
        _ => hierarchical_allreduce(name, scene),
    }
}

/// Everybody reduces a share and gives it back.
///
/// Two ranks of a host have one link in each direction. The result of a share would leave behind the contribution to
/// the whole of the other one, and be read from memory again. Hence slices, of which each is given back while the next
/// is contributed. Where there are more ranks, results have a link of their own, to all.
fn two_shot(scene: &Scene<'_>) -> Plan {
    let (request, topology) = (scene.request, scene.topology);
    let n = topology.ranks();
    let shares = hub_shares(&per_rank(topology));
    let whole = (shards(Pattern::Direct, n), weighted(request, &shares));
    let slices = pair_slices(request.bytes() / 2);
    if (n, topology.nodes()) == (2, 1) && slices > 1 {
        let schedule = Arc::new(Staggered { inner: Arc::clone(&whole.0), slices, lag: 1 });
        let plan = Plan::new(schedule, weighted(request, &sliced(&shares, slices)));
        return Plan { unsliced: Some(whole), ..plan };
    }
    let is_flat = topology.nodes() == n;
    let network = if is_flat { one_slice(scene, &shares) } else { Network::Rounds };
    Plan { network, ..Plan::new(whole.0, whole.1) }
}

/// Into how many slices a share of so many bytes is cut between two ranks of a host.
fn pair_slices(bytes: usize) -> u32 {
    if bytes < LEAST_SLICED_BYTES {
        return 1;
    }
    u32::try_from(bytes / PAIR_SLICE_BYTES).unwrap_or(u32::MAX).min(MOST_PAIR_SLICES)
}

fn hierarchical_allreduce(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let (request, topology) = (scene.request, scene.topology);
    let hierarchy = Hierarchy::of(topology);
    let hosts = hierarchy.hosts();
    let (between, shares): (Shared, Vec<f64>) = match name {
        "hierarchical" => (shards(Pattern::Direct, hosts), hub_shares(&topology.capacities())),
        "hierarchical_one_shot" => (Arc::new(OneShot { ranks: hosts }), vec![1.0]),
        "hierarchical_recursive_doubling" => (recursive_doubling(hosts), vec![1.0]),
        "hierarchical_rabenseifner" => {
            (shards(Pattern::Doubling, hosts), vec![1.0; hosts as usize])
        }
        "hierarchical_ring" => (shards(Pattern::Chain, hosts), vec![1.0; hosts as usize]),
        _ => return None,
    };
    let pieces = u32::try_from(shares.len()).unwrap_or(u32::MAX);
    let schedule = hierarchy.allreduce(&between, pieces);
    let weights = shares.repeat(hierarchy.shards() as usize);
    let network = match name {
        "hierarchical" => one_slice(scene, &shares),
        _ => Network::Tiles,
    };
    Some(Plan { network, ..Plan::new(schedule, weighted(request, &weights)) })
}

/// How long the network is busy when every host reduces its share, without a plan for single rails.
fn one_slice(scene: &Scene<'_>, shares: &[f64]) -> Network {
    let (fabric, bytes) = (scene.fabric(), scene.request.bytes());
    let busy = direct_seconds(fabric, shares);
    let pipeline = Pipeline::of_hubs(&fabric.capacities(), shares, busy);
    Network::Busy(if bytes > 0 { pipeline.times(real(bytes)).in_slices(1) } else { 0.0 })
}

/// A strategy for hosts that have lost rails.
fn degraded(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let strategy = strategies::named(name, scene)?;
    let Strategy { between, network, unsliced, slices_seconds, division } = strategy;
    let hierarchy = Hierarchy::of(scene.topology);
    let whole = |Between { schedule, weights }: Between| {
        let pieces = u32::try_from(weights.len()).unwrap_or(u32::MAX);
        let schedule = hierarchy.allreduce(&schedule, pieces);
        let weights = weights.repeat(hierarchy.shards() as usize);
        (schedule, weighted(scene.request, &weights))
    };
    let (schedule, partition) = whole(between);
    let unsliced = unsliced.map(whole);
    Some(Plan { schedule, partition, network, unsliced, slices_seconds, division })
}

fn barrier(name: &str, topology: &Topology) -> Option<Shared> {
    let n = topology.ranks();
    match name {
        "one_shot" => Some(Arc::new(OneShot { ranks: n })),
        "recursive_doubling" => Some(recursive_doubling(n)),
        "hierarchical" => Some(leaders_barrier(topology)),
        _ => None,
    }
}

/// Reduce at one rank of each host, exchange between these, and tell the rest.
fn leaders_barrier(topology: &Topology) -> Shared {
    let spread = Hierarchy::of(topology).broadcast(Rank(0), Pattern::Halving);
    there_and_back(spread)
}

fn allgather(name: &str, topology: &Topology) -> Option<Shared> {
    let n = topology.ranks();
    let flat = |pattern| -> Shared { Arc::new(AllGather { pattern, positions: n, items: n }) };
    match name {
        "direct" => Some(flat(Pattern::Direct)),
        "ring" => Some(renamed(flat(Pattern::Chain), by_host(topology))),
        "bruck" => Some(renamed(flat(Pattern::Doubling), by_host(topology))),
        "pat" => Some(renamed(flat(Pattern::Bounded(PAT_BLOCKS)), by_host(topology))),
        "hierarchical" => Some(Hierarchy::of(topology).allgather(Pattern::Direct)),
        "hierarchical_bruck" => Some(Hierarchy::of(topology).allgather(Pattern::Doubling)),
        _ => None,
    }
}

fn reduce_scatter(name: &str, topology: &Topology) -> Option<Shared> {
    let forwards = match name {
        "recursive_halving" => "bruck",
        "hierarchical_recursive_halving" => "hierarchical_bruck",
        "direct" | "ring" | "pat" | "hierarchical" => name,
        _ => return None,
    };
    allgather(forwards, topology).map(reduction)
}

fn broadcast(name: &str, request: &Request, topology: &Topology) -> Option<Plan> {
    let n = topology.ranks();
    let order = from_root(topology, request.root);
    let flat = |pattern| -> Shared { Arc::new(Broadcast { pattern, positions: n }) };
    let (schedule, parts) = match name {
        "direct" => (in_order(flat(Pattern::Direct), order, Items::Same), 1),
        "binomial" => (in_order(flat(Pattern::Halving), order, Items::Same), 1),
        "chain" => (in_order(flat(Pattern::Chain), order, Items::Same), 1),
        "scatter_allgather" => (in_order(scatter_allgather(n), order, Items::Same), n - 1),
        "hierarchical" => (Hierarchy::of(topology).broadcast(request.root, Pattern::Halving), 1),
        _ => return None,
    };
    Some(Plan::new(schedule, even(request, parts.max(1))))
}

fn reduce(name: &str, request: &Request, topology: &Topology) -> Option<Plan> {
    let forwards = match name {
        "reduce_scatter_gather" => "scatter_allgather",
        "direct" | "binomial" | "chain" | "hierarchical" => name,
        _ => return None,
    };
    let plan = broadcast(forwards, request, topology)?;
    Some(Plan { schedule: reduction(plan.schedule), ..plan })
}

fn scatter(name: &str, topology: &Topology, root: Rank) -> Option<Shared> {
    let pattern = match name {
        "direct" => Pattern::Direct,
        "binomial" => Pattern::Halving,
        _ => return None,
    };
    let scatter = Scatter { pattern, positions: topology.ranks() };
    Some(renamed(Arc::new(scatter), from_root(topology, root)))
}

fn alltoall(name: &str, topology: &Topology) -> Option<Shared> {
    let pattern = match name {
        "direct" => Pattern::Direct,
        "pairwise" => Pattern::Pairwise,
        "bruck" => Pattern::Doubling,
        _ => return None,
    };
    Some(Arc::new(AllToAll { pattern, positions: topology.ranks() }))
}

/// A ReduceScatter of one shard for each position, then its reverse.
fn shards(pattern: Pattern, positions: u32) -> Shared {
    there_and_back(Arc::new(AllGather { pattern, positions, items: positions }))
}

/// A part for everybody but position 0, which deals them out; then all of these share theirs.
fn scatter_allgather(positions: u32) -> Shared {
    let others = positions - 1;
    let part = |position: usize| (0..others).nth(position.wrapping_sub(1));
    let everyone = (0..positions).map(Rank).collect();
    let deal = Scatter { pattern: Pattern::Direct, positions };
    let items = Items::listed(positions as usize, part);
    let deal = Subgroup::new(Arc::new(deal), positions, everyone, items);
    let share = AllGather { pattern: Pattern::Direct, positions: others, items: others };
    let members = (1..positions).map(Rank).collect();
    let share = Subgroup::new(Arc::new(share), positions, members, Items::Same);
    Arc::new(InSequence::new(vec![Arc::new(deal), Arc::new(share)]))
}

/// Two trees, each for half of the data; who is inside the one is a leaf of the other.
fn double_binary_tree(topology: &Topology) -> Shared {
    let n = topology.ranks();
    let order = by_host(topology);
    let tree: Shared = Arc::new(BinaryTree::new(n));
    let mut other = order.clone();
    if n.is_multiple_of(2) {
        other.reverse();
    } else {
        other.rotate_left(1);
    }
    let parts = [order, other].into_iter().zip(0..).map(|(members, half)| {
        Subgroup::new(Arc::clone(&tree), n, members, Items::listed(1, |_| [half]))
    });
    there_and_back(Arc::new(Together::new(n, parts.collect())))
}

/// Recursive doubling in which the ranks of the slowest nodes are the ones folded.
fn folding_slowest(topology: &Topology) -> Shared {
    let mut order = by_host(topology);
    let capacity = |rank: &Rank| topology.capacity(topology.node_of(*rank));
    order.sort_by(|a, b| capacity(b).total_cmp(&capacity(a)));
    in_order(recursive_doubling(topology.ranks()), order, Items::Same)
}

/// `inner`, whose item `i` belongs to position `i`, with chunk `r` belonging to rank `r`.
fn renamed(inner: Shared, order: Vec<Rank>) -> Shared {
    if order.iter().copied().eq((0..).map(Rank).take(order.len())) {
        return inner;
    }
    let items = Items::listed(order.len(), |position| [order[position].0]);
    in_order(inner, order, items)
}

/// All ranks, host by host: neighbours in this order are mostly on one host.
fn by_host(topology: &Topology) -> Vec<Rank> {
    (0..topology.nodes()).flat_map(|node| topology.ranks_of(Node(node))).copied().collect()
}

/// The root, the rest of its host, then the other hosts with the fastest first: at the end of a
/// chain a slow host delays nobody.
fn from_root(topology: &Topology, root: Rank) -> Vec<Rank> {
    let mut nodes: Vec<Node> = (0..topology.nodes()).map(Node).collect();
    let home = topology.node_of(root);
    nodes.sort_by(|a, b| {
        let by_speed = topology.capacity(*b).total_cmp(&topology.capacity(*a));
        (*a != home).cmp(&(*b != home)).then(by_speed)
    });
    let ranks = nodes.iter().flat_map(|node| topology.ranks_of(*node)).copied();
    std::iter::once(root).chain(ranks.filter(|rank| *rank != root)).collect()
}

/// The bandwidth of each rank's part of its node's rails.
fn per_rank(topology: &Topology) -> Vec<f64> {
    let part = |rank| {
        let node = topology.node_of(rank);
        let sharing = u32::try_from(topology.ranks_of(node).len()).unwrap_or(u32::MAX);
        topology.capacity(node) / f64::from(sharing)
    };
    (0..topology.ranks()).map(|rank| part(Rank(rank))).collect()
}

fn even(request: &Request, parts: u32) -> Partition {
    Partition::even(elements(request), request.datatype.bytes(), parts)
}

fn weighted(request: &Request, weights: &[f64]) -> Partition {
    Partition::weighted(elements(request), request.datatype.bytes(), weights)
}

/// A barrier moves something, or it would be none.
fn elements(request: &Request) -> usize {
    match request.collective {
        Collective::Barrier => request.count.max(1),
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Gather
        | Collective::Scatter
        | Collective::PointToPoint => request.count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::cost::CostModel;
    use ccl_core::ids::Chunk;
    use ccl_core::topology::{Host, RailCapacity};

    #[test]
    fn a_chain_visits_the_slow_host_last() {
        let host = |speed| Host { rails: vec![RailCapacity::up(speed)], cores: 1 };
        let nodes = [0, 1, 2, 0, 1, 2].map(Node).to_vec();
        let topology = Topology::new(nodes, vec![host(1.0), host(3.0), host(2.0)]);
        assert_eq!(from_root(&topology, Rank(3)), [3, 0, 1, 4, 2, 5].map(Rank));
        assert_eq!(from_root(&topology, Rank(2)), [2, 5, 1, 4, 0, 3].map(Rank));
        assert_eq!(by_host(&topology), [0, 3, 1, 4, 2, 5].map(Rank));
    }

    #[test]
    fn every_name_is_built_and_no_other() {
        for collective in Collective::ALL {
            let request = crate::tests::request(collective, 100, Rank(0));
            for name in names(collective) {
                let topology = Topology::single_host(4, 2);
                let model = CostModel::default_for(&topology);
                let scene = Scene::new(&request, &topology, &model);
                assert!(build(name, &scene).is_some(), "{name}");
            }
            let topology = Topology::single_host(4, 2);
            let model = CostModel::default_for(&topology);
            assert!(build("sorcery", &Scene::new(&request, &topology, &model)).is_none());
        }
    }

    #[test]
    fn chunk_of_a_rank_follows_the_rank() {
        let gather: Shared =
            Arc::new(AllGather { pattern: Pattern::Direct, positions: 2, items: 2 });
        let mut part = Vec::new();
        renamed(gather, vec![Rank(1), Rank(0)]).transfers(0, Rank(1), &mut part);
        assert!(part.iter().all(|transfer| transfer.chunk == Chunk(transfer.source.0)));
    }
}
