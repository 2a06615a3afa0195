//! The thread of a communicator that speaks with the store.
//!
//! It sleeps in poll(2). When nothing has been heard for a while it looks for the store at its other
//! addresses, in a thread of its own that may wait for them, and goes on with the session there; the
//! old connection stays open until that has worked, because its end would look like the end of this
//! rank. The store is gone if its kernel says so, or if for long enough it has not gone on: no address leads anywhere, or
//! no connection on which it was asked to go on is answered.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::connect::{Return, return_to};
use super::heard::{Heard, lock};
use super::message::{Envelope, MAX_PUSH_BYTES, Numbered, Push, Session};
use super::server::{BEAT, PATIENCE};
use super::session::{Ended, Inbox, Outbox};
use super::unique_id::{UniqueId, random};

/// Silence after which another connection is looked for: three missing signs of life.
pub(super) const SILENCE: Duration = Duration::from_secs(3);
/// The same, after a path between hosts was lost and the store was asked for a sign of life. To look for it
/// in vain costs little: the connection in use stays until another works.
const DOUBTFUL_SILENCE: Duration = Duration::from_millis(50);
/// Longest pause between two searches for the store.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// How long what was said last may take to go out when the communicator ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the other threads of the process leave for the watcher.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) outbox: Mutex<Outbox>,
    wake: OwnedFd,
    /// A NIC has failed, here or elsewhere, so that the connection may be dead.
    doubt: AtomicBool,
    closing: AtomicBool,
    /// The watcher has ended, and with it the connection.
    closed: AtomicBool,
}

impl Post {
    pub(super) fn new() -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|cause| Error::system("eventfd", cause))?;
        Ok(Self {
            outbox: Mutex::default(),
            wake,
            doubt: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Makes the watcher look at what was left for it.
    pub(super) fn wake(&self) {
        // It fails only when the counter is full, and then the watcher is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn doubt(&self) {
        self.doubt.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// The connection that is in use, if any.
#[derive(Debug)]
enum Line {
    /// None works; another one is looked for.
    None,
    Open(TcpStream),
    /// The store was asked to go on here.
    Resuming(TcpStream),
}

/// What the thread owns.
#[derive(Debug)]
pub(super) struct Watcher {
    id: UniqueId,
    rank: Rank,
    session: Session,
    post: Arc<Post>,
    heard: Arc<Heard>,
    line: Line,
    /// The connections before, unread: they stay open until the store has gone on with the one in use. It
    /// may have done so with any of them, and only its answer was lost.
    before: Vec<TcpStream>,
    /// How often the store was asked to go on elsewhere.
    attempts: u64,
    inbox: Inbox,
    /// Where the connection leads, and all places where it has led.
    place: SocketAddr,
    met: Vec<SocketAddr>,
    /// When silence has lasted too long.
    silent_at: Instant,
    beat_at: Instant,
    search: Option<Receiver<Return>>,
    search_at: Instant,
    pause: Duration,
    /// Since when it has not gone on: no address led to it then, but it may have let this rank in later.
    away_since: Option<Instant>,
    /// Since when it has let this rank in whenever it was looked for, and not gone on.
    let_in_since: Option<Instant>,
}

impl Watcher {
    /// A watcher of a new session over `stream`.
    pub(super) fn new(
        id: &UniqueId,
        rank: Rank,
        stream: TcpStream,
        post: &Arc<Post>,
        heard: &Arc<Heard>,
    ) -> Result<Self, Error> {
        let place = stream.peer_addr().map_err(|cause| Error::system("getpeername", cause))?;
        prepare(&stream).map_err(|cause| Error::system("prepare a control connection", cause))?;
        let session = random()?;
        lock(&post.outbox).sign::<Numbered>(&Envelope::Open(session));
        let now = clock::now();
        Ok(Self {
            id: *id,
            rank,
            session,
            post: Arc::clone(post),
            heard: Arc::clone(heard),
            line: Line::Open(stream),
            before: Vec::new(),
            attempts: 0,
            inbox: Inbox::default(),
            place,
            met: vec![place],
            silent_at: now + SILENCE,
            beat_at: now + BEAT,
            search: None,
            search_at: now,
            pause: FIRST_PAUSE,
            away_since: None,
            let_in_since: None,
        })
    }

    /// Speaks with the store until one of both ends.
    pub(super) fn run(mut self) {
        let cause = loop {
            if self.post.closing.load(Ordering::Acquire) {
                self.take_leave();
                break None;
            }
            if let Err(cause) = self.turn() {
                break Some(cause);
            }
        };
        self.post.closed.store(true, Ordering::Release);
        self.line = Line::None;
        self.heard.lose_store(cause.as_deref().unwrap_or("this rank closed the connection"));
    }

    /// Sleeps until there is something to do, and does it. The error is the end of the store.
    fn turn(&mut self) -> Result<(), String> {
        let flags = self.wait().map_err(|cause| cause.to_string())?;
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read()?;
        }
        let now = clock::now();
        if self.post.doubt.swap(false, Ordering::AcqRel) {
            lock(&self.post.outbox).sign::<Numbered>(&Envelope::Ping);
            self.silent_at = self.silent_at.min(now + DOUBTFUL_SILENCE);
        }
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            self.confirm();
        }
        if let Some(listener) = self.heard.listener() {
            listener.wake();
        }
        self.write()?;
        self.look_for_the_store(now)
    }

    fn wait(&self) -> rustix::io::Result<PollFlags> {
        let mut fds = vec![PollFd::new(&self.post.wake, PollFlags::IN)];
        let unwritten = lock(&self.post.outbox).has_unwritten();
        match &self.line {
            Line::Open(stream) if unwritten => {
                fds.push(PollFd::new(stream, PollFlags::IN | PollFlags::OUT));
            }
            Line::Open(stream) | Line::Resuming(stream) => {
                fds.push(PollFd::new(stream, PollFlags::IN));
            }
            Line::None => {}
        }
        let left = self.next_deadline().saturating_duration_since(clock::now());
        let limit = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
        let mut count = [0; 8];
        // Nothing to read means that nobody woke this thread.
        let _ = rustix::io::read(&self.post.wake, &mut count);
        Ok(fds.get(1).map_or(PollFlags::empty(), PollFd::revents))
    }

    fn next_deadline(&self) -> Instant {
        let searching = self.search.is_some();
        let search = if matches!(self.line, Line::None) { self.search_at } else { self.silent_at };
        let search = (!searching).then_some(search.max(self.search_at));
        let listener = self.heard.listener().and_then(|listener| listener.deadline());
        [search, listener].into_iter().flatten().fold(self.beat_at, Instant::min)
    }

    fn read(&mut self) -> Result<(), String> {
        let (Line::Open(stream) | Line::Resuming(stream)) = &self.line else {
            return Ok(());
        };
        let read = self.inbox.read(stream);
        if matches!(read, Ok(true)) && matches!(self.line, Line::Open(_)) {
            self.hear_something();
        }
        while let Some(envelope) = self.inbox.next::<Push>(MAX_PUSH_BYTES)? {
            self.take(envelope)?;
        }
        if let Err(ended) = read {
            self.part(&ended);
        }
        Ok(())
    }

    fn hear_something(&mut self) {
        self.silent_at = clock::now() + SILENCE;
        self.be_patient_again();
        self.pause = FIRST_PAUSE;
    }

    fn take(&mut self, envelope: Envelope<Push>) -> Result<(), String> {
        match envelope {
            Envelope::Message(push) => self.heard.take(push),
            Envelope::Received(count) => lock(&self.post.outbox).confirm(count)?,
            Envelope::Ping => self.confirm(),
            Envelope::Resumed { received } => self.resumed(received)?,
            Envelope::Unknown => return Err("the store has given this rank up".to_owned()),
            Envelope::Open(_) | Envelope::Resume { .. } => {
                return Err("the store spoke like a rank".to_owned());
            }
        }
        Ok(())
    }

    fn resumed(&mut self, received: u64) -> Result<(), String> {
        let Line::Resuming(stream) = std::mem::replace(&mut self.line, Line::None) else {
            return Err("the store resumed what was not interrupted".to_owned());
        };
        lock(&self.post.outbox).resume(received)?;
        self.line = Line::Open(stream);
        self.before.clear();
        self.hear_something();
        tracing::info!(rank = self.rank.0, place = %self.place, "the control connection was replaced");
        Ok(())
    }

    /// The connection ended; whether the store did is to be found out.
    fn part(&mut self, ended: &Ended) {
        tracing::debug!(rank = self.rank.0, ?ended, "a control connection ended");
        self.line = Line::None;
        self.search_at = clock::now();
    }

    fn confirm(&mut self) {
        let mut outbox = lock(&self.post.outbox);
        if !outbox.has_unwritten_signs() {
            outbox.sign(&self.inbox.confirmation::<Numbered>());
        }
    }

    fn write(&mut self) -> Result<(), String> {
        if self.inbox.should_confirm() {
            self.confirm();
        }
        let (stream, messages) = match &self.line {
            Line::Open(stream) => (stream, true),
            Line::Resuming(stream) => (stream, false),
            Line::None => return Ok(()),
        };
        let written = lock(&self.post.outbox).write(stream, messages);
        match written {
            Ok(()) => Ok(()),
            Err(ended) => {
                // What the store said last may still be there to be read.
                self.read()?;
                self.part(&ended);
                Ok(())
            }
        }
    }

    /// Starts a search when it is time, and takes its result.
    fn look_for_the_store(&mut self, now: Instant) -> Result<(), String> {
        if self.heard.leaving.load(Ordering::Acquire) && matches!(self.line, Line::None) {
            return Err("the connection was closed".to_owned());
        }
        let silent = now >= self.silent_at;
        let Some(search) = &self.search else {
            let wanted = silent || matches!(self.line, Line::None);
            if wanted && now >= self.search_at {
                self.search = Some(self.start_search()?);
            }
            return Ok(());
        };
        let found = match search.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => Return::Unreachable("no thread".to_owned()),
        };
        self.search = None;
        self.search_at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if matches!(self.line, Line::Open(_)) && !silent {
            return Ok(());
        }
        match found {
            Return::Connected(stream, place) => self.resume_on(stream, place, now),
            Return::Ended(cause) => Err(format!("the connection was closed; {cause}")),
            Return::Silent => {
                self.be_patient_again();
                Ok(())
            }
            Return::Unreachable(cause) => {
                self.let_in_since = None;
                if is_too_long(&mut self.away_since, now) {
                    return Err(format!(
                        "it has not gone on for {PATIENCE:?}, and no address leads to it: {cause}"
                    ));
                }
                Ok(())
            }
        }
    }

    fn be_patient_again(&mut self) {
        (self.away_since, self.let_in_since) = (None, None);
    }

    fn resume_on(
        &mut self,
        stream: TcpStream,
        place: SocketAddr,
        now: Instant,
    ) -> Result<(), String> {
        if let Err(cause) = prepare(&stream) {
            tracing::warn!(%cause, "a control connection cannot be prepared");
            return Ok(());
        }
        // Each attempt may leave a connection at both ends, so there must not be more and more.
        if is_too_long(&mut self.let_in_since, now) {
            return Err(format!(
                "it has let this rank in for {PATIENCE:?}, and not gone on: {place}"
            ));
        }
        match std::mem::replace(&mut self.line, Line::Resuming(stream)) {
            Line::Open(before) | Line::Resuming(before) => self.before.push(before),
            Line::None => {}
        }
        self.place = place;
        if !self.met.contains(&place) {
            self.met.push(place);
        }
        self.inbox.resume(Inbox::default());
        self.silent_at = now + SILENCE;
        self.attempts += 1;
        let resume = Envelope::Resume {
            session: self.session,
            attempt: self.attempts,
            received: self.inbox.received(),
        };
        let mut outbox = lock(&self.post.outbox);
        outbox.abandon_connection();
        outbox.sign::<Numbered>(&resume);
        drop(outbox);
        self.write()
    }

    fn start_search(&mut self) -> Result<Receiver<Return>, String> {
        let (sender, receiver) = channel();
        let places = self.places();
        let (id, rank, met) = (self.id, self.rank, self.met.clone());
        let post = Arc::clone(&self.post);
        let search = move || {
            // The watcher may have ended meanwhile.
            let _ = sender.send(return_to(&id, rank, &places, &met));
            post.wake();
        };
        let started = thread::Builder::new().name("r2ccl-return".to_owned()).spawn(search);
        started.map_err(|cause| format!("no thread to look for the store: {cause}"))?;
        Ok(receiver)
    }

    /// Where to look for the store: where it was last if that ended, there last if it is only silent.
    fn places(&mut self) -> Vec<SocketAddr> {
        let told = self.heard.places();
        if let Some(port) = told.first().map(SocketAddr::port) {
            // The door by which this rank came in may be closed now; that says nothing.
            self.place.set_port(port);
            self.met.iter_mut().for_each(|met| met.set_port(port));
        }
        let known = match told {
            [] => self.id.places(),
            told => told.to_vec(),
        };
        let specified = |place: &SocketAddr| !IpAddr::is_unspecified(&place.ip());
        let mut places: Vec<SocketAddr> =
            known.into_iter().filter(|place| specified(place) && *place != self.place).collect();
        let at = if matches!(self.line, Line::None) { 0 } else { places.len() };
        places.insert(at, self.place);
        places
    }

    /// Lets out what was said last.
    fn take_leave(&mut self) {
        let end = clock::now() + FAREWELL;
        while let Line::Open(stream) = &self.line {
            let mut outbox = lock(&self.post.outbox);
            let left = end.saturating_duration_since(clock::now());
            if outbox.write(stream, true).is_err() || !outbox.has_unwritten() || left.is_zero() {
                return;
            }
            drop(outbox);
            let limit = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            // Whatever poll(2) says, the next attempt to write says it better.
            let _ = poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&limit));
        }
    }
}

/// Whether what is so since then, or else from now on, has been so for longer than the patience.
fn is_too_long(since: &mut Option<Instant>, now: Instant) -> bool {
    now.saturating_duration_since(*since.get_or_insert(now)) > PATIENCE
}

/// The kernel is not told to give the connection up after a while, as in the store: it would answer what
/// comes later with a reset, which looks like the end of this process.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

#[cfg(test)]
mod tests;
