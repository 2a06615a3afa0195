//! Why a benchmark run failed, and the exit status that says so.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// Exit status when results were wrong or too slow.
const STATUS_RESULTS: u8 = 1;
/// Exit status when the library or the operating system failed.
const STATUS_RUN: u8 = 3;

/// Why a run ended without a good table.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library returned an error.
    #[error("rank {rank}: {error}")]
    Library {
        /// Which rank saw it, as far as ranks were known.
        rank: u32,
        /// The error.
        error: ccl::Error,
    },
    /// The operating system refused something.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted.
        call: String,
        /// The cause as reported.
        cause: String,
    },
    /// The environment or a file of the user says something impossible.
    #[error("{0}")]
    Input(String),
    /// A local process of this run could not be started, or ended before its time.
    #[error(transparent)]
    Launch(#[from] ccl_launcher::Failure),
    /// The testbed of `--fault` could not be made or used.
    #[error(transparent)]
    Testbed(#[from] crate::testbed::failure::Failure),
    /// The table is complete, but something in it is wrong; the table says what.
    #[error("{0}")]
    Results(String),
}

impl Failure {
    /// Shorthand for a failed call of the operating system.
    pub fn system(call: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::System { call: call.into(), cause: cause.to_string() }
    }

    /// What a process that failed like this exits with.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Results(_) => STATUS_RESULTS,
            Self::Launch(failure) => failure.status().unwrap_or(STATUS_RUN),
            Self::Testbed(failure) => failure.exit_status(),
            Self::Library { .. } | Self::System { .. } | Self::Input(_) => STATUS_RUN,
        }
    }

    /// Tells the reader, and is the end of the program with this name.
    #[must_use]
    pub fn told_by(&self, program: &str) -> ExitCode {
        // As one, since other ranks may tell the same at the same time. There is nobody left to tell when stderr is gone.
        let line = format!("{program}: {}\n", self.explained());
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Self::Launch(failure) = self {
            failure.end_by_signal();
        }
        ExitCode::from(self.exit_status())
    }

    /// The message, with what the reader can do about it where that is known.
    #[must_use]
    pub fn explained(&self) -> String {
        match self {
            Self::Library { error, .. } => format!("{self} ({})", error.remedy()),
            Self::System { .. }
            | Self::Input(_)
            | Self::Launch(_)
            | Self::Testbed(_)
            | Self::Results(_) => self.to_string(),
        }
    }
}
