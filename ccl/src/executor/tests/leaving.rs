//! How an executor parts with its links.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ccl_transport::clock;
use ccl_transport::ring::RingLink;

use super::super::idle::LAST_WAIT;
use super::*;

/// Writes down when it is told to leave, and when it is dropped.
#[derive(Debug)]
struct Leaving {
    ring: RingLink,
    /// How often it is told before it has left.
    times: usize,
    log: Arc<Mutex<String>>,
}

impl Link for Leaving {
    as_ring!(tile_bytes, reserve, commit, peek, release);

    fn leave(&mut self) -> bool {
        self.log.lock().unwrap().push('l');
        self.times = self.times.saturating_sub(1);
        self.times == 0
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.log.lock().unwrap().push('d');
    }
}

/// What two links see of the end of their executor.
fn end(times: usize, is_abandoned: bool) -> String {
    let log = Arc::new(Mutex::new(String::new()));
    let link = |_| -> Option<Box<dyn Link>> {
        let (ring, _) = memory::pair(SHAPES[0]);
        Some(Box::new(Leaving { ring, times, log: Arc::clone(&log) }))
    };
    let mut executor = Executor::new(Rank(0), (0..2).map(link).collect());
    if is_abandoned {
        executor.abandon();
    }
    drop(executor);
    Arc::into_inner(log).unwrap().into_inner().unwrap()
}

#[test]
fn all_links_are_left_at_the_same_time() {
    assert_eq!(end(1, false), "lldd");
    assert_eq!(end(3, false), "lllllldd");
}

#[test]
fn who_owes_nobody_anything_waits_for_nobody() {
    assert_eq!(end(usize::MAX, true), "lldd");
}

/// A link whose peer confirms nothing until a moment that may never come.
#[derive(Debug)]
struct Owing {
    ring: RingLink,
    is_delivered: bool,
    settled_at: Option<Instant>,
}

impl Link for Owing {
    as_ring!(tile_bytes, reserve, commit, peek, release);

    fn delivered(&self) -> bool {
        self.is_delivered
    }

    fn settled(&self) -> bool {
        self.settled_at.is_some_and(|at| clock::now() >= at)
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(0);
    }
}

/// Whether a rank that leaves, with all the patience there is, has stayed until its peer, which may have left, had everything,
/// which it has after so long. It does leave.
fn stays(is_delivered: bool, settled_after: Option<Duration>, has_peer_left: bool) -> bool {
    let (ring, _peer) = memory::pair(SHAPES[0]);
    let settled_at = settled_after.map(|after| clock::now() + after);
    let link = Owing { ring, is_delivered, settled_at };
    let mut executor = Executor::new(Rank(0), vec![None, Some(Box::new(link)), None, None]);
    let deadline = clock::now() + Duration::from_secs(30);
    let is_too_late = || clock::now() >= deadline;
    executor.settle(Duration::MAX, is_too_late, |peer| has_peer_left && peer == Rank(1));
    assert!(!is_too_late(), "it does not leave");
    executor.tend()
}

/// A rail may have died with it, and nobody has found that yet.
#[test]
fn what_the_network_has_taken_is_waited_for_until_it_has_arrived() {
    assert!(stays(false, Some(2 * LAST_WAIT), false));
}

/// The peer may be busy with something else, or stopped.
#[test]
fn that_it_is_read_is_not_waited_for() {
    assert!(stays(true, Some(Duration::ZERO), false));
    assert!(!stays(true, None, false));
}

/// It has all that it wanted, and its goodbye may have been lost with its last rail.
#[test]
fn a_peer_that_has_left_is_owed_nothing() {
    assert!(!stays(false, None, true));
}
