//! Why ranks were not started or did not end well.

use std::io;

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
