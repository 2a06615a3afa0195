//! What a schedule will cost: the α-β-γ model.
//!
//! `T = A + max(P, C) + F`, where
//!
//! * `A`, the latency: for every round the α of the slowest kind of link in it, and the CPU overhead
//!   of all messages and tiles, at the busiest rank or shared among the cores of its host, whichever
//!   is longer;
//! * `P`, the port that is busiest: network bytes of a node over the capacity of its rails in one
//!   direction, or the CPU work of a rank or of a host (copies into and out of staging, reductions);
//! * `C`, the first tile on its way through all rounds;
//! * `F`, filling the pipeline: one more tile for every round, but the first, that moves more than one.
//!
//! Tiles of successive rounds overlap, so bandwidth is paid once (`P`) and not for every round. Where that
//! is not so for the network, or only some rails of a node can be used, [`Network`] tells its part of `P`.
//!
//! Above [`SAMPLED_RANKS`] ranks, only some nodes are evaluated: the slowest one, those of the first
//! rank that has a contribution and of the first that needs a result (the root, if there is one), and the
//! first and last; and, where some chunks are empty, those that the others pass through. The groups of
//! a schedule are alike enough for that, and the choice is the same on all ranks because the sample is.
//! A round in which the sample has no part counts as an average one.

mod presets;

use std::collections::BTreeSet;

pub use presets::Preset;

use crate::ids::{Chunk, Node, Rank};
use crate::layout::Layout;
use crate::program::multicasts;
use crate::schedule::{Mode, Schedule, Transfer};
use crate::topology::Topology;

/// Groups up to this size are evaluated in full; no more ranks than this are evaluated on one node.
pub const SAMPLED_RANKS: usize = 32;

/// How many ranks beyond the ends of the data are looked for where little of it is not empty.
const FOLLOWED_RANKS: usize = 4;

/// Of larger groups, nodes are added to the sample up to this many ranks.
const SAMPLE_TARGET_RANKS: usize = 8;

/// One kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// Seconds from a send to its arrival, apart from the bytes.
    pub alpha: f64,
    /// Seconds of CPU at either end of the messages of one round between two ranks.
    pub overhead: f64,
    /// Bytes per second of one transfer when it is alone.
    pub bytes_per_second: f64,
}

/// How fast one core works on bytes, inside its cache and outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreRate {
    /// Bytes per second while everything fits into the cache.
    pub cached: f64,
    /// Bytes per second from memory.
    pub memory: f64,
}

/// The constants of the model; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Links inside a host.
    pub local: LinkCost,
    /// Links between hosts.
    pub network: LinkCost,
    /// CPU at either end of every tile.
    pub tile_overhead: f64,
    /// Copies into and out of staging.
    pub copy: CoreRate,
    /// Reductions, counted in bytes that arrive.
    pub reduce: CoreRate,
    /// Bytes per second that a core can push through the network stack.
    pub network_cpu_bytes_per_second: f64,
    /// How much of a call's bytes one core keeps in its cache.
    pub cache_bytes: f64,
    /// Unit in which data is forwarded inside a host.
    pub tile_bytes: usize,
    /// The same between hosts.
    pub network_tile_bytes: usize,
    /// Seconds that every call costs, whatever it is.
    pub call: f64,
}

/// How long a schedule keeps the network between nodes busy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Network {
    /// As long as the busiest port: rounds overlap tile by tile, because every link is used in one round
    /// only, or all ports are equally busy in all rounds.
    #[default]
    Tiles,
    /// The sum of the busiest ports of all rounds: rounds hardly overlap, because links are used again in
    /// later rounds, and what is slow in one holds up the next. So it is when a reduction waits for a slow
    /// contributor while the contributions of the fast ones fill their windows.
    Rounds,
    /// So many seconds, as the planner knows: it has divided the bytes among single rails.
    Busy(f64),
}

/// What the model says about one schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// All of it.
    pub seconds: f64,
    /// The part that does not shrink with the data.
    pub latency_seconds: f64,
    /// The part that grows with the data.
    pub bandwidth_seconds: f64,
}

impl CostModel {
    /// Constants measured on two cores of a virtual machine with shared memory and polled TCP.
    ///
    /// With more ranks than cores a hop waits until the scheduler has gone round once, on all links,
    /// and every rank finds its cache full of the others' data.
    #[must_use]
    pub fn default_for(topology: &Topology) -> Self {
        let crowding = topology.crowding();
        let crowded = crowding > 1.0;
        let switching = if crowded { 3e-6 * crowding } else { 0.0 };
        Self {
            local: LinkCost {
                alpha: f64::max(0.3e-6, switching),
                overhead: if crowded { 0.3e-6 } else { 0.08e-6 },
                bytes_per_second: 40e9,
            },
            network: LinkCost { alpha: 20e-6 + switching, overhead: 4e-6, bytes_per_second: 5e9 },
            tile_overhead: 0.05e-6,
            copy: CoreRate { cached: 20e9, memory: 12e9 },
            reduce: CoreRate { cached: 16e9, memory: 9e9 },
            network_cpu_bytes_per_second: 5e9,
            cache_bytes: 1024.0 * 1024.0,
            tile_bytes: 128 * 1024,
            network_tile_bytes: 128 * 1024,
            call: 0.0,
        }
    }
}

/// The time no AllReduce of `bytes` per node can beat: `D · max(1/B_min, 2(n-1)/ΣB)` over the nodes'
/// capacities. The first is the cut around the slowest node, the second the volume: every byte
/// travels to one node from all the others, and back.
#[must_use]
pub fn bound_allreduce(topology: &Topology, bytes: usize) -> f64 {
    if topology.nodes() == 1 || bytes == 0 {
        return 0.0;
    }
    let capacities = topology.capacities();
    let slowest = capacities.iter().copied().fold(f64::INFINITY, f64::min);
    let volume = 2.0 * f64::from(topology.nodes() - 1) / capacities.iter().sum::<f64>();
    real(bytes) * f64::max(1.0 / slowest, volume)
}

/// What `schedule` costs on data that lies as in `layout`.
#[must_use]
pub fn estimate(
    schedule: &dyn Schedule,
    layout: &Layout,
    element_bytes: usize,
    topology: &Topology,
    model: &CostModel,
    network: Network,
) -> Estimate {
    let mut evaluation = Evaluation::new(layout, element_bytes, topology, model);
    evaluation.take(sample(schedule, layout, topology));
    let mut part = Vec::new();
    for round in 0..schedule.rounds() {
        let mut span = RoundSpan::default();
        for index in 0..evaluation.works.len() {
            part.clear();
            schedule.transfers(round, evaluation.works[index].rank, &mut part);
            evaluation.add(index, &part, &mut span);
        }
        evaluation.close(span);
    }
    evaluation.finish(schedule.rounds(), network)
}

/// What one sampled rank does in the whole schedule.
#[derive(Clone, Debug)]
struct Work {
    rank: Rank,
    node: Node,
    /// CPU for messages and tiles.
    overhead: f64,
    copied_bytes: f64,
    reduced_bytes: f64,
    /// Bytes sent to and received from other nodes.
    network: [f64; 2],
    /// The same at the end of the round before.
    before: [f64; 2],
}

/// What decides the length of one round.
#[derive(Clone, Copy, Debug, Default)]
struct RoundSpan {
    alpha: f64,
    /// The longest first tile.
    tile_seconds: f64,
    fills: bool,
    moves: bool,
}

struct Evaluation<'a> {
    layout: &'a Layout,
    element_bytes: usize,
    topology: &'a Topology,
    model: &'a CostModel,
    capacities: Vec<f64>,
    works: Vec<Work>,
    /// For every rank, the last `visit` in which it was a peer.
    seen: Vec<[u32; 2]>,
    visit: u32,
    /// Rounds in which the sample has a part.
    rounds: u32,
    alphas: f64,
    /// The busiest network ports of all rounds, one after the other.
    ports_seconds: f64,
    path_seconds: f64,
    fill_seconds: f64,
    filled: bool,
}

impl<'a> Evaluation<'a> {
    fn new(
        layout: &'a Layout,
        element_bytes: usize,
        topology: &'a Topology,
        model: &'a CostModel,
    ) -> Self {
        Self {
            layout,
            element_bytes,
            topology,
            model,
            capacities: topology.capacities(),
            works: Vec::new(),
            seen: vec![[0; 2]; topology.ranks() as usize],
            visit: 0,
            rounds: 0,
            alphas: 0.0,
            ports_seconds: 0.0,
            path_seconds: 0.0,
            fill_seconds: 0.0,
            filled: false,
        }
    }

    /// Begins with the ranks to evaluate.
    fn take(&mut self, ranks: Vec<Rank>) {
        let idle = |rank| Work {
            rank,
            node: self.topology.node_of(rank),
            overhead: 0.0,
            copied_bytes: 0.0,
            reduced_bytes: 0.0,
            network: [0.0; 2],
            before: [0.0; 2],
        };
        self.works = ranks.into_iter().map(idle).collect();
    }

    /// Adds what one rank does in one round. What goes to the whole host leaves once.
    fn add(&mut self, index: usize, part: &[Transfer], span: &mut RoundSpan) {
        self.visit += 1;
        let me = self.works[index].rank;
        let mut shared = multicasts(part, me, self.topology);
        let mut left = BTreeSet::new();
        let mut overhead = 0.0;
        for transfer in part {
            let near = transfer.source == me && self.topology.together(me, transfer.target);
            if near && left.contains(&transfer.chunk) {
                continue;
            }
            if near && shared.remove(&transfer.chunk) {
                left.insert(transfer.chunk);
            }
            let bytes = self.layout.elements(transfer.chunk) * self.element_bytes;
            if bytes == 0 {
                continue;
            }
            let receives = transfer.target == self.works[index].rank;
            let peer = if receives { transfer.source } else { transfer.target };
            let away = self.topology.node_of(peer) != self.works[index].node;
            let (link, tile_bytes) = match away {
                true => (self.model.network, self.model.network_tile_bytes),
                false => (self.model.local, self.model.tile_bytes),
            };
            let side = usize::from(receives);
            if std::mem::replace(&mut self.seen[peer.index()][side], self.visit) != self.visit {
                overhead += link.overhead;
            }
            overhead += self.model.tile_overhead * real(bytes.div_ceil(tile_bytes));
            self.works[index].move_bytes(real(bytes), away, receives, transfer.mode);
            let rate = if away { self.path_rate(transfer) } else { link.bytes_per_second };
            span.cover(bytes, tile_bytes, link.alpha, rate);
        }
        self.works[index].overhead += overhead;
    }

    /// Bytes per second between two nodes when nothing else moves.
    fn path_rate(&self, transfer: &Transfer) -> f64 {
        let capacity = |rank| self.capacities[self.topology.node_of(rank).index()];
        let ends = f64::min(capacity(transfer.source), capacity(transfer.target));
        ends.min(self.model.network.bytes_per_second)
    }

    fn close(&mut self, span: RoundSpan) {
        self.rounds += u32::from(span.moves);
        self.alphas += span.alpha;
        self.path_seconds += span.tile_seconds;
        if span.fills {
            self.fill_seconds += if self.filled { span.tile_seconds } else { 0.0 };
            self.filled = true;
        }
        self.ports_seconds +=
            self.network_port(|work, direction| work.network[direction] - work.before[direction]);
        self.works.iter_mut().for_each(|work| work.before = work.network);
    }

    /// The busiest direction of a node, where every sampled rank has so many bytes.
    fn network_port(&self, bytes: impl Fn(&Work, usize) -> f64) -> f64 {
        let mut port: f64 = 0.0;
        for works in self.works.chunk_by(|a, b| a.node == b.node) {
            let node = works[0].node;
            let scale = real(self.topology.ranks_of(node).len()) / real(works.len());
            for direction in 0..2 {
                let all: f64 = works.iter().map(|work| bytes(work, direction)).sum();
                if all > 0.0 {
                    port = port.max(all * scale / self.capacities[node.index()]);
                }
            }
        }
        port
    }

    fn finish(&self, rounds: u32, network: Network) -> Estimate {
        let everyone = self.works.len() == self.topology.ranks() as usize;
        let scale = if everyone || self.rounds == 0 {
            1.0
        } else {
            f64::from(rounds) / f64::from(self.rounds)
        };
        let (overhead, processors) = self.busiest();
        let network = match network {
            Network::Tiles => self.network_port(|work, direction| work.network[direction]),
            Network::Rounds => scale * self.ports_seconds,
            Network::Busy(seconds) => seconds,
        };
        let port = f64::max(processors, network);
        let latency_seconds = self.model.call + scale * self.alphas + overhead;
        let bandwidth_seconds = port.max(scale * self.path_seconds) + scale * self.fill_seconds;
        let seconds = latency_seconds + bandwidth_seconds;
        Estimate { seconds, latency_seconds, bandwidth_seconds }
    }

    /// The most overhead, and the most work on bytes, of any rank or host.
    fn busiest(&self) -> (f64, f64) {
        let mut overhead: f64 = 0.0;
        let mut port: f64 = 0.0;
        for works in self.works.chunk_by(|a, b| a.node == b.node) {
            let node = works[0].node;
            let ranks = real(self.topology.ranks_of(node).len());
            let cores = ranks.min(f64::from(self.topology.cores(node)));
            let all = |each: &dyn Fn(&Work) -> f64| {
                works.iter().map(each).sum::<f64>() * ranks / real(works.len())
            };
            let most = |each: &dyn Fn(&Work) -> f64| {
                works.iter().map(each).fold(all(each) / cores, f64::max)
            };
            overhead = overhead.max(most(&|work| work.overhead));
            port = port.max(most(&|work| work.seconds(self.model)));
        }
        (overhead, port)
    }
}

impl Work {
    fn move_bytes(&mut self, bytes: f64, away: bool, receives: bool, mode: Mode) {
        if receives && mode == Mode::Accumulate {
            self.reduced_bytes += bytes;
        } else {
            self.copied_bytes += bytes;
        }
        if away {
            self.network[usize::from(receives)] += bytes;
        }
    }

    /// CPU time for the bytes. What fits into the cache is fast, the rest is not.
    fn seconds(&self, model: &CostModel) -> f64 {
        let touched = self.copied_bytes + self.reduced_bytes;
        let cached = if touched > model.cache_bytes { model.cache_bytes / touched } else { 1.0 };
        let time = |bytes: f64, rate: CoreRate| {
            bytes * (cached / rate.cached + (1.0 - cached) / rate.memory)
        };
        time(self.copied_bytes, model.copy)
            + time(self.reduced_bytes, model.reduce)
            + (self.network[0] + self.network[1]) / model.network_cpu_bytes_per_second
    }
}

impl RoundSpan {
    fn cover(&mut self, bytes: usize, tile_bytes: usize, alpha: f64, rate: f64) {
        self.alpha = self.alpha.max(alpha);
        self.tile_seconds = self.tile_seconds.max(real(bytes.min(tile_bytes)) / rate);
        self.fills |= bytes > tile_bytes;
        self.moves = true;
    }
}

/// The ranks to evaluate, node by node; see the module.
fn sample(schedule: &dyn Schedule, layout: &Layout, topology: &Topology) -> Vec<Rank> {
    if topology.ranks() as usize <= SAMPLED_RANKS {
        let nodes = (0..topology.nodes()).map(Node);
        return nodes.flat_map(|node| topology.ranks_of(node)).copied().collect();
    }
    let mut ends = ends(layout, topology.ranks());
    if (0..layout.parts()).any(|part| layout.elements(Chunk(part)) == 0) {
        follow(schedule, layout, &mut ends);
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut ranks = 0;
    for (place, node) in by_interest(&ends, topology).into_iter().enumerate() {
        let needed = place <= ends.len();
        if !nodes.contains(&node) && (needed || ranks < SAMPLE_TARGET_RANKS) {
            ranks += topology.ranks_of(node).len();
            nodes.push(node);
        }
    }
    nodes.into_iter().flat_map(|node| sample_of_node(node, &ends, topology)).collect()
}

fn sample_of_node(node: Node, ends: &[Rank], topology: &Topology) -> Vec<Rank> {
    let members = topology.ranks_of(node);
    let stride = members.len().div_ceil(SAMPLED_RANKS);
    let taken = |(place, rank): &(usize, &Rank)| place % stride == 0 || ends.contains(rank);
    members.iter().enumerate().filter(taken).map(|(_, rank)| *rank).collect()
}

/// Adds ranks with which those in `ranks` exchange something that is not empty.
fn follow(schedule: &dyn Schedule, layout: &Layout, ranks: &mut Vec<Rank>) {
    let limit = ranks.len() + FOLLOWED_RANKS;
    let mut part = Vec::new();
    let mut next = 0;
    while next < ranks.len() {
        for round in 0..schedule.rounds() {
            part.clear();
            schedule.transfers(round, ranks[next], &mut part);
            let full = part.iter().find(|transfer| layout.elements(transfer.chunk) > 0);
            let peers = full.map(|transfer| [transfer.source, transfer.target]);
            for peer in peers.into_iter().flatten() {
                if ranks.len() < limit && !ranks.contains(&peer) {
                    ranks.push(peer);
                }
            }
        }
        next += 1;
    }
}

/// All nodes, some of them repeatedly, with those first that say most about the whole.
fn by_interest(ends: &[Rank], topology: &Topology) -> Vec<Node> {
    let all = || (0..topology.nodes()).map(Node);
    let slowest = all().min_by(|a, b| topology.capacity(*a).total_cmp(&topology.capacity(*b)));
    let mut nodes: Vec<Node> = ends.iter().map(|rank| topology.node_of(*rank)).collect();
    nodes.extend(slowest);
    nodes.extend(all().next());
    nodes.extend(all().next_back());
    nodes.extend(all());
    nodes
}

/// The first rank with a contribution to the first chunk, and the first that needs it.
fn ends(layout: &Layout, ranks: u32) -> Vec<Rank> {
    let all = || (0..ranks).map(Rank);
    let source = all().find(|rank| layout.input(*rank, Chunk(0)).is_some());
    let target = all().find(|rank| layout.output(*rank, Chunk(0)).is_some());
    source.into_iter().chain(target).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a number of bytes in a model")]
fn real(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
