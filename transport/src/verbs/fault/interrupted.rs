//! Queue pairs over a cable that is broken for some time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::RawFd;
use std::time::Instant;

use super::super::landings::Landings;
use super::super::{
    Completion, Connection, Opcode, PostError, QueuePair, ReceiveRequest, Silence, State, Unstaged,
    WorkRequest,
};
use crate::{TransportError, clock};

/// What a cable loses at the moment, as one end of a queue pair over it sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// What this end sends.
    pub outgoing: bool,
    /// What it should receive.
    pub incoming: bool,
}

/// Tells what a cable loses.
pub trait Lossy: Send + fmt::Debug {
    /// At this moment.
    fn loss(&self) -> Loss;
}

/// A queue pair over a cable that may lose everything for a while.
///
/// Nothing that a reliable connection carries is lost by that, it is late: what is posted meanwhile
/// leaves when the cable is whole again, unless the queue pair was given up before. Both ends have to be
/// wrapped, as a cable has two.
#[derive(Debug)]
pub struct Interrupted<C> {
    inner: Box<dyn QueuePair>,
    cable: C,
    /// Posted here while nothing leaves.
    waiting: VecDeque<WorkRequest>,
    /// Most operations outstanding.
    sends: usize,
    /// Signalled operations that have not completed.
    unconfirmed: usize,
    /// Whether something was posted since the cable was last whole.
    posted_in_vain: bool,
    /// When somebody first asked about the present silence.
    silent_since: Cell<Option<Instant>>,
}

impl<C: Lossy> Interrupted<C> {
    /// Wraps a queue pair that holds up to `sends` operations.
    #[must_use]
    pub fn new(inner: Box<dyn QueuePair>, sends: usize, cable: C) -> Self {
        Self {
            inner,
            cable,
            waiting: VecDeque::new(),
            sends,
            unconfirmed: 0,
            posted_in_vain: false,
            silent_since: Cell::new(None),
        }
    }

    /// What is lost of what this queue pair does; once it is in error, nothing is.
    fn loss(&self) -> Loss {
        match self.inner.state() {
            State::ReadyToSend => self.cable.loss(),
            State::Reset | State::Init | State::ReadyToReceive | State::Error => Loss::default(),
        }
    }

    /// Hands on what waited, as far as it is taken. Tells whether anything was.
    fn start_waiting(&mut self) -> bool {
        let before = self.waiting.len();
        while let Some(&request) = self.waiting.front()
            && self.inner.post_send(request).is_ok()
        {
            self.waiting.pop_front();
        }
        self.waiting.len() < before
    }

    /// Counts what the peer has confirmed.
    fn confirmed(&mut self, completions: &[Completion]) {
        let is_send = |completion: &&Completion| {
            !matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWriteWithImmediate)
        };
        let sends = completions.iter().filter(is_send).count();
        self.unconfirmed = self.unconfirmed.saturating_sub(sends);
    }
}

impl<C: Lossy> QueuePair for Interrupted<C> {
    fn state(&self) -> State {
        self.inner.state()
    }

    fn fault(&self) -> Option<&TransportError> {
        self.inner.fault()
    }

    fn initialise(&mut self) -> Result<(), PostError> {
        self.inner.initialise()
    }

    fn connect(&mut self, connection: Connection) -> Result<(), TransportError> {
        self.inner.connect(connection)
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        let loss = self.loss();
        if loss.outgoing || !self.waiting.is_empty() {
            let outstanding = self.unconfirmed.max(self.waiting.len());
            if outstanding >= self.sends {
                return Err(PostError::QueueFull);
            }
            self.waiting.push_back(request);
        } else {
            self.inner.post_send(request)?;
        }
        self.unconfirmed += usize::from(request.signalled);
        self.posted_in_vain |= loss != Loss::default();
        Ok(())
    }

    fn cork(&mut self, bytes: usize) {
        self.inner.cork(bytes);
    }

    fn sends_unstaged(&self) -> bool {
        self.inner.sends_unstaged()
    }

    fn post_unstaged(&mut self, operations: &[Unstaged<'_>]) -> Option<usize> {
        if self.loss() != Loss::default() || !self.waiting.is_empty() {
            return None;
        }
        let unfilled = self.inner.post_unstaged(operations)?;
        let signalled = operations.iter().filter(|operation| operation.request.signalled);
        self.unconfirmed += signalled.count();
        Some(unfilled)
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        self.inner.post_receive(request)
    }

    fn poll_into(
        &mut self,
        completions: &mut Vec<Completion>,
        landings: &mut dyn Landings,
    ) -> bool {
        let loss = self.loss();
        self.posted_in_vain &= loss != Loss::default();
        let mut moved = !loss.outgoing && self.start_waiting();
        if !loss.incoming {
            let before = completions.len();
            moved |= self.inner.poll_into(completions, landings);
            self.confirmed(&completions[before..]);
        }
        moved
    }

    fn acknowledge(&mut self) {
        if !self.loss().outgoing {
            self.inner.acknowledge();
        }
    }

    /// What waited is flushed.
    fn fail(&mut self) {
        self.inner.fail();
        self.start_waiting();
    }

    fn discard(&mut self) {
        self.inner.discard();
        self.start_waiting();
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.waiting.clear();
        (self.unconfirmed, self.posted_in_vain) = (0, false);
        self.silent_since.set(None);
    }

    fn flushed(&self) -> bool {
        self.waiting.is_empty() && self.inner.flushed()
    }

    fn in_flight(&self) -> bool {
        !self.waiting.is_empty() || self.inner.in_flight()
    }

    fn look_at_nic(&self) {
        self.inner.look_at_nic();
    }

    fn confirms_alone(&self) -> bool {
        self.inner.confirms_alone()
    }

    /// A loss in one direction is enough: then either the bytes do not arrive or their confirmation.
    fn silence(&self) -> Option<Silence> {
        let is_awaited = self.unconfirmed > 0 || self.posted_in_vain;
        if self.loss() == Loss::default() || !is_awaited {
            self.silent_since.set(None);
            return self.inner.silence();
        }
        let since = self.silent_since.get().unwrap_or_else(clock::now);
        self.silent_since.set(Some(since));
        Some(Silence::of(clock::now().saturating_duration_since(since)))
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn needs_poll(&self) -> bool {
        !self.waiting.is_empty() || self.inner.needs_poll()
    }
}
