//! How an executor parts with its links.

use std::sync::{Arc, Mutex};

use ccl_transport::ring::RingLink;

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
