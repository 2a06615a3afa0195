//! What a rank and the store say to each other, and the limits on it.
//!
//! A frame is its length (4 bytes, little-endian) and a message in the encoding of postcard.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use ccl_core::Error;
use ccl_core::ids::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most ranks of a communicator.
pub const MAX_RANKS: u32 = 65_536;
/// Longest name of a gather or key.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest blob a rank may set or contribute.
pub const MAX_BLOB_BYTES: usize = 4 << 20;
/// Longest frame from a rank: a blob, and room for the longest texts.
pub(super) const MAX_REQUEST_BYTES: usize = MAX_BLOB_BYTES + (64 << 10);
/// Longest frame from the store.
pub(super) const MAX_PUSH_BYTES: usize = 256 << 20;
/// Longest reason or call in an event; longer ones are cut.
const MAX_TEXT_BYTES: usize = 8 << 10;
/// Bytes in front of a message.
pub(super) const LENGTH_BYTES: usize = 4;

/// What travels on a connection. Only messages are numbered, by counting: a connection may break at any
/// of them, and the next one of the same session goes on behind the last that arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Envelope<T> {
    /// The next message.
    Message(T),
    /// A sign of life: how many messages of the other end have arrived.
    Received(u64),
    /// Asks for a sign of life.
    Ping,
    /// The first words of a rank on its first connection.
    Open(Session),
    /// The first words of a rank on every other one, with how many messages have arrived there. The rank
    /// counts its attempts: one that arrives after a later one is void.
    Resume { session: Session, attempt: u64, received: u64 },
    /// The store's answer to that.
    Resumed { received: u64 },
    /// Or this: the rank has been given up.
    Unknown,
}

/// The name of a session, which its rank has chosen.
pub(super) type Session = [u8; 16];

/// What a rank says when it proves that it knows the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) communicator: u64,
    pub(super) rank: u32,
}

/// A process, as people look for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) host: String,
    /// Tells hosts of the same name apart.
    pub(super) identity: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.host)
    }
}

/// From a rank to the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first one; answered by [`Push::Formed`] when all have come of `size` ranks but those in `absent`, who never will.
    Join { size: u32, absent: BTreeSet<u32>, process: Process },
    /// The rank waits no longer for the others to join.
    GiveUp { seconds: f64 },
    /// Who has not joined; answered by [`Reply::Missing`].
    Awaited,
    /// The processes of these ranks have ended: if they have not joined, they never will.
    Gone { ranks: BTreeSet<u32> },
    /// Answered by [`Reply::Done`].
    Set { key: String, value: Vec<u8> },
    /// Answered by [`Reply::Value`] once there is one.
    Get { key: String },
    /// Answered by [`Push::Gathered`] when all have contributed.
    Gather { name: String, value: Vec<u8> },
    /// Who has not contributed to a gather; answered by [`Reply::Missing`].
    Missing { name: String },
    /// To be passed on to all others.
    Announce(ControlEvent),
    /// To be passed on to these ranks.
    Relay { to: Vec<u32>, letter: Vec<u8> },
    /// The rank goes after this many calls; answered by [`Reply::Done`].
    Leave { calls: u64 },
}

/// A request with the number its reply will have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) request: Request,
}

/// From the store to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Push {
    /// All ranks have come; `host_rank` is the one in whose process the store is, which can be reached
    /// at `places` from now on. An unspecified address there stands for the one at which the rank met
    /// the store.
    Formed {
        host_rank: Option<u32>,
        places: Vec<SocketAddr>,
    },
    /// The group will never be complete.
    Failed(Failure),
    Reply {
        number: u64,
        reply: Reply,
    },
    Gathered {
        name: String,
        values: Vec<Vec<u8>>,
    },
    GatherFailed {
        name: String,
        failure: Failure,
    },
    Event(ControlEvent),
    Left {
        rank: u32,
        calls: u64,
    },
    /// From another rank.
    Relayed {
        from: u32,
        letter: Vec<u8>,
    },
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Value(Vec<u8>),
    Missing(Vec<u32>),
    Refused(String),
}

/// Something bad that every rank of a communicator must hear of. It ends the communicator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlEvent {
    /// A rank aborted the communicator.
    Aborted {
        /// Who.
        #[serde(with = "rank_as_number")]
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// Two ranks asked for different things; the fields are those of [`Error::Disagreement`].
    Disagreement {
        /// Position in the sequence of calls.
        sequence: u32,
        /// The rank that noticed.
        #[serde(with = "rank_as_number")]
        rank: Rank,
        /// What it called.
        call: String,
        /// The rank it disagrees with.
        #[serde(with = "rank_as_number")]
        other: Rank,
        /// What that one called.
        other_call: String,
    },
    /// A rank's call did not finish in time.
    DeadlineExpired {
        /// Whose call.
        #[serde(with = "rank_as_number")]
        rank: Rank,
        /// Which call.
        call: String,
        /// Its deadline, counted from its start.
        seconds: f64,
        /// For whom it waited.
        waiting: String,
    },
    /// A rank is gone.
    Lost {
        /// Who.
        #[serde(with = "rank_as_number")]
        rank: Rank,
        /// How that was noticed.
        reason: String,
        /// The rank that noticed; nobody if the store did.
        #[serde(with = "rank_or_nobody")]
        by: Option<Rank>,
    },
}

impl ControlEvent {
    /// What the other ranks should hear when a call of `rank` failed with `error`.
    #[must_use]
    pub fn from_error(rank: Rank, error: &Error) -> Self {
        match error.clone() {
            Error::Disagreement { sequence, rank, call, other, other_call } => {
                Self::Disagreement { sequence, rank, call, other, other_call }
            }
            Error::PeerLost { rank: lost, reason } => {
                Self::Lost { rank: lost, reason, by: Some(rank) }
            }
            Error::Deadline { call, seconds, waiting } => {
                Self::DeadlineExpired { rank, call, seconds, waiting }
            }
            Error::Aborted { rank, reason } => Self::Aborted { rank, reason },
            other @ (Error::InvalidArgument(_)
            | Error::InvalidUsage(_)
            | Error::System { .. }
            | Error::Cuda(_)
            | Error::Internal(_)) => Self::Aborted { rank, reason: other.to_string() },
        }
    }

    /// The error that calls of the communicator fail with on rank `me` from now on. Who is lost to another rank has lost
    /// that one.
    #[must_use]
    pub fn into_error(self, me: Rank) -> Error {
        match self {
            Self::Aborted { rank, reason } => Error::Aborted { rank, reason },
            Self::Disagreement { sequence, rank, call, other, other_call } => {
                Error::Disagreement { sequence, rank, call, other, other_call }
            }
            Self::DeadlineExpired { rank, call, seconds, waiting } => {
                Error::Deadline { call, seconds, waiting: format!("{waiting} (on rank {rank})") }
            }
            Self::Lost { rank, reason, by: Some(by) } if rank == me => {
                let reason = format!("it has given rank {me} up: {reason}");
                Error::PeerLost { rank: by, reason }
            }
            Self::Lost { rank, reason, by: _ } => Error::PeerLost { rank, reason },
        }
    }

    /// The same with texts short enough for a frame.
    pub(super) fn cut(mut self) -> Self {
        match &mut self {
            Self::Aborted { reason, .. } | Self::Lost { reason, .. } => cut(reason),
            Self::Disagreement { call, other_call, .. } => {
                cut(call);
                cut(other_call);
            }
            Self::DeadlineExpired { call, waiting, .. } => {
                cut(call);
                cut(waiting);
            }
        }
        self
    }
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
}

mod rank_as_number {
    use ccl_core::ids::Rank;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(rank: &Rank, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(rank.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Rank, D::Error> {
        u32::deserialize(from).map(Rank)
    }
}

mod rank_or_nobody {
    use ccl_core::ids::Rank;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(rank: &Option<Rank>, to: S) -> Result<S::Ok, S::Error> {
        rank.map(|rank| rank.0).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Rank>, D::Error> {
        Ok(Option::<u32>::deserialize(from)?.map(Rank))
    }
}

/// How it is known that a rank will not come.
const GONE: &str =
    "it has ended, or destroyed the communicator: nobody listens at its port any more";

/// Why the store cannot do what was asked; the part of [`Error`] that travels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Failure {
    Usage(String),
    /// Ranks go on without different ones, in all without these.
    Apart {
        text: String,
        absent: BTreeSet<u32>,
    },
    Aborted {
        rank: u32,
        reason: String,
    },
    Lost {
        rank: u32,
        reason: String,
    },
    /// These ranks never came, and will not.
    Gone {
        ranks: BTreeSet<u32>,
    },
    Deadline {
        call: String,
        seconds: f64,
        missing: Vec<u32>,
    },
    System {
        call: String,
        cause: String,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Usage(text) | Failure::Apart { text, .. } => Self::InvalidUsage(text),
            Failure::Aborted { rank, reason } => Self::Aborted { rank: Rank(rank), reason },
            Failure::Lost { rank, reason } => Self::PeerLost { rank: Rank(rank), reason },
            Failure::Gone { ranks } => Self::PeerLost {
                rank: Rank(ranks.first().copied().unwrap_or_default()),
                reason: match ranks.len() {
                    0 | 1 => GONE.to_owned(),
                    several => format!("{GONE}, and so of {} others", several - 1),
                },
            },
            Failure::Deadline { call, seconds, missing } => {
                let waiting = format!("{} did not come", name_ranks(&missing));
                Self::Deadline { call, seconds, waiting }
            }
            Failure::System { call, cause } => Self::System { call, cause },
        }
    }
}

/// The frame that holds `message`.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    let mut frame =
        postcard::to_extend(message, vec![0; LENGTH_BYTES]).map_err(|e| e.to_string())?;
    let length = u32::try_from(frame.len() - LENGTH_BYTES)
        .map_err(|_| "the message does not fit a frame".to_owned())?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// The message in the body of a frame. Lengths inside are checked against the body.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes behind the message", rest.len())),
        Err(cause) => Err(cause.to_string()),
    }
}

/// The length of the body that follows `header`, if it is allowed.
pub(super) fn body_bytes(header: [u8; LENGTH_BYTES], most: usize) -> Result<usize, String> {
    let length = u32::from_le_bytes(header);
    match usize::try_from(length) {
        Ok(bytes) if bytes <= most => Ok(bytes),
        Ok(_) | Err(_) => Err(format!("a frame of {length} bytes, more than {most}")),
    }
}

/// `ranks` as people write them: "rank 3", "ranks 1, 4".
pub(super) fn name_ranks(ranks: &[u32]) -> String {
    let numbers: Vec<_> = ranks.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    let more = match ranks.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("rank{plural} {}{more}", numbers.join(", "))
}

/// Ranks that a message names one by one.
const MAX_NAMED: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_way_to_other_ranks() {
        let lost = Error::PeerLost { rank: Rank(3), reason: "closed".into() };
        let disagreement = Error::Disagreement {
            sequence: 1,
            rank: Rank(0),
            call: "a".into(),
            other: Rank(1),
            other_call: "b".into(),
        };
        let aborted = Error::Aborted { rank: Rank(2), reason: "enough".into() };
        for error in [lost, disagreement, aborted] {
            let event = ControlEvent::from_error(Rank(9), &error).cut();
            let frame = encode(&Push::Event(event)).unwrap();
            let Push::Event(event) = decode(&frame[LENGTH_BYTES..]).unwrap() else { panic!() };
            assert_eq!(event.into_error(Rank(1)), error);
        }
        let event = ControlEvent::from_error(Rank(9), &Error::Internal("odd".into()));
        assert_eq!(
            event,
            ControlEvent::Aborted { rank: Rank(9), reason: "internal error: odd".into() }
        );
    }

    #[test]
    fn who_is_lost_to_another_rank_has_lost_that_one() {
        let lost = Error::PeerLost { rank: Rank(3), reason: "rail 0 is dead".into() };
        let event = ControlEvent::from_error(Rank(9), &lost);
        assert_eq!(event.clone().into_error(Rank(9)), lost);
        let reason = "it has given rank 3 up: rail 0 is dead".into();
        assert_eq!(event.into_error(Rank(3)), Error::PeerLost { rank: Rank(9), reason });
    }

    #[test]
    fn damaged_frames_are_refused() {
        let frame = encode(&Request::Get { key: "k".into() }).unwrap();
        let body = &frame[LENGTH_BYTES..];
        assert_eq!(decode::<Request>(body), Ok(Request::Get { key: "k".into() }));
        assert!(decode::<Request>(&body[..body.len() - 1]).is_err());
        assert!(decode::<Request>(&[body, &[0]].concat()).is_err());
        // A text that claims to be four gigabytes long allocates nothing.
        assert!(decode::<Request>(&[3, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(body_bytes([0xff; 4], MAX_REQUEST_BYTES).is_err());
    }

    #[test]
    fn long_lists_of_ranks_are_shortened() {
        assert_eq!(name_ranks(&[7]), "rank 7");
        assert_eq!(name_ranks(&[1, 2]), "ranks 1, 2");
        let all: Vec<u32> = (0..100).collect();
        assert!(name_ranks(&all).ends_with("30, 31 and 68 more"));
    }
}
