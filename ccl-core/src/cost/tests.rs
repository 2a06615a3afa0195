//! The model against times computed by hand, and what must hold for all schedules.

use super::*;
use crate::collective::{Collective, Request};
use crate::datatype::{DataType, ReduceOp, Reduction};
use crate::layout::Partition;
use crate::topology::{Host, RailCapacity};

/// Chunk 0 goes from every rank to the next, `rounds` times.
#[derive(Debug)]
struct Line {
    ranks: u32,
    rounds: u32,
}

impl Schedule for Line {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn transfers(&self, _round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let hop =
            |source: u32| Transfer::new(Chunk(0), Rank(source), Rank(source + 1), Mode::Store);
        into.extend((rank.0 + 1 < self.ranks).then(|| hop(rank.0)));
        into.extend(rank.0.checked_sub(1).map(hop));
    }
}

fn layout(ranks: u32, bytes: usize, parts: u32) -> Layout {
    let request = Request {
        collective: Collective::Broadcast,
        count: bytes,
        datatype: DataType::Uint8,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    };
    Layout::new(&request, ranks, Partition::even(bytes, 1, parts))
}

fn separate(capacities: &[f64]) -> Topology {
    let host = |capacity: &f64| Host { rails: vec![RailCapacity::up(*capacity)], cores: 1 };
    let nodes = (0..).map(Node).take(capacities.len()).collect();
    Topology::new(nodes, capacities.iter().map(host).collect())
}

/// A model in which only the network counts, with round numbers.
fn plain() -> CostModel {
    let free = LinkCost { alpha: 0.0, overhead: 0.0, bytes_per_second: f64::INFINITY };
    let fast = CoreRate { cached: f64::INFINITY, memory: f64::INFINITY };
    CostModel {
        local: free,
        network: LinkCost { alpha: 1.0, overhead: 0.25, ..free },
        tile_overhead: 0.0,
        copy: fast,
        reduce: fast,
        network_cpu_bytes_per_second: f64::INFINITY,
        cache_bytes: 0.0,
        tile_bytes: 100,
        network_tile_bytes: 100,
        call: 0.0,
    }
}

fn cost(bytes: usize, rounds: u32, capacities: &[f64]) -> Estimate {
    let ranks = u32::try_from(capacities.len()).unwrap();
    let topology = separate(capacities);
    estimate(
        &Line { ranks, rounds },
        &layout(ranks, bytes, 1),
        1,
        &topology,
        &plain(),
        Network::Tiles,
    )
}

#[test]
fn a_small_message_costs_latency_and_its_own_bytes() {
    let small = cost(100, 1, &[100.0, 100.0]);
    assert_eq!((small.latency_seconds, small.bandwidth_seconds), (1.25, 1.0));
    assert_eq!(small.seconds, 2.25);
    assert_eq!(cost(0, 1, &[100.0, 100.0]), Estimate::default());
}

#[test]
fn tiles_of_successive_rounds_overlap() {
    let one_by_one = cost(1000, 1, &[100.0; 4]);
    assert_eq!(one_by_one.bandwidth_seconds, 10.0);
    let pipelined = cost(1000, 3, &[100.0; 4]);
    assert_eq!(pipelined.latency_seconds, 4.5, "three hops, six messages in the middle");
    assert_eq!(pipelined.bandwidth_seconds, 30.0 + 2.0, "the bytes, and two more tiles");
}

#[test]
fn the_slowest_node_decides() {
    assert_eq!(cost(1000, 1, &[100.0, 50.0, 100.0]).bandwidth_seconds, 20.0);
    assert!(cost(1000, 1, &[100.0, 0.0]).seconds.is_infinite());
}

#[test]
fn a_crowded_host_shares_its_cores() {
    let model = CostModel {
        copy: CoreRate { cached: 100.0, memory: 100.0 },
        tile_bytes: 1 << 20,
        network_tile_bytes: 1 << 20,
        ..plain()
    };
    let time = |cores| {
        let topology = Topology::single_host(4, cores);
        let line = Line { ranks: 4, rounds: 1 };
        estimate(&line, &layout(4, 100, 1), 1, &topology, &model, Network::Tiles).bandwidth_seconds
    };
    assert_eq!([1, 2, 4, 64].map(time), [6.0, 3.0, 2.0, 2.0]);
}

#[test]
fn a_large_group_is_sampled_with_its_slowest_node_and_its_root() {
    let mut capacities = vec![100.0; 200];
    capacities[123] = 10.0;
    let topology = separate(&capacities);
    let line = |ranks| Line { ranks, rounds: 1 };
    let ranks = sample(&line(200), &layout(200, 1, 1), &topology);
    assert!(ranks.len() <= SAMPLED_RANKS, "{ranks:?}");
    assert!([0, 123, 199].iter().all(|rank| ranks.contains(&Rank(*rank))), "{ranks:?}");
    let host = Topology::single_host(1000, 8);
    let crowd = sample(&line(1000), &layout(1000, 1, 1), &host);
    assert!(crowd.len() <= SAMPLED_RANKS + 2, "{}", crowd.len());
    assert_eq!(cost(1000, 1, &capacities).bandwidth_seconds, 100.0);
}

/// Only rank `r` and the next take part in round `r`.
#[derive(Debug)]
struct Relay(Line);

impl Schedule for Relay {
    fn ranks(&self) -> u32 {
        self.0.ranks
    }

    fn rounds(&self) -> u32 {
        self.0.rounds
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        self.0.transfers(round, rank, into);
        into.retain(|transfer| transfer.source == Rank(round));
    }
}

/// Everybody sends the first chunk to rank 500.
#[derive(Debug)]
struct Funnel(Layout);

impl Schedule for Funnel {
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }

    fn rounds(&self) -> u32 {
        1
    }

    fn transfers(&self, _round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let target = Rank(500);
        let sent = |source| Transfer::new(Chunk(0), source, target, Mode::Accumulate);
        let all = (0..self.ranks()).map(Rank).filter(|source| *source != target);
        into.extend(all.map(sent).filter(|sent| rank == target || rank == sent.source));
    }
}

#[test]
fn the_one_rank_that_has_all_the_work_is_found() {
    let topology = separate(&[100.0; 1000]);
    let layout = layout(1000, 10, 20);
    let funnel = Funnel(layout.clone());
    let estimate = estimate(&funnel, &layout, 1, &topology, &plain(), Network::Tiles);
    assert!(estimate.latency_seconds > 0.25 * 999.0, "{estimate:?}");
}

#[test]
fn rounds_that_the_sample_does_not_see_count() {
    let relay = Relay(Line { ranks: 1000, rounds: 999 });
    let topology = separate(&[100.0; 1000]);
    let estimate = estimate(&relay, &layout(1000, 10, 1), 1, &topology, &plain(), Network::Tiles);
    assert!((estimate.latency_seconds - 999.0).abs() < 1.0, "{estimate:?}");
    assert!((estimate.bandwidth_seconds - 99.9).abs() < 1e-6, "{estimate:?}");
}

/// As if all ranks were looked at, but for the first tile of the hops that are not.
#[test]
fn rounds_that_do_not_overlap_count_where_the_sample_does_not_see_them() {
    let relay = Relay(Line { ranks: 1000, rounds: 999 });
    let topology = separate(&[100.0; 1000]);
    let layout = layout(1000, 1000, 1);
    let estimate = estimate(&relay, &layout, 1, &topology, &plain(), Network::Rounds);
    assert!((9990.0..=9990.0 + 998.0).contains(&estimate.bandwidth_seconds), "{estimate:?}");
}

#[test]
fn the_bound_is_the_cut_or_the_volume() {
    assert_eq!(bound_allreduce(&Topology::single_host(8, 2), 1000), 0.0);
    assert_eq!(bound_allreduce(&separate(&[100.0; 4]), 1000), 15.0);
    assert_eq!(bound_allreduce(&separate(&[100.0, 100.0, 100.0, 50.0]), 1000), 20.0);
    assert!(bound_allreduce(&separate(&[100.0, 0.0]), 1000).is_infinite());
}

#[test]
fn rounds_that_do_not_overlap_are_paid_one_after_the_other() {
    let topology = separate(&[100.0; 4]);
    let time = |network| {
        let relay = Relay(Line { ranks: 4, rounds: 3 });
        estimate(&relay, &layout(4, 1000, 1), 1, &topology, &plain(), network).bandwidth_seconds
    };
    // 10 seconds for each hop, and the first tile takes 1 second once more for each but the first.
    assert_eq!((time(Network::Tiles), time(Network::Rounds)), (12.0, 32.0));
}
