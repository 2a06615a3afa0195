//! Every strategy for degraded hosts, proved on all small patterns of lost rails and on random
//! ones, and measured against the lower bound.

use std::collections::BTreeSet;

use ccl_core::ids::{Chunk, Rank};
use ccl_core::random::Random;
use ccl_core::schedule::{Holdings, Schedule, Transfer, round, run};

use super::completion::complete;
use super::hubs::{hubs, lower_bound};
use super::nested::{levels, nested_rings};
use super::rounds::hub_shares_in_rounds;
use super::{Between, Fabric, Reach};

/// Rails of every host in the patterns of few losses.
const RAILS: usize = 4;

/// Random patterns; more of them where that is fast.
const PATTERNS: u64 = if cfg!(debug_assertions) { 300 } else { 10_000 };

type Strategy = (&'static str, fn(&Fabric) -> Option<Between>);

const STRATEGIES: [Strategy; 5] = [
    ("hubs", |fabric| hub_shares_in_rounds(fabric, 1, 1)),
    ("hubs in two slices", |fabric| hub_shares_in_rounds(fabric, 2, 1)),
    ("hubs in three slices, two ahead", |fabric| hub_shares_in_rounds(fabric, 3, 2)),
    ("nested rings", |fabric| nested_rings(fabric, 1)),
    ("nested rings in three slices", |fabric| nested_rings(fabric, 3)),
];

/// Hosts with rails of equal capacity, of which some are lost.
fn fabric(hosts: usize, lost: &[(usize, usize)], reach: Reach) -> Fabric {
    let mut rails = vec![vec![1.0; RAILS]; hosts];
    for (host, rail) in lost {
        rails[*host][*rail] = 0.0;
    }
    Fabric::new(rails, reach)
}

fn hosts_of(fabric: &Fabric) -> u32 {
    u32::try_from(fabric.hosts()).unwrap()
}

fn pieces_of(plan: &Between) -> u32 {
    u32::try_from(plan.weights.len()).unwrap()
}

fn started(hosts: u32, pieces: u32) -> Holdings {
    Holdings::new(hosts, pieces, |rank, _| [rank])
}

fn finished(hosts: u32, pieces: u32) -> Holdings {
    Holdings::new(hosts, pieces, |_, _| (0..hosts).map(Rank))
}

fn prove(plan: &Between, hosts: u32) {
    let pieces = pieces_of(plan);
    assert_eq!(plan.schedule.ranks(), hosts);
    let after = run(&started(hosts, pieces), &*plan.schedule);
    assert_eq!(after, Ok(finished(hosts, pieces)));
    let total: f64 = plan.weights.iter().sum();
    assert!((total - 1.0).abs() < 1e-6 && plan.weights.iter().all(|weight| *weight >= 0.0));
}

/// What moves goes only where there is a way.
fn check_ways(plan: &Between, fabric: &Fabric) {
    for transfer in (0..plan.schedule.rounds()).flat_map(|number| round(&*plan.schedule, number)) {
        let between = fabric.between(transfer.source.index(), transfer.target.index());
        assert!(between > 0.0, "{transfer:?} on {fabric:?}");
    }
}

/// How long the busiest direction of a host is busy, for every byte of the data.
fn busiest(plan: &Between, fabric: &Fabric) -> f64 {
    let mut loads = vec![[0.0; 2]; fabric.hosts()];
    for transfer in (0..plan.schedule.rounds()).flat_map(|number| round(&*plan.schedule, number)) {
        let weight = plan.weights[transfer.chunk.index()];
        loads[transfer.source.index()][0] += weight;
        loads[transfer.target.index()][1] += weight;
    }
    let busy = loads.iter().zip(fabric.capacities());
    busy.map(|(load, capacity)| f64::max(load[0], load[1]) / capacity).fold(0.0, f64::max)
}

/// All ways to lose one or two rails, up to the names of the rails.
fn few_losses(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    let mut patterns = vec![Vec::new()];
    for one in 0..hosts {
        patterns.push(vec![(one, 0)]);
        patterns.push(vec![(one, 0), (one, 1)]);
        for other in one + 1..hosts {
            patterns.push(vec![(one, 0), (other, 0)]);
            patterns.push(vec![(one, 0), (other, 1)]);
        }
    }
    patterns
}

#[test]
fn every_strategy_is_an_allreduce_whichever_one_or_two_rails_are_lost() {
    let mut proved = BTreeSet::new();
    for hosts in 1..=16 {
        for lost in few_losses(hosts) {
            for reach in [Reach::Switched, Reach::RailOnly] {
                let fabric = fabric(hosts, &lost, reach);
                for (name, strategy) in STRATEGIES {
                    let plan = strategy(&fabric).unwrap();
                    // Equal schedules need only one proof, whatever the sizes of the pieces.
                    if proved.insert(format!("{:?}", plan.schedule)) {
                        prove(&plan, hosts_of(&fabric));
                    }
                    let over = busiest(&plan, &fabric) / lower_bound(&fabric);
                    let allowed = if reach == Reach::Switched { 1e-6 } else { 0.01 };
                    assert!(hosts == 1 || over < 1.0 + allowed, "{name} {lost:?} {hosts}: {over}");
                }
            }
        }
    }
    assert!(proved.len() > 100);
}

/// Hosts whose rails were lost with some probability, but not all of a host's.
fn random_fabric(random: &mut Random, hosts: usize) -> Fabric {
    let rails = 1 + random.index(8);
    let percent = random.below(60);
    let mut host = || -> Vec<f64> {
        let kept = random.index(rails);
        let lost = |rail: usize, random: &mut Random| random.percent(percent) && rail != kept;
        (0..rails).map(|rail| if lost(rail, random) { 0.0 } else { 1.0 }).collect()
    };
    let hosts = (0..hosts).map(|_| host()).collect();
    let reach = if random.percent(50) { Reach::Switched } else { Reach::RailOnly };
    Fabric::new(hosts, reach)
}

fn connected(fabric: &Fabric) -> bool {
    let mut reached = BTreeSet::from([0]);
    let mut new = vec![0];
    while let Some(host) = new.pop() {
        let next = (0..fabric.hosts()).filter(|other| fabric.between(host, *other) > 0.0);
        new.extend(next.filter(|other| reached.insert(*other)));
    }
    reached.len() == fabric.hosts()
}

/// Proves all strategies on so many random patterns; returns how many plans that were.
fn prove_random(patterns: u64) -> usize {
    let mut plans = 0;
    for seed in 0..patterns {
        let mut random = Random::new(seed);
        let hosts = 2 + random.index(15);
        let fabric = random_fabric(&mut random, hosts);
        let possible = connected(&fabric);
        assert_eq!(hubs(&fabric).is_some(), possible, "seed {seed}");
        for (name, strategy) in STRATEGIES {
            let Some(plan) = strategy(&fabric) else {
                assert!(!possible || fabric.reach() == Reach::RailOnly, "{name}, seed {seed}");
                continue;
            };
            plans += 1;
            prove(&plan, hosts_of(&fabric));
            check_ways(&plan, &fabric);
            if fabric.reach() == Reach::Switched {
                let over = busiest(&plan, &fabric) / lower_bound(&fabric);
                assert!((over - 1.0).abs() < 1e-6, "{name}, seed {seed}: {over}");
            }
        }
    }
    plans
}

#[test]
fn every_strategy_is_an_allreduce_on_random_patterns() {
    assert!(prove_random(PATTERNS) > PATTERNS as usize);
}

/// A schedule of which only some transfers happened.
#[derive(Debug)]
struct Cut<'a> {
    inner: &'a dyn Schedule,
    happened: BTreeSet<(u32, Transfer)>,
}

impl Schedule for Cut<'_> {
    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn rounds(&self) -> u32 {
        self.inner.rounds()
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        self.inner.transfers(round, rank, into);
        into.retain(|transfer| self.happened.contains(&(round, *transfer)));
    }
}

#[test]
fn every_single_transfer_is_needed() {
    for fabric in [switched(&[8, 6, 8, 7]), rail_only(&[0x0f, 0xf0, 0xff, 0xff])] {
        for (name, strategy) in STRATEGIES {
            let Some(plan) = strategy(&fabric) else { continue };
            let inner = &*plan.schedule;
            let numbered = |number| round(inner, number).into_iter().map(move |t| (number, t));
            let all: BTreeSet<(u32, Transfer)> = (0..inner.rounds()).flat_map(numbered).collect();
            let (hosts, pieces) = (hosts_of(&fabric), pieces_of(&plan));
            for victim in &all {
                let happened = all.iter().copied().filter(|other| other != victim).collect();
                let after = run(&started(hosts, pieces), &Cut { inner, happened });
                assert_ne!(after, Ok(finished(hosts, pieces)), "{name} without {victim:?}");
            }
        }
    }
}

/// Transfers that may have happened when a call stopped: with each one all those of earlier rounds
/// that wrote what it reads, or read or wrote what it writes.
fn random_cut<'a>(inner: &'a dyn Schedule, random: &mut Random) -> Cut<'a> {
    let percent = 40 + random.below(60);
    let whole_rounds = random.percent(20).then(|| random.index(inner.rounds() as usize + 1));
    let mut happened = BTreeSet::new();
    let mut waiting: BTreeSet<(Rank, Chunk)> = BTreeSet::new();
    let mut wrote: BTreeSet<(Rank, Chunk)> = BTreeSet::new();
    for number in 0..inner.rounds() {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for transfer in round(inner, number) {
            let source = (transfer.source, transfer.chunk);
            let target = (transfer.target, transfer.chunk);
            let free = !wrote.contains(&source) && !wrote.contains(&target);
            let chosen = match whole_rounds {
                Some(rounds) => (number as usize) < rounds,
                None => random.percent(percent),
            };
            if free && !waiting.contains(&target) && chosen {
                happened.insert((number, transfer));
            } else {
                reads.push(source);
                writes.push(target);
            }
        }
        waiting.extend(reads);
        wrote.extend(writes);
    }
    Cut { inner, happened }
}

/// Interrupts every strategy on so many random patterns and completes it on others; returns how
/// often.
fn prove_completion(patterns: u64) -> usize {
    let mut completed = 0;
    for seed in 0..patterns {
        let mut random = Random::new(seed);
        let hosts = 2 + random.index(11);
        let fabric = random_fabric(&mut random, hosts);
        for (name, strategy) in STRATEGIES {
            let Some(plan) = strategy(&fabric) else { continue };
            let pieces = pieces_of(&plan);
            let hosts = hosts_of(&fabric);
            let cut = random_cut(&*plan.schedule, &mut random);
            let state = run(&started(hosts, pieces), &cut).unwrap();
            let later = random_fabric(&mut random, fabric.hosts());
            let Some(rest) = complete(&state, &plan.weights, &later) else {
                let done = state == finished(hosts, pieces);
                assert!(!connected(&later) && !done, "{name}, seed {seed}: {state:?}");
                continue;
            };
            check_ways(&rest, &later);
            let after = run(&state, &*rest.schedule);
            assert_eq!(after, Ok(finished(hosts, pieces)), "{name}, seed {seed}");
            completed += 1;
        }
    }
    completed
}

#[test]
fn every_strategy_can_be_completed_wherever_it_was_interrupted() {
    assert!(prove_completion(PATTERNS) > PATTERNS as usize);
}

/// Hosts with so many of eight rails, behind a switch.
fn switched(rails: &[u32]) -> Fabric {
    let host = |rails: &u32| (0..8).map(|rail| if rail < *rails { 1.0 } else { 0.0 }).collect();
    Fabric::new(rails.iter().map(host).collect(), Reach::Switched)
}

/// Hosts with eight rails, of which those in the masks work.
pub(super) fn rail_only(masks: &[u8]) -> Fabric {
    let host = |mask: &u8| (0..8).map(|rail| f64::from(mask >> rail & 1)).collect();
    Fabric::new(masks.iter().map(host).collect(), Reach::RailOnly)
}

/// Hosts with eight rails each, of which so many in all are lost.
pub(super) fn random_losses(hosts: usize, lost: usize, random: &mut Random) -> Fabric {
    let mut masks = vec![u8::MAX; hosts];
    let mut left = lost;
    while left > 0 {
        let (host, rail) = (random.index(hosts), random.index(8));
        left -= usize::from(masks[host] >> rail & 1);
        masks[host] &= !(1 << rail);
    }
    rail_only(&masks)
}

/// Percent of what healthy hosts with eight rails reach; one digit.
pub(super) fn retained(fabric: &Fabric, seconds: f64) -> f64 {
    let n = f64::from(hosts_of(fabric));
    let healthy = 2.0 * (n - 1.0) / n / 8.0;
    // A half is rounded up although it may have come out a little smaller.
    (1000.0 * healthy / seconds + 1e-6).round() / 10.0
}

#[test]
fn with_one_degraded_host_only_its_lost_share_of_the_whole_is_lost() {
    let table = [
        (2, [87.5, 75.0, 50.0]),
        (3, [95.8, 91.7, 66.7]),
        (4, [96.9, 93.8, 75.0]),
        (8, [98.4, 96.9, 87.5]),
        (16, [99.2, 98.4, 93.8]),
        (64, [99.8, 99.6, 98.4]),
    ];
    for (hosts, percents) in table {
        for (left, percent) in [7, 6, 4].into_iter().zip(percents) {
            let mut rails = vec![8; hosts];
            rails[hosts / 2] = left;
            let fabric = switched(&rails);
            assert_eq!(retained(&fabric, lower_bound(&fabric)), percent, "{rails:?}");
            for (name, strategy) in [STRATEGIES[0], STRATEGIES[2]] {
                let seconds = busiest(&strategy(&fabric).unwrap(), &fabric);
                assert_eq!(retained(&fabric, seconds), percent, "{name} {rails:?}");
            }
        }
    }
}

#[test]
fn rings_are_nested_as_deep_as_capacities_differ() {
    type Row = (&'static [u32], &'static [(f64, usize)], f64);
    let table: [Row; 7] = [
        (&[8, 7, 8, 7], &[(0.8, 0), (0.2, 2)], 93.8),
        (&[8, 8, 7, 8, 8, 8, 7, 8], &[(0.774, 0), (0.226, 2)], 96.9),
        (&[8, 8, 4, 8, 6, 8, 7, 8], &[(0.55, 1), (0.245, 2), (0.204, 3)], 87.5),
        (&[7, 8, 7, 8, 7, 8, 7, 8], &[(0.844, 0), (0.156, 4)], 93.8),
        (&[8, 8, 8, 8, 8, 8, 8, 1], &[(1.0, 1)], 21.9),
        (
            &[8, 4, 8, 4, 6, 8, 8, 7, 8, 7, 8, 8, 8, 8, 8, 8],
            &[(0.039, 0), (0.517, 2), (0.24, 3), (0.203, 5)],
            90.6,
        ),
        (&[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8], &[(0.981, 0), (0.019, 15)], 88.3),
    ];
    for (rails, expected, percent) in table {
        let fabric = switched(rails);
        let levels = levels(&fabric).unwrap();
        let found: Vec<(f64, usize)> = levels
            .iter()
            .map(|level| ((level.fraction() * 1000.0).round() / 1000.0, level.leaves.len()))
            .collect();
        assert_eq!(found, expected, "{rails:?}");
        assert_eq!(retained(&fabric, lower_bound(&fabric)), percent, "{rails:?}");
        for (name, strategy) in STRATEGIES {
            let plan = strategy(&fabric).unwrap();
            prove(&plan, hosts_of(&fabric));
            assert_eq!(retained(&fabric, busiest(&plan, &fabric)), percent, "{name} {rails:?}");
        }
    }
}

#[test]
fn degenerate_fabrics_have_no_plan_or_an_empty_one() {
    let alone = fabric(1, &[], Reach::RailOnly);
    let dead = Fabric::new(vec![vec![1.0], vec![0.0]], Reach::Switched);
    let none = Fabric::new(vec![Vec::new(), Vec::new()], Reach::RailOnly);
    let apart = Fabric::new(vec![vec![1.0, 0.0], vec![0.0, 1.0]], Reach::RailOnly);
    for (name, strategy) in STRATEGIES {
        assert_eq!(strategy(&alone).unwrap().schedule.rounds(), 0, "{name}");
        assert!([&dead, &none, &apart].iter().all(|fabric| strategy(fabric).is_none()), "{name}");
    }
    let all = fabric(3, &[], Reach::Switched);
    assert!(hub_shares_in_rounds(&all, 0, 1).is_none() && nested_rings(&all, 0).is_none());
}
