//! What ends calls in windows.

use std::fs;
use std::process;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ccl::cuda::{self, Promise};
use ccl::{Collective, DataType, Error, OperationOn, Rank};
use ccl_kernels::cuda::{Arithmetic, Operation};

use super::{LEAST_BYTES, Windowed, bytes_of, check_gather, gather, gather_in};
use crate::Member;
use crate::ranks::{processes, processes_with, threads_with};

/// Enough for all calls of a test that are not to end.
const SHORT: Duration = Duration::from_secs(2);

/// The error of a call that cannot end; the stream goes on, with all calls that were put on it.
fn ending(windowed: &Windowed) -> Error {
    let member = &windowed.member;
    for _ in 0..3 {
        // The first may be over already.
        let _ = member.cuda.enqueue(gather(windowed, 2000), &member.stream);
    }
    let error = member.ending();
    member.stream.synchronise().unwrap();
    assert_eq!(member.cuda.check(), Err(error.clone()), "it is kept");
    error
}

#[test]
fn a_rank_that_dies_is_named() {
    processes("windows::endings::a_rank_that_dies_is_named", 3, &[1], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        check_gather(&windowed, 2000, 1);
        if rank == 1 {
            process::abort();
        }
        let error = ending(&windowed);
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        // Nothing of a window is told to anybody any more.
        let deregistered = windowed.member.cuda.deregister_window(&windowed.window);
        assert_eq!(deregistered, Err(error));
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    const TEST: &str = "windows::endings::a_rank_that_does_not_come_is_named";
    processes(TEST, 3, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        for seed in 0..3 {
            check_gather(&windowed, 2000, seed);
        }
        windowed.member.host().barrier().unwrap();
        let error = if rank == 2 {
            windowed.member.ending()
        } else {
            windowed.member.host().set_timeout(SHORT).unwrap();
            ending(&windowed)
        };
        // Of the two that wait, one is the first to tell.
        let text = error.to_string();
        assert!(text.contains("the device of rank 2 has not come to it"), "{text}");
        assert!(!text.contains("something else"), "{text}");
    });
}

/// So many calls, after which ranks do not compare what they call for a while: then the marks have to tell.
const UNCOMPARED: u32 = 4;

/// Ranks that call something else than rank 0, with this mistake.
fn astray(test: &str, mistake: impl Fn(&Windowed) + Copy) {
    processes(test, 3, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        (0..UNCOMPARED).for_each(|seed| check_gather(&windowed, 2000, seed));
        windowed.member.host().barrier().unwrap();
        windowed.member.host().set_timeout(SHORT).unwrap();
        if rank == 2 {
            mistake(&windowed);
        }
        let text = ending(&windowed).to_string();
        // Whoever is the first to tell may be one of these, or not have seen all of the others.
        let told = ["rank 2 has", "rank 0, rank 1 have", "rank 0 has", "rank 1 has"];
        let told = told.iter().any(|who| text.contains(&format!("{who} called something else")));
        assert!(told || text.contains("left it"), "{text}");
        let wrong = ["rank 1, rank 2 have called", "rank 0, rank 2 have called"];
        assert!(!wrong.iter().any(|who| text.contains(who)), "{text}");
    });
}

fn broadcast(windowed: &Windowed, count: usize, root: u32, at: usize) {
    let memory = windowed.region().part(at, count);
    let request = bytes_of(Collective::Broadcast, count, root);
    let (input, output) = (Some(memory), Some(memory));
    let operation = OperationOn::Collective { request, input, output };
    windowed.member.cuda.enqueue(operation, &windowed.member.stream).unwrap();
}

#[test]
fn ranks_that_call_another_collective_are_told() {
    const TEST: &str = "windows::endings::ranks_that_call_another_collective_are_told";
    astray(TEST, |windowed| broadcast(windowed, 2000, 0, 0));
}

#[test]
fn ranks_that_break_the_promise_are_told() {
    const TEST: &str = "windows::endings::ranks_that_break_the_promise_are_told";
    astray(TEST, |windowed| {
        let Member { cuda, stream } = &windowed.member;
        let aside = windowed.region().part(1, 6000);
        cuda.enqueue(gather_in(aside, windowed.member.me(), 2000), stream).unwrap();
    });
}

#[test]
fn ranks_that_disagree_on_the_root_are_told() {
    const TEST: &str = "windows::endings::ranks_that_disagree_on_the_root_are_told";
    processes(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        (0..UNCOMPARED).for_each(|seed| check_gather(&windowed, 2000, seed));
        windowed.member.host().barrier().unwrap();
        windowed.member.host().set_timeout(SHORT).unwrap();
        broadcast(&windowed, 2000, rank, 0);
        let error = windowed.member.ending();
        windowed.member.stream.synchronise().unwrap();
        assert!(error.to_string().contains("has called something else"), "{error}");
    });
}

#[test]
fn memory_outside_of_the_window_ends_at_the_deadline() {
    const TEST: &str = "windows::endings::memory_outside_of_the_window_ends_at_the_deadline";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id).prepared(&[DataType::Uint8]);
        check_gather(&windowed, 2000, 1);
        let Member { cuda, stream } = &windowed.member;
        windowed.member.host().barrier().unwrap();
        windowed.member.host().set_timeout(SHORT).unwrap();
        let elsewhere = windowed.member.gpu().allocate(4000).unwrap();
        let output = if rank == 0 { windowed.region().part(0, 4000) } else { elsewhere.region() };
        cuda.enqueue(gather_in(output, rank, 2000), stream).unwrap();
        let text = windowed.member.ending().to_string();
        stream.synchronise().unwrap();
        assert!(text.contains("has not come to it"), "{text}");
    });
}

#[test]
fn an_abort_lets_streams_go_that_come_later_too() {
    const TEST: &str = "windows::endings::an_abort_lets_streams_go_that_come_later_too";
    // Streams that were let go read memory of the other rank.
    let end = Barrier::new(2);
    threads_with(TEST, 2, |rank, id| {
        let windowed = Windowed::new((rank, 2), id);
        let Member { cuda, stream } = &windowed.member;
        cuda.host().barrier().unwrap();
        let late = windowed.member.gpu().stream().unwrap();
        let word = windowed.member.gpu().pin(4).unwrap();
        if rank == 0 {
            // The other rank never comes.
            cuda.enqueue(gather(&windowed, 2000), stream).unwrap();
            cuda.enqueue(gather(&windowed, 3000), stream).unwrap();
            late.wait_for_word(&word, 0, 1).unwrap();
            cuda.enqueue(gather(&windowed, 4000), &late).unwrap();
            cuda.enqueue(gather(&windowed, LEAST_BYTES), &late).unwrap();
            cuda.abort("on purpose");
            stream.synchronise().unwrap();
            word.word(0).store(1, Ordering::Release);
            late.synchronise().unwrap();
        }
        let error = windowed.member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
        end.wait();
    });
}

#[test]
fn a_stream_goes_on_although_a_late_rank_overwrites_what_lets_it_go() {
    const TEST: &str =
        "windows::endings::a_stream_goes_on_although_a_late_rank_overwrites_what_lets_it_go";
    let meeting = Barrier::new(2);
    threads_with(TEST, 2, |rank, id| {
        let windowed = Windowed::new((rank, 2), id);
        let cuda = &windowed.member.cuda;
        cuda.host().barrier().unwrap();
        let late = windowed.member.gpu().stream().unwrap();
        let word = windowed.member.gpu().pin(4).unwrap();
        late.wait_for_word(&word, 0, 1).unwrap();
        // Each of them calls something else.
        cuda.enqueue(gather(&windowed, 2000 + rank as usize), &late).unwrap();
        meeting.wait();
        if rank == 0 {
            cuda.abort("on purpose");
        }
        let error = windowed.member.ending();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
        // Both have let their streams go, which have not come yet.
        thread::sleep(Duration::from_millis(50));
        for turn in [1, 0] {
            if rank == turn {
                word.word(0).store(1, Ordering::Release);
                late.synchronise().unwrap();
            }
            meeting.wait();
        }
    });
}

/// Whether a thread of this process is called so.
fn runs(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
    // One that has ended since has no name any more.
    names.flatten().any(|found| found.trim_end() == name)
}

#[test]
fn nobody_lets_streams_go_on_a_device_that_has_failed() {
    const TEST: &str = "windows::endings::nobody_lets_streams_go_on_a_device_that_has_failed";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id).prepared(&[DataType::Int64]);
        let Member { cuda, stream } = &windowed.member;
        let word = windowed.member.gpu().pin(4).unwrap();
        stream.wait_for_word(&word, 0, 1).unwrap();
        if rank == 1 {
            // A kernel of the program reaches for memory of another device.
            let elsewhere = cuda::open(0).unwrap().allocate(64).unwrap();
            let (sum, own) = ((Operation::Sum, DataType::Int64), windowed.memory.region());
            let (gpu, own) = (windowed.member.gpu(), own.part(0, 64));
            let sources = [elsewhere.region(), own];
            gpu.reduce(stream, sum, Arithmetic::default(), &sources, &[own]).unwrap();
            cuda.enqueue(gather(&windowed, 2000), stream).unwrap();
            word.word(0).store(1, Ordering::Release);
            let error = windowed.member.ending().to_string();
            assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
            // By then it has its name; if not, nothing is tested.
            thread::sleep(Duration::from_millis(50));
            while runs("r2ccl-release") {
                thread::yield_now();
            }
        } else {
            word.word(0).store(1, Ordering::Release);
            windowed.member.ending();
        }
    });
}

#[test]
fn the_end_of_a_communicator_does_not_wait_for_ever() {
    const TEST: &str = "windows::endings::the_end_of_a_communicator_does_not_wait_for_ever";
    let end = Barrier::new(2);
    threads_with(TEST, 2, |rank, id| {
        let windowed = Windowed::new((rank, 2), id);
        check_gather(&windowed, 2000, 1);
        windowed.member.host().barrier().unwrap();
        windowed.member.host().set_timeout(SHORT).unwrap();
        let Windowed { member: Member { cuda, stream }, memory, .. } = windowed;
        if rank == 0 {
            let output = memory.region().part(0, 4000);
            cuda.enqueue(gather_in(output, rank, 2000), &stream).unwrap();
            let error = cuda.finalize().unwrap_err();
            assert!(error.to_string().contains("rank 1 has not come to it"), "{error}");
            drop(cuda);
            stream.synchronise().unwrap();
        } else {
            while cuda.check().is_ok() {
                thread::yield_now();
            }
        }
        end.wait();
    });
}

#[test]
fn a_window_for_which_a_rank_does_not_come_ends_at_the_deadline() {
    const TEST: &str =
        "windows::endings::a_window_for_which_a_rank_does_not_come_ends_at_the_deadline";
    processes(TEST, 2, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        let cuda = &windowed.member.cuda;
        windowed.member.host().barrier().unwrap();
        windowed.member.host().set_timeout(SHORT).unwrap();
        if rank == 0 {
            let error = cuda.register_window(&windowed.region(), Promise::Symmetric).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("register_window"), "{text}");
            assert!(text.contains("not all ranks have called it"), "{text}");
        } else {
            windowed.member.ending();
        }
    });
}
