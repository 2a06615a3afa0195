//! What a pool has, and for whom something has arrived.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccl_transport::verbs::virtual_qp::{Evidence, Owner, SparePool, VirtualQp};
use ccl_transport::verbs::{Connection, Depth};
use ccl_transport::{TransportError, clock};

use super::super::Error;
use super::super::domain::Wiring;
use super::keeper::Keeper;
use crate::driver::lock;

/// What a connection of a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A spare that this end may give away.
    Ours,
    /// One that the peer may.
    Theirs,
    Line,
}

/// Something for a queue pair.
#[derive(Debug)]
pub(super) enum Delivery {
    /// Its backup over this rail, which the peer has claimed for it.
    Backup(usize, Connection),
    /// The peer has lost this rail.
    Suspicion(usize),
}

/// Where the deliveries of one queue pair wait.
#[derive(Debug, Default)]
pub(super) struct Letterbox {
    is_filled: AtomicBool,
    deliveries: Mutex<Vec<Delivery>>,
}

impl Letterbox {
    fn put(&self, delivery: Delivery) {
        lock(&self.deliveries).push(delivery);
        self.is_filled.store(true, Ordering::Release);
    }

    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Relaxed)
    }

    pub(super) fn empty(&self) -> Vec<Delivery> {
        self.is_filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.deliveries))
    }
}

/// What there is of a pool.
#[derive(Debug)]
pub(in super::super) struct Stock {
    pub(super) name: String,
    pub(super) wiring: Arc<Wiring>,
    keeper: Keeper,
    /// For spares of each end, on each rail.
    room: usize,
    /// By rail; the default one has none.
    shelves: Vec<Shelf>,
    letterboxes: Mutex<BTreeMap<u64, Arc<Letterbox>>>,
    /// When somebody looked last for what has arrived.
    looked: Mutex<Instant>,
    is_over: AtomicBool,
}

/// What there is of one rail.
#[derive(Debug)]
struct Shelf {
    reserve: Mutex<Reserve>,
    /// Something is missing, or it is over.
    change: Condvar,
}

#[derive(Debug)]
struct Reserve {
    ours: SparePool,
    theirs: SparePool,
    line: Option<Line>,
    /// As of the NIC, when somebody looked last.
    replacements: u32,
}

impl Reserve {
    /// Where the NIC is another one everything that was made over the one before is dead.
    fn follow(&mut self, replacements: u32) {
        if std::mem::replace(&mut self.replacements, replacements) != replacements {
            self.ours.clear();
            self.theirs.clear();
            self.line = None;
        }
    }

    fn missing(&self) -> Option<Purpose> {
        if self.line.is_none() {
            return Some(Purpose::Line);
        }
        // The ends fill up alike, so that neither has to wait for the other one's half.
        let (ours, theirs) = (self.ours.room(), self.theirs.room());
        match (ours, theirs) {
            (0, 0) => None,
            (ours, theirs) if ours >= theirs => Some(Purpose::Ours),
            _ => Some(Purpose::Theirs),
        }
    }

    fn put(&mut self, purpose: Purpose, stream: TcpStream) -> Result<(), TransportError> {
        match purpose {
            // The peer makes another one only where one has died: here that may not be known yet.
            Purpose::Ours => {
                self.ours.make_room();
                self.ours.add(stream, Owner::Here)
            }
            Purpose::Theirs => {
                self.theirs.make_room();
                self.theirs.add(stream, Owner::There)
            }
            Purpose::Line => {
                let prepared = stream.set_nonblocking(true);
                prepared.map_err(|cause| TransportError::system("prepare a line", cause))?;
                self.line = Some(Line { stream, note: [0; NOTE_BYTES], read: 0 });
                Ok(())
            }
        }
    }

    /// What the peer says on the line. One that has died is missing from then on.
    fn hear(&mut self) -> Option<Note> {
        match self.line.as_mut()?.hear() {
            Ok(note) => note,
            Err(_) => {
                self.line = None;
                None
            }
        }
    }
}

impl Stock {
    /// With room for so many spares of each end on each rail.
    pub(super) fn new(name: String, room: usize, keeper: Keeper, wiring: Arc<Wiring>) -> Self {
        let reserve = |rail| Reserve {
            ours: SparePool::new(room),
            theirs: SparePool::new(room),
            line: None,
            replacements: wiring.lookout.nic(rail).replacements(),
        };
        let shelf = |rail| Shelf { reserve: Mutex::new(reserve(rail)), change: Condvar::new() };
        Self {
            name,
            keeper,
            room,
            shelves: (1..wiring.bindings.len()).map(shelf).collect(),
            wiring,
            letterboxes: Mutex::default(),
            looked: Mutex::new(clock::now()),
            is_over: AtomicBool::new(false),
        }
    }

    fn shelf(&self, rail: usize) -> &Shelf {
        &self.shelves[rail - 1]
    }

    /// What this end could give away, on the rail that has fewest.
    pub(super) fn spares(&self) -> usize {
        let rooms = self.shelves.iter().map(|shelf| lock(&shelf.reserve).ours.room());
        self.room - rooms.max().unwrap_or(self.room)
    }

    /// Queue pairs of this kind may want a spare.
    pub(super) fn serve(&self, depth: Depth, evidence: Evidence) -> Result<(), Error> {
        self.keeper.serve(depth, evidence)
    }

    /// From now on there is somebody with this number.
    pub(super) fn enter(&self, identity: u64) -> Arc<Letterbox> {
        let letterbox = Arc::<Letterbox>::default();
        lock(&self.letterboxes).insert(identity, Arc::clone(&letterbox));
        letterbox
    }

    pub(super) fn leave(&self, identity: u64) {
        lock(&self.letterboxes).remove(&identity);
    }

    /// Takes what has arrived for anybody, unless that was done less than `pause` ago.
    pub(super) fn collect(&self, now: Instant, pause: Duration) {
        // Whoever is at it does it for all.
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if now.saturating_duration_since(*looked) < pause {
            return;
        }
        *looked = now;
        for rail in 1..=self.shelves.len() {
            self.collect_from(rail);
        }
    }

    fn collect_from(&self, rail: usize) {
        let shelf = self.shelf(rail);
        let mut reserve = lock(&shelf.reserve);
        reserve.follow(self.wiring.lookout.nic(rail).replacements());
        // Nobody but this end gives its own away: this drops those that have died.
        drop(reserve.ours.claimed());
        while let Some((claim, connection)) = reserve.theirs.claimed() {
            if claim.rail == rail {
                self.deliver(claim.identity, Delivery::Backup(rail, connection));
            }
        }
        while let Some(note) = reserve.hear() {
            self.deliver(note.identity, Delivery::Suspicion(note.rail));
        }
        if reserve.missing().is_some() {
            shelf.change.notify_one();
        }
    }

    /// What is for nobody here is closed.
    fn deliver(&self, identity: u64, delivery: Delivery) {
        let letterbox = lock(&self.letterboxes).get(&identity).cloned();
        match letterbox {
            Some(letterbox) => letterbox.put(delivery),
            None => tracing::debug!(identity, ?delivery, "for a queue pair that is gone"),
        }
    }

    /// Gives a queue pair that leads a backup over this rail; tells whether it did.
    pub(super) fn claim(&self, rail: usize, pair: &mut VirtualQp) -> bool {
        let shelf = self.shelf(rail);
        let mut reserve = lock(&shelf.reserve);
        let claimed = reserve.ours.claim(pair, rail);
        if reserve.missing().is_some() {
            shelf.change.notify_one();
        }
        claimed.unwrap_or_else(|reason| {
            tracing::debug!(rail, %reason, "a backup of a pool was not taken");
            false
        })
    }

    /// Tells the peer, over all rails that work, that its queue pair with this number has lost a rail.
    pub(super) fn warn(&self, identity: u64, rail: usize) {
        let note = Note { identity, rail };
        for over in 1..=self.shelves.len() {
            let mut reserve = lock(&self.shelf(over).reserve);
            if !self.is_broken(over)
                && let Some(line) = &mut reserve.line
                && line.tell(note).is_err()
            {
                reserve.line = None;
            }
        }
    }

    /// Whether a rehearsed fault is in the way of a rail.
    pub(super) fn is_broken(&self, rail: usize) -> bool {
        self.wiring.drill.as_ref().is_some_and(|drill| drill.is_broken(rail))
    }

    /// Adds a connection.
    pub(super) fn put(&self, rail: usize, purpose: Purpose, stream: TcpStream) {
        if let Err(reason) = lock(&self.shelf(rail).reserve).put(purpose, stream) {
            tracing::debug!(rail, ?purpose, %reason, "a connection that a pool cannot use");
        }
        // It replaces one that was taken, unless it is one of the first.
        self.keeper.refill();
    }

    /// Waits until something of a rail is missing; `None` when it is over.
    pub(super) fn next_missing(&self, rail: usize) -> Option<Purpose> {
        let shelf = self.shelf(rail);
        let mut reserve = lock(&shelf.reserve);
        loop {
            if self.is_over() {
                return None;
            }
            if let Some(purpose) = reserve.missing() {
                return Some(purpose);
            }
            reserve = shelf.change.wait(reserve).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits, but not longer than until it is over.
    pub(super) fn rest(&self, rail: usize, pause: Duration) {
        let (shelf, until) = (self.shelf(rail), clock::now() + pause);
        let mut reserve = lock(&shelf.reserve);
        loop {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() || self.is_over() {
                return;
            }
            let waited = shelf.change.wait_timeout(reserve, left);
            reserve = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Nothing is replaced any more.
    pub(super) fn finish(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        for shelf in &self.shelves {
            // Held, so that nobody is between his look and his wait.
            let _reserve = lock(&shelf.reserve);
            shelf.change.notify_all();
        }
    }
}

const NOTE_BYTES: usize = 16;

/// A queue pair of the reader has lost a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    identity: u64,
    rail: usize,
}

/// What the ends of a pool tell each other over one rail.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    note: [u8; NOTE_BYTES],
    read: usize,
}

impl Line {
    /// A line that does not take so few bytes at once is dead.
    fn tell(&mut self, note: Note) -> std::io::Result<()> {
        let words = [note.identity, note.rail as u64].map(u64::to_le_bytes);
        match self.stream.write(words.as_flattened())? {
            NOTE_BYTES => Ok(()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn hear(&mut self) -> std::io::Result<Option<Note>> {
        while self.read < NOTE_BYTES {
            match self.stream.read(&mut self.note[self.read..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read += count,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        self.read = 0;
        let (words, _) = self.note.as_chunks::<8>();
        let [identity, rail] = [0, 1].map(|index| u64::from_le_bytes(words[index]));
        Ok(Some(Note { identity, rail: usize::try_from(rail).unwrap_or(usize::MAX) }))
    }
}
