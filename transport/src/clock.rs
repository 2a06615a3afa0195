//! The only place of the library that reads the clock or sleeps.
#![allow(clippy::disallowed_methods, reason = "this is the one place that may")]

use std::time::{Duration, Instant};

/// The current time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Gives up the processor for `duration`.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
