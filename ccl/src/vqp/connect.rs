//! How a queue pair is connected with that of the peer.

use std::time::Duration;

use ccl_transport::verbs::State;

use super::end::End;
use super::meeting::Deadline;
use super::pool::Customer;
use super::{Error, Meeting, Pool, QueuePair, introduction};

/// Polls at a time for what the peer may still need of an end that is connected.
const POLLS_PER_LOOK: u32 = 256;

impl QueuePair {
    /// Connects it with a queue pair of the peer, which does the same over the other end of the
    /// meeting. Several are connected one after the other, in the same order at both ends. On return
    /// both ends can be used; devices of further rails are opened, and their connections made, in the
    /// background, at once and whenever one has failed.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if it was connected before, or the ends differ in evidence, number of
    /// rails or rehearsed faults; [`Error::Deadline`]; [`Error::PeerLost`] if the default rail does not
    /// connect. It is of no use then.
    pub fn connect(&mut self, meeting: &mut Meeting, limit: Duration) -> Result<(), Error> {
        self.connect_with(meeting, None, limit)
    }

    /// The same, but in place of own backups it takes one of a pool when it has lost its rail: both ends
    /// name the same pool. It waits as long as [`Limits::patience_ns`](super::Limits) says for one if there is
    /// none.
    ///
    /// # Errors
    /// As for [`Self::connect`]; [`Error::InvalidUsage`] if the pool is one of another domain or of another peer, or
    /// for a plain queue pair, which has no backups.
    pub fn connect_pooled(
        &mut self,
        meeting: &mut Meeting,
        pool: &Pool,
        limit: Duration,
    ) -> Result<(), Error> {
        self.connect_with(meeting, Some(pool), limit)
    }

    fn connect_with(
        &mut self,
        meeting: &mut Meeting,
        pool: Option<&Pool>,
        limit: Duration,
    ) -> Result<(), Error> {
        if self.state() != State::Init {
            let text = format!("the queue pair is in the state {}", self.state());
            return Err(Error::InvalidUsage(text));
        }
        self.customer = pool.map(|pool| self.customer_of(pool)).transpose()?;
        let deadline = Deadline::after("connect a queue pair", limit);
        let shadow = introduction::connect(self, meeting, &deadline)?;
        self.meet_on_default(&deadline)?;
        // The peer may still need this end, to hear of it over the rail.
        let mut early = std::mem::take(&mut self.early);
        let mut serve = || {
            let _ = (0..POLLS_PER_LOOK).take_while(|_| self.poll(&mut early)).count();
        };
        meeting.exchange_while(b"ready", &deadline, Some(&mut serve))?;
        self.early = early;
        // Only now, so that what is made in the background does not keep this call waiting.
        if let End::Surviving(surviving) = &mut self.end {
            surviving.set_shadow(Some(shadow));
        }
        if let Some(drill) = &self.wiring.drill {
            drill.begin();
        }
        Ok(())
    }

    fn customer_of(&self, pool: &Pool) -> Result<Customer, Error> {
        match &self.end {
            End::Surviving(pair) if pool.is_of(&self.wiring) => {
                Customer::new(pool, pair.identity(), &self.terms)
            }
            End::Surviving(_) => Err(Error::InvalidUsage("the pool is of another domain".into())),
            End::Plain(_) => {
                Err(Error::InvalidUsage("a plain queue pair has no backups: no pool".into()))
            }
        }
    }

    /// Waits until the peer has introduced itself.
    fn meet_on_default(&mut self, deadline: &Deadline) -> Result<(), Error> {
        let mut early = Vec::new();
        while !self.is_running() {
            if self.state() == State::Error {
                return Err(self.lost());
            }
            deadline.left("the peer to introduce itself")?;
            if !self.poll(&mut early) {
                std::thread::yield_now();
            }
        }
        self.early = early;
        Ok(())
    }
}
