//! What becomes of calls in the middle of which a driver refuses something, and what is known of it when streams go on: on
//! a driver whose devices are interpreters, in processes of their own, which find it as `libcuda.so.1`.
#![allow(clippy::disallowed_methods, reason = "tests tell their processes by the environment")]

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{self, Command};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ccl_core::collective::Collective;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::error::described;
use super::*;
use crate::{Config, UniqueId};

/// Set in the processes that find the driver.
const INSIDE: &str = "CCL_TEST_CUDA_INSIDE";
/// No test takes as long.
const DEADLINE: Duration = Duration::from_secs(60);
const SLOT_BYTES: usize = 4096;

/// Does it in a process that finds the driver.
fn inside(test: &str, act: impl FnOnce()) {
    inside_where(test, &[], act);
}

/// Does it in a process for each of these calls, which fails there.
fn inside_failing(test: &str, failures: &[&str], act: impl Fn()) {
    for failure in failures {
        inside_where(test, &[("FAKECUDA_FAIL", failure)], &act);
        if env::var_os(INSIDE).is_some() {
            return;
        }
    }
}

fn inside_where(test: &str, variables: &[(&str, &str)], act: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        thread::spawn(|| {
            clock::sleep(DEADLINE);
            // Its parent names the test.
            process::abort();
        });
        return act();
    }
    let folder = tempfile::tempdir().unwrap();
    ccl_fakecuda::install(folder.path()).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&format!("cuda::tests::{test}"), "--exact", "--nocapture"]);
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path()).env("FAKECUDA_DEVICES", "2");
    let succeeds = command.envs(variables.iter().copied()).status().unwrap().success();
    assert!(succeeds, "{test}: {variables:?}");
}

/// What streams of a device are given, and where errors are kept.
fn staged() -> (Arc<Staging>, Issue, Stream) {
    let gpu = open(0).unwrap();
    let staging = Arc::new(Staging::new(&gpu, SLOT_BYTES).unwrap());
    (Arc::clone(&staging), Issue::new(staging), gpu.stream().unwrap())
}

#[test]
fn why_a_stream_cannot_be_held_is_kept() {
    // It cannot wait; or what comes behind it cannot, of which the first event is for the question whether the device works.
    let failures = [
        "cuStreamWaitValue32_v2:1:CUDA_ERROR_INVALID_VALUE",
        "cuEventRecord:2:CUDA_ERROR_OUT_OF_MEMORY",
    ];
    inside_failing("why_a_stream_cannot_be_held_is_kept", &failures, || {
        let (staging, mut issue, stream) = staged();
        let error = issue.hold(&stream, [None]).unwrap_err();
        assert_eq!(staging.failure(), Some(described(&error)));
        stream.synchronise().unwrap();
    });
}

#[test]
fn a_panic_is_kept_before_a_stream_goes_on() {
    inside("a_panic_is_kept_before_a_stream_goes_on", || {
        let (staging, mut issue, stream) = staged();
        let (turn, _) = issue.hold(&stream, [None]).unwrap();
        let call = move || {
            let _turn = turn;
            panic!("on purpose");
        };
        catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        // Nobody else has heard of it yet.
        assert!(matches!(staging.failure(), Some(Error::Internal(_))), "{:?}", staging.failure());
        stream.synchronise().unwrap();
    });
}

fn config() -> Config {
    let mut config = Config { timeout: Some(DEADLINE), ..Config::default() };
    config.settings.cuda_staging_bytes = SLOT_BYTES;
    config.settings.cuda_copy_engine_bytes = 1;
    config
}

#[test]
fn streams_go_on_from_copying_calls_that_are_not_whole() {
    // The other rank never comes. A stream cannot wait in the second meeting; cannot tell that it has left, behind a moment and
    // two meetings; cannot be marked, behind the events with which both ranks ask whether their devices work.
    let failures = [
        "cuStreamWaitValue32_v2:2:CUDA_ERROR_INVALID_VALUE",
        "cuStreamWriteValue32_v2:4:CUDA_ERROR_INVALID_VALUE",
        "cuEventRecord:3:CUDA_ERROR_OUT_OF_MEMORY",
    ];
    inside_failing("streams_go_on_from_copying_calls_that_are_not_whole", &failures, || {
        let id = UniqueId::create(&config().settings).unwrap();
        thread::scope(|scope| {
            let id = &id;
            (0..2).for_each(|rank| drop(scope.spawn(move || in_vain(id, rank))));
        });
    });
}

fn in_vain(id: &UniqueId, rank: u32) {
    let host = crate::Communicator::create(id, rank, 2, &config()).unwrap();
    let gpu = open(rank as usize).unwrap();
    let (cuda, memory) = (Communicator::new(&host, &gpu).unwrap(), gpu.allocate(64).unwrap());
    let window = cuda.register_window(&memory.region(), Promise::Symmetric).unwrap();
    assert_eq!(window.obstacle(), None);
    if rank == 0 {
        refused(&cuda, &gpu.stream().unwrap(), &memory);
    }
    while cuda.check().is_ok() {
        thread::yield_now();
    }
}

/// The names of the threads of this process.
fn threads() -> impl Iterator<Item = String> {
    let all = fs::read_dir("/proc/self/task").unwrap();
    // One may just have ended.
    all.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok())
}

/// The error is kept when the call returns, and the stream goes on.
fn refused(cuda: &Communicator, stream: &Stream, memory: &Buffer) {
    let error = cuda.direct.issue(&[gather(memory)], stream, &mut lock(&cuda.issue)).unwrap_err();
    let kept = cuda.check();
    stream.synchronise().unwrap();
    // Once the stream has gone on nobody lets it go any more, whatever it could not tell.
    while threads().any(|name| name == "r2ccl-release\n") {
        thread::yield_now();
    }
    // The other rank does not wait for what comes of this.
    cuda.abort("on purpose");
    assert_eq!(kept, Err(described(&error)));
}

#[test]
fn a_driver_that_refuses_something_around_a_call_ends_the_communicator() {
    // Whether a stream is captured, where memory is; and streams that wait for each other before the call, and behind it.
    let failures = [
        "cuStreamIsCapturing:1:CUDA_ERROR_UNKNOWN",
        "cuPointerGetAttribute:1:CUDA_ERROR_UNKNOWN",
        "cuStreamWaitEvent:1:CUDA_ERROR_UNKNOWN",
        "cuStreamWaitEvent:2:CUDA_ERROR_UNKNOWN",
    ];
    const TEST: &str = "a_driver_that_refuses_something_around_a_call_ends_the_communicator";
    inside_failing(TEST, &failures, || {
        let id = UniqueId::create(&config().settings).unwrap();
        let host = crate::Communicator::create(&id, 0, 1, &config()).unwrap();
        let gpu = open(0).unwrap();
        let (cuda, memory) = (Communicator::new(&host, &gpu).unwrap(), gpu.allocate(32).unwrap());
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let error = cuda.enqueue_joined(&[gather(&memory)], &streams).unwrap_err();
        assert!(matches!(error, Error::Cuda(_)), "{error}");
        assert_eq!(cuda.check(), Err(error));
        assert!(host.async_error().is_some(), "the others hear of it");
        streams.iter().for_each(|stream| stream.synchronise().unwrap());
    });
}

#[test]
fn who_drops_a_communicator_waits_for_what_may_still_be_launched() {
    inside("who_drops_a_communicator_waits_for_what_may_still_be_launched", || {
        let id = UniqueId::create(&config().settings).unwrap();
        let host = crate::Communicator::create(&id, 0, 1, &config()).unwrap();
        let cuda = Communicator::new(&host, &open(0).unwrap()).unwrap();
        let (go, gone) = mpsc::channel::<()>();
        let aborted = Error::Cuda("on purpose".to_owned());
        let sent = cuda.staging.envoy().send(move || gone.recv().is_ok(), || Some(aborted.clone()));
        assert_eq!(sent, Err(aborted));
        let dropping = thread::spawn(move || drop(cuda));
        // By then it would have been dropped; if not, nothing is tested.
        clock::sleep(Duration::from_millis(200));
        assert!(!dropping.is_finished());
        go.send(()).unwrap();
        dropping.join().unwrap();
    });
}

/// An `AllGather` of blocks of 32 bytes of rank 0, in place.
fn gather(memory: &Buffer) -> Operation<'_> {
    let request = Request {
        collective: Collective::AllGather,
        count: 32,
        datatype: DataType::Uint8,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    };
    let (input, output) = (Some(memory.region().part(0, 32)), Some(memory.region()));
    OperationOn::Collective { request, input, output }
}
