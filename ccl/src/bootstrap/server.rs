//! The thread of the store: it moves frames between sockets and the [`Group`].
//!
//! One thread serves all ranks with poll(2) and never waits for any of them: what a rank does not read is
//! queued, up to a limit. Who is no rank yet is left to the [`Newcomers`].
//!
//! A rank speaks over one connection at a time and may replace it. A connection that the rank's kernel
//! closes is the end of the rank; one that the network breaks is not, before [`PATIENCE`] is over.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_transport::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use super::group::{Founder, Group, Output, Peer};
use super::message::{self, Envelope, MAX_PUSH_BYTES, MAX_REQUEST_BYTES, Process, Push, Session};
use super::newcomers::{Admission, Newcomers};
use super::session::Ended;
use crate::hosts::{HostIdentity, host_name};

/// How long a store whose group failed tells so to ranks that come late.
const LINGER: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// How long a process waits for its store to notice that it is given up.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most bytes kept for a rank that does not confirm them.
const MAX_QUEUED_BYTES: usize = 2 * MAX_PUSH_BYTES;
/// How often the store shows that it lives.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// How long the network may keep a rank and the store apart before each counts as lost to the other.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Where ranks come in.
pub(super) struct Doors {
    pub(super) listener: TcpListener,
    /// Takes the place of `listener`, whose port is given back, once the group is complete or has failed.
    pub(super) returns: Option<TcpListener>,
    /// How ranks reach the door that stays.
    pub(super) places: Vec<SocketAddr>,
}

/// This process, as the members see it.
pub(super) fn this_process() -> Process {
    Process {
        pid: std::process::id(),
        host: host_name(),
        identity: HostIdentity::observed().as_str().to_owned(),
    }
}

/// Starts the store behind `doors`, in the process of its `founder`. `settled` runs in its thread once the group is
/// complete or has failed, before any rank is told.
pub(super) fn start(
    doors: Doors,
    admission: Admission,
    founder: Founder,
    settled: Box<dyn FnOnce() + Send>,
) -> Result<Tie, Error> {
    let mut server = Server::new(doors, admission, founder, settled)?;
    let (gathering, is_settled) = channel();
    server.gathering = Some(gathering);
    let tie = Tie {
        is_abandoned: Arc::clone(&server.is_abandoned),
        wake: Arc::clone(server.newcomers.wake()),
        is_settled,
    };
    thread::Builder::new()
        .name("r2ccl-store".to_owned())
        .spawn(move || server.run())
        .map_err(|cause| Error::system("start the thread of the store", cause))?;
    Ok(tie)
}

/// What a process keeps of a store that it has started.
#[derive(Debug)]
pub(super) struct Tie {
    is_abandoned: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    /// Closed once the group is complete or has failed.
    is_settled: Receiver<()>,
}

impl Tie {
    /// Whether ranks can still join.
    pub(super) fn is_gathering(&self) -> bool {
        self.is_settled.try_recv() == Err(TryRecvError::Empty)
    }

    /// The founder will not join, if it has not. When this returns the port that was given to the store is free.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        // It fails only when the counter is full, and then the store is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        // The store may have ended. Otherwise it is busy; then the port is free later.
        let _ = self.is_settled.recv_timeout(FAREWELL);
    }
}

struct Server {
    listener: TcpListener,
    returns: Option<TcpListener>,
    newcomers: Newcomers,
    settled: Option<Box<dyn FnOnce() + Send>>,
    /// Dropped once the group is complete or has failed.
    gathering: Option<Sender<()>>,
    is_abandoned: Arc<AtomicBool>,
    next_peer: u64,
    connections: BTreeMap<Peer, Connection>,
    group: Group,
    beat_at: Instant,
    /// What it tells only some of, before it ends as if its process were killed.
    #[cfg(test)]
    end: Option<tests::End>,
}

/// What poll(2) said.
struct Ready {
    newcomers: bool,
    connections: Vec<(Peer, PollFlags)>,
}

impl Server {
    fn new(
        doors: Doors,
        admission: Admission,
        founder: Founder,
        settled: Box<dyn FnOnce() + Send>,
    ) -> Result<Self, Error> {
        let Doors { listener, returns, places } = doors;
        for door in [Some(&listener), returns.as_ref()].into_iter().flatten() {
            door.set_nonblocking(true).map_err(|cause| Error::system("set O_NONBLOCK", cause))?;
        }
        Ok(Self {
            listener,
            returns,
            newcomers: Newcomers::new(admission)?,
            settled: Some(settled),
            gathering: None,
            is_abandoned: Arc::default(),
            next_peer: 0,
            connections: BTreeMap::new(),
            group: Group::new(this_process(), founder, places),
            beat_at: clock::now() + BEAT,
            #[cfg(test)]
            end: tests::End::of_next_stores(),
        })
    }

    fn run(mut self) {
        while !self.is_over() {
            let ready = match self.wait() {
                Ok(Some(ready)) => ready,
                Ok(None) => return,
                Err(cause) => {
                    tracing::error!(%cause, "the store cannot wait for its ranks and ends");
                    return;
                }
            };
            if ready.newcomers {
                self.receive(clock::now());
            }
            for (peer, flags) in ready.connections {
                self.serve(peer, flags);
            }
            let now = clock::now();
            if now >= self.beat_at {
                self.beat_at = now + BEAT;
                // Nothing tells that a stranger has been silent for too long.
                self.receive(now);
                self.beat(now);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.group.is_formed() && self.connections.is_empty()
    }

    /// Sleeps until there is something to do; `None` if nothing will come any more.
    fn wait(&self) -> rustix::io::Result<Option<Ready>> {
        let mut fds = self.newcomers.polled(&self.listener, clock::now());
        let first = fds.len();
        let mut peers = Vec::with_capacity(self.connections.len());
        for (peer, connection) in &self.connections {
            if let Some(stream) = &connection.stream {
                peers.push(*peer);
                fds.push(PollFd::new(stream, connection.interest()));
            }
        }
        let idle = self.connections.is_empty();
        let lingers = idle && !self.group.is_gathering();
        let pause_ends = self.newcomers.pause_ends();
        let alarm = [(!idle).then_some(self.beat_at), pause_ends].into_iter().flatten().min();
        loop {
            let until = |at: Instant| timespec(at.saturating_duration_since(clock::now()));
            let limit = alarm.map(until).or(lingers.then_some(LINGER));
            match poll(&mut fds, limit.as_ref()) {
                Ok(0) if alarm.is_none() => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause),
            }
        }
        let has_come = fds[..first].iter().any(|fd| !fd.revents().is_empty());
        let flags = fds[first..].iter().map(PollFd::revents);
        Ok(Some(Ready {
            newcomers: has_come || pause_ends.is_some(),
            connections: peers.into_iter().zip(flags).collect(),
        }))
    }

    /// Takes who has proved the key. A group that cannot become complete fails.
    fn receive(&mut self, now: Instant) {
        for (stream, hello) in self.newcomers.receive(&self.listener, now) {
            let peer = Peer(self.next_peer);
            self.next_peer += 1;
            self.connections.insert(peer, Connection::new(stream, hello.rank));
        }
        let mut out = Vec::new();
        if let Some(cause) = self.newcomers.shortage(now) {
            self.group.starve(cause, &mut out);
        }
        if self.is_abandoned.swap(false, Ordering::AcqRel) {
            self.group.abandon(&mut out);
        }
        self.send(out);
    }

    fn serve(&mut self, peer: Peer, flags: PollFlags) {
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read(peer);
        }
        if flags.contains(PollFlags::OUT) {
            self.flush(peer);
        }
    }

    fn read(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let read = connection.read();
        self.hear(peer);
        match read {
            Ok(_) => self.flush(peer),
            Err(ended) => self.end(peer, ended),
        }
    }

    /// Takes what has been read.
    fn hear(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get(&peer) else { return };
        let rank = connection.rank;
        let mut out = Vec::new();
        let breach = loop {
            let Some(connection) = self.connections.get_mut(&peer) else { break None };
            let taken = match connection.inbox.next(MAX_REQUEST_BYTES) {
                Ok(None) => break None,
                Ok(Some(Envelope::Resume { session, attempt, received }))
                    if connection.session.is_none() =>
                {
                    self.send(std::mem::take(&mut out));
                    return self.return_to(peer, session, attempt, received);
                }
                Ok(Some(Envelope::Message(numbered))) if connection.session.is_some() => {
                    self.group.handle(peer, rank, numbered, &mut out)
                }
                Ok(Some(envelope)) => connection.take(envelope),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = taken {
                break Some(reason);
            }
        };
        self.send(out);
        if let Some(reason) = breach {
            tracing::warn!(rank, reason, "a rank broke the protocol of the store");
            self.drop_connection(peer, &format!("it broke the protocol of the store: {reason}"));
        }
    }

    /// A rank goes on with its session over the connection of `newcomer`, unless it has given that up for
    /// a later one which was faster.
    fn return_to(&mut self, newcomer: Peer, session: Session, attempt: u64, received: u64) {
        let Some(mut connection) = self.connections.remove(&newcomer) else { return };
        let known = self
            .connections
            .iter_mut()
            .find(|(_, other)| other.rank == connection.rank && other.session == Some(session));
        if known.as_ref().is_some_and(|(_, other)| attempt <= other.attempt) {
            return;
        }
        let resumed = known.map(|(peer, other)| {
            let resumed = other.outbox.resume(received);
            (*peer, other, resumed)
        });
        match resumed {
            Some((peer, other, Ok(()))) => {
                tracing::info!(rank = other.rank, "a rank returned over another connection");
                other.attempt = attempt;
                other.stream = connection.stream.take();
                other.parted_at = None;
                other.inbox.resume(std::mem::take(&mut connection.inbox));
                other.outbox.sign::<Push>(&Envelope::Resumed { received: other.inbox.received() });
                self.read(peer);
            }
            Some((_, _, Err(_))) | None => {
                connection.outbox.sign::<Push>(&Envelope::Unknown);
                // It learns the same from the end of the connection.
                let _ = connection.flush();
            }
        }
    }

    /// Takes what the rank said last before the connection ended: it may say why.
    fn hear_out(&mut self, peer: Peer) {
        let mut has_more = true;
        while has_more && let Some(connection) = self.connections.get_mut(&peer) {
            has_more = matches!(connection.read(), Ok(true));
            self.hear(peer);
        }
    }

    /// A connection ended: with its rank, or without.
    fn end(&mut self, peer: Peer, ended: Ended) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        match ended {
            Ended::Closed => {
                let reason = "its process ended, or closed the connection without leaving";
                self.drop_connection(peer, reason);
            }
            Ended::Broken(cause) if connection.session.is_none() => {
                self.drop_connection(peer, &cause);
            }
            Ended::Broken(cause) => {
                tracing::warn!(rank = connection.rank, cause, "a control connection broke");
                connection.stream = None;
                connection.parted_at = Some(clock::now());
            }
        }
    }

    fn drop_connection(&mut self, peer: Peer, reason: &str) {
        let Some(connection) = self.connections.remove(&peer) else { return };
        let mut out = Vec::new();
        self.group.gone(peer, connection.rank, reason, &mut out);
        self.send(out);
    }

    /// Shows all ranks that the store lives, and gives up those that have been away for too long.
    fn beat(&mut self, now: Instant) {
        let peers: Vec<Peer> = self.connections.keys().copied().collect();
        for peer in peers {
            let Some(connection) = self.connections.get_mut(&peer) else { continue };
            let away = connection.parted_at.map(|since| now.saturating_duration_since(since));
            if away.is_some_and(|away| away > PATIENCE) {
                let seconds = PATIENCE.as_secs();
                self.drop_connection(peer, &format!("the network lost it for {seconds} s"));
            } else {
                connection.confirm();
                self.flush(peer);
            }
        }
    }

    fn send(&mut self, outputs: Vec<Output>) {
        self.settle();
        for Output { to, push } in outputs {
            #[cfg(test)]
            let Some(to) = self.survived(to, &push) else { return };
            let frame = match message::encode(&Envelope::Message(push)) {
                Ok(frame) => Arc::<[u8]>::from(frame),
                Err(cause) => {
                    tracing::error!(cause, "the store cannot encode a message");
                    continue;
                }
            };
            for peer in to {
                if let Some(connection) = self.connections.get_mut(&peer) {
                    connection.outbox.push(Arc::clone(&frame));
                }
                self.flush(peer);
            }
        }
    }

    fn settle(&mut self) {
        // Who has not been here does not find a store that has moved.
        let moves = self.returns.is_some();
        if self.group.is_gathering() || moves && !self.group.is_settled() {
            return;
        }
        if let Some(settled) = self.settled.take() {
            settled();
            if let Some(returns) = self.returns.take() {
                self.listener = returns;
            }
            self.gathering = None;
        }
    }

    fn flush(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if let Err(ended) = connection.flush() {
            self.hear_out(peer);
            self.end(peer, ended);
        } else if connection.outbox.kept_bytes() > MAX_QUEUED_BYTES {
            let reason = format!("it left more than {MAX_QUEUED_BYTES} bytes unread");
            self.drop_connection(peer, &reason);
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(LINGER)
}

#[cfg(test)]
pub(crate) mod tests;
