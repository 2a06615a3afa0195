//! What can go wrong, grouped by what the caller can do about it.

use crate::ids::Rank;

/// Why a call failed. Survived rail faults are events, never errors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The program passed something impossible (`ncclInvalidArgument`).
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The calls of the program do not fit together (`ncclInvalidUsage`).
    #[error("invalid usage: {0}")]
    InvalidUsage(String),
    /// Two ranks asked for different things in the same place of the sequence of calls.
    #[error(
        "ranks disagree on call {sequence}: rank {rank} called {call}, rank {other} called {other_call}"
    )]
    Disagreement {
        /// Position in the sequence of collectives of the communicator.
        sequence: u32,
        /// The rank that noticed.
        rank: Rank,
        /// What it called.
        call: String,
        /// The rank it disagrees with.
        other: Rank,
        /// What that one called.
        other_call: String,
    },
    /// A rank is gone, or no rail to it is left.
    #[error("rank {rank} is lost: {reason}")]
    PeerLost {
        /// Who is gone, or out of reach: never the rank itself that has the error.
        rank: Rank,
        /// How that was noticed.
        reason: String,
    },
    /// The call did not finish before its deadline.
    #[error("{call} did not finish within {seconds:.3} s: {waiting}")]
    Deadline {
        /// What was waited for.
        call: String,
        /// The deadline, counted from the start of the call.
        seconds: f64,
        /// Which ranks were waited for, and for how much.
        waiting: String,
    },
    /// The communicator was aborted.
    #[error("communicator aborted by rank {rank}: {reason}")]
    Aborted {
        /// Who aborted it.
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted, and on what.
        call: String,
        /// The cause as reported.
        cause: String,
    },
    /// A CUDA device or its driver failed, or there is none.
    #[error("CUDA: {0}")]
    Cuda(String),
    /// A bug of the library.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The numbers of `ncclResult_t`, which the C interface returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ResultCode {
    /// The call succeeded.
    Success = 0,
    /// A call of CUDA failed.
    UnhandledCudaError = 1,
    /// A call of the operating system failed.
    SystemError = 2,
    /// A bug of the library.
    InternalError = 3,
    /// An argument has an impossible value.
    InvalidArgument = 4,
    /// The calls of the program, or of the ranks, do not fit together.
    InvalidUsage = 5,
    /// A peer is gone, or aborted the communicator.
    RemoteError = 6,
    /// The call goes on in the background.
    InProgress = 7,
    /// The deadline passed.
    Timeout = 8,
}

impl Error {
    /// NCCL's number for this group of errors.
    #[must_use]
    pub fn code(&self) -> ResultCode {
        match self {
            Self::InvalidArgument(_) => ResultCode::InvalidArgument,
            Self::InvalidUsage(_) | Self::Disagreement { .. } => ResultCode::InvalidUsage,
            Self::PeerLost { .. } | Self::Aborted { .. } => ResultCode::RemoteError,
            Self::Deadline { .. } => ResultCode::Timeout,
            Self::System { .. } => ResultCode::SystemError,
            Self::Cuda(_) => ResultCode::UnhandledCudaError,
            Self::Internal(_) => ResultCode::InternalError,
        }
    }

    /// What the reader can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InvalidArgument(text) | Self::InvalidUsage(text) if text.contains("R2CCL_") => {
                "correct the setting that is named, or the call"
            }
            Self::InvalidArgument(_) | Self::InvalidUsage(_) => "correct the call",
            Self::Disagreement { .. } => {
                "make every rank issue the same calls in the same order with the same count, type, operation and root"
            }
            Self::PeerLost { .. } => {
                "look at that rank's log; if it has ended, shrink the communicator to go on without it, else create a new one"
            }
            Self::Deadline { .. } => {
                "look at the ranks that were waited for; retry on a new communicator, or raise the timeout: R2CCL_TIMEOUT for \
                 calls, unless the program sets one, R2CCL_BOOTSTRAP_TIMEOUT where ranks meet"
            }
            Self::Aborted { .. } => "destroy this communicator and create a new one",
            Self::System { cause, .. } if is_short_of_descriptors(cause) => {
                "raise `ulimit -n`, or use fewer ranks, communicators or connections on this host"
            }
            Self::System { .. } => "mend the reported cause, or ask the operator of the host to",
            Self::Cuda(_) => "ask the operator of the host to mend the device or its driver",
            Self::Internal(_) => "report it with the log",
        }
    }

    /// The error, with the name of the communicator whose ranks it speaks of; what the caller alone has to correct is as it was.
    #[must_use]
    pub fn within(mut self, name: &str) -> Self {
        let place = format!("{PLACE}{name:?})");
        if let Some(text) = self.end().filter(|text| !text.ends_with(&place)) {
            text.push_str(&place);
        }
        self
    }

    /// The error without the name that [`Self::within`] has given it: its fields are what the failing call has put there.
    #[must_use]
    pub fn unnamed(mut self) -> Self {
        if let Some(text) = self.end().filter(|text| text.ends_with("\")"))
            && let Some(place) = text.rfind(PLACE)
        {
            text.truncate(place);
        }
        self
    }

    /// The field with which the text ends, unless the caller alone has to correct something.
    fn end(&mut self) -> Option<&mut String> {
        match self {
            Self::InvalidArgument(_) | Self::InvalidUsage(_) => None,
            Self::Disagreement { other_call, .. } => Some(other_call),
            Self::PeerLost { reason, .. } | Self::Aborted { reason, .. } => Some(reason),
            Self::Deadline { waiting, .. } => Some(waiting),
            Self::System { cause, .. } => Some(cause),
            Self::Cuda(text) | Self::Internal(text) => Some(text),
        }
    }

    /// Shorthand for a failed call of the operating system.
    pub fn system(call: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self::System { call: call.into(), cause: cause.to_string() }
    }
}

/// What stands in front of the name of a communicator.
const PLACE: &str = " (communicator ";

/// Whether the system reported that this process, or the host, has too many descriptors. The words of the system
/// depend on the language, its numbers and their names do not.
fn is_short_of_descriptors(cause: &str) -> bool {
    ["os error 24", "os error 23", "EMFILE", "ENFILE"].iter().any(|sign| cause.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_communicator_is_named_once_where_ranks_are() {
        let lost = Error::PeerLost { rank: Rank(3), reason: "it left".into() };
        let named = lost.within("pipeline").within("pipeline");
        assert_eq!(named.to_string(), "rank 3 is lost: it left (communicator \"pipeline\")");
        let lost = Error::PeerLost { rank: Rank(3), reason: "it left".into() };
        assert_eq!(named.unnamed(), lost);
        assert_eq!(lost.clone().unnamed(), lost);
        let wrong = Error::InvalidUsage("two calls".into());
        assert_eq!(wrong.clone().within("pipeline"), wrong);
    }

    #[test]
    fn remedies_fit_their_causes() {
        let refused = Error::InvalidArgument("R2CCL_TIMEOUT=\"soon\" is not allowed".into());
        assert!(refused.remedy().contains("setting"));
        assert_eq!(Error::InvalidUsage("two calls".into()).remedy(), "correct the call");
        for cause in ["Too many open files (os error 24)", "ENFILE: too many"] {
            assert!(Error::system("getifaddrs", cause).remedy().contains("ulimit -n"), "{cause}");
        }
        let other = Error::system("bind", "Address already in use (os error 98)");
        assert!(!other.remedy().contains("ulimit"), "{}", other.remedy());
    }
}
