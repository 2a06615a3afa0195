//! Captures and graphs.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard};
use std::thread;

use super::{CAPTURE, NOT_READY, OK, bind, event, function, launch, out, stream, word};

/// Numbers of `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// A thread with the context of device 0, which has it for itself.
fn start_alone() -> RwLockWriteGuard<'static, ()> {
    let alone = CAPTURE.write().unwrap_or_else(PoisonError::into_inner);
    bind();
    alone
}

#[test]
fn branches_of_a_graph_run_side_by_side() {
    let _alone = start_alone();
    let ((a, there), (b, _)) = (word(), word());
    let (origin, branch) = (stream(1), stream(1));
    let (forked, joined) = (event(2), event(2));
    must!("cuStreamBeginCapture_v2", origin, RELAXED);
    must!("cuEventRecord", forked, origin);
    must!("cuStreamWaitEvent", branch, forked, 0);
    // Each ends when the other has begun.
    assert_eq!(launch(function("meet"), (1, 1), origin, [a, b]), OK);
    assert_eq!(launch(function("meet"), (1, 1), branch, [b, a]), OK);
    let mut graph = 0u64;
    must!("cuEventRecord", joined, branch);
    must!("cuStreamWaitEvent", origin, joined, 0);
    must!("cuStreamEndCapture", origin, out(&mut graph));
    let mut executable = 0u64;
    must!("cuGraphInstantiateWithFlags", out(&mut executable), graph, 0);
    for _ in 0..3 {
        must!("cuGraphLaunch", executable, origin);
    }
    must!("cuStreamSynchronize", origin);
    assert_eq!(there.load(Ordering::Acquire), 3);
    must!("cuStreamBeginCapture_v2", origin, 0);
    must!("cuEventRecord", forked, origin);
    must!("cuStreamWaitEvent", branch, forked, 0);
    must!("cuMemsetD32Async", a, 0, 1, branch);
    assert_eq!(call!("cuStreamEndCapture", origin, out(&mut graph)), 904, "it is not joined");
    must!("cuStreamQuery", branch);
}

/// Gives this thread a mode of captures; the one that it had.
fn exchange(mut mode: u32) -> u32 {
    must!("cuThreadExchangeStreamCaptureMode", out(&mut mode));
    mode
}

#[test]
fn a_capture_forbids_what_is_not_safe_and_fails_if_it_is_done() {
    let _alone = start_alone();
    let (stream, past, (there, _)) = (stream(1), event(2), word());
    let capture = |mode: u32| must!("cuStreamBeginCapture_v2", stream, mode);
    let end = || call!("cuStreamEndCapture", stream, out(&mut 0u64));
    // What another thread, with that mode, hears of an event.
    let elsewhere = |mode: u32| {
        let ask = || {
            bind();
            exchange(mode);
            call!("cuEventQuery", past)
        };
        thread::scope(|scope| scope.spawn(ask).join().expect("it asks"))
    };
    capture(GLOBAL);
    assert_eq!([THREAD_LOCAL, RELAXED].map(elsewhere), [OK; 2]);
    assert_eq!(end(), OK);
    capture(GLOBAL);
    assert_eq!(elsewhere(GLOBAL), 900);
    assert_eq!(elsewhere(RELAXED), OK);
    assert_eq!(call!("cuMemsetD32Async", there, 0, 1, stream), 901);
    assert_eq!(call!("cuEventRecord", event(2), stream), 901);
    assert_eq!(end(), 901);
    for mode in [THREAD_LOCAL, RELAXED] {
        capture(mode);
        assert_eq!(elsewhere(GLOBAL), OK);
        assert_eq!(end(), OK);
    }
    capture(THREAD_LOCAL);
    assert_eq!(exchange(RELAXED), GLOBAL);
    assert_eq!(call!("cuEventQuery", past), OK);
    assert_eq!(exchange(GLOBAL), RELAXED);
    assert_eq!(call!("cuEventQuery", past), 900);
    assert_eq!(end(), 901);
}

/// A capture of a stream in this mode, which must come to nothing because of what is done in it.
fn spoiled(mode: u32, flags: u32, act: impl FnOnce(u64)) {
    let stream = stream(flags);
    must!("cuStreamBeginCapture_v2", stream, mode);
    act(stream);
    let mut status = 0u32;
    must!("cuStreamIsCapturing", stream, out(&mut status));
    assert_eq!(status, 2, "invalidated");
    assert_eq!(call!("cuStreamEndCapture", stream, out(&mut 0u64)), 901);
    must!("cuStreamDestroy_v2", stream);
}

#[test]
fn what_must_not_be_done_in_a_capture_ends_it() {
    let _alone = start_alone();
    let (past, elsewhere, (there, _)) = (event(2), stream(1), word());
    must!("cuEventRecord", past, elsewhere);
    spoiled(RELAXED, 1, |stream| assert_eq!(call!("cuStreamSynchronize", stream), 900));
    spoiled(RELAXED, 1, |stream| assert_eq!(call!("cuStreamQuery", stream), 900));
    spoiled(RELAXED, 1, |_| {
        exchange(RELAXED);
        assert_eq!(call!("cuCtxSynchronize"), 900);
        exchange(GLOBAL);
    });
    spoiled(RELAXED, 1, |stream| assert_eq!(call!("cuStreamWaitEvent", stream, past, 0), 905));
    for call in ["cuEventQuery", "cuEventSynchronize"] {
        spoiled(RELAXED, 1, |stream| {
            let captured = event(2);
            must!("cuEventRecord", captured, stream);
            assert_eq!(
                if call == "cuEventQuery" {
                    call!("cuEventQuery", captured)
                } else {
                    call!("cuEventSynchronize", captured)
                },
                907
            );
        });
    }
    // The default stream would come before or behind what is not begun.
    spoiled(RELAXED, 0, |_| assert_eq!(call!("cuMemsetD32Async", there, 0, 1, 0), 906));
    spoiled(RELAXED, 1, |stream| {
        must!("cuEventRecord", past, stream);
        assert_eq!(call!("cuStreamWaitEvent", 0, past, 0), 906);
    });
}

#[test]
fn whether_the_default_stream_is_captured_is_not_known_beside_a_capture() {
    let _alone = start_alone();
    let (stream, mut status) = (stream(0), 7u32);
    must!("cuStreamIsCapturing", 0, out(&mut status));
    assert_eq!(status, 0);
    must!("cuStreamBeginCapture_v2", stream, RELAXED);
    assert_eq!(call!("cuStreamIsCapturing", 0, out(&mut status)), 906);
    assert_eq!(call!("cuStreamEndCapture", stream, out(&mut 0u64)), OK, "asking does no harm");
}

#[test]
fn captures_stay_apart() {
    let _alone = start_alone();
    let captured = event(2);
    spoiled(RELAXED, 1, |first| {
        must!("cuEventRecord", captured, first);
        spoiled(RELAXED, 1, |second| {
            assert_eq!(call!("cuStreamWaitEvent", second, captured, 0), 902);
        });
    });
    // What is left of a capture that has ended is nothing that can be waited for.
    let free = stream(1);
    assert_eq!(call!("cuStreamWaitEvent", free, captured, 0), 907);
    assert_eq!(call!("cuEventQuery", captured), 907);
    must!("cuStreamSynchronize", free);
}

#[test]
fn a_capture_ends_in_the_thread_in_which_it_began() {
    let _alone = start_alone();
    let stream = stream(1);
    let end = || call!("cuStreamEndCapture", stream, out(&mut 0u64));
    let elsewhere = || {
        let other = || {
            bind();
            end()
        };
        thread::scope(|scope| scope.spawn(other).join().expect("it asks"))
    };
    for mode in [GLOBAL, THREAD_LOCAL] {
        must!("cuStreamBeginCapture_v2", stream, mode);
        assert_eq!(elsewhere(), 908);
        assert_eq!(end(), OK);
    }
    must!("cuStreamBeginCapture_v2", stream, RELAXED);
    assert_eq!(elsewhere(), OK, "unless it is relaxed");
}

#[test]
fn a_capture_ends_with_its_stream() {
    let _alone = start_alone();
    let (origin, branch, forked) = (stream(1), stream(1), event(2));
    must!("cuStreamBeginCapture_v2", origin, GLOBAL);
    must!("cuEventRecord", forked, origin);
    must!("cuStreamWaitEvent", branch, forked, 0);
    must!("cuStreamDestroy_v2", origin);
    // It forbids nothing any more.
    must!("cuStreamSynchronize", branch);
    must!("cuCtxSynchronize");
}

#[test]
fn who_minds_no_captures_may_free_memory() {
    let _alone = start_alone();
    let (stream, mut memory) = (stream(1), 0u64);
    must!("cuMemAlloc_v2", out(&mut memory), 4);
    must!("cuStreamBeginCapture_v2", stream, GLOBAL);
    exchange(RELAXED);
    must!("cuMemFree_v2", memory);
    exchange(GLOBAL);
    assert_eq!(call!("cuStreamEndCapture", stream, out(&mut 0u64)), OK);
}

#[test]
fn an_executable_graph_runs_once_at_a_time() {
    let _alone = start_alone();
    let ((gate, opened), (count, counted)) = (word(), word());
    let (first, second) = (stream(1), stream(1));
    let (mut graph, mut executable) = (0u64, 0u64);
    must!("cuStreamBeginCapture_v2", first, RELAXED);
    // Adds one once the gate is open, and closes it.
    assert_eq!(launch(function("wait"), (1, 1), first, [gate, count]), OK);
    must!("cuStreamWriteValue32_v2", first, gate, 0, 0);
    must!("cuStreamEndCapture", first, out(&mut graph));
    must!("cuGraphInstantiateWithFlags", out(&mut executable), graph, 0);
    must!("cuGraphLaunch", executable, first);
    must!("cuGraphLaunch", executable, second);
    opened.store(1, Ordering::Release);
    must!("cuStreamSynchronize", first);
    assert_eq!(counted.load(Ordering::Acquire), 1);
    assert_eq!(call!("cuStreamQuery", second), NOT_READY);
    opened.store(1, Ordering::Release);
    must!("cuStreamSynchronize", second);
    assert_eq!(counted.load(Ordering::Acquire), 2);
    must!("cuGraphExecDestroy", executable);
    must!("cuGraphDestroy", graph);
}
