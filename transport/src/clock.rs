//! The only place of the library that reads the clock or sleeps.
#![allow(clippy::disallowed_methods, reason = "this is the one place that may")]

use std::time::{Duration, Instant};

/// The current time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// `moment` on the clock that all processes of this host share, `CLOCK_MONOTONIC`, in nanoseconds.
#[must_use]
pub fn monotonic_ns(moment: Instant) -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec.unsigned_abs() as u32);
    let then = now.saturating_sub(Instant::now().saturating_duration_since(moment));
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

/// Gives up the processor for `duration`.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
