//! The clock of the testbed: the one that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

const NANOSECONDS: u64 = 1_000_000_000;

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // It starts at zero with the machine.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * NANOSECONDS + u64::try_from(time.tv_nsec).unwrap_or(0)
}
