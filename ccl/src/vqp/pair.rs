//! One end of a queue pair, plain or over several rails.

use std::os::fd::RawFd;
use std::time::Duration;

use ccl_transport::clock;
use ccl_transport::verbs::virtual_qp::{Counters, Evidence, Readiness, VirtualQp};
use ccl_transport::verbs::{
    Completion, Opcode, QueuePair as _, ReceiveRequest, State, WorkRequest,
};
use ccl_transport::{TransportError, verbs};

use super::domain::Wiring;
use super::end::End;
use super::event::{Chronicle, Event};
use super::meeting::Deadline;
use super::plain::Plain;
use super::pool::Customer;
use super::{Domain, Error, Meeting, Terms, introduction};

/// Polls in vain before a waiting thread sleeps.
const POLLS_BEFORE_SLEEP: u32 = 200;
/// How long to sleep where something may have to be done that no descriptor tells.
const SHORT_PAUSE: Duration = Duration::from_micros(100);
/// How long to sleep otherwise: faults that nobody tells are found out that much later.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// How long to sleep where two things are waited for.
const SERVE_PAUSE: Duration = Duration::from_millis(1);

/// One end of a queue pair. It has no threads that serve it: everything happens in
/// [`poll`](Self::poll) and [`wait`](Self::wait), also what the peer needs of this end, so it has to be
/// polled until both ends are done.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) end: End,
    pub(super) terms: Terms,
    pub(super) wiring: std::sync::Arc<Wiring>,
    rails: usize,
    readiness: Readiness,
    /// Connections whose descriptors are watched.
    watched: u64,
    /// Rails of this host that a rehearsed fault has switched off.
    severed: Vec<bool>,
    chronicle: Chronicle,
    /// Completed while it was connected.
    pub(super) early: Vec<Completion>,
    /// Why atomics are impossible.
    pub(super) lacking: Option<String>,
    /// Where its backups come from, if it has none of its own.
    pub(super) customer: Option<Customer>,
}

impl QueuePair {
    pub(super) fn plain(
        domain: &Domain,
        pair: Box<dyn verbs::QueuePair>,
        terms: &Terms,
    ) -> Result<Self, Error> {
        Self::new(domain, End::Plain(Plain::new(pair)), terms)
    }

    pub(super) fn surviving(
        domain: &Domain,
        pair: VirtualQp,
        terms: &Terms,
    ) -> Result<Self, Error> {
        Self::new(domain, End::Surviving(Box::new(pair)), terms)
    }

    fn new(domain: &Domain, mut end: End, terms: &Terms) -> Result<Self, Error> {
        if let Err(cause) = end.pair().initialise() {
            return Err(end.pair().fault().map_or(cause.into(), |fault| fault.clone().into()));
        }
        let readiness = Readiness::new()?;
        if let Some(announcements) = domain.wiring.lookout.descriptor() {
            readiness.watch(&[announcements])?;
        }
        let mut pair = Self {
            end,
            terms: *terms,
            wiring: std::sync::Arc::clone(&domain.wiring),
            rails: domain.devices().len(),
            readiness,
            watched: 0,
            severed: vec![false; domain.devices().len()],
            chronicle: Chronicle::default(),
            early: Vec::new(),
            lacking: None,
            customer: None,
        };
        pair.lacking = introduction::lacking(&pair.wiring.natures, pair.used_rails(), "this host");
        Ok(pair)
    }

    /// How many of the rails it may come to use.
    pub(super) fn used_rails(&self) -> usize {
        if self.terms.evidence.is_some() { self.rails } else { 1 }
    }

    /// How many rails it has.
    #[must_use]
    pub fn rails(&self) -> usize {
        self.rails
    }

    /// Its evidence; `None` for a plain one.
    #[must_use]
    pub fn evidence(&self) -> Option<Evidence> {
        self.terms.evidence
    }

    /// Queues a request and starts it if it can start. Of one that is not signalled nothing is heard
    /// unless it fails.
    ///
    /// # Errors
    /// [`Error::QueueFull`]: poll first. [`Error::InvalidUsage`] before it is connected, and for an atomic
    /// if a device of one of the ends has none, which it names. After it has failed requests are accepted,
    /// and flushed.
    pub fn post_send(&mut self, request: WorkRequest) -> Result<(), Error> {
        self.check(&request)?;
        Ok(self.end.pair().post_send(request)?)
    }

    /// Queues requests in their order and starts them together, as the list of `ibv_post_send` that they are
    /// for an RDMA device. Those that are not signalled cost no completion at the device; that they were
    /// executed is known when the next one of the list that is signalled has completed, or the last. With the
    /// evidence `Resend` a fault before that repeats them all.
    ///
    /// # Errors
    /// How many were queued, and why the next one was not: as for [`Self::post_send`].
    pub fn post_send_list(&mut self, requests: &[WorkRequest]) -> Result<(), (usize, Error)> {
        let checked = requests.iter().enumerate();
        let outcome = checked.map(|(index, request)| (index, self.check(request)));
        let flaw = outcome.filter_map(|(index, checked)| Some((index, checked.err()?))).next();
        let sound = flaw.as_ref().map_or(requests.len(), |(index, _)| *index);
        let queued = self.end.pair().post_send_list(&requests[..sound]);
        queued.map_err(|(index, cause)| (index, cause.into()))?;
        flaw.map_or(Ok(()), Err)
    }

    /// Whether the devices of both ends can do it.
    fn check(&self, request: &WorkRequest) -> Result<(), Error> {
        match &self.lacking {
            Some(lacking)
                if matches!(
                    request.operation.opcode(),
                    Opcode::CompareAndSwap | Opcode::FetchAdd
                ) =>
            {
                Err(Error::InvalidUsage(lacking.clone()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Queues memory for one message of the peer.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), Error> {
        Ok(self.end.pair().post_receive(request)?)
    }

    /// Does what can be done without waiting, appends what has completed, and tells whether anything
    /// happened.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> bool {
        if self.wiring.drill.is_some() {
            self.look_at_drill();
        }
        if !self.early.is_empty() {
            completions.append(&mut self.early);
        }
        let moved = match &mut self.end {
            End::Surviving(pair) => {
                if let Some(customer) = &mut self.customer {
                    customer.poll(pair);
                }
                pair.poll(completions)
            }
            End::Plain(plain) => {
                let moved = plain.poll(completions);
                if plain.has_been_idle(moved) {
                    plain.look_around(self.terms.silence);
                }
                moved
            }
        };
        self.chronicle.look(self.end.snapshot());
        moved
    }

    /// Waits until something has completed, which it appends.
    ///
    /// # Errors
    /// [`Error::Deadline`] if nothing did within `limit`; [`Error::PeerLost`] with the reason if it has
    /// failed and nothing is outstanding any more.
    pub fn wait(
        &mut self,
        completions: &mut Vec<Completion>,
        limit: Duration,
    ) -> Result<(), Error> {
        let deadline = Deadline::after("wait", limit);
        self.wait_while(completions, &deadline, LOOK_PAUSE, || true).map(drop)
    }

    /// Serves the peer until it says something over the meeting, or something has completed here, which
    /// is appended. Tells whether the peer has said something.
    ///
    /// # Errors
    /// As for [`Self::wait`].
    pub fn serve(
        &mut self,
        completions: &mut Vec<Completion>,
        meeting: &Meeting,
        limit: Duration,
    ) -> Result<bool, Error> {
        let deadline = Deadline::after("serve", limit);
        let has_completed =
            self.wait_while(completions, &deadline, SERVE_PAUSE, || !meeting.has_message())?;
        Ok(!has_completed)
    }

    /// Polls until something has completed, or `goes_on` no more; tells whether it was the first.
    fn wait_while(
        &mut self,
        completions: &mut Vec<Completion>,
        deadline: &Deadline,
        pause: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        let before = completions.len();
        let mut idle = 0u32;
        loop {
            // One that fails in a poll still has something to say in the next.
            let was_over = self.is_over();
            let moved = self.poll(completions);
            if completions.len() > before {
                return Ok(true);
            }
            idle = if moved { 0 } else { idle.saturating_add(1) };
            if !moved && !goes_on() {
                return Ok(false);
            }
            if was_over && !moved {
                return Err(self.lost());
            }
            let left = deadline.left("a completion")?;
            if idle < POLLS_BEFORE_SLEEP {
                std::thread::yield_now();
                continue;
            }
            self.arm()?;
            self.readiness.rest(left.min(pause));
        }
    }

    /// One descriptor for all rails, the same over its life. After [`arm`](Self::arm) it becomes readable
    /// when a poll is worthwhile.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.readiness.descriptor()
    }

    /// To be called before somebody sleeps on the descriptor, as `ibv_req_notify_cq` is: arm, poll once
    /// more, sleep.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn arm(&mut self) -> Result<(), Error> {
        // RDMA devices do not need to know, but whoever sleeps is not to be woken by it again.
        self.wiring.lookout.look();
        let (needs_poll, deadline) = match &mut self.end {
            End::Surviving(pair) => {
                pair.look_around();
                if let Some(customer) = &mut self.customer {
                    customer.hurry();
                }
                if pair.connections() > self.watched {
                    self.watched = pair.connections();
                    let mut descriptors = Vec::new();
                    pair.descriptors(&mut descriptors);
                    self.readiness.watch(&descriptors)?;
                }
                (pair.needs_poll(), pair.deadline())
            }
            End::Plain(plain) => {
                plain.look_around(self.terms.silence);
                if self.watched == 0
                    && let Some(descriptor) = plain.pair.descriptor()
                {
                    self.watched = 1;
                    self.readiness.watch(&[descriptor])?;
                }
                (plain.needs_poll(), None)
            }
        };
        let until = deadline.map(|deadline| deadline.saturating_duration_since(clock::now()));
        let most = if needs_poll { SHORT_PAUSE } else { LOOK_PAUSE };
        Ok(self.readiness.arm(until.map_or(most, |until| until.min(most)))?)
    }

    /// Sleeps until a poll of one of these is worthwhile, for `limit` at most: an event loop of queue pairs
    /// alone.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn rest(pairs: &mut [Self], limit: Duration) -> Result<(), Error> {
        pairs.iter_mut().try_for_each(Self::arm)?;
        Readiness::rest_on(pairs.iter().map(|pair| &pair.readiness), limit);
        Ok(())
    }

    /// Whether the peer is owed something that only polls here give: an acknowledgement, a repair.
    #[cfg(feature = "cuda")]
    pub(crate) fn owes(&self) -> bool {
        match &self.end {
            End::Surviving(pair) => pair.needs_poll(),
            End::Plain(plain) => plain.pair.needs_poll(),
        }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> State {
        match &self.end {
            End::Surviving(pair) => pair.state(),
            End::Plain(plain) => plain.pair.state(),
        }
    }

    /// Whether it has failed and everything that was outstanding has come back from its devices, which may
    /// take RDMA devices a moment.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_drained = match &self.end {
            End::Surviving(pair) => !pair.needs_poll(),
            End::Plain(plain) => !plain.pair.needs_poll(),
        };
        is_drained && self.state() == State::Error
    }

    /// Why it has failed.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let fault = match &self.end {
            End::Surviving(pair) => pair.fault(),
            End::Plain(plain) => plain.fault(),
        };
        fault.map(TransportError::to_string)
    }

    /// Whether requests flow, rather than wait for the peer or for a repair.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.end.snapshot().is_running
    }

    /// The rail in use; 0 is the default one.
    #[must_use]
    pub fn active_rail(&self) -> usize {
        self.end.snapshot().rail
    }

    /// How many rails are connected.
    #[must_use]
    pub fn connected_rails(&self) -> usize {
        match &self.end {
            End::Surviving(pair) => (0..self.rails).filter(|&rail| pair.is_attached(rail)).count(),
            End::Plain(plain) => usize::from(plain.pair.state() == State::ReadyToSend),
        }
    }

    /// What it has gone through; nothing, for a plain one.
    #[must_use]
    pub fn counters(&self) -> Counters {
        match &self.end {
            End::Surviving(pair) => pair.counters(),
            End::Plain(_) => Counters::default(),
        }
    }

    /// What has happened to it since the last call, the oldest first; 1024 events are kept.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.chronicle.take()
    }

    /// Says that a rail has failed, whatever its device thinks: because somebody else knows better. A
    /// plain queue pair ends with its only one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no such rail.
    pub fn suspect(&mut self, rail: usize) -> Result<(), Error> {
        if rail >= self.rails {
            let text = format!("there is no rail {rail}; there are {}", self.rails);
            return Err(Error::InvalidArgument(text));
        }
        self.end.give_up(rail, "its rail was said to have failed");
        Ok(())
    }

    /// Ends it: everything outstanding is flushed, and nothing that was posted here leaves any more.
    pub fn fail(&mut self) {
        self.end.pair().fail();
    }

    /// Whether bytes that were sent may still be lost if this process exits now.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        match &self.end {
            End::Surviving(pair) => pair.in_flight(),
            End::Plain(plain) => plain.pair.in_flight(),
        }
    }

    /// Tells its rails what the kernel would tell this host of NICs that are off.
    fn look_at_drill(&mut self) {
        let Some(drill) = self.wiring.drill.clone() else { return };
        for rail in 0..self.rails {
            let is_severed = drill.is_severed(rail);
            let was_severed = std::mem::replace(&mut self.severed[rail], is_severed);
            if !is_severed || was_severed {
                continue;
            }
            self.end.give_up(rail, "its NIC is off on purpose");
        }
    }

    pub(super) fn lost(&self) -> Error {
        Error::PeerLost(self.fault().unwrap_or_else(|| "the queue pair has failed".to_owned()))
    }
}
