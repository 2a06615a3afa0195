//! Captures and graphs.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard};
use std::thread;

use super::{CAPTURE, OK, bind, event, function, launch, out, stream, word};

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
    assert_eq!(call!("cuStreamSynchronize", branch), 900, "it takes part in the capture");
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
