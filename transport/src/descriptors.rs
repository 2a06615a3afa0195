//! How many descriptors this process may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Whether the kernel refused something because this process or the system has too many.
#[must_use]
pub fn are_short(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
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
