//! Finds the store and proves the key, again and again until a deadline.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_transport::{TransportError, auth, clock};

use super::heard::Heard;
use super::message::{self, Hello};
use super::unique_id::UniqueId;

/// How long one address may take before the next one is tried.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// How long a stranger at the address may keep us waiting for its proof.
const PROOF_TIME: Duration = Duration::from_secs(10);
/// How long a rank that lost the store tries one address.
const RETURN_TIME: Duration = Duration::from_millis(500);
/// How long the way to a store may refuse connections before that counts as an answer: proxies and firewalls do so until they know
/// this process.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// First and longest pause between rounds of attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Pauses between attempts that grow, and end at a deadline.
pub(super) struct Pauses {
    next: Duration,
    deadline: Instant,
}

impl Pauses {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { next: PAUSES.0, deadline }
    }

    /// Sleeps; `false` if the deadline has passed then, so that nothing is tried without time, which would say nothing about
    /// the cause.
    pub(super) fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(clock::now());
        clock::sleep(self.next.min(left));
        self.next = (self.next * 2).min(PAUSES.1);
        clock::now() < self.deadline
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// Somebody said so: one of both sides does not have the key, or it is no store.
    Refused(Error),
    /// Nobody answers; the text says what happened last.
    Unreachable(String),
    /// Nobody listens there, as the text says.
    Vacant(String),
}

/// What it means that nobody listens where a store should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vacancy {
    /// The process has not come so far: somebody will.
    Early,
    /// The process, which has listened since before, is gone, if that lasts for so long.
    Late(Duration),
}

impl Vacancy {
    /// What it means at the place of an id that somebody has told this rank.
    pub(super) fn at(id: &UniqueId) -> Self {
        if id.is_fixed() { Self::Early } else { Self::Late(REFUSAL_TIME) }
    }

    fn may_end(self, since: Instant) -> bool {
        match self {
            Self::Early => true,
            Self::Late(patience) => clock::now() < since + patience,
        }
    }
}

/// A connection to the store of `id` on which both sides have proved the key. Tries until the deadline, or until there is a fault.
pub(super) fn connect(
    id: &UniqueId,
    heard: &Heard,
    vacancy: Vacancy,
    deadline: Instant,
) -> Result<TcpStream, NoConnection> {
    let mut pauses = Pauses::until(deadline);
    let mut again = || pauses.pause() && heard.fault().is_none();
    let mut vacant_since = None;
    loop {
        match attempt(id, heard, deadline) {
            Err(NoConnection::Unreachable(_)) if again() => vacant_since = None,
            Err(NoConnection::Vacant(_))
                if vacancy.may_end(*vacant_since.get_or_insert_with(clock::now)) && again() => {}
            settled => return settled,
        }
    }
}

/// What a rank found that looked for the store it was connected to.
#[derive(Debug)]
pub(super) enum Return {
    /// The store, there.
    Connected(TcpStream, SocketAddr),
    /// Where it was, nobody listens any more, or somebody else does.
    Ended(String),
    /// Its host takes connections, but nobody speaks: the process is stopped or very busy.
    Silent,
    /// The network leads nowhere.
    Unreachable(String),
}

/// Tries all `places` once and at the same time: those that lead over a dead NIC take their time. A refusal
/// counts only at those where the store was met before: at others something else may be.
pub(super) fn return_to(
    id: &UniqueId,
    rank: Rank,
    places: &[SocketAddr],
    met: &[SocketAddr],
) -> Return {
    let (sender, returns) = channel();
    for place in places.iter().copied() {
        let (id, sender, was_met) = (*id, sender.clone(), met.contains(&place));
        // Whoever comes after the first is not waited for.
        let attempt = move || drop(sender.send(return_once(&id, rank, place, was_met)));
        if thread::Builder::new().name("r2ccl-return".to_owned()).spawn(attempt).is_err() {
            break;
        }
    }
    drop(sender);
    let (mut ended, mut silent, mut found) = (None, false, Vec::new());
    for one in returns {
        match one {
            Return::Connected(..) => return one,
            Return::Ended(cause) => ended = Some(cause),
            Return::Silent => silent = true,
            Return::Unreachable(cause) => found.push(cause),
        }
    }
    match ended {
        Some(cause) => Return::Ended(cause),
        None if silent => Return::Silent,
        None => Return::Unreachable(found.join("; ")),
    }
}

fn return_once(id: &UniqueId, rank: Rank, place: SocketAddr, was_met: bool) -> Return {
    let failed = |cause: &dyn std::fmt::Display, is_end: bool| {
        let text = format!("{place}: {cause}");
        if is_end { Return::Ended(text) } else { Return::Unreachable(text) }
    };
    let stream = match TcpStream::connect_timeout(&place, RETURN_TIME) {
        Ok(stream) => stream,
        Err(cause) => {
            return failed(&cause, was_met && cause.kind() == ErrorKind::ConnectionRefused);
        }
    };
    match prove(id, &stream, rank, clock::now() + RETURN_TIME) {
        Ok(()) => Return::Connected(stream, place),
        Err(TransportError::TimedOut(_)) => Return::Silent,
        Err(cause @ TransportError::PeerGone(_)) => failed(&cause, false),
        Err(cause) => failed(&cause, was_met),
    }
}

/// Tries every address of the store once.
pub(super) fn attempt(
    id: &UniqueId,
    heard: &Heard,
    deadline: Instant,
) -> Result<TcpStream, NoConnection> {
    let rank = heard.me();
    let mut failures = Vec::new();
    let (mut refused, mut may_be_busy) = (false, false);
    let (places, mut vacant) = (id.places(), Vec::new());
    for place in places.iter().copied() {
        match open(id, place, heard, deadline) {
            Ok(stream) => return Ok(stream),
            Err(Unopened::Vacant(cause)) => {
                failures.push(format!("{place}: {cause}"));
                vacant.push(place.ip());
            }
            Err(Unopened::Failed(cause)) => {
                refused |= matches!(cause, TransportError::Refused(_));
                // An address may lead to something else from here, and the store behind another one may be busy.
                may_be_busy |=
                    matches!(cause, TransportError::PeerGone(_) | TransportError::TimedOut(_));
                failures.push(format!("{place}: {cause}"));
            }
        }
    }
    let failures = failures.join("; ");
    if refused && !may_be_busy && !id.is_fixed() {
        return Err(NoConnection::Refused(Error::InvalidUsage(format!(
            "no store admits rank {rank} ({failures}); all ranks need the unique id of one store"
        ))));
    }
    // One of several addresses may be that of something else, seen from here.
    if vacant.len() == places.len() || vacant.iter().any(IpAddr::is_loopback) {
        return Err(NoConnection::Vacant(failures));
    }
    Err(NoConnection::Unreachable(failures))
}

/// Why one place could not be reached.
enum Unopened {
    /// Nobody listens.
    Vacant(String),
    Failed(TransportError),
}

impl From<TransportError> for Unopened {
    fn from(cause: TransportError) -> Self {
        Self::Failed(cause)
    }
}

fn open(
    id: &UniqueId,
    place: SocketAddr,
    heard: &Heard,
    deadline: Instant,
) -> Result<TcpStream, Unopened> {
    let left = deadline.saturating_duration_since(clock::now());
    if left.is_zero() {
        return Err(TransportError::TimedOut("no time is left".to_owned()).into());
    }
    let stream = match TcpStream::connect_timeout(&place, left.min(ATTEMPT_TIME)) {
        Ok(stream) => stream,
        Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => {
            return Err(Unopened::Vacant(format!("connect: {cause}")));
        }
        Err(cause) => return Err(TransportError::system("connect", cause).into()),
    };
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // A port in the ephemeral range can connect to itself.
        return Err(Unopened::Vacant("connect: the connection leads to itself".to_owned()));
    }
    let twin = stream.try_clone().map_err(|cause| TransportError::system("dup", cause))?;
    let until = deadline.min(clock::now() + PROOF_TIME);
    let given_up = || TransportError::TimedOut("this rank does not wait any more".to_owned());
    heard.knock(twin, || prove(id, &stream, heard.me(), until)).ok_or_else(given_up)??;
    Ok(stream)
}

/// Both ends prove to each other that they know the key.
fn prove(
    id: &UniqueId,
    stream: &TcpStream,
    rank: Rank,
    deadline: Instant,
) -> Result<(), TransportError> {
    let hello = Hello { communicator: id.communicator(), rank: rank.0 };
    let hello = message::encode(&hello).map_err(TransportError::Protocol)?;
    auth::initiate(stream, &id.key(), &hello[message::LENGTH_BYTES..], deadline)
}
