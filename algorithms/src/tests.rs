//! Every algorithm of every collective, verified; and what the planner prefers.

use ccl_core::collective::{Collective, Request};
use ccl_core::cost::{CostModel, LinkCost};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::{Node, Rail, Rank};
use ccl_core::layout::Layout;
use ccl_core::program::{Program, check, lower};
use ccl_core::schedule::{Fault, Mode, Schedule, Transfer, round, run};
use ccl_core::topology::{Host, RailCapacity, Topology};
use proptest::prelude::*;

use crate::candidates::{Plan, build, names};
use crate::degraded::strategies::BASELINES;
use crate::pattern::levels;
use crate::scene::Scene;
use crate::{Choice, choose, explain, explore};

mod apart;

/// The collectives for which there are algorithms.
fn requested() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|collective| !names(*collective).is_empty())
}

pub(crate) fn request(collective: Collective, count: usize, root: Rank) -> Request {
    let reduction = Reduction::Builtin(ReduceOp::Sum);
    Request { collective, count, datatype: DataType::Float32, reduction, root }
}

/// Hosts with one rail of each capacity in `rails` each; rank `r` lives on `nodes[r]`.
fn cluster(nodes: &[u32], cores: u32, rails: &[f64]) -> Topology {
    let host = Host { rails: rails.iter().map(|rail| RailCapacity::up(*rail)).collect(), cores };
    let hosts = nodes.iter().max().unwrap() + 1;
    Topology::new(nodes.iter().copied().map(Node).collect(), vec![host; hosts as usize])
}

fn one_rank_each(hosts: u32) -> Topology {
    cluster(&(0..hosts).collect::<Vec<_>>(), 1, &[2.5e9])
}

/// Runs the schedule symbolically and compares with the promise of the collective.
fn verify(schedule: &dyn Schedule, layout: &Layout) -> Result<(), String> {
    let after = run(&layout.initial(), schedule).map_err(|fault| format!("{fault:?}"))?;
    if layout.satisfied(&after) { Ok(()) } else { Err("an output is wrong".into()) }
}

/// Whether all ranks compute the same bits: the value of a place is the expression that computed it.
/// A reduction takes its operands in order of rank, and only a sum of two is the same both ways.
pub(crate) fn bits_agree(schedule: &dyn Schedule, layout: &Layout) -> bool {
    let contribution = |rank: u32| vec![rank.to_string(); layout.chunks() as usize];
    let mut values: Vec<Vec<String>> = (0..schedule.ranks()).map(contribution).collect();
    for number in 0..schedule.rounds() {
        let before = values.clone();
        let mut transfers: Vec<Transfer> = round(schedule, number);
        transfers.sort_unstable_by_key(|t| (t.target, t.chunk, t.source));
        for group in transfers.chunk_by(|a, b| (a.target, a.chunk) == (b.target, b.chunk)) {
            let Transfer { target, chunk, mode, source, .. } = group[0];
            let mut operands: Vec<Rank> = group.iter().map(|transfer| transfer.source).collect();
            operands.extend((mode == Mode::Accumulate).then_some(target));
            operands.sort_unstable();
            let value = |rank: &Rank| before[rank.index()][chunk.index()].as_str();
            let mut operands: Vec<&str> = operands.iter().map(value).collect();
            if operands.len() == 2 {
                operands.sort_unstable();
            }
            values[target.index()][chunk.index()] = match mode {
                Mode::Store => value(&source).to_owned(),
                Mode::Accumulate => format!("({})", operands.join("+")),
            };
        }
    }
    values.iter().all(|row| *row == values[0])
}

fn built(name: &str, request: &Request, topology: &Topology) -> Option<Plan> {
    build(name, &Scene::new(request, topology, &CostModel::default_for(topology)))
}

fn verify_all(collective: Collective, topology: &Topology, root: Rank) {
    let request = request(collective, 1000, root);
    for name in names(collective) {
        let plan = built(name, &request, topology).unwrap();
        let layout = Layout::new(&request, topology.ranks(), plan.partition);
        let case = || format!("{collective:?} {name}, root {root}, {topology:?}");
        assert_eq!(plan.schedule.ranks(), topology.ranks(), "{}", case());
        assert_eq!(verify(&*plan.schedule, &layout), Ok(()), "{}", case());
        if collective == Collective::AllReduce && topology.ranks() <= 16 {
            assert!(bits_agree(&*plan.schedule, &layout), "{}", case());
        }
    }
}

/// What runs is the lowered schedule, so that is checked too; with few elements most chunks are empty.
fn verify_programs(collective: Collective, topology: &Topology, root: Rank, count: usize) {
    let request = request(collective, count, root);
    for name in names(collective) {
        let plan = built(name, &request, topology).unwrap();
        let layout = Layout::new(&request, topology.ranks(), plan.partition);
        let lowered = |rank| lower(&*plan.schedule, &layout, Rank(rank), 4, topology);
        let programs: Vec<Program> = (0..topology.ranks()).map(lowered).collect();
        let case = || format!("{collective:?} {name}, root {root}, {count} of {topology:?}");
        assert_eq!(check(&programs, &layout, 4, topology), Ok(()), "{}", case());
    }
}

fn roots(collective: Collective, ranks: u32) -> std::ops::Range<u32> {
    if collective.is_rooted() { 0..ranks } else { 0..1 }
}

/// One host, and the same ranks dealt out in different ways to hosts of different size.
fn topologies(ranks: u32) -> Vec<Topology> {
    let dealt = |node: &dyn Fn(u32) -> u32| {
        let nodes: Vec<u32> = (0..ranks).map(node).collect();
        cluster(&nodes, 2, &[1e9, 1e9])
    };
    let mut all = vec![Topology::single_host(ranks, 2), dealt(&|rank| rank)];
    if ranks > 2 {
        all.push(dealt(&|rank| rank / 2));
        all.push(dealt(&|rank| rank % 2));
        all.push(dealt(&|rank| u32::from(rank != 1)));
        all.push(dealt(&|rank| rank / 3).with_rail(Node(0), Rail(1), false));
    }
    all
}

#[test]
fn every_algorithm_keeps_its_promise_on_up_to_16_ranks() {
    for ranks in 1..=16 {
        for collective in requested() {
            let large = collective == Collective::AllToAll || collective == Collective::AllToAllV;
            let shapes =
                if large { vec![Topology::single_host(ranks, 2)] } else { topologies(ranks) };
            for topology in shapes {
                for root in roots(collective, ranks) {
                    verify_all(collective, &topology, Rank(root));
                }
            }
        }
    }
}

#[test]
fn every_algorithm_can_be_lowered_to_programs_that_keep_its_promise() {
    for ranks in [1, 2, 3, 5, 8] {
        for collective in requested() {
            for topology in topologies(ranks) {
                for root in roots(collective, ranks).step_by(3) {
                    for count in [1, 5, 1000] {
                        verify_programs(collective, &topology, Rank(root), count);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_algorithm_keeps_its_promise_on_random_clusters(
        nodes in prop::collection::vec(0u32..8, 17..=64),
        root in any::<prop::sample::Index>(),
        collective in prop::sample::select(requested().collect::<Vec<_>>()),
    ) {
        let mut used = nodes.clone();
        used.sort_unstable();
        used.dedup();
        let dense = |node: &u32| used.binary_search(node).unwrap() as u32;
        let large = collective == Collective::AllToAll || collective == Collective::AllToAllV;
        let nodes: Vec<u32> = nodes.iter().take(if large { 20 } else { 64 }).map(dense).collect();
        let hosts = nodes.iter().max().unwrap() + 1;
        prop_assume!((0..hosts).all(|host| nodes.contains(&host)));
        let root = Rank(root.index(nodes.len()) as u32);
        verify_all(collective, &cluster(&nodes, 4, &[1e9]), root);
    }
}

#[test]
fn rounds_are_as_promised() {
    let rounds = |collective, name, ranks| {
        let request = request(collective, 1000, Rank(0));
        let topology = one_rank_each(ranks);
        built(name, &request, &topology).unwrap().schedule.rounds()
    };
    for n in 1..=33 {
        let log = levels(n);
        let several = u32::from(n > 1);
        assert_eq!(rounds(Collective::AllReduce, "one_shot", n), several);
        assert_eq!(rounds(Collective::AllReduce, "two_shot", n), 2 * several);
        assert_eq!(rounds(Collective::AllReduce, "rabenseifner", n), 2 * log);
        assert_eq!(rounds(Collective::AllReduce, "ring", n), 2 * (n - 1));
        let folds = if n.is_power_of_two() { 0 } else { 1 };
        assert_eq!(rounds(Collective::AllReduce, "recursive_doubling", n), log + folds);
        assert!(rounds(Collective::AllReduce, "double_binary_tree", n) <= 2 * (log + 1));
        assert_eq!(rounds(Collective::AllGather, "bruck", n), log);
        assert_eq!(rounds(Collective::ReduceScatter, "recursive_halving", n), log);
        assert_eq!(rounds(Collective::AllToAll, "bruck", n), log);
        assert_eq!(rounds(Collective::AllToAll, "pairwise", n), n - 1);
        assert_eq!(rounds(Collective::Broadcast, "binomial", n), log);
        assert_eq!(rounds(Collective::Broadcast, "chain", n), n - 1);
        assert_eq!(rounds(Collective::Gather, "binomial", n), log);
    }
}

/// A correct schedule with one transfer of one round missing or of the wrong mode.
#[derive(Debug)]
struct Broken<'a> {
    inner: &'a dyn Schedule,
    round: u32,
    victim: Transfer,
    replacement: Option<Transfer>,
}

impl Schedule for Broken<'_> {
    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn rounds(&self) -> u32 {
        self.inner.rounds()
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let mut part = Vec::new();
        self.inner.transfers(round, rank, &mut part);
        for transfer in part {
            if round == self.round && transfer == self.victim {
                into.extend(self.replacement);
            } else {
                into.push(transfer);
            }
        }
    }
}

#[test]
fn every_single_transfer_is_needed() {
    for collective in [Collective::AllReduce, Collective::Broadcast, Collective::AllToAll] {
        let request = request(collective, 1000, Rank(0));
        for name in names(collective) {
            let topology = cluster(&[0, 0, 1, 1, 2], 2, &[1e9]);
            let plan = built(name, &request, &topology).unwrap();
            let layout = Layout::new(&request, 5, plan.partition);
            for number in 0..plan.schedule.rounds() {
                for victim in round(&*plan.schedule, number) {
                    let inner = &*plan.schedule;
                    let broken = Broken { inner, round: number, victim, replacement: None };
                    assert!(verify(&broken, &layout).is_err(), "{name} without {victim:?}");
                }
            }
        }
    }
}

#[test]
fn a_store_that_should_reduce_is_seen() {
    let request = request(Collective::AllReduce, 1000, Rank(0));
    let topology = one_rank_each(4);
    let plan = built("ring", &request, &topology).unwrap();
    let layout = Layout::new(&request, 4, plan.partition);
    let victim = round(&*plan.schedule, 0)[0];
    let replacement = Some(Transfer { mode: Mode::Store, ..victim });
    let broken = Broken { inner: &*plan.schedule, round: 0, victim, replacement };
    assert_eq!(verify(&broken, &layout), Err("an output is wrong".into()));
    let twice = Broken {
        inner: &*plan.schedule,
        round: 3,
        victim: round(&*plan.schedule, 3)[0],
        replacement: None,
    };
    let replayed = Transfer { mode: Mode::Accumulate, ..twice.victim };
    let twice = Broken { replacement: Some(replayed), ..twice };
    assert!(matches!(run(&layout.initial(), &twice), Err(Fault::CountedTwice(_))));
}

fn chosen(collective: Collective, bytes: usize, topology: &Topology) -> Choice {
    let request = request(collective, bytes / 4, Rank(0));
    choose(&request, topology, &CostModel::default_for(topology), None).unwrap()
}

#[test]
fn inside_a_host_one_shot_gives_way_to_two_shot() {
    for ranks in [4, 8] {
        let host = Topology::single_host(ranks, 2);
        for bytes in [4, 1 << 10, 8 << 10] {
            let choice = chosen(Collective::AllReduce, bytes, &host);
            assert_eq!(choice.name, "one_shot", "{ranks} ranks: {}", explain(&choice));
        }
        for bytes in [64 << 10, 1 << 20, 64 << 20] {
            let choice = chosen(Collective::AllReduce, bytes, &host);
            assert_eq!(choice.name, "two_shot", "{ranks} ranks: {}", explain(&choice));
        }
    }
}

#[test]
fn two_ranks_of_a_host_give_slices_back_while_they_contribute_the_next() {
    let host = Topology::single_host(2, 2);
    for (mebibytes, slices) in [(1, 1), (31, 1), (32, 16), (101, 50), (4096, 256)] {
        let request = request(Collective::AllReduce, (mebibytes << 18) + 1, Rank(0));
        let plan = built("two_shot", &request, &host).unwrap();
        assert_eq!(plan.schedule.rounds(), slices + 1, "{mebibytes} MiB");
        let layout = Layout::new(&request, 2, plan.partition.clone());
        assert_eq!(verify(&*plan.schedule, &layout), Ok(()), "{mebibytes} MiB");
        assert!(bits_agree(&*plan.schedule, &layout));
        let lowered =
            [Rank(0), Rank(1)].map(|rank| lower(&*plan.schedule, &layout, rank, 4, &host));
        assert_eq!(check(&lowered, &layout, 4, &host), Ok(()), "{mebibytes} MiB");
    }
    let (one, two) = (
        chosen(Collective::AllReduce, 3 << 20, &host),
        chosen(Collective::AllReduce, 6 << 20, &host),
    );
    assert_eq!((one.name, two.name), ("two_shot", "two_shot"));
}

#[test]
fn between_hosts_size_decides() {
    let winners = |collective, hosts, sizes: &[usize]| -> Vec<&str> {
        let topology = one_rank_each(hosts);
        sizes.iter().map(|bytes| chosen(collective, *bytes, &topology).name).collect()
    };
    assert_eq!(
        winners(Collective::AllReduce, 8, &[1 << 10, 32 << 10, 1 << 20, 64 << 20]),
        ["one_shot", "recursive_doubling", "two_shot", "two_shot"]
    );
    assert_eq!(
        winners(Collective::AllReduce, 64, &[1 << 10, 1 << 20]),
        ["recursive_doubling", "rabenseifner"]
    );
    assert_eq!(winners(Collective::AllGather, 8, &[64, 64 << 10]), ["direct", "direct"]);
    assert_eq!(winners(Collective::AllGather, 64, &[64]), ["bruck"]);
    assert_eq!(winners(Collective::AllToAll, 64, &[64, 1 << 20]), ["bruck", "direct"]);
    assert_eq!(winners(Collective::Barrier, 64, &[4]), ["recursive_doubling"]);
    let broadcast = winners(Collective::Broadcast, 8, &[16, 1 << 20, 64 << 20]);
    assert!(broadcast[0] != broadcast[2], "{broadcast:?}");
}

#[test]
fn hosts_are_reduced_first() {
    let topology = cluster(&[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], 4, &[2.5e9]);
    for bytes in [1 << 10, 1 << 20, 64 << 20] {
        let choice = chosen(Collective::AllReduce, bytes, &topology);
        assert!(choice.name.starts_with("hierarchical"), "{}", explain(&choice));
    }
}

#[test]
fn shares_follow_the_health_of_the_rails() {
    let healthy = cluster(&[0, 1, 2, 3], 1, &[1e9, 1e9]);
    let degraded = healthy.clone().with_rail(Node(2), Rail(0), false);
    let before = chosen(Collective::AllReduce, 64 << 20, &healthy);
    let after = chosen(Collective::AllReduce, 64 << 20, &degraded);
    assert_eq!((before.name, after.name), ("two_shot", "hub_shares"));
    assert_ne!(before.digest, after.digest);
    assert_ne!(before.partition, after.partition);
    let slower = after.candidates[0].estimate.seconds / before.candidates[0].estimate.seconds;
    assert!(slower < 1.4, "half of a node is lost, and a ring would take twice as long: {slower}");
    assert!(after.candidates[0].estimate.seconds >= after.bound_seconds);
}

/// What flows through `hierarchical` in one round waits for the slow host in the one before, which counts.
#[test]
fn ranks_that_share_a_degraded_host_have_hubs_in_slices() {
    let healthy = cluster(&[0, 0, 1, 1, 2, 2, 3, 3], 2, &[1e8, 1e8]);
    let degraded = healthy.with_rail(Node(2), Rail(0), false);
    let choice = chosen(Collective::AllReduce, 64 << 20, &degraded);
    assert_eq!(choice.name, "hub_shares", "{}", explain(&choice));
}

#[test]
fn the_model_knows_the_bound() {
    let topology = cluster(&[0, 1, 2, 3, 4, 5, 6, 7], 1, &[1e9]);
    let choice = chosen(Collective::AllReduce, 256 << 20, &topology);
    let best = choice.candidates[0].estimate.seconds;
    assert!(
        best >= choice.bound_seconds && best < 1.1 * choice.bound_seconds,
        "{}",
        explain(&choice)
    );
}

#[test]
fn the_choice_is_the_same_every_time_and_explains_itself() {
    let topology = one_rank_each(5);
    let (one, other) = (
        chosen(Collective::AllReduce, 4096, &topology),
        chosen(Collective::AllReduce, 4096, &topology),
    );
    assert_eq!(
        (one.name, one.digest, &one.candidates),
        (other.name, other.digest, &other.candidates)
    );
    let table = explain(&one);
    assert!(table.starts_with(&one.reason) && table.contains("lower bound"), "{table}");
    assert!(one.candidates.iter().all(|candidate| table.contains(candidate.name)), "{table}");
    assert!(one.reason.contains("next is"), "{}", one.reason);
}

#[test]
fn an_algorithm_can_be_forced_and_an_unknown_one_is_refused() {
    let topology = Topology::single_host(4, 2);
    let model = CostModel::default_for(&topology);
    let request = request(Collective::AllReduce, 1000, Rank(0));
    for name in names(Collective::AllReduce) {
        let choice = choose(&request, &topology, &model, Some(name)).unwrap();
        assert_eq!(choice.name, *name);
        assert!(choice.reason.contains("as asked"), "{}", choice.reason);
    }
    let error = choose(&request, &topology, &model, Some("bruck")).unwrap_err().to_string();
    assert!(error.contains("allreduce has no algorithm \"bruck\""), "{error}");
    assert!(error.contains("one_shot, two_shot"), "{error}");
    let pair = Request { collective: Collective::PointToPoint, ..request };
    assert!(choose(&pair, &topology, &model, None).is_err());
    let stray = Request { root: Rank(4), ..request };
    assert!(choose(&stray, &topology, &model, None).is_err());
}

/// A strategy of the paper can look the fastest to the model, and nobody is to run it for that.
#[test]
fn strategies_of_the_paper_are_compared_and_never_chosen() {
    let is_baseline = |name: &str| BASELINES.contains(&name);
    let mut tempting = 0;
    for (hosts, lost) in [(2, 1), (3, 1), (4, 4), (6, 4), (8, 1), (8, 7)] {
        let host = |left| Host { rails: vec![RailCapacity::up(1e9); left], cores: 8 };
        let mut all = vec![host(8); hosts];
        all[hosts / 2] = host(8 - lost);
        let topology = Topology::new((0..).map(Node).take(hosts).collect(), all);
        let mut model = CostModel::default_for(&topology);
        // Where messages cost next to nothing, rings look best.
        model.network = LinkCost { alpha: 1e-6, overhead: 1e-7, ..model.network };
        for bytes in [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28] {
            let request = request(Collective::AllReduce, bytes / 4, Rank(0));
            let seen = explore(&request, &topology, &model, None).unwrap();
            tempting += usize::from(is_baseline(seen.candidates[0].name));
            assert!(!is_baseline(seen.name), "{}", explain(&seen));
            let chosen = choose(&request, &topology, &model, None).unwrap();
            assert_eq!(chosen.name, seen.name, "{}", explain(&seen));
            let mut priced = chosen.candidates.iter().map(|candidate| candidate.name);
            assert!(!priced.any(is_baseline), "what is never chosen is not priced");
        }
    }
    assert!(tempting > 0, "nothing was to be resisted");
}

#[test]
fn hot_repair_says_which_rail_stands_in() {
    let host = || Host { rails: vec![RailCapacity::up(1e9); 4], cores: 8 };
    let mut hosts = vec![host(), host(), host()];
    hosts[1].rails[2].up = false;
    let topology = Topology::new((0..).map(Node).take(3).collect(), hosts);
    let model = CostModel::default_for(&topology);
    let request = request(Collective::AllReduce, 1 << 20, Rank(0));
    let choice = choose(&request, &topology, &model, Some("r2ccl_hot_repair")).unwrap();
    let division = choice.division.expect("it divides what the ring moves");
    let (_, proportions) = &division.of_rank(Rank(0), &topology)[0];
    assert_eq!(*proportions, [1000, 500, 0, 500]);
}

#[test]
fn a_barrier_of_nothing_still_moves_something() {
    let request = request(Collective::Barrier, 0, Rank(0));
    let topology = Topology::single_host(3, 2);
    let model = CostModel::default_for(&topology);
    assert_eq!(choose(&request, &topology, &model, None).unwrap().partition.count(), 1);
}

#[test]
fn a_thousand_ranks_are_planned() {
    let nodes: Vec<u32> = (0..1024).map(|rank| rank / 8).collect();
    let topology = cluster(&nodes, 8, &[12.5e9; 2]);
    for collective in requested() {
        let choice = chosen(collective, 1 << 20, &topology);
        assert!(choice.candidates[0].estimate.seconds.is_finite(), "{}", explain(&choice));
        assert_eq!(choice.schedule.ranks(), 1024);
    }
}
