//! How many descriptors this process may have.

use std::io;
use std::net::TcpListener;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Whether the kernel refused something because this process or the system has too many.
#[must_use]
pub fn are_short(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether somebody waits to be accepted. If not, it does not matter that [they are short](are_short): the kernel looks for a
/// descriptor before it looks whether anybody has come.
#[must_use]
pub fn is_anybody_at(door: &TcpListener) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Who cannot look had better assume it.
    poll(&mut [PollFd::new(door, PollFlags::IN)], Some(&at_once)).map_or(true, |ready| ready > 0)
}

/// Raises the limit if that is what something has failed of: it may be tried again then.
pub fn relieve(cause: &io::Error) -> bool {
    are_short(cause) && raise_limit()
}

/// Raises the limit of this process to what it may give itself. `false` if it has that already.
pub fn raise_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if raised.is_ok() {
        tracing::info!(limit = limit.maximum, "this process may have more descriptors now");
    }
    raised.is_ok()
}
