//! What a queue pair has of a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_transport::clock;
use ccl_transport::verbs::virtual_qp::{Standing, VirtualQp};
use ccl_transport::verbs::{QueuePair as _, State};

use super::super::{Error, Pool, Terms};
use super::stock::{Delivery, Letterbox, Stock};

/// Polls from one look at the pool to the next while everything is well.
const POLLS_PER_LOOK: u32 = 256;
/// From one look for what has arrived to the next, of all queue pairs together: a look takes a fraction of a
/// microsecond for each spare.
const SELDOM: Duration = Duration::from_millis(5);
/// The same while a queue pair is without a rail.
const OFTEN: Duration = Duration::from_micros(200);
/// From one note to the next: a line may have come back.
const NOTE_PAUSE: Duration = Duration::from_millis(50);

/// A queue pair whose backups are those of a pool.
#[derive(Debug)]
pub(in super::super) struct Customer {
    stock: Arc<Stock>,
    /// Number of the queue pair.
    identity: u64,
    letterbox: Arc<Letterbox>,
    /// Backups, the best first.
    order: Vec<usize>,
    polls: u32,
    next_note: Instant,
}

impl Customer {
    /// The pool serves the queue pair with this number from now on.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(in super::super) fn new(pool: &Pool, identity: u64, terms: &Terms) -> Result<Self, Error> {
        if let Some(evidence) = terms.evidence {
            pool.stock.serve(terms.depth, evidence)?;
        }
        let (stock, letterbox) = (Arc::clone(&pool.stock), pool.stock.enter(identity));
        let next_note = clock::now();
        Ok(Self { stock, identity, letterbox, order: Vec::new(), polls: 0, next_note })
    }

    /// What both ends call the pool.
    pub(in super::super) fn pool(&self) -> &str {
        &self.stock.name
    }

    /// What the rails are worth.
    pub(in super::super) fn set_standings(&mut self, standings: &[Standing]) {
        self.order = (1..standings.len()).collect();
        self.order.sort_by_key(|&rail| (standings[rail], rail));
    }

    /// Has the next poll look at the pool: for whoever sleeps between polls.
    pub(in super::super) fn hurry(&mut self) {
        self.polls = 0;
    }

    /// Does its part of a poll.
    pub(in super::super) fn poll(&mut self, pair: &mut VirtualQp) {
        let is_due = self.polls == 0;
        self.polls = (self.polls + 1) % POLLS_PER_LOOK;
        let is_well = pair.is_running();
        if (is_well && !is_due && !self.letterbox.is_filled()) || pair.state() != State::ReadyToSend
        {
            return;
        }
        let now = clock::now();
        self.stock.collect(now, if is_well { SELDOM } else { OFTEN });
        for delivery in self.letterbox.empty() {
            receive(pair, delivery);
        }
        if !pair.is_running() && !(0..=self.order.len()).any(|rail| pair.is_attached(rail)) {
            self.seek_help(pair, now);
        }
    }

    /// Takes a backup, or has the peer take one.
    fn seek_help(&mut self, pair: &mut VirtualQp, now: Instant) {
        match (pair.leads(), pair.peer()) {
            (Some(true), _) => {
                let lookout = &self.stock.wiring.lookout;
                let mut usable = self.order.iter().filter(|&&rail| !lookout.nic(rail).is_severed());
                // Whoever gets one has one.
                let _ = usable.any(|&rail| self.stock.claim(rail, pair));
            }
            (Some(false), Some(peer)) if now >= self.next_note => {
                self.next_note = now + NOTE_PAUSE;
                self.stock.warn(peer, pair.active());
            }
            _ => {}
        }
    }
}

impl Drop for Customer {
    fn drop(&mut self) {
        self.stock.leave(self.identity);
    }
}

fn receive(pair: &mut VirtualQp, delivery: Delivery) {
    match delivery {
        Delivery::Backup(rail, connection) if pair.wants(rail) => {
            if let Err(reason) = pair.attach(rail, connection) {
                tracing::debug!(rail, %reason, "a backup of a pool was not taken");
            }
        }
        // Of another rail the peer has spoken too late.
        Delivery::Suspicion(rail) if rail == pair.active() => pair.suspect(rail),
        Delivery::Backup(..) | Delivery::Suspicion(_) => {}
    }
}
