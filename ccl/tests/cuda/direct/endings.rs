//! What ends calls that kernels do.

use ccl::{Collective, DataType, Error, OperationOn, Rank, ReduceOp};

use super::{member, prepared, request};
use crate::calls::{without_rank_one, without_the_last};
use crate::ranks::{processes_with, threads_with};
use crate::{all_reduce, words};

fn a_rank_dies(test: &str, count: usize) {
    processes_with(test, 3, &[1], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        let data = member.upload(&words(vec![1; count]));
        let member = prepared(member, &[DataType::Int64], &[data.region()]);
        without_rank_one(&member, &data);
    });
}

#[test]
fn a_rank_that_dies_is_named_with_low_latency() {
    a_rank_dies("direct::endings::a_rank_that_dies_is_named_with_low_latency", 10);
}

#[test]
fn a_rank_that_dies_is_named_in_a_push() {
    a_rank_dies("direct::endings::a_rank_that_dies_is_named_in_a_push", 2000);
}

#[test]
fn ranks_that_disagree_are_told_at_the_next_meeting() {
    processes_with(
        "direct::endings::ranks_that_disagree_are_told_at_the_next_meeting",
        2,
        &[],
        |rank, size, id| {
            let member = member(rank as usize, (rank, size), &id, "1");
            let data = member.upload(&words([1; 90]));
            let member = prepared(member, &[DataType::Int64], &[]);
            let enqueue = |op| {
                let request = request(Collective::AllReduce, 90, DataType::Int64, op);
                let (input, output) = (Some(data.region()), Some(data.region()));
                let operation = OperationOn::Collective { request, input, output };
                member.cuda.enqueue(operation, &member.stream)
            };
            for _ in 0..3 {
                enqueue(ReduceOp::Sum).unwrap();
            }
            // The same bytes come, and nobody waits in vain.
            let mut last = enqueue(if rank == 0 { ReduceOp::Max } else { ReduceOp::Min });
            let error = loop {
                if let Err(error) = last {
                    break error;
                }
                last = enqueue(ReduceOp::Sum).and_then(|()| member.cuda.wait());
            };
            member.stream.synchronise().unwrap();
            let text = error.to_string();
            assert!(matches!(error, Error::Disagreement { sequence: 4, .. }), "{text}");
            assert!(
                text.contains("rank 0 called allreduce(count=90, type=int64, op=max)"),
                "{text}"
            );
            assert!(
                text.contains("rank 1 called allreduce(count=90, type=int64, op=min)"),
                "{text}"
            );
        },
    );
}

fn a_rank_does_not_come(test: &str, count: usize) {
    processes_with(test, 3, &[], |rank, size, id| {
        let member = member(rank as usize % 2, (rank, size), &id, "1");
        let data = member.upload(&words(vec![1; count]));
        let member = prepared(member, &[DataType::Int64], &[]);
        let text = without_the_last(&member, &data).to_string();
        // Of the two that wait, one is the first to tell.
        assert!(text.contains("the device of rank 2 has not come to it"), "{text}");
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_with_low_latency() {
    a_rank_does_not_come(
        "direct::endings::a_rank_that_does_not_come_is_named_with_low_latency",
        10,
    );
}

#[test]
fn a_rank_that_does_not_come_is_named_in_a_push() {
    a_rank_does_not_come("direct::endings::a_rank_that_does_not_come_is_named_in_a_push", 2000);
}

#[test]
fn an_abort_lets_kernels_go() {
    threads_with("direct::endings::an_abort_lets_kernels_go", 2, |rank, id| {
        let member = member(rank as usize, (rank, 2), id, "1");
        let data = member.upload(&words([1; 2000]));
        let member = prepared(member, &[DataType::Int64], &[]);
        if rank == 0 {
            // The other rank never comes.
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.cuda.abort("on purpose");
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
    });
}
