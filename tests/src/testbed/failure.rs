//! Why a bed could not be made or used, and the exit status that says so.

use std::fmt;
use std::io;

/// Exit status when the command line or a request is wrong.
const STATUS_INPUT: u8 = 2;
/// Exit status when the testbed itself failed, in the middle of its work.
const STATUS_SYSTEM: u8 = 125;
/// Exit status when this machine cannot have a bed; test runners know it as a skip.
pub const STATUS_UNAVAILABLE: u8 = 77;

/// How the kernel says that it does not know something, or does not allow it.
const LACKS: [io::ErrorKind; 4] = [
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::Unsupported,
    io::ErrorKind::NotFound,
    io::ErrorKind::ReadOnlyFilesystem,
];

/// Why there is no bed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This machine does not allow or know what a bed is made of.
    #[error(
        "{call}: {cause}. A testbed needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN, and a kernel with veth, bridge and tbf"
    )]
    Unavailable {
        /// What was attempted.
        call: String,
        /// The cause as reported.
        cause: String,
    },
    /// The operating system refused something else.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted.
        call: String,
        /// The cause as reported.
        cause: String,
    },
    /// What was asked for is impossible.
    #[error("{0}")]
    Input(String),
}

/// What every fallible part of the testbed returns.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A call that failed while a bed was used.
    pub fn system(call: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::System { call: call.into(), cause: cause.to_string() }
    }

    /// A call that failed while a bed was made: it tells what the machine lacks.
    pub fn making(call: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let (call, text) = (call.into(), cause.to_string());
        if LACKS.contains(&cause.kind()) {
            Self::Unavailable { call, cause: text }
        } else {
            Self::System { call, cause: text }
        }
    }

    /// What a process that failed like this exits with.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Unavailable { .. } => STATUS_UNAVAILABLE,
            Self::System { .. } => STATUS_SYSTEM,
            Self::Input(_) => STATUS_INPUT,
        }
    }
}
