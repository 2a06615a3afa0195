//! One descriptor for a queue pair whose connections come and go.
//!
//! It is an epoll instance over the connections and a timer. The connections tell when something has
//! arrived; the timer tells when it is time to look although nothing has: pauses end, silence grows,
//! and what could not be written can be.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use smallvec::SmallVec;

use crate::TransportError;

/// A timer that is told no time would not run.
const SHORTEST: Duration = Duration::from_nanos(1);

/// A descriptor that is readable when one of several is, or a time has come.
#[derive(Debug)]
pub struct Readiness {
    set: OwnedFd,
    timer: OwnedFd,
}

impl Readiness {
    /// One that watches nothing.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new() -> Result<Self, TransportError> {
        let failed = |cause| TransportError::system("make a descriptor to wait on", cause);
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        epoll::add(&set, &timer, EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
        Ok(Self { set, timer })
    }

    /// What to wait on.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// Watches these too. The kernel forgets those that are closed.
    ///
    /// # Errors
    /// The kernel does not watch one of them.
    pub fn watch(&self, descriptors: &[RawFd]) -> Result<(), TransportError> {
        for &descriptor in descriptors {
            // SAFETY: the caller owns the queue pair whose connections these are.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            match epoll::add(&self.set, borrowed, EventData::new_u64(1), EventFlags::IN) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(cause) => return Err(TransportError::system("watch a connection", cause)),
            }
        }
        Ok(())
    }

    /// From now on it is readable after `pause` at the latest. Until then the time that was set before
    /// does not count any more.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn arm(&self, pause: Duration) -> Result<(), TransportError> {
        let pause = timespec(pause.max(SHORTEST));
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: pause };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map(drop)
            .map_err(|cause| TransportError::system("set a timer", cause))
    }

    /// Sleeps until it is readable, for `limit` at most.
    pub fn rest(&self, limit: Duration) {
        Self::rest_on([self], limit);
    }

    /// Sleeps until one of these is readable, for `limit` at most.
    pub fn rest_on<'a>(these: impl IntoIterator<Item = &'a Self>, limit: Duration) {
        let watched = |one: &'a Self| PollFd::from_borrowed_fd(one.set.as_fd(), PollFlags::IN);
        let mut polled: SmallVec<[PollFd<'_>; 1]> = these.into_iter().map(watched).collect();
        // A poll that is interrupted, or fails, is a short rest.
        let _ = poll(&mut polled, Some(&timespec(limit)));
    }
}

fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn is_readable(readiness: &Readiness, limit: Duration) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(readiness.set.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&timespec(limit))).unwrap() == 1
    }

    #[test]
    fn what_arrives_and_what_is_due_is_readable() {
        let readiness = Readiness::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        for _ in 0..2 {
            readiness.watch(&[far.as_raw_fd()]).unwrap();
        }
        assert!(!is_readable(&readiness, Duration::ZERO));
        readiness.arm(Duration::ZERO).unwrap();
        assert!(is_readable(&readiness, LONG));
        readiness.arm(LONG).unwrap();
        assert!(!is_readable(&readiness, Duration::ZERO), "the old time does not count");
        near.write_all(b"x").unwrap();
        assert!(is_readable(&readiness, LONG));
        drop(far);
        assert!(!is_readable(&readiness, Duration::ZERO), "what is closed is forgotten");
    }
}
