//! A rank that renounces and then writes, and a peer that reads and then looks, in every order in which they can run and see each
//! other's stores: a loom model of what everything uses.
#![allow(clippy::print_stdout, reason = "how much was looked at is for who runs it")]

use std::sync::atomic::AtomicUsize;

use loom::sync::Arc;
use loom::thread;

use super::{AtomicU64, Ordering, declare, is_declared};

#[test]
fn what_was_written_after_it_is_in_doubt() {
    let done = std::sync::Arc::new([(); 3].map(|()| AtomicUsize::new(0)));
    let done_there = std::sync::Arc::clone(&done);
    loom::model(move || {
        // The word, and memory that is read.
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let owner = thread::spawn({
            let words = Arc::clone(&words);
            move || {
                declare(&words[0]);
                words[1].store(1, Ordering::Relaxed);
            }
        });
        let is_overwritten = words[1].load(Ordering::Relaxed) == 1;
        let is_in_doubt = is_declared(&words[0]);
        assert!(is_in_doubt || !is_overwritten);
        let case = usize::from(is_in_doubt) + usize::from(is_overwritten);
        done_there[case].fetch_add(1, Ordering::Relaxed);
        owner.join().expect("no panic");
    });
    let done = done.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{} executions to the end", done.iter().sum::<usize>());
    assert!(done.iter().all(|count| *count > 0), "before, between and after: {done:?}");
}
