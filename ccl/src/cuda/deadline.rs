//! Until when a call may last: counted from when its stream has come to it, however many parts it has.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_transport::clock;

/// How long a call may take, and since when it does.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    timeout: Duration,
    begin: OnceCell<Instant>,
}

impl Deadline {
    /// Of a call to which no stream has come.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, begin: OnceCell::new() }
    }

    /// The stream has come to the call, or to a later part of it.
    pub(super) fn begin(&self) -> Instant {
        *self.begin.get_or_init(clock::now)
    }

    /// Whether the call, to which the stream has come, has taken too long.
    pub(super) fn is_past(&self) -> bool {
        let begin = self.begin();
        clock::now().saturating_duration_since(begin) > self.timeout
    }

    /// What is said then.
    pub(super) fn error(&self, call: &str, waiting: String) -> Error {
        Error::Deadline { call: call.to_owned(), seconds: self.timeout.as_secs_f64(), waiting }
    }
}
