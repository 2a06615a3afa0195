//! What can go wrong with queue pairs, grouped by what the caller can do about it.

use ccl_core::error::ResultCode;
use ccl_transport::TransportError;
use ccl_transport::verbs::PostError;

/// Why a call failed. A rail fault that was survived is an [`Event`](super::Event), never an error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The program passed something impossible.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The calls of the program, or of the two ends, do not fit together.
    #[error("invalid usage: {0}")]
    InvalidUsage(String),
    /// Back-pressure: as many requests are outstanding as the depth says.
    #[error("the queue is full")]
    QueueFull,
    /// The other end is out of reach, or is not who it should be.
    #[error("the peer is lost: {0}")]
    PeerLost(String),
    /// Something did not happen in time.
    #[error("{call} did not finish within {seconds:.3} s: {waiting}")]
    Deadline {
        /// What was called.
        call: &'static str,
        /// How long it was given.
        seconds: f64,
        /// What it waited for.
        waiting: String,
    },
    /// The operating system refused something.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted, and on what.
        call: String,
        /// The cause as reported.
        cause: String,
    },
}

impl Error {
    /// The number of this group of errors in the C interface.
    #[must_use]
    pub fn code(&self) -> ResultCode {
        match self {
            Self::InvalidArgument(_) => ResultCode::InvalidArgument,
            Self::InvalidUsage(_) => ResultCode::InvalidUsage,
            Self::QueueFull => ResultCode::InProgress,
            Self::PeerLost(_) => ResultCode::RemoteError,
            Self::Deadline { .. } => ResultCode::Timeout,
            Self::System { .. } => ResultCode::SystemError,
        }
    }

    /// What the reader can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InvalidArgument(_) | Self::InvalidUsage(_) => "correct the call",
            Self::QueueFull => "poll, and try again",
            Self::PeerLost(_) => "look at the other process, and at R2CCL_JOB_KEY of both",
            Self::Deadline { .. } => "look at the other process, or allow more time",
            Self::System { .. } => "mend the reported cause, or ask the operator of the host to",
        }
    }

    pub(super) fn system(call: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self::System { call: call.into(), cause: cause.to_string() }
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::System { call, cause } => Self::System { call, cause },
            TransportError::PeerGone(_)
            | TransportError::Severed(_)
            | TransportError::Unrepaired(_)
            | TransportError::Protocol(_)
            | TransportError::Refused(_)
            | TransportError::TimedOut(_) => Self::PeerLost(error.to_string()),
        }
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull => Self::QueueFull,
            PostError::WrongState(state) => {
                Self::InvalidUsage(format!("the queue pair is in the state {state}"))
            }
        }
    }
}

impl From<ccl_core::Error> for Error {
    fn from(error: ccl_core::Error) -> Self {
        match error {
            ccl_core::Error::InvalidArgument(text) => Self::InvalidArgument(text),
            ccl_core::Error::InvalidUsage(text) => Self::InvalidUsage(text),
            ccl_core::Error::System { call, cause } => Self::System { call, cause },
            ccl_core::Error::Disagreement { .. }
            | ccl_core::Error::PeerLost { .. }
            | ccl_core::Error::Deadline { .. }
            | ccl_core::Error::Aborted { .. }
            | ccl_core::Error::Cuda(_)
            | ccl_core::Error::Internal(_) => Self::system("read the settings", error),
        }
    }
}
