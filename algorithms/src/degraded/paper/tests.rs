//! Every strategy of the paper, proved and compared with its formulas.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use ccl_core::collective::Collective;
use ccl_core::datatype::DataType;
use ccl_core::ids::{Node, Rank};
use ccl_core::layout::{Layout, Partition};
use ccl_core::program::{Program, check, lower};
use ccl_core::random::Random;
use ccl_core::schedule::{Holdings, Mode, Schedule, Transfer, round, run};
use ccl_core::topology::{Host, RailCapacity, Topology};

use super::formulas::{optimal_share, retained, ring_volume};
use super::*;
use crate::combine::Shared;
use crate::degraded::{Between, Fabric, Reach};

type Strategy = (&'static str, fn(&Fabric) -> Option<Between>);

const STRATEGIES: [Strategy; 6] = [
    ("balance", balance),
    ("two_stage, corrected", |fabric| two_stage(fabric, Share::Corrected)),
    ("two_stage, printed", |fabric| two_stage(fabric, Share::Printed)),
    ("recursive", recursive),
    ("recursive_literal", recursive_literal),
    ("bridge_ring", bridge_ring),
];

const BOTH: [Reach; 2] = [Reach::Switched, Reach::RailOnly];

/// Proves that the schedule is an AllReduce, and that its weights are a division of the data.
fn prove(between: &Between, hosts: usize) -> Result<(), String> {
    let Between { schedule, weights } = between;
    let (ranks, pieces) = (schedule.ranks(), u32::try_from(weights.len()).unwrap());
    let before = Holdings::new(ranks, pieces, |rank, _| [rank]);
    let goal = Holdings::new(ranks, pieces, |_, _| (0..ranks).map(Rank));
    let after = run(&before, &**schedule).map_err(|fault| format!("{fault:?}"))?;
    let whole = (weights.iter().sum::<f64>() - 1.0).abs() < 1e-9;
    let positive = weights.iter().all(|weight| *weight > 0.0);
    match (after == goal, whole && positive, ranks as usize == hosts) {
        (true, true, true) => Ok(()),
        (reduced, ..) => Err(format!("reduced: {reduced}, {ranks} ranks, weights {weights:?}")),
    }
}

/// Whether every transfer is between hosts that can talk.
fn is_possible(between: &Between, fabric: &Fabric) -> bool {
    let talk = |transfer: &Transfer| {
        fabric.between(transfer.source.index(), transfer.target.index()) > 0.0
    };
    let rounds = 0..between.schedule.rounds();
    rounds.flat_map(|number| round(&*between.schedule, number)).all(|transfer| talk(&transfer))
}

/// Whether all pairs of hosts can talk.
fn all_talk(fabric: &Fabric) -> bool {
    let hosts = 0..fabric.hosts();
    hosts.clone().all(|one| hosts.clone().all(|other| fabric.between(one, other) > 0.0))
}

/// Proves what each strategy makes of a fabric, unless it has made the same before.
#[derive(Default)]
struct Prover {
    known: BTreeSet<u64>,
    plans: [usize; STRATEGIES.len()],
}

impl Prover {
    fn prove_all(&mut self, fabric: &Fabric) {
        for ((name, strategy), plans) in STRATEGIES.iter().zip(&mut self.plans) {
            let Some(between) = strategy(fabric) else { continue };
            *plans += 1;
            let possible = all_talk(fabric) || is_possible(&between, fabric);
            assert!(possible, "{name} of {fabric:?}");
            let mut hasher = DefaultHasher::new();
            format!("{:?} {}", between.schedule, between.weights.len()).hash(&mut hasher);
            if self.known.insert(hasher.finish()) {
                assert_eq!(prove(&between, fabric.hosts()), Ok(()), "{name} of {fabric:?}");
            }
        }
    }
}

/// `hosts` with four rails each, of which these are lost.
fn without(hosts: usize, lost: &[(usize, usize)], reach: Reach) -> Fabric {
    let mut rails = vec![vec![1.0; 4]; hosts];
    for (host, rail) in lost {
        rails[*host][*rail] = 0.0;
    }
    Fabric::new(rails, reach)
}

/// One and two lost rails, up to the numbering of rails.
fn light_patterns(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    let mut patterns: Vec<Vec<(usize, usize)>> = (0..hosts).map(|host| vec![(host, 0)]).collect();
    for one in 0..hosts {
        patterns.push(vec![(one, 0), (one, 1)]);
        for other in one + 1..hosts {
            patterns.extend([0, 1].map(|rail| vec![(one, 0), (other, rail)]));
        }
    }
    patterns
}

#[test]
fn every_strategy_is_an_allreduce_with_up_to_two_lost_rails() {
    let mut prover = Prover::default();
    for hosts in 1..=16 {
        for (pattern, reach) in
            light_patterns(hosts).iter().flat_map(|pattern| BOTH.map(|reach| (pattern, reach)))
        {
            prover.prove_all(&without(hosts, pattern, reach));
        }
    }
    assert!(prover.plans.iter().all(|plans| *plans > 250), "{:?}", prover.plans);
}

/// Up to 16 hosts with up to eight rails of different capacity, of which up to nine in ten are lost.
fn heavy(random: &mut Random) -> Fabric {
    let (hosts, rails) = (1 + random.index(16), 1 + random.index(8));
    let (lost, mixed) = (10 * random.below(10), random.percent(50));
    let mut rail = |_| {
        let rate = if mixed { random.pick(&[1.0, 2.0, 12.5]) } else { 25e9 };
        if random.percent(lost) { 0.0 } else { rate }
    };
    let hosts = (0..hosts).map(|_| (0..rails).map(&mut rail).collect()).collect();
    Fabric::new(hosts, random.pick(&BOTH))
}

/// Proves all strategies on so many fabrics drawn from a seed; how many plans each had.
fn prove_random(cases: usize, seed: u64) -> [usize; STRATEGIES.len()] {
    let mut random = Random::new(seed);
    let mut prover = Prover::default();
    for _ in 0..cases {
        prover.prove_all(&heavy(&mut random));
    }
    prover.plans
}

#[test]
fn every_strategy_is_an_allreduce_after_random_faults() {
    let plans = prove_random(300, 1);
    assert!(plans.iter().all(|plans| *plans > 50), "{plans:?}");
}

#[test]
fn an_allreduce_that_lacks_a_hop_is_not_proved() {
    #[derive(Debug)]
    struct Lacking(Shared, u32);
    impl Schedule for Lacking {
        fn ranks(&self) -> u32 {
            self.0.ranks()
        }
        fn rounds(&self) -> u32 {
            self.0.rounds()
        }
        fn transfers(&self, number: u32, rank: Rank, into: &mut Vec<Transfer>) {
            if number != self.1 {
                self.0.transfers(number, rank, into);
            }
        }
    }
    let fabric = without(5, &[(1, 0), (1, 1), (3, 0)], Reach::Switched);
    for (name, strategy) in STRATEGIES {
        let Between { schedule, weights } = strategy(&fabric).unwrap();
        for number in 0..schedule.rounds() {
            let schedule: Shared = std::sync::Arc::new(Lacking(schedule.clone(), number));
            let broken = Between { schedule, weights: weights.clone() };
            assert!(prove(&broken, 5).is_err(), "{name} without round {number}");
        }
    }
}

#[test]
fn programs_of_every_strategy_are_allreduces() {
    let request = crate::tests::request(Collective::AllReduce, 4000, Rank(0));
    for (hosts, lost) in
        [(2, vec![(0, 1)]), (4, vec![(1, 2)]), (5, vec![(0, 0), (0, 3), (2, 1), (4, 2)])]
    {
        let fabric = without(hosts, &lost, Reach::Switched);
        let host = Host { rails: vec![RailCapacity::up(1e9)], cores: 1 };
        let ranks = u32::try_from(hosts).unwrap();
        let topology = Topology::new((0..ranks).map(Node).collect(), vec![host; hosts]);
        for (name, strategy) in STRATEGIES {
            let Some(between) = strategy(&fabric) else { continue };
            let partition = Partition::weighted(4000, DataType::Float32.bytes(), &between.weights);
            let layout = Layout::new(&request, ranks, partition);
            let lowered = |rank| lower(&*between.schedule, &layout, Rank(rank), 4, &topology);
            let programs: Vec<Program> = (0..ranks).map(lowered).collect();
            assert_eq!(check(&programs, &layout, 4, &topology), Ok(()), "{name}, {hosts} hosts");
        }
    }
}

#[test]
fn all_hosts_compute_the_same_bits() {
    let request = crate::tests::request(Collective::AllReduce, 1000, Rank(0));
    for reach in BOTH {
        let fabric = without(6, &[(0, 1), (0, 3), (2, 1), (4, 1), (4, 2), (4, 3)], reach);
        for (name, strategy) in STRATEGIES {
            let between = strategy(&fabric).unwrap();
            let partition = Partition::weighted(1000, 4, &between.weights);
            let layout = Layout::new(&request, 6, partition);
            assert!(crate::tests::bits_agree(&*between.schedule, &layout), "{name}");
        }
    }
}

/// What every host sends and receives, in units of the data.
fn volumes(between: &Between) -> (Vec<f64>, Vec<f64>) {
    let hosts = between.schedule.ranks() as usize;
    let (mut sent, mut received) = (vec![0.0; hosts], vec![0.0; hosts]);
    for transfer in
        (0..between.schedule.rounds()).flat_map(|number| round(&*between.schedule, number))
    {
        sent[transfer.source.index()] += between.weights[transfer.chunk.index()];
        received[transfer.target.index()] += between.weights[transfer.chunk.index()];
    }
    (sent, received)
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-9
}

#[test]
fn the_two_stages_move_what_the_formulas_say() {
    for (hosts, lost) in (2..=16).flat_map(|n| [1, 2, 3].map(|lost| (n, lost))) {
        let rails: Vec<(usize, usize)> = (0..lost).map(|rail| (hosts / 2, rail)).collect();
        let n = u32::try_from(hosts).unwrap();
        let share = optimal_share(n, 1, lost as f64 / 4.0);
        let (everyone, healthy) = (ring_volume(n, 1), ring_volume(n - 1, 1));
        let fabric = without(hosts, &rails, Reach::Switched);
        let (sent, received) = volumes(&two_stage(&fabric, Share::Corrected).unwrap());
        for host in 0..hosts {
            let partial = if host == hosts / 2 { 0.0 } else { healthy * share };
            let expected = everyone * (1.0 - share) + partial + share;
            assert!(close(sent[host], expected), "host {host} of {hosts} sends {}", sent[host]);
            assert!(close(received[host], expected), "host {host} of {hosts}: {}", received[host]);
        }
    }
}

#[test]
fn the_printed_share_leaves_a_ring_until_its_threshold() {
    let plan = |lost: usize| {
        let rails: Vec<(usize, usize)> = (0..lost).map(|rail| (3, rail)).collect();
        two_stage(&without(8, &rails, Reach::Switched), Share::Printed).unwrap().weights.len()
    };
    assert_eq!([1, 2, 3].map(plan), [8, 15, 15]);
}

#[test]
fn between_two_hosts_the_slower_one_sends_once_and_gets_the_result() {
    for lost in [1, 3] {
        let rails: Vec<(usize, usize)> = (0..lost).map(|rail| (1, rail)).collect();
        let fabric = without(2, &rails, Reach::RailOnly);
        let hop = |source, target, mode| {
            vec![Transfer::new(ccl_core::ids::Chunk(0), Rank(source), Rank(target), mode)]
        };
        for between in [two_stage(&fabric, Share::Corrected), recursive(&fabric)] {
            let between = between.unwrap();
            assert_eq!(between.weights, [1.0]);
            let all = (0..2).map(|number| round(&*between.schedule, number));
            let expected = [hop(1, 0, Mode::Accumulate), hop(0, 1, Mode::Store)];
            assert!(all.eq(expected) && between.schedule.rounds() == 2, "{between:?}");
        }
    }
}

#[test]
fn nothing_to_peel_and_nothing_possible_is_no_plan() {
    let none = |fabric: &Fabric, which: &[usize]| {
        which.iter().all(|strategy| STRATEGIES[*strategy].1(fabric).is_none())
    };
    let equal = without(4, &[], Reach::RailOnly);
    assert!(none(&equal, &[1, 2, 3, 4]));
    assert!(none(&without(1, &[(0, 0)], Reach::Switched), &[1, 2, 3, 4]));
    assert!(none(&without(4, &[(0, 0), (1, 0)], Reach::Switched), &[1, 2]), "two are slowest");
    assert!(none(&without(3, &[(0, 0), (1, 0)], Reach::Switched), &[3, 4]), "only one is left");
    let dead = [(2, 0), (2, 1), (2, 2), (2, 3)];
    assert!(BOTH.iter().all(|reach| none(&without(4, &dead, *reach), &[0, 1, 2, 3, 4, 5])));
    let gone: Vec<(usize, usize)> = (0..3).flat_map(|h| (0..4).map(move |r| (h, r))).collect();
    assert!(none(&without(3, &gone, Reach::Switched), &[0, 1, 2, 3, 4, 5]));
    let halves = [(0, 0), (0, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2)];
    assert!(none(&without(3, &halves, Reach::RailOnly), &[0, 1, 2, 3, 4, 5]));
    let masks = [0b00_1001, 0b00_0111, 0b11_1111, 0b11_1000];
    let rails = |mask: &u8| (0..6).map(|rail| f64::from(mask >> rail & 1)).collect();
    let apart = Fabric::new(masks.iter().map(rails).collect(), Reach::RailOnly);
    assert!(none(&apart, &[1]), "the neighbours of the slowest have no rail in common");
    assert!(balance(&apart).is_some());
}

#[test]
fn with_one_degraded_host_the_recursion_has_the_shares_of_the_two_stages() {
    for hosts in 3..=16 {
        let fabric = without(hosts, &[(1, 0)], Reach::Switched);
        let sorted = |between: Option<Between>| {
            let mut weights = between.unwrap().weights;
            weights.sort_by(f64::total_cmp);
            weights
        };
        let expected = sorted(two_stage(&fabric, Share::Corrected));
        for other in [recursive(&fabric), recursive_literal(&fabric)] {
            let same = sorted(other).iter().zip(&expected).all(|(a, b)| close(*a, *b));
            assert!(same, "{hosts} hosts");
        }
        let n = u32::try_from(hosts).unwrap();
        let seconds = ring_volume(n, 1) / 4.0 / retained(n, 1, 0.25).corrected;
        for time in [recursive_time(&fabric), literal_time(&fabric)] {
            assert!(close(time.unwrap(), seconds), "{hosts} hosts: {time:?}, not {seconds}");
        }
    }
}

#[test]
fn every_ring_of_the_recursion_is_bridged() {
    let fabric = without(6, &[(0, 0), (0, 1), (1, 0), (2, 1)], Reach::RailOnly);
    for strategy in [recursive, recursive_literal] {
        let between = strategy(&fabric).unwrap();
        let all = (0..between.schedule.rounds()).flat_map(|at| round(&*between.schedule, at));
        let pair = BTreeSet::from([Rank(1), Rank(2)]);
        let strained = |hop: &Transfer| BTreeSet::from([hop.source, hop.target]) == pair;
        let pieces: BTreeSet<u32> = all.filter(strained).map(|transfer| transfer.chunk.0).collect();
        // Piece 2 starts behind this edge.
        assert_eq!(pieces, BTreeSet::from([0, 1, 3, 4, 5]), "only the first ring may be as slow");
    }
}

#[test]
fn several_degraded_hosts_retain_what_the_theory_says() {
    let with = |some: &[f64], others: usize| [some, &vec![8.0; others]].concat();
    for (capacities, generous, literal) in [
        (with(&[7.0; 2], 2), 93.0, 87.5),
        (with(&[7.0; 2], 6), 92.7, 87.5),
        (with(&[4.0, 6.0, 7.0], 5), 64.0, 50.0),
        (with(&[7.0; 4], 4), 93.2, 87.5),
        (with(&[1.0], 7), 20.0, 20.0),
        (with(&[4.0, 4.0, 6.0, 7.0, 7.0], 11), 65.4, 50.0),
        (with(&[7.0; 15], 1), 87.5, 87.5),
    ] {
        let slowest = capacities.iter().copied().fold(f64::INFINITY, f64::min);
        let hosts = u32::try_from(capacities.len()).unwrap();
        let rails = capacities.iter().map(|capacity| vec![*capacity]).collect();
        let fabric = Fabric::new(rails, Reach::Switched);
        let percent = |seconds: Option<f64>| {
            let plan = seconds.map_or(0.0, |seconds| ring_volume(hosts, 1) / 8.0 / seconds);
            100.0 * plan.max(slowest / 8.0)
        };
        let computed = [recursive_time(&fabric), literal_time(&fabric)].map(percent);
        let digits = |percent: f64| format!("{percent:.1}");
        assert_eq!(computed.map(digits), [generous, literal].map(digits), "{capacities:?}");
    }
}

#[test]
fn literal_broadcasts_load_the_healthy_hosts_once_for_each_host_outside() {
    let fabric = without(8, &[(0, 0), (1, 0), (2, 0)], Reach::Switched);
    let generous = recursive(&fabric).unwrap();
    let literal = recursive_literal(&fabric).unwrap();
    assert_eq!(generous.weights, literal.weights);
    let share = 5.0 * generous.weights[8];
    let ring = 1.75 * (1.0 - share) + 1.6 * share;
    let (few, _) = volumes(&generous);
    let (many, _) = volumes(&literal);
    for host in 0..8 {
        let outside = host < 3;
        let expected = if outside { 1.75 * (1.0 - share) + share } else { ring + 0.6 * share };
        assert!(close(few[host], expected), "host {host}: {few:?}");
        let expected = if outside { expected } else { ring + 3.0 * share };
        assert!(close(many[host], expected), "host {host}: {many:?}");
    }
}

#[test]
fn plans_are_the_same_every_time() {
    let mut random = Random::new(7);
    for fabric in (0..20).map(|_| heavy(&mut random)) {
        for (name, strategy) in STRATEGIES {
            let plan = || format!("{:?}", strategy(&fabric));
            assert_eq!(plan(), plan(), "{name}");
        }
    }
}

#[test]
fn the_time_of_two_stages_is_that_of_the_formulas() {
    for (hosts, lost) in [(8, 1), (8, 2), (8, 4), (4, 1), (64, 2)] {
        let mut rails = vec![vec![1.0; 8]; hosts as usize];
        rails[1][..lost].fill(0.0);
        let fabric = Fabric::new(rails, Reach::Switched);
        let seconds = two_stage_time(&fabric, Share::Corrected).expect("a host is degraded");
        let kept = ring_volume(hosts, 1) / 8.0 / seconds;
        #[allow(clippy::cast_precision_loss, reason = "a number of rails")]
        let formula = retained(hosts, 1, lost as f64 / 8.0).corrected;
        assert!((kept - formula).abs() < 1e-9, "{hosts} {lost}: {kept} {formula}");
    }
}
