//! A rank that renounces and then writes, and a peer that reads and then looks, or looks and then writes, in every order in which they
//! can run and see each other's stores: loom models of what everything uses.
#![allow(clippy::print_stdout, reason = "how much was looked at is for who runs it")]

use std::sync::atomic::AtomicUsize;

use loom::sync::Arc;
use loom::thread;

use super::{AtomicU64, Ordering, begin_to_write, declare, end_to_write, is_declared, is_written};

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

#[test]
fn nobody_writes_what_the_owner_has_back() {
    let done = std::sync::Arc::new([(); 3].map(|()| AtomicUsize::new(0)));
    let done_there = std::sync::Arc::clone(&done);
    loom::model(move || {
        // Whether the owner has renounced, how many write, and what they write.
        let words = Arc::new([(); 3].map(|()| AtomicU64::new(0)));
        let owner = thread::spawn({
            let words = Arc::clone(&words);
            move || {
                declare(&words[0]);
                let is_written = is_written(&words[1]);
                if !is_written {
                    words[2].store(7, Ordering::Relaxed);
                }
                is_written
            }
        });
        let may_write = begin_to_write(&words[0], &words[1]);
        if may_write {
            words[2].store(5, Ordering::Relaxed);
            end_to_write(&words[1]);
        }
        let waits = owner.join().expect("no panic");
        let left = words[2].load(Ordering::Relaxed);
        assert!(waits || left == 7, "{left} was written into memory that the owner had back");
        let case = if waits { 0 } else { 1 + usize::from(may_write) };
        done_there[case].fetch_add(1, Ordering::Relaxed);
    });
    let done = done.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{} executions to the end", done.iter().sum::<usize>());
    assert!(done.iter().all(|count| *count > 0), "waited for, refused, and over before: {done:?}");
}
