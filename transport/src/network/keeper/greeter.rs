//! Helpers that authenticate connections, one thread for each while it lasts.
//!
//! After the handshake of [`crate::auth`] the accepting end gives its [`Verdict`]: only it knows
//! whether it has a newer connection already.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::meet::Hello;
use super::mailbox::{Bell, Order};
use crate::auth::{self, JobKey};
use crate::{TransportError, clock};

/// Connections of others that are authenticated at the same time.
const MAX_GREETINGS: usize = 32;
const VERDICT_BYTES: usize = 8;
/// How long the two ends may take to convince each other: a rail that is back may die meanwhile, and the
/// next attempt repeats what was lost. So whoever takes longer is no peer.
const GREETING_LIMIT: Duration = Duration::from_secs(1);
/// The kernel takes no time-out of zero.
const HEARING_MINIMUM: Duration = Duration::from_millis(1);

/// What the accepting end says about a connection of a peer that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the present one from now on.
    Welcome,
    /// The present one is this, which is not older.
    Outdone(u32),
}

impl Verdict {
    fn encode(self) -> [u8; VERDICT_BYTES] {
        let words: [u32; 2] = match self {
            Self::Welcome => [0, 0],
            Self::Outdone(by) => [1, by],
        };
        let mut bytes = [0; VERDICT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: [u8; VERDICT_BYTES]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        match (half(0), half(4)) {
            (0, 0) => Some(Self::Welcome),
            (1, by) => Some(Self::Outdone(by)),
            _ => None,
        }
    }

    /// Tells the peer. Nothing was sent on the connection that could fill it, so this does not block.
    pub(super) fn tell(self, mut stream: &TcpStream) -> Result<(), TransportError> {
        let told = stream.write_all(&self.encode());
        told.map_err(|cause| TransportError::PeerGone(format!("accept a connection: {cause}")))
    }

    fn hear(mut stream: &TcpStream, deadline: Instant) -> Result<Self, TransportError> {
        let left = deadline.saturating_duration_since(clock::now());
        let mut bytes = [0; VERDICT_BYTES];
        stream
            .set_read_timeout(Some(left.max(HEARING_MINIMUM)))
            .and_then(|()| stream.read_exact(&mut bytes))
            .and_then(|()| stream.set_read_timeout(None))
            .map_err(|cause| TransportError::PeerGone(format!("await a verdict: {cause}")))?;
        let strange = || TransportError::Protocol("not a verdict on a connection".into());
        Self::decode(bytes).ok_or_else(strange)
    }
}

/// What a helper found out.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) number: u64,
    pub(super) greeting: Greeting,
}

#[derive(Debug)]
pub(super) enum Greeting {
    /// This end connected.
    Dialled { dial: Dial, outcome: Result<(TcpStream, Verdict), TransportError> },
    /// The peer connected to the listener of a rail.
    Visited { rail: usize, from: SocketAddr, outcome: Result<(TcpStream, Hello), TransportError> },
}

/// A connection that this end makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) link: usize,
    pub(super) path: usize,
    pub(super) hello: Hello,
}

/// The helpers at work.
#[derive(Debug)]
pub(super) struct Greeter {
    key: JobKey,
    helpers: BTreeMap<u64, Helper>,
    next: u64,
    orders: Sender<Order>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Helper {
    thread: JoinHandle<()>,
    /// To end the conversation early.
    stream: TcpStream,
    /// The link for which this end connects, if it does.
    dials_for: Option<usize>,
}

impl Greeter {
    pub(super) fn new(key: JobKey, orders: Sender<Order>, bell: Arc<Bell>) -> Self {
        Self { key, helpers: BTreeMap::new(), next: 0, orders, bell }
    }

    /// How many more of those that have connected can be heard now.
    pub(super) fn room(&self) -> usize {
        let guests = self.helpers.values().filter(|helper| helper.dials_for.is_none());
        MAX_GREETINGS.saturating_sub(guests.count())
    }

    /// How many connections that this end made are being authenticated.
    pub(super) fn dials(&self) -> usize {
        self.helpers.values().filter(|helper| helper.dials_for.is_some()).count()
    }

    /// Proves the key on a connection that this end made, and hears the peer's verdict.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub(super) fn initiate(&mut self, stream: TcpStream, dial: Dial) -> Result<(), TransportError> {
        let key = self.key.clone();
        self.employ(stream, Some(dial.link), move |stream| {
            let deadline = clock::now() + GREETING_LIMIT;
            let outcome = auth::initiate(&stream, &key, &dial.hello.encode(), deadline)
                .and_then(|()| Verdict::hear(&stream, deadline))
                .map(|verdict| (stream, verdict));
            Greeting::Dialled { dial, outcome }
        })
    }

    /// Makes whoever connected to a rail prove the key, and hears which connection it is.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub(super) fn accept(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        rail: usize,
    ) -> Result<(), TransportError> {
        let key = self.key.clone();
        self.employ(stream, None, move |stream| {
            let strange = || TransportError::Refused("its hello is none".into());
            let outcome = auth::accept(&stream, &key, clock::now() + GREETING_LIMIT)
                .and_then(|hello| Hello::decode(&hello).ok_or_else(strange))
                .map(|hello| (stream, hello));
            Greeting::Visited { rail, from, outcome }
        })
    }

    fn employ(
        &mut self,
        stream: TcpStream,
        dials_for: Option<usize>,
        task: impl FnOnce(TcpStream) -> Greeting + Send + 'static,
    ) -> Result<(), TransportError> {
        let clone = stream
            .try_clone()
            .map_err(|cause| TransportError::system("duplicate a connection", cause))?;
        let (number, orders, bell) = (self.next, self.orders.clone(), Arc::clone(&self.bell));
        self.next += 1;
        let work = move || {
            // It fails only when the keeper has ended, and then nobody wants the connection.
            let _ = orders.send(Order::Greeted(Greeted { number, greeting: task(stream) }));
            bell.ring();
        };
        let thread = thread::Builder::new()
            .name("r2ccl-greeter".into())
            .spawn(work)
            .map_err(|cause| TransportError::system("start a thread", cause))?;
        self.helpers.insert(number, Helper { thread, stream: clone, dials_for });
        Ok(())
    }

    /// The helper has said what it had to say.
    pub(super) fn dismiss(&mut self, number: u64) {
        if let Some(helper) = self.helpers.remove(&number) {
            // A thread that panicked has said so.
            let _ = helper.thread.join();
        }
    }

    /// Ends the conversations over the connections that this end makes for a link.
    pub(super) fn interrupt(&self, link: usize) {
        for helper in self.helpers.values() {
            if helper.dials_for == Some(link) {
                // It fails only if the peer has closed already.
                let _ = helper.stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        for helper in self.helpers.values() {
            // It fails only if the peer has closed already.
            let _ = helper.stream.shutdown(Shutdown::Both);
        }
        while let Some((_, helper)) = self.helpers.pop_first() {
            // A thread that panicked has said so.
            let _ = helper.thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_the_wire() {
        for verdict in [Verdict::Welcome, Verdict::Outdone(0), Verdict::Outdone(u32::MAX)] {
            assert_eq!(Verdict::decode(verdict.encode()), Some(verdict));
        }
        assert_eq!(Verdict::decode([7; VERDICT_BYTES]), None);
    }
}
