//! What the library does where a driver refuses something.

use std::thread;

use ccl_kernels::cuda::gpu::{BesideCaptures, EventPool, KeptContext};
use cudarc::driver::sys;

use super::{gpu, inside, inside_where};

/// Does it where this call fails.
fn where_fails(test: &str, failure: &str, act: impl FnOnce()) {
    inside_where(test, 1, &[("FAKECUDA_FAIL", failure)], act);
}

#[test]
fn memory_that_cannot_be_freed_is_no_error_of_the_next_call() {
    const TEST: &str = "refusals::memory_that_cannot_be_freed_is_no_error_of_the_next_call";
    where_fails(TEST, "cuMemFree_v2:1:CUDA_ERROR_UNKNOWN", || {
        let gpu = gpu(0);
        drop(gpu.allocate(64).unwrap());
        gpu.allocate(64).map(drop).unwrap();
    });
}

#[test]
fn what_cannot_be_destroyed_is_no_error_of_the_next_call() {
    const TEST: &str = "refusals::what_cannot_be_destroyed_is_no_error_of_the_next_call";
    for function in ["cuEventDestroy_v2", "cuStreamDestroy_v2"] {
        where_fails(TEST, &format!("{function}:1:CUDA_ERROR_UNKNOWN"), || {
            let gpu = gpu(0);
            let stream = gpu.stream().unwrap();
            let pool = EventPool::default();
            drop(pool.mark(&stream).unwrap());
            drop((pool, stream));
            gpu.allocate(64).map(drop).unwrap();
        });
    }
}

#[test]
fn what_the_library_has_for_itself_and_cannot_destroy_is_no_error_of_the_next_call() {
    const TEST: &str =
        "refusals::what_the_library_has_for_itself_and_cannot_destroy_is_no_error_of_the_next_call";
    where_fails(TEST, "cuStreamDestroy_v2:1:CUDA_ERROR_UNKNOWN", || {
        let gpu = gpu(0);
        let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
        // The last of them takes the stream for copies along.
        drop((gpu, buffer));
        stream.mark().map(drop).unwrap();
    });
}

#[test]
fn a_graph_that_cannot_be_destroyed_is_no_error_of_the_next_call() {
    const TEST: &str = "refusals::a_graph_that_cannot_be_destroyed_is_no_error_of_the_next_call";
    for function in ["cuGraphExecDestroy", "cuGraphDestroy"] {
        where_fails(TEST, &format!("{function}:1:CUDA_ERROR_UNKNOWN"), || {
            let gpu = gpu(0);
            let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
            let copy = || stream.copy(buffer.region().part(0, 8), buffer.region().part(8, 8));
            drop(stream.capture(copy).unwrap());
            stream.mark().map(drop).unwrap();
        });
    }
}

/// The mode of this thread, in place of which it gets the usual one.
fn mode() -> sys::CUstreamCaptureMode {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: a mode is read and written where it is told.
    let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    exchanged.result().expect("the driver knows modes");
    mode
}

#[test]
fn a_thread_whose_mode_of_captures_could_not_be_read_keeps_it() {
    const TEST: &str = "refusals::a_thread_whose_mode_of_captures_could_not_be_read_keeps_it";
    let failure = "cuThreadExchangeStreamCaptureMode:1:CUDA_ERROR_INVALID_CONTEXT";
    where_fails(TEST, failure, || {
        let _driver = KeptContext::of_this_thread().unwrap();
        drop(BesideCaptures::begin());
        assert_eq!(mode(), sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    });
}

#[test]
fn a_thread_has_its_mode_of_captures_again_when_the_outermost_need_is_over() {
    const TEST: &str =
        "refusals::a_thread_has_its_mode_of_captures_again_when_the_outermost_need_is_over";
    inside(TEST, 1, || {
        let _driver = KeptContext::of_this_thread().unwrap();
        let outer = BesideCaptures::begin();
        drop(BesideCaptures::begin());
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mut found = relaxed;
        // SAFETY: as in `mode`.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut found) }.result().unwrap();
        assert_eq!(found, relaxed, "the inner one has changed nothing");
        drop(outer);
        assert_eq!(mode(), sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    });
}

#[test]
fn a_capture_does_not_mind_that_memory_of_nics_is_given_back() {
    const TEST: &str = "refusals::a_capture_does_not_mind_that_memory_of_nics_is_given_back";
    inside(TEST, 1, || {
        let (gpu, file) = (gpu(0), tempfile::tempfile().unwrap());
        file.set_len(4096).unwrap();
        let pinned = gpu.pin_file(&file, 4096).unwrap();
        let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
        let graph = stream.capture(|| {
            thread::spawn(|| drop(pinned)).join().unwrap();
            stream.copy(buffer.region().part(0, 8), buffer.region().part(8, 8))
        });
        graph.unwrap().launch().unwrap();
        gpu.synchronise().unwrap();
    });
}
