//! Connects one rank with all its peers over all rails.
//!
//! Of two ranks the higher one connects and the lower one accepts, so nobody waits for somebody who
//! waits for him: rank 0 only accepts, and whoever it has accepted goes on to the others. Every
//! connection is authenticated; its hello says which one it is. A thread per peer connects, a thread
//! per accepted connection on which something was said authenticates it, and all of them end with the
//! meeting.
//!
//! A rail may be broken when ranks meet. Once every peer is connected over one rail at least, the meeting ends when nobody
//! has come any more for a while; what is missing then is made later, as after a fault.

mod hello;
mod patience;
mod progress;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use ccl_core::ids::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(super) use self::hello::Hello;
use self::patience::{ATTEMPT_LIMIT, Patience};
pub(super) use self::progress::Met;
use self::progress::Progress;
use super::medium::Medium;
use crate::auth::{self, JobKey};
use crate::verbs::soft::socket::{self, Binding};
use crate::visitors::{self, Visitors};
use crate::{TransportError, clock, descriptors};

/// How long the other end may take to say that it is no stranger.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a peer that has turned to this end may take: its own limit is over before, so what it takes for connected is not
/// given up here.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// Accepted connections that are authenticated at the same time.
const MAX_HANDSHAKES: usize = 64;
/// Connections for which the descriptors that programs have at first, 1024, may not do.
const MANY: usize = 256;
/// How long to wait before a connection is attempted again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long to wait for somebody to connect before looking at the clock.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Once every peer is there, and nobody has come for so long, the rails over which somebody is missing are broken. As long
/// as a peer that is busy may take.
pub(super) const SETTLED: Duration = HANDSHAKE_LIMIT;

/// The connections that a meeting makes; those that replace them have higher numbers.
pub(super) const FIRST_INCARNATION: u32 = 0;

/// The connections with one peer.
#[derive(Clone, Debug)]
pub(super) struct PeerPlan {
    pub(super) rank: Rank,
    /// Whether this end connects.
    pub(super) dials: bool,
    /// How many rails the peer has.
    pub(super) peer_rails: usize,
    /// One for each queue pair.
    pub(super) connections: Vec<Contact>,
}

impl PeerPlan {
    /// The connections on whose way no NIC is broken.
    fn whole(&self) -> impl Iterator<Item = usize> {
        let connections = self.connections.iter().enumerate();
        connections.filter(|(_, contact)| !contact.is_broken).map(|(index, _)| index)
    }
}

/// How a peer is reached over one path.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    /// From where.
    pub(super) binding: Binding,
    /// To where.
    pub(super) address: SocketAddr,
    /// The best one that both ends have.
    pub(super) medium: Medium,
    /// A NIC on the way is broken, so nobody waits for it.
    pub(super) is_broken: bool,
}

/// Which connection of which peer.
type Seat = (Rank, usize);

/// The making of all connections of one rank.
#[derive(Debug)]
pub(super) struct Meeting<'a> {
    me: Rank,
    communicator: u64,
    key: &'a JobKey,
    peers: &'a [PeerPlan],
    deadline: Instant,
    /// How long a peer may take at first to turn to a connection before another rail has its turn.
    hearing: Duration,
    /// For how long nobody may have come until the meeting ends without those who are missing on some rails, if it may.
    settled: Option<Duration>,
    progress: Mutex<Progress>,
    is_over: AtomicBool,
    was_stranger_reported: AtomicBool,
}

/// Who made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Maker {
    Myself,
    Guest,
}

impl<'a> Meeting<'a> {
    pub(super) fn new(
        me: Rank,
        communicator: u64,
        key: &'a JobKey,
        peers: &'a [PeerPlan],
        deadline: Instant,
    ) -> Self {
        Self {
            me,
            communicator,
            key,
            peers,
            deadline,
            hearing: HANDSHAKE_LIMIT,
            settled: Some(SETTLED),
            progress: Mutex::default(),
            is_over: AtomicBool::new(false),
            was_stranger_reported: AtomicBool::new(false),
        }
    }

    /// Does not end before everybody is there on all rails, if all are needed.
    pub(super) fn completely(self, are_needed: bool) -> Self {
        Self { settled: self.settled.filter(|_| !are_needed), ..self }
    }

    /// Returns the connections, one with every peer at least, or says which did not come; nobody is waited for when `is_over`.
    pub(super) fn hold(
        self,
        listeners: &[TcpListener],
        is_over: &dyn Fn() -> bool,
    ) -> Result<Met, TransportError> {
        if self.expected().count() >= MANY {
            descriptors::raise_limit();
        }
        let meeting = &self;
        std::thread::scope(|scope| {
            // The scope waits for all threads, also if this one panics.
            let _end = End(meeting);
            let mut dialled = meeting.peers.iter().filter(|peer| peer.dials);
            let held = dialled
                .try_for_each(|peer| start(scope, move || meeting.dial(peer)))
                .and_then(|()| meeting.receive(listeners, is_over, scope));
            if let Err(failure) = held {
                meeting.progress().failure.get_or_insert(failure);
            }
        });
        self.outcome()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections that can be made, as far as anybody knows.
    fn expected(&self) -> impl Iterator<Item = Seat> {
        self.peers.iter().flat_map(|peer| peer.whole().map(|index| (peer.rank, index)))
    }

    fn is_complete(&self) -> bool {
        let progress = self.progress();
        let is_all = self.expected().all(|seat| progress.seated.contains_key(&seat));
        progress.failure.is_some() || is_all || self.is_settled(&progress)
    }

    /// Whether it goes without those who are missing.
    fn is_settled(&self, progress: &Progress) -> bool {
        let Some((settled, latest)) = self.settled.zip(progress.latest) else { return false };
        clock::now() >= latest + settled && self.peers.iter().all(|peer| progress.has(peer.rank))
    }

    /// Connects to a peer over every rail, one after the other. A rail over which that fails has its next
    /// turn after the others; what the peer refuses is refused over all of them.
    fn dial(&self, peer: &PeerPlan) {
        let turn = self.first_turn(peer);
        let patience = Patience { attempt: turn.unwrap_or(ATTEMPT_LIMIT), hearing: self.hearing };
        let mut left: VecDeque<_> = peer.whole().map(|index| (index, patience, turn)).collect();
        while !self.is_over.load(Ordering::Acquire)
            && clock::now() < self.deadline
            && let Some((index, patience, turn)) = left.pop_front()
        {
            let seat = (peer.rank, index);
            let turn = turn.filter(|_| self.progress().has(peer.rank));
            match self.introduce(seat, &peer.connections[index], patience.within(turn)) {
                Ok(stream) => self.progress().seat(seat, stream),
                Err(reason) => {
                    self.note(seat, &reason);
                    left.push_back((index, patience.after(&reason), None));
                    clock::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    /// How long the first attempt to connect over each rail to a peer may take, and the peer to turn to it once it is connected
    /// over another, if the meeting may end without some of them: all have been tried before.
    fn first_turn(&self, peer: &PeerPlan) -> Option<Duration> {
        let rails = u32::try_from(peer.connections.len()).unwrap_or(u32::MAX).max(1);
        Some((self.settled? * 3 / 4 / rails).saturating_sub(RETRY_PAUSE).min(ATTEMPT_LIMIT))
    }

    /// Keeps the reason why a connection is not there, and ends the meeting if it is a refusal.
    fn note(&self, (rank, index): Seat, reason: &TransportError) {
        let mut progress = self.progress();
        // What fails once the meeting is over fails because it is over.
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        progress.reasons.entry((rank, index)).or_insert_with(|| reason.to_string());
        // A peer that is there has the key: it does not wait for this rail any more.
        if matches!(reason, TransportError::Refused(_)) && !progress.has(rank) {
            let text = format!("rank {rank} rail {index}: {reason}");
            progress.failure.get_or_insert(TransportError::Refused(text));
        }
    }

    fn introduce(
        &self,
        (rank, index): Seat,
        Contact { binding, address, medium, .. }: &Contact,
        Patience { attempt, hearing }: Patience,
    ) -> Result<TcpStream, TransportError> {
        let now = clock::now();
        let left = self.deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(TransportError::TimedOut(format!("connect to {address}")));
        }
        let stream = socket::dial(binding, *address, left.min(attempt))?;
        let hello = Hello {
            communicator: self.communicator,
            from: self.me,
            to: rank,
            index: u32::try_from(index).expect("there are few rails"),
            incarnation: FIRST_INCARNATION,
            medium: *medium,
        };
        let _handshake = Handshake::begin(self, &stream, Maker::Myself).map_err(|cause| {
            descriptors::relieve(&cause);
            TransportError::system("duplicate a connection", cause)
        })?;
        let heard_by = now + hearing.min(left);
        auth::initiate_if_heard(&stream, self.key, &hello.encode(), heard_by, ANSWER_LIMIT)?;
        Ok(stream)
    }

    /// Accepts until everybody is there, including those this rank connects to.
    fn receive<'scope>(
        &'scope self,
        listeners: &[TcpListener],
        is_over: &dyn Fn() -> bool,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<(), TransportError> {
        let dialling = self.peers.iter().filter(|peer| !peer.dials);
        let guests: usize = dialling.map(|peer| peer.connections.len()).sum();
        let mut visitors = Visitors::new(guests + visitors::FEW, HANDSHAKE_LIMIT);
        while !self.is_complete() && clock::now() < self.deadline {
            if is_over() {
                return Err(TransportError::PeerGone("ranks do not meet any more".into()));
            }
            let room = MAX_HANDSHAKES.saturating_sub(self.guests());
            if room == 0 {
                clock::sleep(RETRY_PAUSE);
                continue;
            }
            await_guests(listeners, &visitors);
            let now = clock::now();
            for (rail, listener) in listeners.iter().enumerate() {
                if !visitors.has_room() {
                    break;
                }
                match listener.accept() {
                    Ok((stream, from)) => {
                        self.progress().closed = None;
                        visitors.add(stream, (from, rail), now);
                    }
                    Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
                    Err(cause)
                        if descriptors::are_short(&cause)
                            && !descriptors::is_anybody_at(listener) => {}
                    Err(cause) => self.close(&cause),
                }
            }
            let spoken = std::iter::from_fn(|| visitors.next_speaker(now));
            for (stream, (from, rail)) in spoken.take(room) {
                // The guest comes again: nobody has refused it.
                let handshake = match Handshake::begin(self, &stream, Maker::Guest) {
                    Ok(handshake) => handshake,
                    Err(cause) => {
                        self.close(&cause);
                        continue;
                    }
                };
                let rails = listeners.len();
                start(scope, move || {
                    let _handshake = handshake;
                    self.welcome(stream, from, (rail, rails));
                })?;
            }
        }
        Ok(())
    }

    /// Accepts nobody for a while, unless there may be more descriptors. Who waits at the door would wake this thread at once.
    fn close(&self, cause: &std::io::Error) {
        if descriptors::relieve(cause) {
            return;
        }
        let remedy = if descriptors::are_short(cause) { "; raise `ulimit -n`" } else { "" };
        let reason = format!("rank {} cannot accept it: {cause}{remedy}", self.me);
        self.progress().closed = Some(reason);
        clock::sleep(RETRY_PAUSE);
    }

    /// How many of those who have connected are being authenticated.
    fn guests(&self) -> usize {
        let progress = self.progress();
        progress.handshakes.keys().filter(|(maker, _)| *maker == Maker::Guest).count()
    }

    /// Authenticates whoever has connected to one of the rails.
    fn welcome(&self, stream: TcpStream, from: SocketAddr, rail: (usize, usize)) {
        match self.examine(&stream, rail) {
            Ok(seat) => self.progress().seat(seat, stream),
            Err(reason) => self.refuse(from, &reason),
        }
    }

    fn examine(
        &self,
        stream: &TcpStream,
        (rail, rails): (usize, usize),
    ) -> Result<Seat, TransportError> {
        let deadline = self.deadline.min(clock::now() + HANDSHAKE_LIMIT);
        let hello = auth::accept(stream, self.key, deadline)?;
        let hello = Hello::decode(&hello);
        let seat = hello.as_ref().and_then(|hello| self.seat(hello));
        let (seat, hello) = seat
            .filter(|(_, index)| index % rails == rail)
            .zip(hello)
            .ok_or_else(|| TransportError::Refused("it belongs to another communicator".into()))?;
        if hello.incarnation != FIRST_INCARNATION {
            // It has begun without this rail, and comes again when this rank has begun, too.
            return Err(TransportError::PeerGone("it does not meet any more".into()));
        }
        Ok(seat)
    }

    /// The connection that a peer means, or means to replace.
    fn seat(&self, hello: &Hello) -> Option<Seat> {
        let index = usize::try_from(hello.index).ok()?;
        let peer = self.peers.iter().find(|peer| peer.rank == hello.from && !peer.dials)?;
        let is_ours = hello.communicator == self.communicator && hello.to == self.me;
        let contact = peer.connections.get(index)?;
        // Verbs that could not be used are replaced by TCP.
        let is_first = hello.incarnation == FIRST_INCARNATION;
        let is_possible = is_ours && (!is_first || hello.medium == contact.medium);
        is_possible.then_some((hello.from, index))
    }

    /// Logs the first stranger, and leaves the rest: a port scan must not fill the log. Who has gone meanwhile may be a peer
    /// that tries again.
    fn refuse(&self, from: SocketAddr, reason: &TransportError) {
        if matches!(reason, TransportError::PeerGone(_)) {
            tracing::debug!(%from, %reason, rank = self.me.0, "a guest did not wait");
            return;
        }
        let is_over = self.is_over.load(Ordering::Acquire);
        if !is_over && !self.was_stranger_reported.swap(true, Ordering::AcqRel) {
            tracing::warn!(%from, %reason, rank = self.me.0, "refused a connection");
        }
    }

    fn end(&self) {
        let progress = self.progress();
        self.is_over.store(true, Ordering::Release);
        for stream in progress.handshakes.values() {
            // It fails only if the peer has closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn outcome(self) -> Result<Met, TransportError> {
        let progress = self.progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = progress.failure {
            return Err(failure);
        }
        let are_there = self.peers.iter().all(|peer| progress.has(peer.rank));
        if are_there && self.settled.is_some() {
            return Ok(Met { streams: progress.seated, reasons: progress.reasons });
        }
        let mut missing = Vec::new();
        for peer in self.peers {
            let seats = peer.whole().map(|index| (peer.rank, index));
            let absent: Vec<Seat> =
                seats.filter(|seat| !progress.seated.contains_key(seat)).collect();
            if let Some(first) = absent.first() {
                let rails: Vec<usize> = absent.iter().map(|seat| seat.1).collect();
                let reason = progress.reasons.get(first).or(progress.closed.as_ref());
                let reason = reason.map_or("it did not come", String::as_str);
                missing.push(format!("rank {} rails {rails:?} ({reason})", peer.rank));
            }
        }
        if missing.is_empty() {
            return Ok(Met { streams: progress.seated, reasons: progress.reasons });
        }
        Err(TransportError::TimedOut(format!("no connection with {}", missing.join(", "))))
    }
}

/// Waits a little for somebody to connect, or to speak.
fn await_guests(listeners: &[TcpListener], visitors: &Visitors<(SocketAddr, usize)>) {
    let listeners = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
    let mut polled: Vec<_> = listeners.chain(visitors.polled()).collect();
    // Interrupted or not, whoever is there is attended to.
    let _ = poll(&mut polled, Some(&ACCEPT_PAUSE));
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), TransportError> {
    let thread = Builder::new().name("r2ccl-meeting".into()).spawn_scoped(scope, work);
    thread.map(drop).map_err(|cause| TransportError::system("start a thread to meet peers", cause))
}

/// Ends the meeting when it is dropped.
struct End<'a>(&'a Meeting<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A connection that is being authenticated: known to the meeting, which ends it when it is over.
struct Handshake<'a> {
    meeting: &'a Meeting<'a>,
    number: (Maker, u64),
}

impl<'a> Handshake<'a> {
    fn begin(meeting: &'a Meeting<'a>, stream: &TcpStream, maker: Maker) -> std::io::Result<Self> {
        let clone = stream.try_clone()?;
        let mut progress = meeting.progress();
        if meeting.is_over.load(Ordering::Acquire) {
            return Err(std::io::Error::other("the meeting is over"));
        }
        let number = (maker, progress.next_handshake);
        progress.next_handshake += 1;
        progress.handshakes.insert(number, clone);
        drop(progress);
        Ok(Self { meeting, number })
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.meeting.progress().handshakes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
