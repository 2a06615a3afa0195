//! Calls beside a thread of the program that has the driver for itself until the device has nothing to do, and calls of
//! which streams share a queue: they end when they must, and nothing hangs.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use ccl::cuda::{Buffer, Gpu, Paths};
use ccl::{Collective, DataType, Error, OperationOn, Rank, ReduceOp, Request};
use ccl_kernels::cuda::gpu::Pinned;

use crate::calls::without_the_last;
use crate::direct::{noise, prepared, request};
use crate::ranks::processes_where;
use crate::windows::{Windowed, gather, gathered};
use crate::{Member, all_reduce, columns, direct, wire, words};

const INT: [DataType; 1] = [DataType::Int64];
const LATE: [(&str, &str); 1] = [("FAKECUDA_LATE", "1")];

/// Calls last no longer.
const SHORT: Duration = Duration::from_secs(1);

/// Asks the driver something in a thread of its own, which has begun when this returns.
fn ask(gpu: &Arc<Gpu>) -> Receiver<bool> {
    let (gpu, (answer, answers)) = (Arc::clone(gpu), mpsc::channel());
    let (begin, begun) = mpsc::channel();
    thread::spawn(move || {
        begin.send(()).unwrap();
        answer.send(gpu.name().is_ok())
    });
    begun.recv().unwrap();
    answers
}

/// Of a device that has something to do as long as this word is zero, and no longer than this lives: whoever panics must
/// not wait for it.
struct Idle<'a>(&'a Pinned);

impl Idle<'_> {
    fn begin(&self) {
        self.0.word(0).store(1, Ordering::Release);
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.begin();
    }
}

/// Does it while a thread frees memory, for which a late driver keeps all others away until the device, which has
/// something to do until the end, or until this calls what it is given, has nothing more to do.
fn while_occupied<T>(gpu: &Arc<Gpu>, act: impl FnOnce(&dyn Fn()) -> T) -> T {
    let (spare, busy, word) =
        (gpu.reserve(64).unwrap(), gpu.stream().unwrap(), gpu.pin(4).unwrap());
    busy.wait_for_word(&word, 0, 1).unwrap();
    thread::scope(|scope| {
        let freeing = scope.spawn(move || drop(spare));
        let idle = Idle(&word);
        // One without an answer may have had no turn of the processor. Where none of several has one, all wait until the
        // driver answers again.
        let unanswered = loop {
            let asked = [ask(gpu), ask(gpu), ask(gpu)];
            let first = asked[0].recv_timeout(Duration::from_millis(500));
            if first.is_err() && asked.iter().all(|answers| answers.try_recv().is_err()) {
                break asked;
            }
        };
        let was_occupied = OnceCell::new();
        let end = || {
            was_occupied
                .get_or_init(|| unanswered.iter().all(|answers| answers.try_recv().is_err()));
            idle.begin();
        };
        let result = act(&end);
        end();
        assert_eq!(was_occupied.get(), Some(&true), "a thread was slow, and nothing is tested");
        freeing.join().unwrap();
        result
    })
}

/// The error of a call that ends at its deadline although nobody can ask the driver; its stream goes on.
fn ending(member: &Member, call: impl FnOnce(&Member)) -> Error {
    member.host().set_timeout(SHORT).unwrap();
    let word = member.gpu().pin(4).unwrap();
    member.stream.wait_for_word(&word, 0, 1).unwrap();
    call(member);
    let error = while_occupied(member.gpu(), |_| {
        word.word(0).store(1, Ordering::Release);
        member.ending()
    });
    member.stream.synchronise().unwrap();
    assert_eq!(member.cuda.check(), Err(error.clone()), "it is kept");
    error
}

/// A sum for which rank 1 does not come.
fn lonely_sum(member: &Member, count: usize) {
    let data = member.upload(&words(vec![1; count]));
    if member.me() == 1 {
        member.ending();
        return;
    }
    let call = |member: &Member| member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
    let error = ending(member, call);
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

#[test]
fn kernels_are_let_go_although_nobody_says_who_has_not_come() {
    const TEST: &str = "late::kernels_are_let_go_although_nobody_says_who_has_not_come";
    processes_where(TEST, 2, &[], &LATE, |rank, size, id| {
        let member = direct::member(rank as usize, (rank, size), &id, "1");
        lonely_sum(&prepared(member, &INT, &[]), 2000);
    });
}

#[test]
fn a_call_between_hosts_ends_although_nothing_can_be_launched() {
    const TEST: &str = "late::a_call_between_hosts_ends_although_nothing_can_be_launched";
    processes_where(TEST, 2, &[], &LATE, |rank, size, id| {
        lonely_sum(&wire::ready(rank, size, &id, &INT), 2000);
    });
}

/// A call for which a rank of the next host does not come, and for which nobody can ask the driver before it has failed: the
/// communicator is dropped meanwhile, and then what the call works on, once the driver answers; the device still works.
fn dropped_early(member: Member, call: impl FnOnce(&Member) -> Buffer) {
    member.host().set_timeout(SHORT).unwrap();
    let (gpu, word) = (Arc::clone(member.gpu()), member.gpu().pin(4).unwrap());
    member.stream.wait_for_word(&word, 0, 1).unwrap();
    let data = call(&member);
    let (error, dropping) = while_occupied(&gpu, |_| {
        word.word(0).store(1, Ordering::Release);
        let error = member.ending();
        let drop_all = move || {
            drop(member);
            drop(data);
        };
        (error, thread::spawn(drop_all))
    });
    dropping.join().unwrap();
    // That of a kernel before which took as long as the call may is the other one.
    let silent = ["its own device, or the driver", "the device is silent, or its driver"];
    let text = error.to_string();
    assert!(silent.iter().any(|silent| text.contains(silent)), "{text}");
    gpu.synchronise().unwrap();
}

#[test]
fn a_communicator_between_hosts_goes_while_nobody_can_ask_the_driver() {
    const TEST: &str = "late::a_communicator_between_hosts_goes_while_nobody_can_ask_the_driver";
    processes_where(TEST, 2, &[], &LATE, |rank, size, id| {
        let member = wire::ready(rank, size, &id, &INT);
        if rank == 1 {
            member.ending();
            return;
        }
        dropped_early(member, |member| {
            let data = member.upload(&words([1; 2000]));
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            data
        });
    });
}

#[test]
fn a_communicator_of_columns_goes_while_nobody_can_ask_the_driver() {
    const TEST: &str = "late::a_communicator_of_columns_goes_while_nobody_can_ask_the_driver";
    processes_where(TEST, 4, &[], &LATE, |rank, size, id| {
        let member = columns::ready((rank, size, 2), &id, (&INT, &[]));
        let reduce = |member: &Member| {
            let data = member.upload(&words([1; 2000]));
            let request = request(Collective::Reduce, 2000, DataType::Int64, ReduceOp::Sum);
            let request = Request { root: Rank(3), ..request };
            let (input, output) = (Some(data.region()), Some(data.region()));
            let operation = OperationOn::Collective { request, input, output };
            member.cuda.enqueue(operation, &member.stream).unwrap();
            data
        };
        match rank {
            0 => dropped_early(member, reduce),
            1 => {
                let data = reduce(&member);
                member.ending();
                drop(data);
            }
            _ => drop(member.ending()),
        }
    });
}

#[test]
fn an_abort_ends_a_call_between_hosts_although_nothing_can_be_launched() {
    const TEST: &str = "late::an_abort_ends_a_call_between_hosts_although_nothing_can_be_launched";
    processes_where(TEST, 2, &[], &LATE, |rank, size, id| {
        let member = wire::ready(rank, size, &id, &INT);
        let data = member.upload(&words([1; 2000]));
        let word = member.gpu().pin(4).unwrap();
        if rank == 0 {
            member.stream.wait_for_word(&word, 0, 1).unwrap();
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            while_occupied(member.gpu(), |_| {
                word.word(0).store(1, Ordering::Release);
                // By then a kernel is to be launched; if not, nothing is tested.
                thread::sleep(Duration::from_millis(200));
                member.cuda.abort("on purpose");
                member.ending()
            });
            member.stream.synchronise().unwrap();
        }
        let error = member.ending();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
    });
}

#[test]
fn a_call_between_hosts_ends_although_its_kernels_share_a_queue_with_what_waits_for_them() {
    const TEST: &str = "late::a_call_between_hosts_ends_although_its_kernels_share_a_queue_with_what_waits_for_them";
    let shared = [("FAKECUDA_CONNECTIONS", "1")];
    processes_where(TEST, 2, &[], &shared, |rank, size, id| {
        let member = wire::ready(rank, size, &id, &INT);
        let data = member.upload(&words([1; 2000]));
        member.host().set_timeout(SHORT).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        let error = member.ending();
        member.stream.synchronise().unwrap();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert_eq!(member.cuda.paths().0, Paths { wire: 1, gpudirect: 1, ..Paths::default() });
    });
}

#[test]
fn legs_in_a_host_end_although_nobody_says_who_has_not_come() {
    const TEST: &str = "late::legs_in_a_host_end_although_nobody_says_who_has_not_come";
    processes_where(TEST, 4, &[], &LATE, |rank, size, id| {
        let member = columns::ready((rank, size, 2), &id, (&INT, &[]));
        let data = member.upload(&words([1; 2000]));
        if rank != 3 {
            // Of these two hear of it, and one is on another host.
            let error = without_the_last(&member, &data);
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            return;
        }
        for _ in 0..3 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        }
        member.cuda.wait().unwrap();
        member.host().barrier().unwrap();
        // Rank 2 is on the same host.
        let call =
            |member: &Member| member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        let error = ending(&member, call);
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    });
}

#[test]
fn calls_go_on_behind_those_of_copy_engines_while_nobody_can_ask_the_driver() {
    const TEST: &str =
        "late::calls_go_on_behind_those_of_copy_engines_while_nobody_can_ask_the_driver";
    const BYTES: usize = 2000;
    processes_where(TEST, 2, &[], &LATE, |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        let Member { cuda, stream } = &windowed.member;
        windowed.write(rank as usize * BYTES, &noise(BYTES, 5 + rank));
        // Else kernels are loaded at the first call, by a thread that waits for the stream and keeps the others away.
        let kernels = request(Collective::AllGather, BYTES, DataType::Uint8, ReduceOp::Sum);
        cuda.prepare(&[kernels], &[]).unwrap();
        windowed.member.host().barrier().unwrap();
        let word = windowed.member.gpu().pin(4).unwrap();
        stream.wait_for_word(&word, 0, 1).unwrap();
        cuda.enqueue(gather(&windowed, BYTES), stream).unwrap();
        // Through the host: the stream waits for the driver thread.
        cuda.enqueue(OperationOn::Barrier, stream).unwrap();
        while_occupied(windowed.member.gpu(), |end| {
            word.word(0).store(1, Ordering::Release);
            // From here on it is for the calls that the device has something to do.
            end();
            cuda.wait().unwrap();
        });
        stream.synchronise().unwrap();
        let expected = gathered(&windowed, BYTES, 5);
        assert!(windowed.read(0, expected.len()) == expected, "rank {rank}");
        assert_eq!(windowed.copied(), 1);
    });
}
