//! The lock in every order in which threads can run and see each other's stores, within bounds: a loom model of the
//! [`Biased`] that everything uses, with fences that are alike on both sides.
//!
//! `tests/models.rs` builds the crate with `--cfg loom` and runs this. The value is watched: the model fails if two
//! threads touch it and nothing orders the two.
#![allow(clippy::print_stdout, reason = "how much was looked at is for who runs it")]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::{Biased, NOBODY};

/// More switches between threads that could have gone on find nothing more in so few steps.
const SWITCHES: usize = 4;

loom::thread_local! {
    static NUMBER: Cell<u64> = Cell::new(NOBODY);
}

/// What the model has called this thread.
pub(super) fn this_thread() -> u64 {
    NUMBER.with(Cell::get)
}

type Lock = Biased<UnsafeCell<u32>>;

fn count(lock: &Lock) {
    lock.lock().with_mut(|value| {
        // SAFETY: loom fails if somebody else has it.
        unsafe { *value += 1 };
    });
}

fn try_to_count(lock: &Lock) -> bool {
    let guard = lock.try_lock();
    // SAFETY: as above.
    guard.is_some_and(|guard| guard.with_mut(|value| unsafe { *value += 1 }) == ())
}

/// One thread counts `often` times, and is the owner meanwhile; others do what `rarely` does, which tells how
/// often they have counted.
fn check(often: u32, others: u64, rarely: fn(&Lock) -> u32) {
    let done = std::sync::Arc::new(AtomicUsize::new(0));
    let owned = std::sync::Arc::new(AtomicUsize::new(0));
    let (done_there, owned_there) = (done.clone(), owned.clone());
    let mut model = Builder::new();
    model.preemption_bound = Some(SWITCHES);
    model.check(move || {
        let lock = Arc::new(Biased::new(UnsafeCell::new(0)));
        let threads: Vec<_> = (0..others)
            .map(|other| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    NUMBER.with(|number| number.set(NOBODY + 2 + other));
                    rarely(&lock)
                })
            })
            .collect();
        NUMBER.with(|number| number.set(NOBODY + 1));
        for _ in 0..often {
            if lock.owner.load(Ordering::Relaxed) == NOBODY + 1 {
                owned_there.fetch_add(1, Ordering::Relaxed);
            }
            count(&lock);
        }
        let counted: u32 = threads.into_iter().map(|thread| thread.join().expect("counts")).sum();
        // SAFETY: loom fails if somebody else has it.
        let sum = lock.lock().with(|value| unsafe { *value });
        assert_eq!(sum, often + counted);
        done_there.fetch_add(1, Ordering::Relaxed);
    });
    let (done, owned) = (done.load(Ordering::Relaxed), owned.load(Ordering::Relaxed));
    println!("{done} executions to the end, {owned} calls of an owner");
    assert!(done > 100 && owned > 100, "{done} executions with {owned} calls of an owner");
}

#[test]
fn another_thread_takes_it_away() {
    check(4, 1, |lock| {
        count(lock);
        1
    });
}

#[test]
fn another_thread_takes_it_away_twice() {
    check(4, 1, |lock| {
        count(lock);
        count(lock);
        2
    });
}

/// Often enough to be the owner, if it could.
#[test]
fn another_thread_comes_as_often() {
    check(4, 1, |lock| {
        (0..4).for_each(|_| count(lock));
        4
    });
}

#[test]
fn another_thread_tries() {
    check(4, 1, |lock| u32::from(try_to_count(lock)));
}

#[test]
fn two_threads_wait_for_the_owner() {
    check(3, 2, |lock| {
        count(lock);
        1
    });
}
