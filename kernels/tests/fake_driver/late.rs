//! What drivers do that keep others waiting: threads that want the device idle, and streams that share a queue.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ccl_kernels::cuda::gpu::Gpu;

use super::{gpu, inside_where};

#[test]
fn what_waits_in_a_queue_holds_up_the_other_streams_of_it() {
    let test = "late::what_waits_in_a_queue_holds_up_the_other_streams_of_it";
    inside_where(test, 1, &[("FAKECUDA_CONNECTIONS", "2")], || {
        let gpu = gpu(0);
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        let (word, buffer) = (gpu.pin(8).unwrap(), gpu.allocate(4).unwrap());
        // What runs holds up nobody.
        streams[2].copy(buffer.region(), word.region().part(4, 4)).unwrap();
        streams[0].wait_for_word(&word, 0, 1).unwrap();
        let ends = [1, 2].map(|stream: usize| streams[stream].mark().unwrap());
        ends[0].synchronise().unwrap();
        // By then the other one would have happened; if not, nothing is tested.
        thread::sleep(Duration::from_millis(50));
        assert!(!ends[1].has_happened().unwrap(), "it is in the queue of the first one");
        word.word(0).store(1, Ordering::Release);
        ends[1].synchronise().unwrap();
    });
}

#[test]
fn who_frees_memory_keeps_others_from_a_late_driver() {
    let test = "late::who_frees_memory_keeps_others_from_a_late_driver";
    inside_where(test, 1, &[("FAKECUDA_LATE", "1")], || {
        let gpu = Arc::new(gpu(0));
        let (stream, word) = (gpu.stream().unwrap(), gpu.pin(4).unwrap());
        let buffer = gpu.reserve(64).unwrap();
        stream.wait_for_word(&word, 0, 1).unwrap();
        let freeing = thread::spawn(move || drop(buffer));
        let ask = |gpu: &Arc<Gpu>| {
            let (gpu, (answer, answers)) = (Arc::clone(gpu), mpsc::channel());
            thread::spawn(move || answer.send(gpu.name().is_ok()));
            answers
        };
        // Sooner or later it has the driver.
        let unanswered = loop {
            let answers = ask(&gpu);
            if answers.recv_timeout(Duration::from_millis(100)).is_err() {
                break answers;
            }
        };
        assert!(!freeing.is_finished());
        word.word(0).store(1, Ordering::Release);
        assert_eq!(unanswered.recv(), Ok(true));
        freeing.join().unwrap();
    });
}
