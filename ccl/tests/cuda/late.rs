//! Calls beside a thread of the program that has the driver for itself until the device has nothing to do.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ccl::OperationOn;

use crate::Member;
use crate::direct::noise;
use crate::ranks::processes_where;
use crate::windows::{Windowed, gather, gathered};

const LATE: [(&str, &str); 1] = [("FAKECUDA_LATE", "1")];

/// Does it while a thread frees memory, for which a late driver keeps all others away until the device, which has
/// something to do, has nothing more to do.
fn while_occupied<T>(member: &Member, act: impl FnOnce() -> T) -> T {
    let spare = member.gpu().reserve(64).unwrap();
    // Who gets no answer waits until the driver answers again.
    let is_answered = || {
        let (gpu, (answer, answers)) = (Arc::clone(member.gpu()), mpsc::channel());
        thread::spawn(move || answer.send(gpu.name().unwrap()));
        answers.recv_timeout(Duration::from_millis(100)).is_ok()
    };
    thread::scope(|scope| {
        let freeing = scope.spawn(move || drop(spare));
        while is_answered() {}
        let result = act();
        freeing.join().unwrap();
        result
    })
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
        let word = windowed.member.gpu().pin(4).unwrap();
        stream.wait_for_word(&word, 0, 1).unwrap();
        cuda.enqueue(gather(&windowed, BYTES), stream).unwrap();
        // Through the host: the stream waits for the driver thread.
        cuda.enqueue(OperationOn::Barrier, stream).unwrap();
        while_occupied(&windowed.member, || {
            word.word(0).store(1, Ordering::Release);
            cuda.wait().unwrap();
        });
        stream.synchronise().unwrap();
        let expected = gathered(&windowed, BYTES, 5);
        assert!(windowed.read(0, expected.len()) == expected, "rank {rank}");
        assert_eq!(windowed.copied(), 1);
    });
}
