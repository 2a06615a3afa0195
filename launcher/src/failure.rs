//! Why ranks were not started or did not end well.

use std::io;

use rustix::process;
use signal_hook::low_level::emulate_default_handler;

/// Added to the number of a signal, it makes an exit status, as shells do.
pub const STATUS_OF_SIGNAL: i32 = 128;

/// Why ranks were not started or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The operating system refused something.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted.
        call: String,
        /// The cause as reported.
        cause: io::Error,
    },
    /// Nobody would end this process with its launcher.
    #[error("the launcher of this process is gone")]
    Orphaned,
    /// A process ended before its time.
    #[error("rank {rank} (process {pid}) {how}")]
    Member {
        /// Its rank.
        rank: usize,
        /// Its process.
        pid: i32,
        /// How it ended.
        how: String,
        /// Its exit status; 128 and the number of the signal if one ended it.
        status: u8,
    },
    /// Somebody wanted the launcher to end.
    #[error("signal {signal} has ended the run")]
    Request {
        /// The signal that said so.
        signal: i32,
    },
}

impl Failure {
    /// Shorthand for a failed call of the operating system.
    pub fn system(call: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::System { call: call.into(), cause: cause.into() }
    }

    /// Ends this process if a signal has ended the run, as that signal does where nobody hears it: a loop of a shell
    /// goes on after a program that has exited in another way. Returns otherwise, and where signals do not end this
    /// process, the first of a container.
    pub fn end_by_signal(&self) {
        if let Self::Request { signal } = self
            && !process::getpid().is_init()
        {
            // It knows all signals that are requests.
            let _ = emulate_default_handler(*signal);
        }
    }

    /// What a launcher exits with, as shells do, if ranks or a signal have ended it.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        match self {
            Self::Member { status, .. } => Some(*status),
            Self::Request { signal } => u8::try_from(STATUS_OF_SIGNAL + signal).ok(),
            Self::System { .. } | Self::Orphaned => None,
        }
    }
}
