use ccl_core::epoch::{Row, Table};
use ccl_core::ids::{Node, Rail};
use ccl_core::topology::{Host, RailCapacity};

use super::*;

fn asked(text: &str) -> Settings {
    Settings::parse([("R2CCL_ALGO", text)]).unwrap().settings
}

#[test]
fn names_that_no_collective_has_are_refused_with_those_that_exist() {
    for text in ["", "two_shot", "chain", "allreduce:hub_shares,pairwise", "broadcast:chain"] {
        assert_eq!(check(&asked(text)), Ok(()), "{text}");
    }
    for (text, named, known) in [
        ("tow_shot", "R2CCL_ALGO=\"tow_shot\"", ["two_shot", "pairwise"]),
        ("ring,tow_shot", "R2CCL_ALGO=\"tow_shot\"", ["two_shot", "pairwise"]),
        ("allreduce:chain", "R2CCL_ALGO=\"allreduce:chain\"", ["two_shot", "ring"]),
        ("alltoallv:bruck", "alltoallv has no algorithm \"bruck\"", ["direct", "pairwise"]),
    ] {
        let error = check(&asked(text)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        let message = error.to_string();
        for part in known.into_iter().chain([named]) {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// Their counts are known to no rank, so that they decide nothing.
#[test]
fn an_uneven_exchange_is_explained_as_it_is_chosen() {
    let topology = Topology::single_host(8, 8);
    let planner = Planner::new(Rank(1), topology, Settings::default());
    let collective = Collective::AllToAllV;
    let explained =
        |count| planner.explain(&Request { collective, count, ..Request::BARRIER }).unwrap();
    assert_eq!(explained(1), explained(1 << 20));
    assert!(explained(1).contains("pairwise"), "{}", explained(1));
}

/// Two hosts that lost different rails have no ring with a third one.
#[test]
fn an_algorithm_that_is_asked_for_gives_way_when_rails_are_lost() {
    let host = Host { rails: vec![RailCapacity::up(1e9); 2], cores: 1 };
    let healthy = Topology::new([0, 1, 2].map(Node).to_vec(), vec![host; 3]);
    let lost = healthy.clone().with_rail(Node(0), Rail(0), false);
    let lost = lost.with_rail(Node(1), Rail(1), false);
    let collective = Collective::AllReduce;
    let request = Request { collective, count: 1 << 16, ..Request::BARRIER };
    for (topology, told) in [(healthy, None), (lost, Some(Epoch(0)))] {
        let mut planner = Planner::new(Rank(2), topology, asked("allreduce:best_ring"));
        assert!(planner.plan(&request, false).is_ok());
        assert_eq!(planner.overruled, told);
    }
}

/// Then nothing helps, and the plan is as before.
#[test]
fn what_takes_a_host_without_rails_takes_for_ever() {
    let rails = vec![RailCapacity::up(1e9); 2];
    let host = Host { rails: rails.clone(), cores: 1 };
    let topology = Topology::new([0, 1, 1].map(Node).to_vec(), vec![host; 2]);
    let mut planner = Planner::new(Rank(2), topology, Settings::default());
    let collective = Collective::AllReduce;
    let request = Request { collective, count: 1 << 16, ..Request::BARRIER };
    let healthy = planner.plan(&request, false).unwrap();
    assert!(planner.predict(&request).unwrap().is_finite());
    let lost = rails.iter().map(|rail| RailCapacity { up: false, ..*rail }).collect();
    let mut table = Table::default();
    table.learn(Rank(0), &Row { version: 1, rails: lost });
    planner.expect(Commit { epoch: Epoch(1), first: 2, table });
    planner.advance(2);
    assert_eq!(planner.predict(&request), Ok(f64::INFINITY));
    assert_eq!(planner.predict_message(Rank(0), 0), f64::INFINITY);
    assert!(planner.predict_message(Rank(1), 0).is_finite());
    let explained = planner.explain(&request).unwrap();
    assert!(explained.starts_with("a rank of host 0 has lost all its rails"), "{explained}");
    assert_eq!(planner.plan(&request, false).unwrap().program, healthy.program);
}

#[test]
fn a_message_between_hosts_without_a_common_rail_takes_for_ever() {
    let rail = RailCapacity::up(1e9);
    let lost = RailCapacity { up: false, ..rail };
    let hosts = [[rail, rail], [lost, rail], [rail, lost]];
    let hosts = hosts.map(|rails| Host { rails: rails.into(), cores: 1 });
    let topology = Topology::new([0, 1, 2].map(Node).to_vec(), hosts.into());
    let message = |to| {
        Planner::new(Rank(1), topology.clone(), Settings::default()).predict_message(Rank(to), 8)
    };
    assert!(message(0).is_finite());
    assert_eq!(message(2), f64::INFINITY);
}

#[test]
fn a_message_needs_the_rails_of_its_two_ranks_only() {
    let rail = RailCapacity::up(1e9);
    let host = Host { rails: vec![rail; 2], cores: 2 };
    let nodes = [0, 0, 1, 1].map(Node).to_vec();
    let topology = Topology::new(nodes, vec![host.clone(), host]);
    let lost = |up: [bool; 2]| Row {
        version: 1,
        rails: up.map(|up| RailCapacity { up, ..rail }).to_vec(),
    };
    let mut table = Table::default();
    table.learn(Rank(0), &lost([false, true]));
    table.learn(Rank(2), &lost([true, false]));
    let seconds = |from, to| {
        let mut planner = Planner::new(Rank(from), topology.clone(), Settings::default());
        planner.expect(Commit { epoch: Epoch(1), first: 0, table: table.clone() });
        planner.advance(0);
        planner.predict_message(Rank(to), 1 << 30)
    };
    assert_eq!([seconds(0, 2), seconds(2, 0)], [f64::INFINITY; 2]);
    assert!(seconds(1, 3) < seconds(1, 2), "over two rails, and over one");
    assert!(seconds(0, 3).is_finite() && seconds(1, 2).is_finite());
}

/// They run a barrier, so they must mean the same one.
#[test]
fn calls_of_no_elements_agree_on_their_plan() {
    let signature = |asked_for: &str| {
        let topology = Topology::single_host(3, 3);
        let mut planner = Planner::new(Rank(1), topology, asked(asked_for));
        let collective = Collective::AllReduce;
        let request = Request { collective, count: 0, ..Request::BARRIER };
        planner.synchronising(&request).unwrap().signature
    };
    let [one_shot, other] = ["barrier:one_shot", "barrier:recursive_doubling"].map(signature);
    assert_ne!(one_shot, other);
    assert_eq!(one_shot, signature("barrier:one_shot"));
    assert_eq!((one_shot.collective, one_shot.count), (Collective::AllReduce, 0));
}

#[test]
fn a_count_that_no_memory_has_is_not_explained() {
    let planner = Planner::new(Rank(1), Topology::single_host(8, 8), Settings::default());
    let explained = |collective, count| {
        let datatype = DataType::Float64;
        planner.explain(&Request { collective, count, datatype, ..Request::BARRIER })
    };
    for collective in Collective::UNIFORM {
        for count in [usize::MAX, usize::MAX / 8, usize::MAX / 64] {
            let refused = explained(collective, count);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
    }
    let barrier = explained(Collective::Barrier, usize::MAX);
    assert_eq!(barrier, planner.explain(&Request::BARRIER));
    assert!(barrier.is_ok(), "{barrier:?}");
}

#[test]
fn what_is_combined_in_order_of_rank_is_known() {
    use Collective::{AllGather, AllReduce, ReduceScatter};
    for (collective, algorithm, ranks, is_in_order) in [
        (AllReduce, "two_shot", 3, true),
        (AllReduce, "one_shot", 3, true),
        (AllReduce, "ring", 3, false),
        (AllReduce, "ring", 2, true),
        (ReduceScatter, "direct", 4, true),
        (ReduceScatter, "ring", 4, false),
        (AllGather, "ring", 4, true),
    ] {
        let algorithm = AlgorithmChoice { collective: None, algorithm: algorithm.into() };
        let settings = Settings { algorithms: vec![algorithm.clone()], ..Settings::default() };
        let topology = Topology::single_host(ranks, ranks);
        let mut planner = Planner::new(Rank(1), topology, settings);
        let request = Request { collective, count: 1 << 16, ..Request::BARRIER };
        let plan = planner.plan(&request, false).unwrap();
        assert_eq!(plan.is_in_order, is_in_order, "{collective:?} {algorithm:?} {ranks}");
    }
}
