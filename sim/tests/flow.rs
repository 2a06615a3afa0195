//! Known times: what formulas and an independent simulation say about these schedules.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

use ccl_algorithms::choose;
use ccl_core::collective::{Collective, Request};
use ccl_core::cost::CostModel;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::{Chunk, Node, Rail, Rank};
use ccl_core::layout::Partition;
use ccl_core::schedule::{Mode, Schedule, Transfer};
use ccl_core::topology::{Host, RailCapacity, Topology};
use ccl_sim::flow::strategy::strategy;
use ccl_sim::flow::{Impossible, Job, NicLoad, Outcome, Physics, run};

/// Bytes per second of a healthy host in each direction.
const HOST: f64 = 200e9;

/// Small tiles and a window that is no limit: what is left is the order of things.
const FLUID: Physics = Physics {
    alpha: 0.0,
    overhead: 0.0,
    tile_bytes: 32 << 10,
    slots: 64,
    spread_rails: false,
    local_bytes_per_second: f64::INFINITY,
    local_tile_bytes: 32 << 10,
    local_slots: 4,
};

/// Hosts with so many ranks and NICs each.
fn cluster(hosts: u32, ranks: u32, rails: u8) -> Topology {
    let rail = RailCapacity::up(HOST / f64::from(rails));
    let host = Host { rails: vec![rail; usize::from(rails)], cores: ranks };
    let node_of = (0..hosts).flat_map(|host| (0..ranks).map(move |_| Node(host))).collect();
    Topology::new(node_of, vec![host; hosts as usize])
}

/// Hosts with one NIC and one rank each; the NIC of host 0 has lost this part of its capacity.
fn one_slow(hosts: u32, lost: f64) -> Topology {
    let host = |speed| Host { rails: vec![RailCapacity::up(speed)], cores: 1 };
    let mut all = vec![host(HOST); hosts as usize];
    all[0] = host(HOST * (1.0 - lost));
    Topology::new((0..hosts).map(Node).collect(), all)
}

fn request(bytes: usize) -> Request {
    Request {
        collective: Collective::AllReduce,
        count: bytes / 4,
        datatype: DataType::Float32,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    }
}

fn named(name: &str, bytes: usize, topology: &Topology, physics: &Physics) -> Outcome {
    let request = request(bytes);
    let outcome = if let Some(between) = strategy(name, topology) {
        let partition = Partition::weighted(request.count, 4, &between.weights);
        let schedule = &*between.schedule;
        run(
            &Job { request: &request, topology, schedule, partition: &partition, division: None },
            physics,
        )
    } else {
        let model = CostModel::default_for(topology);
        let choice = choose(&request, topology, &model, Some(name)).expect("a known algorithm");
        run(&Job::of(&request, topology, &choice), physics)
    };
    outcome.expect("a result")
}

/// The time of a ring when all NICs work, in seconds.
fn ring_seconds(hosts: u32, bytes: usize) -> f64 {
    2.0 * f64::from(hosts - 1) / f64::from(hosts) * bytes as f64 / HOST
}

fn near(value: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (value / expected - 1.0).abs();
    assert!(error <= tolerance, "{what}: {value} is not {expected} within {tolerance}");
}

#[test]
fn a_healthy_ring_takes_what_the_formula_says() {
    for (hosts, rails) in [2, 3, 8].into_iter().flat_map(|hosts| [(hosts, 1), (hosts, 8)]) {
        let (topology, bytes) = (cluster(hosts, 1, rails), 64 << 20);
        for name in ["ring", "one_way_ring"] {
            let outcome = named(name, bytes, &topology, &Physics::default());
            let what = format!("{name}, {hosts} hosts with {rails} rails");
            // The last tiles do not fill all rails.
            near(
                outcome.seconds,
                ring_seconds(hosts, bytes),
                0.01 * f64::from(rails).sqrt(),
                &what,
            );
            near(outcome.bound_seconds, ring_seconds(hosts, bytes), 1e-9, &what);
        }
    }
}

/// In each round a rank passes on what came in the rounds before: what came last is the last to be passed on, so that nothing
/// that is there waits behind something that is not.
#[test]
fn doubling_keeps_the_network_as_busy_as_a_ring() {
    for hosts in [4, 8, 16] {
        let (bytes, topology) = (64 << 20, cluster(hosts, 1, 1));
        let took = named("rabenseifner", bytes, &topology, &FLUID).seconds;
        near(took, ring_seconds(hosts, bytes), 0.03, "rabenseifner");
    }
}

/// The planner's ring reduces in one direction and gathers in the other, so that early results meet
/// late contributions at the NICs of the slow host's neighbours.
#[test]
fn a_ring_is_as_fast_as_its_slowest_host() {
    for (hosts, lost) in [2, 3, 4, 8].into_iter().flat_map(|n| [1, 2, 4].map(|lost| (n, lost))) {
        let (lost, bytes) = (f64::from(lost) / 8.0, 64 << 20);
        let retained = |name| {
            let seconds = named(name, bytes, &one_slow(hosts, lost), &FLUID).seconds;
            ring_seconds(hosts, bytes) / seconds
        };
        let what = format!("{hosts} hosts, {lost} lost");
        let (one_way, both_ways) = (retained("one_way_ring"), retained("ring"));
        near(one_way, 1.0 - lost, 0.02, &what);
        near(both_ways, 1.0 - lost, 0.06, &what);
        assert!(both_ways < 1.001 - lost, "{what}: nothing beats the slow host, {both_ways}");
    }
}

/// What an independent simulation of reduction hubs in 64 slices found: hosts, eighths lost, per cent
/// of a healthy ring.
#[test]
fn hubs_in_slices_reach_what_was_found_before() {
    for (hosts, lost, percent) in [
        (3, 1, 95.5),
        (3, 2, 90.8),
        (3, 4, 65.9),
        (4, 1, 96.6),
        (4, 2, 93.1),
        (4, 4, 74.0),
        (8, 1, 98.2),
        (8, 2, 96.5),
        (8, 4, 86.7),
        (16, 4, 92.9),
    ] {
        let topology = one_slow(hosts, f64::from(lost) / 8.0);
        let outcome = named("rounds:64", 128 << 20, &topology, &FLUID);
        let what = format!("{hosts} hosts, {lost}/8 lost");
        near(100.0 * ring_seconds(hosts, 128 << 20) / outcome.seconds, percent, 0.02, &what);
        assert!(outcome.seconds >= outcome.bound_seconds, "{what}: faster than possible");
    }
}

#[test]
fn every_byte_is_counted_at_both_ends() {
    let (hosts, bytes) = (4, 8 << 20);
    let topology = cluster(hosts, 1, 4).with_rail(Node(0), Rail(0), false);
    for (name, copies) in [
        ("ring", 2 * (hosts - 1)),
        ("two_shot", 2 * (hosts - 1)),
        ("one_shot", hosts * (hosts - 1)),
    ] {
        let outcome = named(name, bytes, &topology, &Physics::default());
        let nics = || outcome.hosts.iter().flat_map(|host| &host.nics);
        let sent: u64 = nics().map(|nic| nic.sent_bytes).sum();
        let received: u64 = nics().map(|nic| nic.received_bytes).sum();
        let least = u64::from(copies) * bytes as u64;
        assert!((least..least + least / 100).contains(&sent), "{name}: {sent} bytes for {least}");
        assert_eq!(sent, received, "{name}");
        let idle = NicLoad { sent_bytes: 0, received_bytes: 0, sending: 0.0, receiving: 0.0 };
        assert_eq!(outcome.hosts[0].nics[0], idle, "{name}: the NIC is down");
        assert!(nics().all(|nic| nic.sending <= 1.0 && nic.receiving <= 1.0), "{name}");
    }
}

#[test]
fn a_short_message_takes_latency_and_overhead_twice() {
    let physics = Physics { alpha: 20e-6, overhead: 4e-6, ..Physics::default() };
    let outcome = named("two_shot", 128 << 10, &cluster(2, 1, 1), &physics);
    let wire = f64::from((64 << 10) + 64) / HOST;
    near(outcome.seconds, 2.0 * (20e-6 + 2.0 * 4e-6 + wire), 1e-6, "two rounds");
    near(outcome.ranks[0].worked, 4.0 * 4e-6, 1e-6, "two tiles sent and two received");
}

#[test]
fn a_window_bounds_what_is_on_the_way() {
    let bytes = 16 << 20;
    let with = |slots| Physics { alpha: 100e-6, slots, ..FLUID };
    let time = |slots| named("two_shot", bytes, &cluster(2, 1, 1), &with(slots));
    let (narrow, wide) = (time(4), time(1024));
    // Half of the data in each direction, twice. A window takes a latency to arrive, and its credit
    // another; what is sent in the other direction takes credits along earlier than the last tile.
    let windows = bytes as f64 / (4.0 * f64::from(32 << 10));
    assert!(narrow.seconds >= windows * 100e-6, "{}", narrow.seconds);
    assert!(wide.seconds < ring_seconds(2, bytes) + 500e-6, "{}", wide.seconds);
    assert!(narrow.seconds > 10.0 * wide.seconds, "{} and {}", narrow.seconds, wide.seconds);
    assert!(narrow.hosts[0].idle.for_credit > 0.5 * narrow.seconds, "{:?}", narrow.hosts[0].idle);
}

/// Links that all begin with the first rail use one NIC at a time where messages are short.
#[test]
fn links_that_begin_with_different_rails_use_all_of_them() {
    let physics = Physics { tile_bytes: 128 << 10, ..FLUID };
    let spread = Physics { spread_rails: true, ..physics };
    let topology = cluster(8, 1, 8);
    let one_tile_each = 8 * (128 << 10);
    let [alike, apart] =
        [physics, spread].map(|physics| named("two_shot", one_tile_each, &topology, &physics));
    let nics =
        |outcome: &Outcome| outcome.hosts[0].nics.iter().filter(|nic| nic.sent_bytes > 0).count();
    assert!(nics(&alike) == 2 && nics(&apart) == 8, "{} and {}", nics(&alike), nics(&apart));
    assert!(alike.seconds > 3.0 * apart.seconds, "{} and {}", alike.seconds, apart.seconds);
}

#[test]
fn the_inside_of_a_host_takes_time_only_if_it_is_said_so() {
    let one_host = Topology::single_host(4, 4);
    let copied = Physics { local_bytes_per_second: 10e9, ..FLUID };
    for name in ["one_shot", "two_shot", "recursive_doubling"] {
        assert_eq!(named(name, 4 << 20, &one_host, &FLUID).seconds, 0.0, "{name}");
        let seconds = named(name, 4 << 20, &one_host, &copied).seconds;
        assert!(seconds >= f64::from(4 << 20) / 10e9, "{name}: everybody copies its data once");
    }
    let hosts = cluster(4, 4, 4);
    let outcome = named("hierarchical", 64 << 20, &hosts, &FLUID);
    near(outcome.seconds, ring_seconds(4, 64 << 20), 0.03, "four ranks on each of four hosts");
    assert!(named("hierarchical", 64 << 20, &hosts, &copied).seconds > 1.5 * outcome.seconds);
}

#[test]
fn errors_of_the_command_go_where_errors_go() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-sim"));
    let output = command.args(["flow", "--hosts", "2", "--algo", "sorcery"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("ccl-sim: sorcery: "), "{said}");
    assert!(output.stdout.is_empty() && !output.status.success());
}

#[test]
fn the_same_call_gives_the_same_result() {
    let physics = Physics { alpha: 5e-6, overhead: 0.5e-6, ..Physics::default() };
    let topology = cluster(4, 2, 4).with_rail(Node(1), Rail(2), false);
    for name in ["two_shot", "hierarchical", "rabenseifner"] {
        let first = named(name, 4 << 20, &topology, &physics);
        assert_eq!(first, named(name, 4 << 20, &topology, &physics), "{name}");
    }
}

/// Rank 1 waits for something that rank 0 does not send.
#[derive(Debug)]
struct Silent;

impl Schedule for Silent {
    fn ranks(&self) -> u32 {
        2
    }

    fn rounds(&self) -> u32 {
        1
    }

    fn transfers(&self, _: u32, rank: Rank, into: &mut Vec<Transfer>) {
        if rank == Rank(1) {
            let (source, target) = (Rank(0), Rank(1));
            into.push(Transfer::new(Chunk(0), source, target, Mode::Accumulate));
        }
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let (request, partition) = (request(1 << 20), Partition::even(1 << 18, 4, 2));
    let ring = strategy("one_way_ring", &cluster(2, 1, 2)).unwrap().schedule;
    let attempt = |topology: &Topology, schedule: &dyn Schedule, physics: &Physics| {
        run(
            &Job { request: &request, topology, schedule, partition: &partition, division: None },
            physics,
        )
    };
    let healthy = cluster(2, 1, 2);
    assert!(attempt(&healthy, &*ring, &FLUID).is_ok());
    let apart = healthy.clone().with_rail(Node(0), Rail(0), false);
    let apart = apart.with_rail(Node(1), Rail(1), false);
    let expected = Err(Impossible::NoCommonRail(Node(0), Node(1)));
    assert_eq!(attempt(&apart, &*ring, &FLUID), expected);
    assert_eq!(attempt(&healthy, &Silent, &FLUID), Err(Impossible::Stuck(vec![Rank(1)])));
    for physics in [
        Physics { slots: 0, ..FLUID },
        Physics { tile_bytes: 0, ..FLUID },
        Physics { alpha: f64::NAN, ..FLUID },
        Physics { overhead: -1.0, ..FLUID },
        Physics { local_bytes_per_second: 0.0, ..FLUID },
    ] {
        let result = attempt(&healthy, &*ring, &physics);
        assert!(matches!(result, Err(Impossible::Physics(_))), "{physics:?}: {result:?}");
    }
}
