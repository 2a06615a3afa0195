//! Takes connections for the queue pairs of a process, in whatever order they come.
//!
//! There is a listener for each rail, and one thread for all of them, which listens anew where a NIC is put in again. Every connection is authenticated
//! in a thread of its own, and names the queue pair and the rail that it is for. It waits here until its
//! queue pair takes it: one that is made later finds it as well. A newer connection replaces an older
//! one for the same rail, because the other end makes another one only when it has given that up.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::super::soft::socket::{self, Binding};
use super::{Attempt, Bell};
use crate::auth::{self, JobKey};
use crate::nics::Listeners;
use crate::{TransportError, clock};

/// Connections that are authenticated at the same time; others wait in the kernel.
const MAX_GREETERS: usize = 32;
/// Connections that wait for their queue pair; one more replaces the oldest.
const MAX_ARRIVALS: usize = 1024;
/// How long a stranger may take to say that it is none.
const GREETING_LIMIT: Duration = Duration::from_secs(1);
/// How long not to accept when there are too many strangers, or no descriptors left.
const CLOSED_PAUSE: Duration = Duration::from_millis(20);
/// How long to wait for a connection before looking whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const MAGIC: [u8; 8] = *b"r2shadow";
const HELLO_BYTES: usize = 12;

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The queue pair.
    pub(super) name: String,
    pub(super) rail: usize,
}

impl Seat {
    pub(super) fn encode(&self) -> Vec<u8> {
        let rail = u32::try_from(self.rail).expect("a queue pair has fewer than 256 rails");
        [&MAGIC[..], &rail.to_le_bytes(), self.name.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, name) = bytes.split_first_chunk::<HELLO_BYTES>()?;
        let (magic, rail) = head.split_first_chunk::<{ MAGIC.len() }>()?;
        let rail = u32::from_le_bytes(rail.try_into().ok()?);
        let name = std::str::from_utf8(name).ok()?.to_owned();
        (*magic == MAGIC).then_some(Self { name, rail: rail as usize })
    }
}

/// Listens on all rails of a process, for the connections that other processes make; see
/// [`TcpConnector::accepting`](super::TcpConnector::accepting).
#[derive(Debug)]
pub struct Switchboard {
    lobby: Arc<Lobby>,
    addresses: Vec<SocketAddr>,
    /// The thread ends when this is closed.
    line: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Lobby {
    key: JobKey,
    book: Mutex<Book>,
    arrival: Condvar,
}

#[derive(Debug, Default)]
struct Book {
    /// The oldest first.
    arrivals: VecDeque<(Seat, TcpStream)>,
    /// Of the queue pairs, by name.
    bells: BTreeMap<String, Bell>,
    greeters: usize,
}

impl Switchboard {
    /// Listens on these NICs, which are in the order of the rails, for whoever proves the key.
    ///
    /// # Errors
    /// A NIC is not there, or the system has no thread or no descriptor left.
    pub fn open(bindings: &[Binding], key: JobKey) -> Result<Self, TransportError> {
        let mut listeners = Listeners::open(bindings)?;
        let addresses = listeners.addresses();
        let failed = |call: &str| {
            let call = call.to_owned();
            |cause| TransportError::system(call, cause)
        };
        let (line, end) = UnixStream::pair().map_err(failed("make a pair of sockets"))?;
        let lobby = Arc::new(Lobby { key, book: Mutex::default(), arrival: Condvar::new() });
        let inside = Arc::clone(&lobby);
        let thread = std::thread::Builder::new()
            .name("r2ccl-switchboard".into())
            .spawn(move || inside.run(&mut listeners, &end))
            .map_err(failed("start a thread"))?;
        Ok(Self { lobby, addresses, line: Some(line), thread: Some(thread) })
    }

    /// Where it listens, by rail.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn register(&self, name: &str, bell: Bell) {
        self.lobby.book().bells.insert(name.to_owned(), bell);
    }

    /// Forgets a queue pair, unless another one has taken over its name.
    pub(super) fn forget(&self, name: &str, bell: Option<&Bell>) {
        let mut book = self.lobby.book();
        let is_same = match (book.bells.get(name), bell) {
            (Some(present), Some(own)) => present.is_same(own),
            (None, _) => true,
            (Some(_), None) => false,
        };
        if is_same {
            book.bells.remove(name);
            book.arrivals.retain(|(seat, _)| seat.name != name);
        }
    }

    /// Waits for a connection.
    pub(super) fn claim(
        &self,
        seat: &Seat,
        attempt: &Attempt,
    ) -> Result<TcpStream, TransportError> {
        let mut book = self.lobby.book();
        while attempt.is_wanted() {
            let index = book.arrivals.iter().position(|(present, _)| present == seat);
            if let Some((_, stream)) = index.and_then(|index| book.arrivals.remove(index)) {
                if is_alive(&stream) {
                    return Ok(stream);
                }
                continue;
            }
            let waited = self.lobby.arrival.wait_timeout(book, LOOK_EVERY);
            book = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Seat { name, rail } = seat;
        Err(TransportError::TimedOut(format!("nobody connects rail {rail} of {name}")))
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        drop(self.line.take());
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Lobby {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts until the switchboard is dropped.
    fn run(self: Arc<Self>, listeners: &mut Listeners, end: &UnixStream) {
        loop {
            let is_busy = self.book().greeters >= MAX_GREETERS;
            let pause = if is_busy { Some(CLOSED_PAUSE) } else { listeners.longest_sleep() };
            let (is_over, is_told) = wait(listeners, is_busy, end, pause);
            if is_over {
                return;
            }
            if is_told || listeners.longest_sleep().is_some() {
                listeners.follow();
            }
            if !is_busy && !listeners.all().iter().enumerate().all(|entry| self.accept(entry)) {
                clock::sleep(CLOSED_PAUSE);
            }
        }
    }

    /// Accepts one connection, if there is one; tells whether the system was able to.
    fn accept(self: &Arc<Self>, (rail, listener): (usize, &TcpListener)) -> bool {
        match listener.accept() {
            Ok((stream, from)) => {
                self.book().greeters += 1;
                let greeter = Greeter(Arc::clone(self));
                let thread = std::thread::Builder::new().name("r2ccl-greeter".into());
                thread.spawn(move || greeter.greet(stream, from, rail)).is_ok()
            }
            Err(cause) => !matches!(
                cause.raw_os_error(),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
            ),
        }
    }

    fn arrived(&self, seat: Seat, stream: TcpStream) {
        let mut book = self.book();
        // Before anybody can take the connection: else the bell would be about that one.
        if let Some(bell) = book.bells.get(&seat.name) {
            bell.ring(seat.rail);
        }
        book.arrivals.retain(|(present, _)| *present != seat);
        if book.arrivals.len() >= MAX_ARRIVALS {
            book.arrivals.pop_front();
        }
        book.arrivals.push_back((seat, stream));
        self.arrival.notify_all();
    }
}

/// Authenticates one connection.
struct Greeter(Arc<Lobby>);

impl Greeter {
    fn greet(self, stream: TcpStream, from: SocketAddr, rail: usize) {
        match self.examine(&stream, rail) {
            Ok(seat) => self.0.arrived(seat, stream),
            Err(reason) => tracing::debug!(%from, rail, %reason, "refused a connection"),
        }
    }

    fn examine(&self, stream: &TcpStream, rail: usize) -> Result<Seat, TransportError> {
        let hello = auth::accept(stream, &self.0.key, clock::now() + GREETING_LIMIT)?;
        socket::keep_asking(stream, super::tcp::QUESTIONS)?;
        let seat = Seat::decode(&hello).filter(|seat| seat.rail == rail);
        seat.ok_or_else(|| TransportError::Refused("it is not for this rail".into()))
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        self.0.book().greeters -= 1;
    }
}

/// Waits for a connection, unless nobody could be greeted. Tells whether it is over, and whether the kernel has
/// announced something.
fn wait(
    listeners: &Listeners,
    is_busy: bool,
    end: &UnixStream,
    pause: Option<Duration>,
) -> (bool, bool) {
    let mut polled = vec![PollFd::new(end, PollFlags::IN)];
    polled.extend(listeners.announcements().map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
    let first = polled.len();
    if !is_busy {
        let all = listeners.all().iter();
        polled.extend(all.map(|listener| PollFd::new(listener, PollFlags::IN)));
    }
    let pause = pause.map(|pause| Timespec {
        tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(pause.subsec_nanos()),
    });
    // Interrupted or not, what is there is accepted.
    let _ = poll(&mut polled, pause.as_ref());
    let is_told = polled[1..first].iter().any(|events| !events.revents().is_empty());
    (!polled[0].revents().is_empty(), is_told)
}

/// Whether the other end has not given it up.
fn is_alive(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    match peeked {
        Ok(bytes) => bytes > 0,
        Err(cause) => cause.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_survives_the_wire() {
        let seat = Seat { name: "pair 7".into(), rail: 200 };
        assert_eq!(Seat::decode(&seat.encode()), Some(seat.clone()));
        let nameless = Seat { name: String::new(), rail: 0 };
        assert_eq!(Seat::decode(&nameless.encode()), Some(nameless));
        assert_eq!(Seat::decode(&seat.encode()[1..]), None);
        assert_eq!(Seat::decode(&seat.encode()[..HELLO_BYTES - 1]), None);
        assert_eq!(Seat::decode(&[seat.encode(), vec![0xff]].concat()), None);
    }
}
