//! What ends calls that kernels do.

use std::fs;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ccl::cuda::{self, Buffer};
use ccl::{Collective, DataType, Error, OperationOn, Rank, ReduceOp};
use ccl_kernels::cuda::{Arithmetic, Operation};

use super::{config, member, newest_kernels, prepared, quarrel_about_operations, request};
use crate::calls::{without_rank_one, without_the_last};
use crate::ranks::{processes_with, threads_with};
use crate::{Member, all_reduce, words};

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

/// A kernel of the program reaches for memory of another device, before a call that is on the stream already.
fn a_device_fails(test: &str, call: impl Fn(&Buffer) -> cuda::Operation<'_> + Copy) {
    processes_with(test, 2, &[], |rank, size, id| {
        let member = member(rank as usize, (rank, size), &id, "1");
        let data = member.upload(&words(vec![1; 2000]));
        let member = prepared(member, &[DataType::Int64], &[data.region()]);
        let (gpu, word) = (member.gpu(), member.gpu().pin(4).unwrap());
        member.stream.wait_for_word(&word, 0, 1).unwrap();
        let elsewhere = cuda::open(0).unwrap().allocate(64).unwrap();
        if rank == 1 {
            let (sum, own) = ((Operation::Sum, DataType::Int64), data.region().part(0, 64));
            let sources = [elsewhere.region(), own];
            gpu.reduce(&member.stream, sum, Arithmetic::default(), &sources, &[own]).unwrap();
        }
        member.cuda.enqueue(call(&data), &member.stream).unwrap();
        word.word(0).store(1, Ordering::Release);
        let error = member.cuda.wait().unwrap_err().to_string();
        let expected = if rank == 1 { "CUDA_ERROR_ILLEGAL_ADDRESS" } else { "rank 1" };
        assert!(error.contains(expected), "{error}");
    });
}

#[test]
fn a_device_that_fails_ends_a_call_of_kernels() {
    a_device_fails("direct::endings::a_device_that_fails_ends_a_call_of_kernels", all_reduce);
}

#[test]
fn a_device_that_fails_ends_a_call_through_the_host() {
    const TEST: &str = "direct::endings::a_device_that_fails_ends_a_call_through_the_host";
    a_device_fails(TEST, |_| OperationOn::Barrier);
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
            let error = quarrel_about_operations(&member, rank, enqueue);
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
fn whoever_sees_a_stream_go_on_finds_the_error() {
    const TEST: &str = "direct::endings::whoever_sees_a_stream_go_on_finds_the_error";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let member = member(rank as usize, (rank, size), &id, "1");
        let data = member.upload(&words([1; 2000]));
        let member = prepared(member, &[DataType::Int64], &[]);
        if rank == 0 {
            member.host().set_timeout(Duration::from_millis(200)).unwrap();
            // The other rank never comes.
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
            let checked = member.cuda.check();
            assert!(matches!(checked, Err(Error::Deadline { .. })), "{checked:?}");
        }
        member.ending();
    });
}

#[test]
fn the_end_of_a_communicator_and_calls_of_other_threads_do_not_wait_for_each_other() {
    const TEST: &str = "direct::endings::the_end_of_a_communicator_and_calls_of_other_threads_do_not_wait_for_each_other";
    processes_with(TEST, 2, &[], |rank, size, id| {
        // Kernels of this rank come when somebody writes them.
        let (folder, kernels) = (tempfile::tempdir().unwrap(), newest_kernels("float"));
        let slow = folder.path().join(kernels.file_name().unwrap());
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &slow, kind, mode, 0).unwrap();
        let mut config = config("1");
        config.settings.cuda_kernels = (rank == 0).then(|| folder.path().into());
        let member = Member::with(rank as usize, (rank, size), &id, &config);
        let data = member.upload(&words([1; 100]));
        let call = |datatype| {
            let (input, output) = (Some(data.region()), Some(data.region()));
            let request = request(Collective::AllReduce, 90, datatype, ReduceOp::Sum);
            let operation = OperationOn::Collective { request, input, output };
            member.cuda.enqueue(operation, &member.stream)
        };
        call(DataType::Float32).unwrap();
        member.cuda.wait().unwrap();
        if rank == 0 {
            member.host().set_timeout(Duration::from_millis(500)).unwrap();
            thread::scope(|scope| {
                // It can be opened when the thread that meets the others reads it.
                let mut pipe = fs::OpenOptions::new().write(true).open(&slow).unwrap();
                let end = scope.spawn(|| member.cuda.finalize());
                // By then the end waits for that thread; if not, nothing is tested.
                thread::sleep(Duration::from_millis(100));
                let call = scope.spawn(|| call(DataType::Int32));
                thread::sleep(Duration::from_millis(100));
                pipe.write_all(&fs::read(&kernels).unwrap()).unwrap();
                drop(pipe);
                let _ = call.join().unwrap();
                let _ = end.join().unwrap();
            });
        } else {
            // The other rank has made a call more.
            member.ending();
        }
    });
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
