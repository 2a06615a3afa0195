//! Where two processes meet before they have a queue pair: one listens, the other dials, and each
//! proves to the other that it has the key.
//!
//! The connection stays for messages of the application: where its memory is, when it is done. It
//! carries no data of queue pairs, and may go over another network than these.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ccl_core::settings::Settings;
use ccl_transport::auth::{self, JobKey};
use ccl_transport::verbs::{MemoryRegion, RemoteAddress, RemoteKey};
use ccl_transport::visitors::{self, Visitors};
use ccl_transport::{TransportError, clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Error;
use crate::driver::lock;

/// The longest message of an exchange, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Whoever connects to a listener says this first.
const HELLO: &[u8] = b"r2ccl vqp 3";
/// How long a stranger may take to say something, and then to say that it is none.
const GREETING_LIMIT: Duration = Duration::from_secs(1);
/// Between two looks whether a peer is still waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How long an address may take to connect before the next one is tried.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);
/// How long one of several addresses may take to prove the key. The only one may take all the time: a peer that
/// listens may not accept yet.
const PROOF_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts to reach somebody who does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Between two things that are done while an exchange waits.
const MEANWHILE_PAUSE: Duration = Duration::from_millis(1);

/// The secret that both ends have; it never travels.
#[derive(Clone, Debug)]
pub struct Key(pub(super) JobKey);

impl Key {
    /// The key derived from a text that both ends were given. It is as hard to guess as the text.
    #[must_use]
    pub fn from_passphrase(text: &str) -> Self {
        Self(JobKey::from_passphrase(text))
    }

    /// The key of the job, `R2CCL_JOB_KEY`. Without one everybody who reaches a port of this process
    /// is taken for a peer, which the log says.
    ///
    /// # Errors
    /// A setting is impossible.
    pub fn from_environment() -> Result<Self, Error> {
        Ok(Self::of(&crate::environment::settings()?))
    }

    fn of(settings: &Settings) -> Self {
        if settings.job_key.is_none() {
            tracing::warn!("R2CCL_JOB_KEY is not set: whoever reaches a port may be a peer");
        }
        Self::from_passphrase(settings.job_key.as_ref().map_or("", |phrase| phrase.reveal()))
    }
}

/// Which end of a meeting this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It listened. Faults call it host 0.
    Accepting,
    /// It dialled. Faults call it host 1.
    Connecting,
}

/// Waits for peers.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    key: Key,
    /// Between two calls that accept.
    visitors: Mutex<Visitors<SocketAddr>>,
}

impl Listener {
    /// Listens on `address`, as `0.0.0.0:18515`; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// It is no address, or cannot be listened on.
    pub fn bind(address: &str, key: Key) -> Result<Self, Error> {
        let failed = |cause| Error::system(format!("listen on {address}"), cause);
        let addresses = look_up(address).map_err(|cause| no_address(address, &cause))?;
        let inner = TcpListener::bind(&addresses[..]).map_err(failed)?;
        inner.set_nonblocking(true).map_err(failed)?;
        let visitors = Mutex::new(Visitors::new(visitors::FEW, GREETING_LIMIT));
        Ok(Self { inner, key, visitors })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.inner.local_addr().map_err(|cause| Error::system("ask for an own address", cause))
    }

    /// Waits for the next peer, for `limit` at most. Strangers are sent away; those who say nothing delay nobody.
    ///
    /// # Errors
    /// [`Error::Deadline`], or the system refuses.
    pub fn accept(&self, limit: Duration) -> Result<Meeting, Error> {
        self.accept_unless(limit, &|| false)
    }

    /// The same, unless that `is_over`.
    pub(crate) fn accept_unless(
        &self,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Meeting, Error> {
        let deadline = Deadline::after("accept", limit);
        let mut visitors = Visitors::new(visitors::FEW, GREETING_LIMIT);
        let accepted = self.accept_among(&mut visitors, &deadline, is_over);
        lock(&self.visitors).append(&mut visitors);
        accepted
    }

    /// The same, with the visitors of this thread: others may accept peers at the same time.
    fn accept_among(
        &self,
        visitors: &mut Visitors<SocketAddr>,
        deadline: &Deadline,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Meeting, Error> {
        while !is_over() {
            let left = deadline.left("a peer to connect")?;
            visitors.append(&mut lock(&self.visitors));
            let has_come = match self.inner.accept() {
                Ok((stream, address)) => {
                    visitors.add(stream, address, clock::now());
                    true
                }
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => false,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => true,
                Err(cause) => return Err(Error::system("accept a peer", cause)),
            };
            let Some((stream, address)) = visitors.next_speaker(clock::now()) else {
                if !has_come {
                    self.await_visit(visitors, left.min(LOOK_PAUSE));
                }
                continue;
            };
            match greet(&stream, &self.key, clock::now() + GREETING_LIMIT.min(left)) {
                Ok(()) => return Meeting::new(stream, Side::Accepting),
                Err(reason) => tracing::warn!(%address, %reason, "not a peer"),
            }
        }
        Err(gone("nobody waits for it any more"))
    }

    /// Waits until somebody connects, or speaks.
    fn await_visit(&self, visitors: &Visitors<SocketAddr>, limit: Duration) {
        let mut polled = vec![PollFd::new(&self.inner, PollFlags::IN)];
        polled.extend(visitors.polled());
        // A poll that is interrupted is repeated.
        let _ = poll(&mut polled, Some(&timespec(limit)));
    }
}

fn greet(stream: &TcpStream, key: &Key, until: Instant) -> Result<(), Error> {
    let hello = auth::accept(stream, &key.0, until)?;
    if hello == HELLO {
        return Ok(());
    }
    Err(Error::PeerLost("it speaks another protocol".into()))
}

/// A connection to the process at the other end, for everything but data.
#[derive(Debug)]
pub struct Meeting {
    stream: TcpStream,
    side: Side,
}

impl Meeting {
    /// Dials `address`, as `host:18515`, until somebody with the key answers, for `limit` at most. A peer that closes the
    /// connection without a word is tried again: this end may have been too slow for it.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the last reason, as that the host is not known or the peer does not accept;
    /// [`Error::PeerLost`] if the peer has another key, or speaks something else; [`Error::InvalidArgument`] if it is no
    /// address.
    pub fn connect(address: &str, key: &Key, limit: Duration) -> Result<Self, Error> {
        let deadline = Deadline::after("connect", limit);
        let mut reason = format!("{address} to answer");
        loop {
            let candidates = match look_up(address) {
                Ok(candidates) => candidates,
                Err(cause) if cause.kind() == ErrorKind::InvalidInput => {
                    return Err(no_address(address, &cause));
                }
                // A host that is being started may not be known yet.
                Err(cause) => {
                    reason = format!("{address}: {cause}");
                    Vec::new()
                }
            };
            let patience = if candidates.len() > 1 { PROOF_LIMIT } else { Duration::MAX };
            for candidate in candidates {
                let left = deadline.left(&reason)?;
                let stream = match TcpStream::connect_timeout(&candidate, left.min(ATTEMPT_LIMIT)) {
                    Ok(stream) => stream,
                    Err(cause) => {
                        reason = format!("{candidate}: {cause}");
                        continue;
                    }
                };
                let until = clock::now() + deadline.left(&reason)?.min(patience);
                match auth::initiate(&stream, &key.0, HELLO, until) {
                    Ok(()) => return Self::new(stream, Side::Connecting),
                    Err(TransportError::TimedOut(_)) => reason = format!("{candidate} to accept"),
                    Err(TransportError::PeerGone(cause)) => {
                        reason = format!("{candidate}: {cause}")
                    }
                    Err(cause) => return Err(cause.into()),
                }
            }
            clock::sleep(RETRY_PAUSE.min(deadline.left(&reason)?));
        }
    }

    fn new(stream: TcpStream, side: Side) -> Result<Self, Error> {
        let prepared = stream.set_nonblocking(true);
        prepared.map_err(|cause| Error::system("prepare a connection", cause))?;
        Ok(Self { stream, side })
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Tells the peer something and hears what it has to tell: both ends call this.
    ///
    /// # Errors
    /// [`Error::Deadline`], or the peer is gone. The meeting is over then.
    pub fn exchange(&mut self, message: &[u8], limit: Duration) -> Result<Vec<u8>, Error> {
        let deadline = Deadline::after("exchange", limit);
        self.exchange_while(message, &deadline, None)
    }

    /// The same, and does something every now and then while it waits.
    pub(super) fn exchange_while(
        &mut self,
        message: &[u8],
        deadline: &Deadline,
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) -> Result<Vec<u8>, Error> {
        let length =
            u32::try_from(message.len()).ok().filter(|_| message.len() <= MAX_MESSAGE_BYTES);
        let Some(length) = length else {
            let text = format!("a message of {} bytes; {MAX_MESSAGE_BYTES} at most", message.len());
            return Err(Error::InvalidArgument(text));
        };
        let framed = [&length.to_le_bytes()[..], message].concat();
        let (mut unsent, mut incoming) = (&framed[..], Incoming::default());
        // Both directions at once: a message may be larger than what the kernels hold on the way.
        while !(unsent.is_empty() && incoming.is_complete()) {
            let left = deadline.left("a message of the peer")?;
            if !unsent.is_empty() {
                unsent = &unsent[sent(self.stream.write(unsent))?..];
            }
            if !incoming.is_complete() {
                incoming.read_from(&mut self.stream)?;
            }
            let pause = meanwhile.as_mut().map_or(left, |meanwhile| {
                meanwhile();
                left.min(MEANWHILE_PAUSE)
            });
            self.await_change(!unsent.is_empty(), !incoming.is_complete(), pause);
        }
        Ok(incoming.message)
    }

    /// Waits until the peer has said or taken something; not at all where neither is expected.
    fn await_change(&self, sends: bool, receives: bool, limit: Duration) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, sends);
        flags.set(PollFlags::IN, receives);
        if !flags.is_empty() {
            // A poll that is interrupted is a short one.
            let _ = poll(&mut [PollFd::new(&self.stream, flags)], Some(&timespec(limit)));
        }
    }

    /// Tells the peer about a region of this end, and hears of one of the peer's.
    ///
    /// # Errors
    /// As for [`Self::exchange`]; [`Error::PeerLost`] if the peer says something else.
    pub fn exchange_regions(
        &mut self,
        region: &MemoryRegion,
        limit: Duration,
    ) -> Result<PeerRegion, Error> {
        let start = region.remote(0);
        let bytes = region.memory().bytes() as u64;
        let words = [u64::from(start.key.0), start.address, bytes].map(u64::to_le_bytes);
        let theirs = self.exchange(words.as_flattened(), limit)?;
        let (words, []) = theirs.as_chunks::<8>() else { return Err(no_region()) };
        let &[key, address, bytes] = words else { return Err(no_region()) };
        let key = u32::try_from(u64::from_le_bytes(key)).map_err(|_| no_region())?;
        let start = RemoteAddress { key: RemoteKey(key), address: u64::from_le_bytes(address) };
        Ok(PeerRegion { start, bytes: u64::from_le_bytes(bytes) })
    }

    /// Whether an [`exchange`](Self::exchange) of the peer is under way, or the peer is gone. Never waits.
    #[must_use]
    pub fn has_message(&self) -> bool {
        let mut readable = [PollFd::new(&self.stream, PollFlags::IN)];
        matches!(poll(&mut readable, Some(&timespec(Duration::ZERO))), Ok(1..))
    }
}

/// A message that is arriving.
#[derive(Debug, Default)]
struct Incoming {
    length: [u8; 4],
    /// Bytes of the length and of the message that have arrived.
    arrived: usize,
    message: Vec<u8>,
}

impl Incoming {
    fn is_complete(&self) -> bool {
        self.arrived >= self.length.len() && self.arrived - self.length.len() == self.message.len()
    }

    /// Reads what is there of this message, and nothing of the next.
    fn read_from(&mut self, stream: &mut TcpStream) -> Result<(), Error> {
        let head = self.length.len();
        while !self.is_complete() {
            let missing = match self.arrived.checked_sub(head) {
                None => &mut self.length[self.arrived..],
                Some(arrived) => &mut self.message[arrived..],
            };
            let count = sent(stream.read(missing))?;
            if count == 0 {
                return Ok(());
            }
            self.arrived += count;
            if self.arrived == head {
                let length = u32::from_le_bytes(self.length) as usize;
                if length > MAX_MESSAGE_BYTES {
                    return Err(gone("its message is too long"));
                }
                self.message = vec![0; length];
            }
        }
        Ok(())
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRegion {
    /// Its first byte.
    pub start: RemoteAddress,
    /// Its length.
    pub bytes: u64,
}

impl PeerRegion {
    /// A place in it, for requests.
    #[must_use]
    pub fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.start.address.wrapping_add(offset), ..self.start }
    }
}

/// When a call has to be over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    call: &'static str,
    limit: Duration,
    pub(super) until: Instant,
}

impl Deadline {
    /// The furthest moment that is worth a promise.
    const MOST: Duration = Duration::from_secs(365 * 24 * 3600);

    pub(super) fn after(call: &'static str, limit: Duration) -> Self {
        Self { call, limit, until: clock::now() + limit.min(Self::MOST) }
    }

    /// How much is left of it for `waiting`.
    pub(super) fn left(&self, waiting: &str) -> Result<Duration, Error> {
        let left = self.until.saturating_duration_since(clock::now());
        if !left.is_zero() {
            return Ok(left);
        }
        let (call, seconds) = (self.call, self.limit.as_secs_f64());
        Err(Error::Deadline { call, seconds, waiting: format!("it waited for {waiting}") })
    }
}

/// How many bytes have moved: none, while nothing can.
fn sent(moved: std::io::Result<usize>) -> Result<usize, Error> {
    match moved {
        Ok(0) => Err(gone("it closed the connection")),
        Ok(count) => Ok(count),
        Err(cause) if matches!(cause.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
            Ok(0)
        }
        Err(cause) => Err(gone(&cause.to_string())),
    }
}

fn gone(how: &str) -> Error {
    Error::PeerLost(how.to_owned())
}

fn no_region() -> Error {
    gone("it does not tell where its memory is")
}

/// The addresses of a host, one at least.
fn look_up(address: &str) -> std::io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = address.to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(std::io::Error::new(ErrorKind::NotFound, "the host has no address"));
    }
    Ok(found)
}

fn no_address(address: &str, cause: &std::io::Error) -> Error {
    Error::InvalidArgument(format!("{address:?} is not host:port: {cause}"))
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests;
