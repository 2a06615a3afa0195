//! The only place of the library that reads the clock or sleeps.
#![allow(clippy::disallowed_methods, reason = "this is the one place that may")]

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, futex};

/// The current time.
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = simulation::now() {
        return now;
    }
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

/// How long a processor has worked for this thread, in which it did not wait for one; none in virtual time.
#[must_use]
pub fn worked() -> Duration {
    #[cfg(feature = "simulation")]
    if simulation::now().is_some() {
        return Duration::ZERO;
    }
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec.unsigned_abs() as u32)
}

/// Gives up the processor while `word` has this value and nobody wakes its waiters, at most for `longest`.
pub(crate) fn wait_on(word: &AtomicU32, value: u32, longest: Duration) {
    #[cfg(feature = "simulation")]
    if simulation::sleep(longest) {
        return;
    }
    let timeout = Timespec {
        tv_sec: longest.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    // Woken, too late, interrupted: the caller looks why.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&timeout));
}

/// Gives up the processor for `duration`.
pub fn sleep(duration: Duration) {
    #[cfg(feature = "simulation")]
    if simulation::sleep(duration) {
        return;
    }
    std::thread::sleep(duration);
}

/// Virtual time for one thread: while a [`VirtualTime`](simulation::VirtualTime) lives, the thread
/// that made it reads and sleeps in the time that it sets.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::time::{Duration, Instant};

    thread_local! {
        static VIRTUAL: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    pub(super) fn now() -> Option<Instant> {
        VIRTUAL.get()
    }

    /// Lets the time pass; tells whether it is virtual.
    pub(super) fn sleep(duration: Duration) -> bool {
        let now = VIRTUAL.get();
        VIRTUAL.set(now.map(|now| now + duration));
        now.is_some()
    }

    /// Time that stands still unless it is set, or somebody sleeps.
    #[derive(Debug)]
    pub struct VirtualTime {
        start: Instant,
        /// It belongs to the thread that made it.
        _thread: PhantomData<*const ()>,
    }

    impl VirtualTime {
        /// Begins at zero.
        ///
        /// # Panics
        /// The thread lives in virtual time already.
        #[must_use]
        pub fn begin() -> Self {
            assert!(VIRTUAL.get().is_none(), "one virtual time at a time");
            let start = Instant::now();
            VIRTUAL.set(Some(start));
            Self { start, _thread: PhantomData }
        }

        /// How much time has passed.
        #[must_use]
        pub fn elapsed(&self) -> Duration {
            VIRTUAL.get().map_or(Duration::ZERO, |now| now - self.start)
        }

        /// Lets the time be `elapsed` since the beginning.
        ///
        /// # Panics
        /// It was later already.
        pub fn set(&self, elapsed: Duration) {
            assert!(elapsed >= self.elapsed(), "time does not run backwards");
            VIRTUAL.set(Some(self.start + elapsed));
        }
    }

    impl Drop for VirtualTime {
        fn drop(&mut self) {
            VIRTUAL.set(None);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::clock;

        #[test]
        fn time_passes_only_when_it_is_told_to() {
            let time = VirtualTime::begin();
            let start = clock::now();
            time.set(Duration::from_secs(3600));
            clock::sleep(Duration::from_secs(60));
            assert_eq!(clock::now() - start, Duration::from_secs(3660));
            assert_eq!(time.elapsed(), Duration::from_secs(3660));
        }
    }
}
