//! Health that changes under collectives: threads as ranks, each pretending to be a host of its own with
//! two rails.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ccl_core::epoch::{Commit, Row, Table};
use ccl_core::error::Error;
use ccl_core::health::{RailState, Verdict};
use ccl_core::ids::{Epoch, Rail, Rank};
use ccl_core::settings::Settings;
use ccl_core::topology::RailCapacity;
use ccl_transport::clock;

use crate::{Communicator, Config, Group, Operation, ReduceOp, UniqueId};

const DEADLINE: Duration = Duration::from_secs(60);

/// Rank `rank` on a host of its own, with two rails.
fn config(rank: u32) -> Config {
    let host = format!("pretended host {rank}");
    let variables = [("R2CCL_HOST_ID", host.as_str()), ("R2CCL_RAILS", "127.0.0.1,127.0.0.2")];
    let settings = Settings::parse(variables).unwrap().settings;
    Config { timeout: Some(DEADLINE), settings, ..Config::default() }
}

/// Runs `body` as every rank and returns the results in order of rank.
fn ranks<T: Send + 'static>(
    size: u32,
    body: impl Fn(Communicator) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let id = UniqueId::create(&config(0).settings).unwrap();
    let (sender, receiver) = channel();
    for rank in 0..size {
        let (body, sender) = (body.clone(), sender.clone());
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, size, &config(rank)).unwrap();
            sender.send((rank, body(communicator))).unwrap();
        });
    }
    let mut results: Vec<(u32, T)> =
        (0..size).map(|_| receiver.recv_timeout(DEADLINE).unwrap()).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

fn state_of(communicator: &Communicator, rank: u32, rail: u8) -> RailState {
    let rails = communicator.health();
    let is_it =
        |health: &&crate::RailHealth| health.rank == Rank(rank) && health.rail == Rail(rail);
    rails.iter().find(is_it).unwrap().state
}

/// Waits until the control plane has done something.
fn wait_until(done: impl Fn() -> bool) {
    let end = clock::now() + DEADLINE;
    while !done() {
        assert!(clock::now() < end, "it did not happen");
        thread::yield_now();
    }
}

/// The epoch of every call until all ranks have seen `last`, with exact results throughout.
fn call_until(communicator: &Communicator, last: Epoch, turn: impl Fn(usize)) -> Vec<Epoch> {
    let size = u64::from(communicator.size());
    let mut epochs = Vec::new();
    for call in 0.. {
        turn(call);
        let there = u64::from(communicator.epoch() >= last);
        let mut values = vec![u64::from(communicator.rank().0) + 1; 1 + 40_000 * (call % 3)];
        values[0] = there;
        communicator.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
        epochs.push(communicator.epoch());
        assert!(values[1..].iter().all(|value| *value == size * (size + 1) / 2));
        if values[0] == size {
            break;
        }
    }
    epochs
}

#[test]
fn all_ranks_change_their_plans_at_the_same_call() {
    let epochs = ranks(3, |communicator| {
        let board = communicator.health_board();
        let me = communicator.rank();
        let epochs = call_until(&communicator, Epoch(2), |call| match (me.0, call) {
            (1, 5) => board.report(Rail(0), RailState::Down, Verdict::LocalNic, "test"),
            (2, 5) => board.report(Rail(1), RailState::Down, Verdict::LocalNic, "test"),
            (1, 10..) if communicator.epoch() >= Epoch(1) => {
                board.report(Rail(0), RailState::Up, Verdict::Unknown, "test");
            }
            _ => {}
        });
        communicator.finalize().unwrap();
        epochs
    });
    assert!(epochs[0].last() >= Some(&Epoch(2)), "{epochs:?}");
    assert_eq!(epochs[0], epochs[1]);
    assert_eq!(epochs[0], epochs[2]);
}

#[test]
fn plans_may_change_while_somebody_waits_inside_a_call() {
    let epochs = ranks(2, |communicator| {
        let mut epochs = Vec::new();
        if communicator.rank() == Rank(1) {
            let board = communicator.health_board();
            board.report(Rail(1), RailState::Down, Verdict::Path, "test");
            // Rank 0 is inside its first call, or about to be, and cannot go on before this rank calls.
            wait_until(|| communicator.agreed_epoch() == Epoch(1));
        }
        let mut value = [1.0f64];
        for _ in 0..3 {
            communicator.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
            epochs.push(communicator.epoch());
        }
        epochs.extend(call_until(&communicator, Epoch(1), |_| {}));
        communicator.finalize().unwrap();
        epochs
    });
    assert_eq!(epochs[0], epochs[1]);
}

#[test]
fn everybody_hears_of_every_rail() {
    ranks(3, |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == Rank(2) {
            let board = communicator.health_board();
            board.report(Rail(1), RailState::Suspect, Verdict::Unknown, "silence");
        }
        wait_until(|| state_of(&communicator, 2, 1) == RailState::Suspect);
        let rails = communicator.health();
        assert_eq!(rails.len(), 6);
        assert_eq!(rails[5].evidence, "silence");
        assert!(rails[..5].iter().all(|health| health.state == RailState::Up));
        communicator.barrier().unwrap();
        // A suspicion changes no plan.
        assert_eq!(communicator.epoch(), Epoch(0));
        communicator.finalize().unwrap();
    });
}

/// A NIC of rank 1 gets another address, and another one after that.
#[test]
fn everybody_hears_where_a_rail_is() {
    ranks(3, |communicator| {
        communicator.barrier().unwrap();
        let board = communicator.health_board();
        let addresses = ["127.0.0.9:1009", "127.0.0.9:1010"].map(|text| text.parse().unwrap());
        for address in addresses {
            if communicator.rank() == Rank(1) {
                board.moved(1, address);
                assert_eq!(board.moves().here(1), Some(address));
            } else {
                wait_until(|| board.moves().elsewhere(Rank(1), 1) == Some(address));
            }
            // Over connections that are there already.
            communicator.barrier().unwrap();
        }
        assert_eq!(communicator.epoch(), Epoch(0));
        communicator.finalize().unwrap();
    });
}

/// What the agreement prevents: a rank that changes its plans alone is found out.
#[test]
fn who_changes_its_plans_alone_disagrees() {
    let errors = ranks(2, |communicator| {
        let mut value = [1u32];
        communicator.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
        if communicator.rank() == Rank(1) {
            let rails = vec![RailCapacity { bytes_per_second: 1e9, up: false }; 2];
            let mut table = Table::default();
            table.learn(Rank(1), &Row { version: 1, rails });
            communicator.expect_epoch(Commit { epoch: Epoch(1), first: 2, table });
        }
        let result = communicator.all_reduce_in_place(&mut value, ReduceOp::Sum);
        // The one that noticed tells the other, whose call may have been served before.
        result.and_then(|()| communicator.all_reduce_in_place(&mut value, ReduceOp::Sum))
    });
    for error in errors {
        assert!(matches!(error, Err(Error::Disagreement { .. })), "{error:?}");
    }
}

/// A watch may be a program's own code, which looks at the rails.
#[test]
fn who_is_held_back_asks_a_watch_that_looks_at_the_rails() {
    let ended = ranks(1, |communicator| {
        communicator.hold_back();
        let mut group = Group::default();
        group.add(&communicator, Operation::Barrier);
        group.run_watched(&|| Some(format!("{} rails", communicator.health().len())))
    });
    assert_eq!(ended, [Err(Error::Aborted { rank: Rank(0), reason: "2 rails".into() })]);
}
