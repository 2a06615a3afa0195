//! Programs that capture a graph while calls of theirs are under way.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{Member, all_reduce, download, threads, words};

/// Much longer than between two looks of any thread of the library.
const CAPTURE_TIME: Duration = Duration::from_millis(200);

const OK: u32 = 0;
/// The usual mode of a capture: it forbids things to all threads.
const GLOBAL: u32 = 0;

/// A function of the driver that the library has no use for.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: it is loaded already.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the driver stays loaded.
    let found = unsafe { libc::dlsym(driver, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// A capture of nothing on a stream of the program, during which this is done; what its end returns.
fn capture(act: impl FnOnce()) -> u32 {
    type Two = unsafe extern "C" fn(*mut c_void, u32) -> u32;
    type Results = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
    type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> u32;
    let (mut stream, mut graph) = (null_mut(), null_mut());
    // SAFETY: the type is that of the function in cuda.h.
    let create = unsafe { transmute::<*mut c_void, Results>(function(c"cuStreamCreate")) };
    // SAFETY: as above.
    let begin = unsafe { transmute::<*mut c_void, Two>(function(c"cuStreamBeginCapture_v2")) };
    // SAFETY: as above.
    let end = unsafe { transmute::<*mut c_void, End>(function(c"cuStreamEndCapture")) };
    // SAFETY: a stream is written where it is told.
    assert_eq!(unsafe { create(&raw mut stream, 1) }, OK);
    // SAFETY: the stream exists.
    assert_eq!(unsafe { begin(stream, GLOBAL) }, OK);
    act();
    // SAFETY: the stream exists; a graph is written where it is told.
    unsafe { end(stream, &raw mut graph) }
}

#[test]
fn a_capture_and_calls_under_way_do_not_disturb_each_other() {
    const TEST: &str = "captures::a_capture_and_calls_under_way_do_not_disturb_each_other";
    let captured = Barrier::new(2);
    threads(TEST, 2, |rank, id| {
        let member = Member::new(rank, 2, id, 4096);
        let data = member.upload(&words([1; 600]));
        let word = member.gpu().pin(4).unwrap();
        member.stream.wait_for_word(&word, 0, 1).unwrap();
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        captured.wait();
        let mut freed = None;
        if rank == 0 {
            // The other rank has made its call, and both wait for their streams.
            let ended = capture(|| {
                let begin = Instant::now();
                let buffer = member.upload(&words([1; 10]));
                // That waits for the device.
                freed = Some(thread::spawn(|| drop(buffer)));
                while let Some(left) = CAPTURE_TIME.checked_sub(begin.elapsed()) {
                    thread::park_timeout(left);
                }
            });
            assert_eq!(ended, OK);
        }
        captured.wait();
        word.word(0).store(1, Ordering::Release);
        member.stream.synchronise().unwrap();
        member.cuda.wait().unwrap();
        assert!(download(&data) == words([2; 600]));
        freed.into_iter().for_each(|freed| freed.join().unwrap());
    });
}
