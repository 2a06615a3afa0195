//! Where the threads of a shadow leave what they have found, and the queue pair collects it.
//!
//! ```text
//!              begin            found
//!      Idle ──────────▶ Sought ───────▶ Found
//!       ▲ ▲                │              │
//!       │ └── ended ───────┘              │ offered
//!  take │                                 ▼
//!       └──────────────────────────── Offered ◀── offered ── Idle
//! ```
//!
//! An offer to a rail that is sought is none: whoever seeks takes the connection. So is one that is
//! taken: it is announced before anybody can take it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::super::super::Connection;
use crate::clock;

/// What is known of one rail.
#[derive(Debug, Default)]
enum Slot {
    /// Nobody is at it.
    #[default]
    Idle,
    /// The other end has made a connection, which means that it has given up the one before.
    Offered,
    /// A thread is at it, until it succeeds or is told that it is over.
    Sought(Arc<AtomicBool>),
    /// There is a connection.
    Found(Connection),
}

impl Slot {
    fn is_sought_by(&self, errand: &Arc<AtomicBool>) -> bool {
        matches!(self, Self::Sought(present) if Arc::ptr_eq(present, errand))
    }
}

/// What the queue pair collects.
#[derive(Debug)]
pub(super) enum Find {
    /// The other end has given up the connection of a rail.
    Offer,
    /// A rail has another one.
    Connection(Connection),
}

/// What is known of all rails of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Desk {
    has_finds: AtomicBool,
    failures: AtomicU64,
    slots: Mutex<BTreeMap<usize, Slot>>,
    /// Something is over.
    over: Condvar,
}

impl Desk {
    /// A thread begins to seek, unless one is at it or has succeeded. It is told through what this
    /// returns when it is over.
    pub(super) fn begin(&self, rail: usize) -> Option<Arc<AtomicBool>> {
        let mut slots = self.slots();
        let slot = slots.entry(rail).or_default();
        if matches!(slot, Slot::Sought(_) | Slot::Found(_)) {
            return None;
        }
        let errand = Arc::<AtomicBool>::default();
        *slot = Slot::Sought(Arc::clone(&errand));
        Some(errand)
    }

    /// A thread has succeeded. What nobody wants any more is closed.
    pub(super) fn found(&self, rail: usize, errand: &Arc<AtomicBool>, connection: Connection) {
        let mut slots = self.slots();
        let slot = slots.entry(rail).or_default();
        if slot.is_sought_by(errand) {
            *slot = Slot::Found(connection);
            self.has_finds.store(true, Ordering::Relaxed);
        }
    }

    /// A thread has ended.
    pub(super) fn ended(&self, rail: usize, errand: &Arc<AtomicBool>) {
        let mut slots = self.slots();
        let slot = slots.entry(rail).or_default();
        if slot.is_sought_by(errand) {
            *slot = Slot::Idle;
        }
    }

    /// The other end offers a connection that nobody can have taken yet.
    fn offered(&self, rail: usize) {
        let mut slots = self.slots();
        let slot = slots.entry(rail).or_default();
        if !matches!(slot, Slot::Sought(_)) {
            *slot = Slot::Offered;
            self.has_finds.store(true, Ordering::Relaxed);
        }
    }

    /// Whether [`Self::take`] would bring something.
    pub(super) fn has_finds(&self) -> bool {
        self.has_finds.load(Ordering::Relaxed)
    }

    /// Everything that has been found.
    pub(super) fn take(&self) -> Vec<(usize, Find)> {
        let mut slots = self.slots();
        self.has_finds.store(false, Ordering::Relaxed);
        let mut finds = Vec::new();
        for (&rail, slot) in &mut *slots {
            match std::mem::take(slot) {
                Slot::Offered => finds.push((rail, Find::Offer)),
                Slot::Found(connection) => finds.push((rail, Find::Connection(connection))),
                other @ (Slot::Idle | Slot::Sought(_)) => *slot = other,
            }
        }
        finds
    }

    /// Ends all threads, and forgets what they have found.
    pub(super) fn clear(&self) {
        let mut slots = self.slots();
        for slot in slots.values() {
            if let Slot::Sought(errand) = slot {
                errand.store(true, Ordering::Relaxed);
            }
        }
        slots.clear();
        self.has_finds.store(false, Ordering::Relaxed);
        self.over.notify_all();
    }

    /// Waits, but not longer than for the end of an errand.
    pub(super) fn rest(&self, errand: &AtomicBool, until: Instant) {
        let mut slots = self.slots();
        loop {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() || errand.load(Ordering::Relaxed) {
                return;
            }
            let waited = self.over.wait_timeout(slots, left);
            slots = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn is_sought(&self, rail: usize) -> bool {
        matches!(self.slots().get(&rail), Some(Slot::Sought(_)))
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<usize, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells a queue pair that the other end has made a connection.
///
/// That means that the other end has given up the one before, of which this end may not know: a NIC that
/// fails does not let a farewell out.
#[derive(Clone, Debug)]
pub struct Bell(Weak<Desk>);

impl Bell {
    pub(super) fn new(desk: &Arc<Desk>) -> Self {
        Self(Arc::downgrade(desk))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }

    /// The other end has made a connection for a rail, which [`Connector::connect`] cannot return before
    /// this has.
    ///
    /// [`Connector::connect`]: super::Connector::connect
    pub fn ring(&self, rail: usize) {
        if let Some(desk) = self.0.upgrade() {
            desk.offered(rail);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connection() -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Connection::Stream(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    fn kinds(desk: &Desk) -> Vec<(usize, &'static str)> {
        let name = |find: &Find| match find {
            Find::Offer => "offer",
            Find::Connection(_) => "connection",
        };
        desk.take().iter().map(|(rail, find)| (*rail, name(find))).collect()
    }

    #[test]
    fn an_offer_counts_unless_somebody_takes_it() {
        let desk = Arc::<Desk>::default();
        let bell = Bell::new(&desk);
        bell.ring(3);
        assert!(desk.has_finds());
        assert_eq!(kinds(&desk), [(3, "offer")]);
        let errand = desk.begin(3).unwrap();
        bell.ring(3);
        assert!(!desk.has_finds() && kinds(&desk).is_empty());
        desk.found(3, &errand, connection());
        assert!(desk.begin(3).is_none());
        assert_eq!(kinds(&desk), [(3, "connection")]);
    }

    /// Of two connections that the other end made the older one is dead.
    #[test]
    fn an_offer_replaces_what_was_found() {
        let desk = Arc::<Desk>::default();
        let errand = desk.begin(1).unwrap();
        desk.found(1, &errand, connection());
        desk.ended(1, &errand);
        Bell::new(&desk).ring(1);
        assert_eq!(kinds(&desk), [(1, "offer")]);
        assert!(desk.begin(1).is_some());
    }

    #[test]
    fn what_comes_too_late_is_dropped() {
        let desk = Desk::default();
        let early = desk.begin(1).unwrap();
        desk.clear();
        assert!(early.load(Ordering::Relaxed));
        let late = desk.begin(1).unwrap();
        desk.found(1, &early, connection());
        desk.ended(1, &early);
        assert!(!desk.has_finds() && desk.is_sought(1));
        desk.found(1, &late, connection());
        desk.clear();
        assert!(!desk.has_finds() && kinds(&desk).is_empty());
    }

    #[test]
    fn a_bell_of_a_queue_pair_that_is_gone_is_silent() {
        let bell = Bell::new(&Arc::default());
        bell.ring(0);
    }
}
