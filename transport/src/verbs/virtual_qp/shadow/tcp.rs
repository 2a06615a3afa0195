//! The connector of the software device: TCP from NIC to NIC.
//!
//! Of the two ends of a queue pair one dials and the other has a [`Switchboard`]. Where that listens is
//! told through any store that both can reach, under the name of the queue pair. It is read for every
//! attempt, so an address that is put there again is used.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockAddr;

use super::super::super::Connection;
use super::super::super::soft::socket::{self, Binding};
use super::switchboard::Seat;
use super::{Attempt, Bell, Connector, Switchboard};
use crate::auth::{self, JobKey};
use crate::nics::{Lookout, Watched};
use crate::{TransportError, clock};

/// How long to wait for one thing before looking whether it is still wanted.
const SLICE: Duration = Duration::from_millis(20);
/// Questions about an idle connection that may remain without an answer.
pub(super) const QUESTIONS: u32 = 3;
/// A name is told in a hello, and part of a key of the store.
const LONGEST_NAME: usize = 256;

/// Where one end leaves something for the other: any key-value store that both reach. Two functions,
/// which do what these methods do, are a store too.
pub trait Store: Send + Sync {
    /// Keeps a value, in place of one that has the same key.
    ///
    /// # Errors
    /// The store is out of reach.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), TransportError>;

    /// Waits for a value. It is asked for again and again, with deadlines that are near.
    ///
    /// # Errors
    /// There is none at the deadline, or the store is out of reach.
    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, TransportError>;
}

impl<P, G> Store for (P, G)
where
    P: Fn(&str, &[u8]) -> Result<(), TransportError> + Send + Sync,
    G: Fn(&str, Instant) -> Result<Vec<u8>, TransportError> + Send + Sync,
{
    fn put(&self, key: &str, value: &[u8]) -> Result<(), TransportError> {
        self.0(key, value)
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, TransportError> {
        self.1(key, deadline)
    }
}

/// Makes the connections of one queue pair of the software device.
///
/// An idle connection whose other end says nothing any more fails after about four seconds; one whose
/// other end has given it up without being able to say so, after one.
pub struct TcpConnector {
    /// Both ends call the queue pair so, and no other.
    name: String,
    store: Arc<dyn Store>,
    side: Side,
    /// Watches the NICs from which it dials.
    lookout: Option<Arc<Lookout>>,
    bell: OnceLock<Bell>,
}

enum Side {
    Dials { bindings: Vec<Binding>, key: JobKey },
    Accepts { switchboard: Arc<Switchboard>, told: Mutex<BTreeSet<usize>> },
}

impl TcpConnector {
    /// The end that dials, from these NICs, which are in the order of the rails.
    ///
    /// # Panics
    /// The name is longer than 256 bytes.
    #[must_use]
    pub fn dialling(
        name: impl Into<String>,
        store: Arc<dyn Store>,
        bindings: Vec<Binding>,
        key: JobKey,
    ) -> Self {
        Self::new(name.into(), store, Side::Dials { bindings, key })
    }

    /// The end that accepts.
    ///
    /// # Panics
    /// The name is longer than 256 bytes.
    #[must_use]
    pub fn accepting(
        name: impl Into<String>,
        store: Arc<dyn Store>,
        switchboard: Arc<Switchboard>,
    ) -> Self {
        Self::new(name.into(), store, Side::Accepts { switchboard, told: Mutex::default() })
    }

    /// Dials as soon as a NIC works again that did not.
    #[must_use]
    pub fn watching(mut self, lookout: Arc<Lookout>) -> Self {
        self.lookout = Some(lookout);
        self
    }

    fn new(name: String, store: Arc<dyn Store>, side: Side) -> Self {
        assert!(name.len() <= LONGEST_NAME, "a name of {} bytes", name.len());
        Self { name, store, side, lookout: None, bell: OnceLock::new() }
    }

    fn seat(&self, rail: usize) -> Seat {
        Seat { name: self.name.clone(), rail }
    }

    fn store_key(&self, rail: usize) -> String {
        format!("{}/rail {rail}", self.name)
    }

    fn accept(
        &self,
        (switchboard, told): (&Switchboard, &Mutex<BTreeSet<usize>>),
        rail: usize,
        attempt: &Attempt,
    ) -> Result<TcpStream, TransportError> {
        let address = switchboard.addresses().get(rail).ok_or_else(|| no_rail(rail))?;
        let is_told = || told.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_told().contains(&rail) {
            self.store.put(&self.store_key(rail), address.to_string().as_bytes())?;
            is_told().insert(rail);
        }
        switchboard.claim(&self.seat(rail), attempt)
    }

    fn dial(
        &self,
        (bindings, key): (&[Binding], &JobKey),
        rail: usize,
        attempt: &Attempt,
    ) -> Result<TcpStream, TransportError> {
        let binding = bindings.get(rail).ok_or_else(|| no_rail(rail))?;
        let address = self.address(rail, attempt)?;
        let nic = self.lookout.as_ref().map(|lookout| lookout.nic(rail));
        let stream = match &nic {
            Some(nic) => reach_from(nic, binding, address, attempt)?,
            None => reach(binding, address, || attempt.is_wanted())?,
        };
        auth::initiate(&stream, key, &self.seat(rail).encode(), attempt.until())?;
        socket::keep_asking(&stream, QUESTIONS)?;
        Ok(stream)
    }

    /// Where the other end listens.
    fn address(&self, rail: usize, attempt: &Attempt) -> Result<SocketAddr, TransportError> {
        let key = self.store_key(rail);
        loop {
            let deadline = attempt.until().min(clock::now() + SLICE);
            match self.store.get(&key, deadline) {
                Ok(value) => {
                    let address = std::str::from_utf8(&value).ok().and_then(|it| it.parse().ok());
                    let text = || TransportError::Protocol(format!("{key}: not an address"));
                    return address.ok_or_else(text);
                }
                Err(reason) if !attempt.is_wanted() => return Err(reason),
                // A store that is out of reach says so at once.
                Err(_) => clock::sleep(deadline.saturating_duration_since(clock::now())),
            }
        }
    }
}

impl Connector for TcpConnector {
    fn connect(&self, rail: usize, attempt: &Attempt) -> Result<Connection, TransportError> {
        let stream = match &self.side {
            Side::Dials { bindings, key } => self.dial((bindings, key), rail, attempt),
            Side::Accepts { switchboard, told } => self.accept((switchboard, told), rail, attempt),
        };
        stream.map(Connection::Stream)
    }

    fn announce(&self, bell: Bell) {
        if let Side::Accepts { switchboard, .. } = &self.side {
            switchboard.register(&self.name, bell.clone());
        }
        // It is announced once: to the one shadow that has it.
        let _ = self.bell.set(bell);
    }
}

impl fmt::Debug for TcpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConnector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for TcpConnector {
    fn drop(&mut self) {
        if let Side::Accepts { switchboard, .. } = &self.side {
            switchboard.forget(&self.name, self.bell.get());
        }
    }
}

fn no_rail(rail: usize) -> TransportError {
    TransportError::system("connect a rail", format!("there is no NIC for rail {rail}"))
}

/// Connects. Where the NIC does not work, and begins to, that is tried at once: a request for a connection that was
/// lost would be repeated after a second.
fn reach_from(
    nic: &Watched,
    binding: &Binding,
    peer: SocketAddr,
    attempt: &Attempt,
) -> Result<TcpStream, TransportError> {
    loop {
        let returns = nic.returns();
        let is_same = || {
            nic.look();
            attempt.is_wanted() && nic.returns() == returns
        };
        let outcome = reach(binding, peer, is_same);
        if outcome.is_ok() || !attempt.is_wanted() {
            return outcome;
        }
        while nic.is_severed() && is_same() {
            clock::sleep(SLICE);
        }
        if nic.returns() == returns {
            return outcome;
        }
    }
}

/// Connects, unless that is not wanted any more.
fn reach(
    binding: &Binding,
    peer: SocketAddr,
    is_wanted: impl Fn() -> bool,
) -> Result<TcpStream, TransportError> {
    let failed =
        |cause| TransportError::system(format!("connect {} to {peer}", binding.address), cause);
    let socket = socket::bound(binding, 0).map_err(|error| failed(error.cause))?;
    socket.set_nonblocking(true).map_err(failed)?;
    match socket.connect(&SockAddr::from(peer)) {
        Err(cause) if cause.raw_os_error() != Some(libc::EINPROGRESS) => return Err(failed(cause)),
        Ok(()) | Err(_) => {}
    }
    let slice = Timespec { tv_sec: 0, tv_nsec: i64::from(SLICE.subsec_nanos()) };
    while is_wanted() {
        let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
        if matches!(poll(&mut polled, Some(&slice)), Ok(1..)) {
            return match socket.take_error() {
                Ok(None) => Ok(socket.into()),
                Ok(Some(cause)) | Err(cause) => Err(failed(cause)),
            };
        }
    }
    Err(TransportError::TimedOut(format!("connect {} to {peer}", binding.address)))
}
