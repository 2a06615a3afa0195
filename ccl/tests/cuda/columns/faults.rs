//! What fails in calls of several ranks on each of several hosts, and what survives.

use ccl::{DataType, Error, Rank, ReduceOp};

use super::{assert_columns, ready, stranger};
use crate::calls::{without_rank_one, without_the_last};
use crate::direct::sums;
use crate::ranks::processes_with;
use crate::wire::{at_odds, repairs};
use crate::{all_reduce, download, words};

const INT: [DataType; 1] = [DataType::Int64];

#[test]
fn a_nic_that_is_switched_off_costs_nothing_but_time() {
    const TEST: &str = "columns::faults::a_nic_that_is_switched_off_costs_nothing_but_time";
    processes_with(TEST, 4, &[], |rank, size, id| {
        // Each of the columns has a lane on it, in both directions.
        let plan = ("R2CCL_FAULT", "admin:host=1,rail=0,at=100ms");
        let more = [plan, ("R2CCL_RAIL_PATIENCE", "20")];
        let member = ready((rank, size, 2), &id, (&INT, &more));
        let before = member.cuda.paths().0;
        let (mut rest, mut round) = (3, 0);
        while rest > 0 {
            round += 1;
            let values = |factor: i64, more: i64| words((0..20_001).map(|at| at * factor + more));
            let data = member.upload(&values(i64::from(rank) + 1, round));
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
            member.cuda.wait().unwrap();
            assert!(download(&data) == values(10, 4 * round), "round {round}, rank {rank}");
            rest -= i32::from(repairs(&member) >= 4);
        }
        assert_columns(&member, before, round as u64);
    });
}

#[test]
fn a_rank_that_dies_is_named() {
    const TEST: &str = "columns::faults::a_rank_that_dies_is_named";
    processes_with(TEST, 4, &[1], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&INT, &[]));
        let data = member.upload(&words(vec![1; 20_000]));
        without_rank_one(&member, &data);
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    const TEST: &str = "columns::faults::a_rank_that_does_not_come_is_named";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&INT, &[]));
        let data = member.upload(&words(vec![1; 2000]));
        let error = without_the_last(&member, &data);
        let text = error.to_string();
        assert!(
            matches!(error, Error::Deadline { .. }) && text.contains("within 2.000 s"),
            "{text}"
        );
        // Rank 3 waits for it on its host, rank 0 in its column, rank 1 for rank 3.
        let is_known = ["device of rank 2 ", "from rank 2", "from rank 3", "rank 2 has not taken"];
        assert!(is_known.iter().any(|known| text.contains(known)), "{text}");
    });
}

#[test]
fn an_abort_lets_the_stream_go() {
    const TEST: &str = "columns::faults::an_abort_lets_the_stream_go";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let member = stranger((rank, size, 2), &id);
        let data = member.upload(&words(vec![1; 2000]));
        let met = member.cuda.prepare(&sums(&INT), &[]);
        if rank == 0 {
            met.unwrap();
        }
        if rank < 2 {
            // The ranks of the other host never come. Rank 1 may be told before it does.
            for _ in 0..2 {
                let enqueued = member.cuda.enqueue(all_reduce(&data), &member.stream);
                assert!(rank == 1 || enqueued.is_ok(), "{enqueued:?}");
            }
            if rank == 0 {
                member.cuda.abort("on purpose");
            }
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
    });
}

#[test]
fn hosts_that_disagree_are_told_in_the_call() {
    const TEST: &str = "columns::faults::hosts_that_disagree_are_told_in_the_call";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let member = ready((rank, size, 2), &id, (&INT, &[]));
        let error = at_odds(&member, if rank < 2 { ReduceOp::Max } else { ReduceOp::Min });
        let Error::Disagreement { sequence: 3, rank: Rank(who), call, other: Rank(other), .. } =
            &error
        else {
            panic!("{error}")
        };
        let op = if *who < 2 { "max" } else { "min" };
        assert_eq!(*call, format!("allreduce(count=900, type=int64, op={op})"), "{error}");
        assert_eq!((who + 2) % 4, *other, "{error}");
    });
}
