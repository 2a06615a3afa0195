//! The thread of the store: it moves frames between sockets and the [`Group`].
//!
//! One thread serves all ranks with poll(2) and never waits for any of them: what a rank does not read is
//! queued, up to a limit. Only the proof of the key, which goes back and forth, has a short-lived thread
//! for each newcomer, so that strangers who say nothing delay nobody.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use ccl_core::Error;
use ccl_transport::auth::{self, JobKey};
use ccl_transport::clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::group::{Group, Output, Peer};
use super::message::{
    self, Hello, LENGTH_BYTES, MAX_PUSH_BYTES, MAX_REQUEST_BYTES, Numbered, Process,
};
use crate::hosts::{HostIdentity, host_name};

/// How long a newcomer may take to prove that it knows the key.
const PROOF_TIME: Duration = Duration::from_secs(30);
/// Newcomers that prove it at the same time; the others wait in the kernel's queue.
const MAX_NEWCOMERS: usize = 256;
/// How long a store whose group failed tells so to ranks that come late.
const LINGER: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Pause after the kernel had no descriptor for a newcomer.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Most bytes queued for a rank that does not read.
const MAX_QUEUED_BYTES: usize = 2 * MAX_PUSH_BYTES;
/// Bytes read from one rank before the others get their turn.
const READ_BYTES: usize = 256 << 10;

/// Who is let in.
pub(super) struct Admission {
    pub(super) key: JobKey,
    pub(super) communicator: u64,
    /// Whether the port is given back once the group is complete or has failed.
    pub(super) until_settled: bool,
}

/// This process, as the members see it.
pub(super) fn this_process() -> Process {
    Process {
        pid: std::process::id(),
        host: host_name(),
        identity: HostIdentity::observed().as_str().to_owned(),
    }
}

/// Starts the store behind `listener`. `settled` runs in its thread once the group is complete or has
/// failed, before any rank is told.
pub(super) fn start(
    listener: TcpListener,
    admission: Admission,
    settled: Box<dyn FnOnce() + Send>,
) -> Result<(), Error> {
    listener.set_nonblocking(true).map_err(|cause| Error::system("set O_NONBLOCK", cause))?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|cause| Error::system("eventfd", cause))?;
    let (sender, newcomers) = channel();
    let server = Server {
        listener: Some(listener),
        admission: Arc::new(admission),
        settled: Some(settled),
        wake: Arc::new(wake),
        sender,
        newcomers,
        proving: 0,
        refused: 0,
        next_peer: 0,
        connections: BTreeMap::new(),
        group: Group::new(this_process()),
    };
    thread::Builder::new()
        .name("r2ccl-store".to_owned())
        .spawn(move || server.run())
        .map_err(|cause| Error::system("start the thread of the store", cause))?;
    Ok(())
}

/// A connection whose other end proved the key, or why it did not.
type Newcomer = Result<(TcpStream, Hello), String>;

struct Server {
    listener: Option<TcpListener>,
    admission: Arc<Admission>,
    settled: Option<Box<dyn FnOnce() + Send>>,
    wake: Arc<OwnedFd>,
    sender: Sender<Newcomer>,
    newcomers: Receiver<Newcomer>,
    proving: usize,
    refused: u64,
    next_peer: u64,
    connections: BTreeMap<Peer, Connection>,
    group: Group,
}

/// What poll(2) said.
struct Ready {
    wake: bool,
    listener: bool,
    connections: Vec<(Peer, PollFlags)>,
}

impl Server {
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
            if ready.wake {
                self.take_newcomers();
            }
            if ready.listener {
                self.accept();
            }
            for (peer, flags) in ready.connections {
                self.serve(peer, flags);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.group.is_formed() && self.connections.is_empty()
    }

    /// Sleeps until there is something to do; `None` if nothing will come any more.
    fn wait(&self) -> rustix::io::Result<Option<Ready>> {
        let listener = self.listener.as_ref().filter(|_| self.proving < MAX_NEWCOMERS);
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let first = fds.len();
        fds.extend(
            self.connections
                .values()
                .map(|connection| PollFd::new(&connection.stream, connection.interest())),
        );
        let lingers = !self.group.is_gathering() && self.connections.is_empty();
        loop {
            match poll(&mut fds, lingers.then_some(&LINGER)) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause),
            }
        }
        let flags = fds[first..].iter().map(PollFd::revents);
        Ok(Some(Ready {
            wake: !fds[0].revents().is_empty(),
            listener: first == 2 && !fds[1].revents().is_empty(),
            connections: self.connections.keys().copied().zip(flags).collect(),
        }))
    }

    fn accept(&mut self) {
        while self.proving < MAX_NEWCOMERS {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((stream, _)) => self.prove(stream),
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => {
                    tracing::warn!(%cause, "the store cannot accept a connection");
                    return clock::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Lets a newcomer prove the key, in a thread of its own.
    fn prove(&mut self, stream: TcpStream) {
        let (admission, sender, wake) =
            (Arc::clone(&self.admission), self.sender.clone(), Arc::clone(&self.wake));
        let proof = move || {
            // The store may have ended meanwhile; then nobody waits for the newcomer.
            let _ = sender.send(admit(stream, &admission));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        match thread::Builder::new().name("r2ccl-accept".to_owned()).spawn(proof) {
            Ok(_) => self.proving += 1,
            Err(cause) => tracing::warn!(%cause, "the store cannot start a thread for a newcomer"),
        }
    }

    fn take_newcomers(&mut self) {
        let mut count = [0; 8];
        // Nothing to read means that an earlier turn took the count; the queue says what there is.
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(newcomer) = self.newcomers.try_recv() {
            self.proving -= 1;
            match newcomer {
                Ok((stream, hello)) => {
                    let peer = Peer(self.next_peer);
                    self.next_peer += 1;
                    self.connections.insert(peer, Connection::new(stream, hello.rank));
                }
                Err(reason) => self.log_refusal(&reason),
            }
        }
    }

    /// A port scanner must not fill the log.
    fn log_refusal(&mut self, reason: &str) {
        self.refused += 1;
        if self.refused == 1 {
            tracing::warn!(
                reason,
                "the store refused a connection; further ones are logged as debug"
            );
        } else {
            tracing::debug!(reason, count = self.refused, "the store refused a connection");
        }
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
        let rank = connection.rank;
        let ended = connection.read().err();
        let mut out = Vec::new();
        let breach = loop {
            match connection.next_request() {
                Ok(None) => break None,
                Ok(Some(numbered)) => {
                    if let Err(reason) = self.group.handle(peer, rank, numbered, &mut out) {
                        break Some(reason);
                    }
                }
                Err(reason) => break Some(reason),
            }
        };
        self.send(out);
        if let Some(reason) = breach {
            tracing::warn!(rank, reason, "a rank broke the protocol of the store");
            self.drop_connection(peer, &format!("it broke the protocol of the store: {reason}"));
        } else if let Some(reason) = ended {
            self.drop_connection(peer, &reason);
        }
    }

    fn drop_connection(&mut self, peer: Peer, reason: &str) {
        let Some(connection) = self.connections.remove(&peer) else { return };
        let mut out = Vec::new();
        self.group.gone(peer, connection.rank, reason, &mut out);
        self.send(out);
    }

    fn send(&mut self, outputs: Vec<Output>) {
        self.settle();
        for Output { to, push } in outputs {
            let frame = match message::encode(&push) {
                Ok(frame) => Arc::<[u8]>::from(frame),
                Err(cause) => {
                    tracing::error!(cause, "the store cannot encode a message");
                    continue;
                }
            };
            for peer in to {
                if let Some(connection) = self.connections.get_mut(&peer) {
                    connection.enqueue(&frame);
                }
                self.flush(peer);
            }
        }
    }

    fn settle(&mut self) {
        if self.group.is_gathering() {
            return;
        }
        if let Some(settled) = self.settled.take() {
            settled();
            if self.admission.until_settled {
                self.listener = None;
            }
        }
    }

    fn flush(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if let Err(reason) = connection.flush() {
            self.drop_connection(peer, &reason);
        }
    }
}

/// Makes a newcomer prove the key and say who it is.
fn admit(stream: TcpStream, admission: &Admission) -> Newcomer {
    let address = stream.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
    let name = |reason: String| format!("{address}: {reason}");
    let hello = auth::accept(&stream, &admission.key, clock::now() + PROOF_TIME)
        .map_err(|cause| name(cause.to_string()))?;
    let hello: Hello = message::decode(&hello).map_err(name)?;
    if hello.communicator != admission.communicator {
        return Err(name(format!("it belongs to communicator {:016x}", hello.communicator)));
    }
    stream.set_nonblocking(true).map_err(|cause| name(cause.to_string()))?;
    Ok((stream, hello))
}

/// An authenticated connection with what was not yet understood and not yet sent.
struct Connection {
    stream: TcpStream,
    rank: u32,
    received: Vec<u8>,
    queue: VecDeque<Arc<[u8]>>,
    queued_bytes: usize,
    /// How much of the first frame of the queue is sent.
    sent_bytes: usize,
}

impl Connection {
    fn new(stream: TcpStream, rank: u32) -> Self {
        Self {
            stream,
            rank,
            received: Vec::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            sent_bytes: 0,
        }
    }

    fn interest(&self) -> PollFlags {
        if self.queue.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Takes what has arrived, up to a turn's worth. The error says how the connection ended.
    fn read(&mut self) -> Result<(), String> {
        let mut turn = (&self.stream).take(READ_BYTES as u64);
        match turn.read_to_end(&mut self.received) {
            Ok(READ_BYTES) => Ok(()),
            Ok(_) => Err("its process ended, or closed the connection without leaving".to_owned()),
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(cause) if cause.kind() == ErrorKind::Interrupted => Ok(()),
            Err(cause) => Err(format!("its control connection broke: {cause}")),
        }
    }

    /// The next complete request. The error is a breach of the protocol.
    fn next_request(&mut self) -> Result<Option<Numbered>, String> {
        let Some((header, rest)) = self.received.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = message::body_bytes(*header, MAX_REQUEST_BYTES)?;
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let request = message::decode(body)?;
        self.received.drain(..LENGTH_BYTES + bytes);
        Ok(Some(request))
    }

    fn enqueue(&mut self, frame: &Arc<[u8]>) {
        self.queued_bytes += frame.len();
        self.queue.push_back(Arc::clone(frame));
    }

    /// Sends what the socket takes. The error says how the connection ended.
    fn flush(&mut self) -> Result<(), String> {
        while let Some(frame) = self.queue.front() {
            match (&self.stream).write(&frame[self.sent_bytes..]) {
                Ok(count) => self.sent_bytes += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                Err(cause) => return Err(format!("its control connection broke: {cause}")),
            }
            if self.sent_bytes == frame.len() {
                self.queued_bytes -= frame.len();
                self.sent_bytes = 0;
                self.queue.pop_front();
            }
        }
        if self.queued_bytes > MAX_QUEUED_BYTES {
            return Err(format!("it left more than {MAX_QUEUED_BYTES} bytes unread"));
        }
        Ok(())
    }
}
