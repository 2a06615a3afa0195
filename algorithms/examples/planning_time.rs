//! How long the planner takes to choose an AllReduce for degraded clusters, and one rank to make its
//! program of it.
//!
//! ```text
//! cargo run --release -p ccl-algorithms --example planning_time
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program that measures time and prints it"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use ccl_algorithms::choose;
use ccl_core::collective::{Collective, Request};
use ccl_core::cost::Preset;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::{Node, Rail, Rank};
use ccl_core::layout::Layout;
use ccl_core::program::lower;
use ccl_core::random::Random;
use ccl_core::topology::{Host, RailCapacity, Topology};

const RAILS: u32 = 8;
/// The middle one of so many attempts counts.
const ATTEMPTS: usize = 21;

fn cluster(nodes: u32, ranks_per_node: u32, failures: u32, preset: Preset) -> Topology {
    let rails = vec![RailCapacity::up(preset.rail_bytes_per_second); RAILS as usize];
    let hosts = vec![Host { rails, cores: 64 }; nodes as usize];
    let node_of = (0..nodes * ranks_per_node).map(|rank| Node(rank / ranks_per_node)).collect();
    let mut topology = Topology::new(node_of, hosts);
    let mut random = Random::new(7);
    for _ in 0..failures {
        let node = Node(random.below(u64::from(nodes)) as u32);
        topology = topology.with_rail(node, Rail(random.below(u64::from(RAILS)) as u8), false);
    }
    topology
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ATTEMPTS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ATTEMPTS / 2]
}

fn main() {
    let preset = Preset::ALL[1];
    let model = preset.model(RAILS);
    println!("nodes ranks/node failures      bytes     choice    program  steps  algorithm");
    for (nodes, ranks_per_node, failures) in
        [(8, 1, 1), (64, 1, 0), (64, 1, 2), (64, 8, 2), (1024, 1, 0), (1024, 1, 40), (1024, 8, 40)]
    {
        let topology = cluster(nodes, ranks_per_node, failures, preset);
        for bytes in [1 << 20, 1 << 30] {
            let request = Request {
                collective: Collective::AllReduce,
                count: bytes / 4,
                datatype: DataType::Float32,
                reduction: Reduction::Builtin(ReduceOp::Sum),
                root: Rank(0),
            };
            let plan = || choose(&request, &topology, &model, None);
            let Ok(choice) = plan() else {
                println!("{nodes:5} {ranks_per_node:10} {failures:8}: no plan");
                continue;
            };
            let planning = median(|| drop(black_box(plan())));
            let layout = Layout::new(&request, topology.ranks(), choice.partition.clone());
            let program = || lower(&*choice.schedule, &layout, Rank(1), 4, &topology);
            let steps = program().steps.len();
            let lowering = median(|| drop(black_box(program())));
            println!(
                "{nodes:5} {ranks_per_node:10} {failures:8} {bytes:10} {:>8.0?} {:>10.0?} {steps:6}  {}",
                planning, lowering, choice.name
            );
        }
    }
}
