//! What fails in calls between hosts, and what survives.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ccl::{Collective, DataType, Error, OperationOn, Rank, ReduceOp, Request};

use super::{assert_wire, member, ready, ready_with};
use crate::calls::{failure, without_rank_one, without_the_last};
use crate::direct::{request, sums};
use crate::ranks::{processes_where, processes_with};
use crate::{Member, all_reduce, download, words};

const INT: [DataType; 1] = [DataType::Int64];

/// How many times a queue pair of any rank has gone on over another rail.
pub(crate) fn repairs(member: &Member) -> i64 {
    let mut repairs = vec![member.cuda.paths().0.repairs as i64];
    member.host().all_reduce_in_place(&mut repairs, ReduceOp::Sum).unwrap();
    repairs[0]
}

/// Sums until rails were lost as often, and some times more; every result is right.
fn sum_through(member: &Member, faults: i64) {
    let before = member.cuda.paths().0;
    let (me, size) = (i64::from(member.me()), i64::from(member.size()));
    let (mut rest, mut round) = (3, 0);
    while rest > 0 {
        round += 1;
        let values = (0..20_000).map(|at| at * (me + 1) + round);
        let data = member.upload(&words(values));
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        member.cuda.wait().unwrap();
        let sum = size * (size + 1) / 2;
        let expected = words((0..20_000).map(|at| at * sum + size * round));
        assert!(download(&data) == expected, "round {round}, rank {me}");
        if repairs(member) >= faults {
            rest -= 1;
        }
    }
    assert_wire(member, before);
}

fn a_rail_fails(test: &str, size: u32, plan: &str, faults: i64) {
    processes_with(test, size, &[], |rank, size, id| {
        // Rails that have failed often are wanted back after a while only.
        let more = [("R2CCL_FAULT", plan), ("R2CCL_RAIL_PATIENCE", "20")];
        sum_through(&ready_with(rank, size, &id, (&INT, &more)), faults);
    });
}

#[test]
fn a_nic_that_is_switched_off_costs_nothing_but_time() {
    let test = "wire::faults::a_nic_that_is_switched_off_costs_nothing_but_time";
    a_rail_fails(test, 2, "admin:host=1,rail=0,at=100ms", 2);
}

/// The same fault again and again, for longer than it takes until ranks have calls under way.
fn repeated(times: usize, fault: impl Fn(usize) -> String) -> String {
    (0..times).map(fault).collect::<Vec<_>>().join(";")
}

#[test]
fn a_rail_that_falls_silent_and_returns_costs_nothing_but_time() {
    let test = "wire::faults::a_rail_that_falls_silent_and_returns_costs_nothing_but_time";
    let fault = |at| format!("silent:host=2,rail=1,at={}ms,heal=1500ms", 100 + 3000 * at);
    a_rail_fails(test, 3, &repeated(30, fault), 2);
}

#[test]
fn rails_that_fail_in_turn_cost_nothing_but_time() {
    let test = "wire::faults::rails_that_fail_in_turn_cost_nothing_but_time";
    let fault = |at: usize| {
        let (host, rail, at) = (at / 2 % 2, at % 2, 100 + 500 * at);
        format!("admin:host={host},rail={rail},at={at}ms,heal=150ms")
    };
    a_rail_fails(test, 2, &repeated(120, fault), 10);
}

#[test]
fn a_rank_without_rails_is_named_with_the_rail() {
    const TEST: &str = "wire::faults::a_rank_without_rails_is_named_with_the_rail";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let plan = "admin:host=1,rail=0,at=1500ms;admin:host=1,rail=1,at=1600ms";
        let more = [("R2CCL_FAULT", plan), ("R2CCL_RAIL_PATIENCE", "0.5")];
        let error = failure_of(&member(rank, size, &id, &more));
        let Error::PeerLost { rank: Rank(lost), reason } = &error else { panic!("{error}") };
        // Which of the two tells it first is not known.
        assert!(*lost < 2 && reason.contains("rail"), "{error}");
    });
}

#[test]
fn without_repair_the_first_rail_ends_it() {
    processes_with(
        "wire::faults::without_repair_the_first_rail_ends_it",
        2,
        &[],
        |rank, size, id| {
            let fault = ("R2CCL_FAULT", "admin:host=1,rail=1,at=1500ms");
            let error = failure_of(&member(rank, size, &id, &[fault, ("R2CCL_HOT_REPAIR", "0")]));
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        },
    );
}

/// The error that ends the communicator: in a call, or, where ranks are slow, already when they meet.
fn failure_of(member: &Member) -> Error {
    let met = member.cuda.prepare(&sums(&INT), &[]).and_then(|()| member.host().barrier());
    match met {
        Ok(()) => failure(member, &member.upload(&words(vec![1; 20_000]))),
        Err(error) => error,
    }
}

#[test]
fn a_rank_that_dies_is_named() {
    const TEST: &str = "wire::faults::a_rank_that_dies_is_named";
    processes_with(TEST, 3, &[1], |rank, size, id| {
        let member = ready(rank, size, &id, &INT);
        let data = member.upload(&words(vec![1; 20_000]));
        without_rank_one(&member, &data);
    });
}

/// Its event is the first after that of the device and that of the stream; it waits in the queue of another stream.
#[test]
fn a_kernel_without_an_event_finds_its_slot() {
    const TEST: &str = "wire::faults::a_kernel_without_an_event_finds_its_slot";
    let variables = [
        ("FAKECUDA_FAIL", "cuEventRecord:3:CUDA_ERROR_OUT_OF_MEMORY"),
        ("FAKECUDA_CONNECTIONS", "1"),
    ];
    processes_where(TEST, 2, &[], &variables, |rank, size, id| {
        let member = ready_with(rank, size, &id, (&INT, &[("R2CCL_CUDA_NETWORK", "pinned")]));
        if rank == 1 {
            member.ending();
            return;
        }
        let (gpu, data) = (Arc::clone(member.gpu()), member.upload(&words([1; 2000])));
        let (other, word) = (gpu.stream().unwrap(), gpu.pin(8).unwrap());
        member.stream.wait_for_word(&word, 0, 1).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        other.wait_for_word(&word, 4, 1).unwrap();
        word.word(0).store(1, Ordering::Release);
        let error = member.ending();
        assert!(error.to_string().contains("record an event"), "{error}");
        let dropping = thread::spawn(move || drop(member));
        // By then the slot would have gone; if not, nothing is tested.
        thread::sleep(Duration::from_millis(300));
        word.word(4).store(1, Ordering::Release);
        dropping.join().unwrap();
        gpu.synchronise().unwrap();
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    const TEST: &str = "wire::faults::a_rank_that_does_not_come_is_named";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let member = ready(rank, size, &id, &INT);
        let data = member.upload(&words(vec![1; 2000]));
        let error = without_the_last(&member, &data);
        let text = error.to_string();
        assert!(matches!(error, Error::Deadline { .. }), "{text}");
        // Rank 0 waits for rank 2, rank 1 for rank 0: one of them is the first to tell.
        assert!(text.contains("no tile has come from rank"), "{text}");
    });
}

#[test]
fn an_abort_lets_the_stream_go() {
    const TEST: &str = "wire::faults::an_abort_lets_the_stream_go";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = member(rank, size, &id, &[]);
        let data = member.upload(&words(vec![1; 2000]));
        let met = member.cuda.prepare(&sums(&INT), &[]);
        if rank == 0 {
            met.unwrap();
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

/// Two sums and a third call that is another one on some ranks: what ends it.
pub(crate) fn at_odds(member: &Member, last: ReduceOp) -> Error {
    let data = member.upload(&words([1; 900]));
    // Not at a call with a number that is a power of two, at which ranks meet.
    for op in [ReduceOp::Sum, ReduceOp::Sum, last] {
        let request = request(Collective::AllReduce, 900, DataType::Int64, op);
        let (input, output) = (Some(data.region()), Some(data.region()));
        let operation = OperationOn::Collective { request, input, output };
        member.cuda.enqueue(operation, &member.stream).unwrap();
    }
    let error = member.ending();
    member.stream.synchronise().unwrap();
    error
}

#[test]
fn ranks_that_disagree_are_told_in_the_call() {
    const TEST: &str = "wire::faults::ranks_that_disagree_are_told_in_the_call";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = ready(rank, size, &id, &INT);
        let error = at_odds(&member, if rank == 0 { ReduceOp::Max } else { ReduceOp::Min });
        let Error::Disagreement { sequence: 3, rank: Rank(who), call, other_call, .. } = &error
        else {
            panic!("{error}")
        };
        let op = if *who == 0 { "max" } else { "min" };
        assert_eq!(*call, format!("allreduce(count=900, type=int64, op={op})"), "{error}");
        assert!(other_call.starts_with("another collective"), "{error}");
    });
}

/// What has arrived is enough, although those who sent it have gone.
#[test]
fn ranks_that_have_left_are_not_missed() {
    const TEST: &str = "wire::faults::ranks_that_have_left_are_not_missed";
    let name = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire-ranks-that-left");
    processes_with(TEST, 3, &[], |rank, size, id| {
        // Those who leave have it until their processes have ended.
        let file = File::options().create(true).append(true).open(&name).unwrap();
        if rank != 2 {
            file.lock_shared().unwrap();
        }
        let patience = [("R2CCL_RAIL_PATIENCE", "0.1")];
        let member = ready_with(rank, size, &id, (&[DataType::Uint8], &patience));
        let data = member.upload(&words(vec![i64::from(rank) + 5; 300]));
        let request = request(Collective::Broadcast, 300, DataType::Int64, ReduceOp::Sum);
        let request = Request { root: Rank(0), ..request };
        let word = member.gpu().pin(4).unwrap();
        if rank == 2 {
            member.stream.wait_for_word(&word, 0, 1).unwrap();
        }
        let (input, output) = (Some(data.region()), Some(data.region()));
        let operation = OperationOn::Collective { request, input, output };
        member.cuda.enqueue(operation, &member.stream).unwrap();
        if rank == 2 {
            file.lock().unwrap();
            word.word(0).store(1, Ordering::Release);
        }
        member.stream.synchronise().unwrap();
        member.cuda.finalize().unwrap();
        assert!(download(&data) == words(vec![5; 300]), "rank {rank}");
        assert_eq!(member.cuda.paths().0.wire, 1);
    });
}
