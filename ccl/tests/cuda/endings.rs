//! Communicators that end while a stream has not come to its call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{Error, Member, all_reduce, threads, words};

#[test]
fn the_end_waits_for_streams_but_not_for_ever() {
    threads("endings::the_end_waits_for_streams_but_not_for_ever", 1, |rank, id| {
        let late = Member::on(0, (rank, 1), id, 4096);
        let (data, word) = (late.upload(&words([1; 10])), late.gpu().pin(4).unwrap());
        late.cuda.enqueue(all_reduce(&data), &late.stream).unwrap();
        late.host().set_timeout(Duration::from_millis(100)).unwrap();
        late.stream.wait_for_word(&word, 0, 1).unwrap();
        late.cuda.enqueue(all_reduce(&data), &late.stream).unwrap();
        let error = late.cuda.finalize().unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("its CUDA stream has not come to it"), "{error}");
        assert!(error.to_string().ends_with("(communicator \"stage\")"), "{error}");
        assert_eq!(late.cuda.check(), Err(error), "it is kept");
        word.word(0).store(1, Ordering::Release);
        late.stream.synchronise().unwrap();
    });
}

#[test]
fn calls_of_a_communicator_that_is_dropped_do_not_wait_for_streams_for_ever() {
    const TEST: &str =
        "endings::calls_of_a_communicator_that_is_dropped_do_not_wait_for_streams_for_ever";
    threads(TEST, 1, |rank, id| {
        let Member { cuda, stream } = Member::on(0, (rank, 1), id, 4096);
        let (gpu, host) = (Arc::clone(cuda.gpu()), cuda.host().clone());
        let (data, word) = (gpu.allocate(80).unwrap(), gpu.pin(4).unwrap());
        host.set_timeout(Duration::from_millis(100)).unwrap();
        stream.wait_for_word(&word, 0, 1).unwrap();
        cuda.enqueue(all_reduce(&data), &stream).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || drop(cuda));
            let error = loop {
                if let Some(error) = host.async_error() {
                    break error;
                }
                thread::yield_now();
            };
            assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
            // Pinned memory is freed when the device has nothing more to do.
            word.word(0).store(1, Ordering::Release);
        });
        stream.synchronise().unwrap();
    });
}
