//! Plans among hosts of which some have no rail in common.

use super::*;
use crate::degraded::Fabric;

/// Hosts with so many ranks and these rails each: a rail of 0 does not work. The ranks of a host follow each other.
fn hosts(ranks: usize, rails: &[&[u8]]) -> Topology {
    let nodes = (0..).map(Node).take(rails.len());
    placed(nodes.flat_map(|node| std::iter::repeat_n(node, ranks)).collect(), rails)
}

/// The same, with ranks that are dealt to the hosts in turn.
fn dealt(ranks: usize, rails: &[&[u8]]) -> Topology {
    let nodes: Vec<Node> = (0..).map(Node).take(rails.len()).collect();
    placed(nodes.repeat(ranks), rails)
}

fn placed(nodes: Vec<Node>, rails: &[&[u8]]) -> Topology {
    let host = |rails: &&[u8]| Host {
        rails: rails
            .iter()
            .map(|up| RailCapacity { up: *up > 0, ..RailCapacity::up(1e9) })
            .collect(),
        cores: 8,
    };
    Topology::new(nodes, rails.iter().map(host).collect())
}

/// Four hosts, of which the first two have no rail in common: both lost one of two; or they are connected in turn, rails
/// 0 and 0, 1 and 1, 0 and 2.
fn apart(ranks: usize) -> [Topology; 2] {
    let seconds: [&[u8]; 2] = [&[1, 0], &[1, 0, 1]];
    seconds.map(|second| hosts(ranks, &[&[0, 1], second, &[1, 1], &[1, 1]]))
}

/// The pairs of hosts without a common rail between which the choice moves something.
fn joined(choice: &Choice, request: &Request, topology: &Topology) -> Vec<Transfer> {
    let fabric = Fabric::of(topology);
    let layout = Layout::new(request, topology.ranks(), choice.partition.clone());
    let host = |rank| topology.node_of(rank).index();
    let rounds = 0..choice.schedule.rounds();
    let all = rounds.flat_map(|number| round(&*choice.schedule, number));
    let moved = all.filter(|transfer| layout.elements(transfer.chunk) > 0);
    let away = moved.filter(|transfer| !topology.together(transfer.source, transfer.target));
    away.filter(|one| fabric.between(host(one.source), host(one.target)) <= 0.0).collect()
}

#[test]
fn allreduce_goes_round_hosts_without_a_common_rail() {
    for ranks in [1, 2, 3] {
        for topology in apart(ranks) {
            let model = CostModel::default_for(&topology);
            assert_eq!(Fabric::of(&topology).between(0, 1), 0.0);
            for bytes in (2..=26).map(|power| 1 << power) {
                let request = request(Collective::AllReduce, bytes / 4, Rank(0));
                let choice = choose(&request, &topology, &model, None).unwrap();
                assert_eq!(joined(&choice, &request, &topology), [], "{}", explain(&choice));
                assert!(choice.candidates[0].estimate.seconds.is_finite(), "{}", explain(&choice));
                let layout = Layout::new(&request, topology.ranks(), choice.partition.clone());
                assert_eq!(verify(&*choice.schedule, &layout), Ok(()), "{}", explain(&choice));
                let seen = explore(&request, &topology, &model, None).unwrap();
                assert_eq!(seen.name, choice.name);
                for candidate in &seen.candidates {
                    let forced = build(candidate.name, &Scene::new(&request, &topology, &model));
                    let plan = forced.unwrap();
                    let one = Choice {
                        schedule: plan.schedule,
                        partition: plan.partition,
                        ..choice.clone()
                    };
                    let is_free = joined(&one, &request, &topology).is_empty();
                    assert_eq!(candidate.estimate.seconds.is_finite(), is_free, "{candidate:?}");
                }
            }
        }
    }
}

/// Two hosts, or four of which one reaches nobody.
#[test]
fn where_no_plan_can_go_round_the_reason_says_so() {
    let alone: [&[u8]; 4] = [&[0, 0], &[1, 1], &[1, 1], &[1, 1]];
    for topology in [hosts(1, &[&[0, 1], &[1, 0]]), hosts(2, &alone)] {
        let model = CostModel::default_for(&topology);
        for collective in requested().filter(|one| *one != Collective::AllToAllV) {
            let request = request(collective, 1 << 20, Rank(0));
            let choice = choose(&request, &topology, &model, None).unwrap();
            assert!(choice.reason.contains("as all others do"), "{}", choice.reason);
        }
    }
}

/// Then the choice is what is best once a rail is back.
#[test]
fn where_no_plan_can_go_round_large_calls_are_not_sent_to_everybody() {
    let topology = hosts(4, &[&[0, 1], &[1, 0]]);
    let model = CostModel::default_for(&topology);
    let choose = |bytes: usize| {
        let request = request(Collective::AllReduce, bytes / 4, Rank(0));
        choose(&request, &topology, &model, None).unwrap()
    };
    let (small, large) = (choose(64), choose(1 << 30));
    assert_ne!(small.name, large.name, "{}", explain(&large));
    let once_whole = |choice: &Choice, name: &str| {
        let found = choice.candidates.iter().find(|candidate| candidate.name == name);
        found.map(|one| one.estimate.latency_seconds + one.estimate.bandwidth_seconds).unwrap()
    };
    let best = once_whole(&large, large.name);
    assert!(large.candidates.iter().all(|other| best <= once_whole(&large, other.name)));
}

#[test]
fn an_algorithm_that_cannot_be_had_is_not_insisted_on() {
    let [topology, _] = apart(1);
    let triangle = hosts(1, &[&[0, 1], &[1, 0], &[1, 1]]);
    let large = hosts(1, &[&[1][..]; 129]);
    let needs = "needs a rail between hosts that have none in common";
    let planned = "cannot be planned for these hosts and rails";
    for (topology, forced, why) in [
        (&topology, "one_shot", needs),
        (&triangle, "best_ring", planned),
        (&large, "hub_shares", planned),
    ] {
        let model = CostModel::default_for(topology);
        let request = request(Collective::AllReduce, 1 << 20, Rank(0));
        let own = choose(&request, topology, &model, None).unwrap();
        let choice = choose(&request, topology, &model, Some(forced)).unwrap();
        assert_eq!((choice.name, choice.digest), (own.name, own.digest), "{}", choice.reason);
        let reason = format!("; {forced} was asked for, and {why}");
        assert!(choice.reason.ends_with(&reason), "{}", choice.reason);
    }
}

/// Every collective but an AllToAllV, whichever two hosts of these have no rail in common, and where the way goes
/// through two hosts.
#[test]
fn all_collectives_but_one_go_round_hosts_without_a_common_rail() {
    let all: [&[u8]; 2] = [&[1, 1, 1], &[1, 1, 1]];
    let mut shapes: Vec<Vec<&[u8]>> = vec![vec![&[1, 0, 0], &[1, 1, 0], &[0, 1, 1], &[0, 0, 1]]];
    for hosts in 3..=5 {
        for (one, other) in (0..hosts).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let mut shape = all.repeat(3)[..hosts].to_vec();
            (shape[one], shape[other]) = (&[1, 0, 0], &[0, 1, 1]);
            shapes.push(shape);
        }
    }
    let with_ranks = |shape: &Vec<&[u8]>| {
        let in_order = [1, 2, 3].map(|ranks| hosts(ranks, shape));
        in_order.into_iter().chain([2, 3].map(|ranks| dealt(ranks, shape)))
    };
    for topology in shapes.iter().flat_map(with_ranks) {
        let model = CostModel::default_for(&topology);
        for collective in requested().filter(|one| *one != Collective::AllToAllV) {
            for root in roots(collective, topology.ranks()).step_by(2) {
                let request = request(collective, 1000, Rank(root));
                let choice = choose(&request, &topology, &model, None).unwrap();
                let case =
                    || format!("{collective:?} of {topology:?}, root {root}: {}", choice.reason);
                assert_eq!(joined(&choice, &request, &topology), [], "{}", case());
                let layout = Layout::new(&request, topology.ranks(), choice.partition.clone());
                assert_eq!(verify(&*choice.schedule, &layout), Ok(()), "{}", case());
                let lowered = |rank| lower(&*choice.schedule, &layout, Rank(rank), 4, &topology);
                let programs: Vec<Program> = (0..topology.ranks()).map(lowered).collect();
                assert_eq!(check(&programs, &layout, 4, &topology), Ok(()), "{}", case());
            }
        }
    }
}

/// Where every host has lost a different rail all are equally fast, but no pair has all rails in common.
#[test]
fn rails_that_do_not_match_are_planned() {
    let host = |lost: usize| {
        let rail = |rail| RailCapacity { up: rail != lost, ..RailCapacity::up(1e7) };
        Host { rails: (0..8).map(rail).collect(), cores: 8 }
    };
    let topology = Topology::new((0..4).map(Node).collect(), (0..4).map(host).collect());
    let model = CostModel::default_for(&topology);
    for bytes in [1 << 24, 1 << 26] {
        let request = request(Collective::AllReduce, bytes / 4, Rank(0));
        let choice = explore(&request, &topology, &model, None).unwrap();
        assert_eq!(choice.name, "hub_shares", "{}", explain(&choice));
        assert!(choice.division.is_some());
        let price = |name: &str| {
            let found = choice.candidates.iter().find(|candidate| candidate.name == name);
            found.unwrap().estimate.bandwidth_seconds / choice.bound_seconds
        };
        assert!(price("hub_shares") < 1.03, "{}", explain(&choice));
        assert!(["two_shot", "rabenseifner", "ring"].iter().all(|name| price(name) > 1.1));
    }
}
