//! Faults on purpose, around any queue pair.
//!
//! For tests: a [`Script`] says what goes wrong with a [`Faulty`] one. The benign faults change only when
//! things happen, so a queue pair wrapped in them still meets the contract; the others end it, or repeat
//! what it delivered. Everything is counted in operations and polls and drawn from a seed, so that a
//! failing run can be repeated.
//!
//! For rehearsals: an [`Interrupted`] one behaves as over a cable that is broken for some time.

mod interrupted;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Instant;

use ccl_core::random::Random;

pub use self::interrupted::{Interrupted, Loss, Lossy};
use super::landings::Landings;
use super::{
    Completion, Connection, Opcode, PostError, QueuePair, ReceiveRequest, Silence, State, Status,
    Unstaged, WorkRequest,
};
use crate::{TransportError, clock};

/// What goes wrong with a queue pair; by default nothing. The first two are benign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// A completion shows up to so many polls late.
    pub delay_polls: u64,
    /// Operations start only as far as an allowance goes that grows by so much with every poll.
    pub bytes_per_poll: Option<usize>,
    /// Every so many, an immediate shows twice, as after a retransmission. The second one uses up a
    /// receive as well.
    pub duplicate_every: Option<u64>,
    /// When so many operations have been posted the connection breaks, and the next one completes so:
    /// with [`Status::RetryExceeded`] for a connection that is lost.
    pub fail_after: Option<(u64, Status)>,
    /// When so many operations have been posted, nothing moves any more and nobody says so.
    pub silent_after: Option<u64>,
}

impl Script {
    /// Delays and throttling, drawn from the seed.
    #[must_use]
    pub fn benign(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let delay_polls = 1 + random.below(20);
        let bytes_per_poll = Some(1 << (8 + random.below(12)));
        Self { seed, delay_polls, bytes_per_poll, ..Self::default() }
    }
}

/// A queue pair to which the faults of a script happen.
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn QueuePair>,
    script: Script,
    random: Random,
    polls: u64,
    /// Operations posted since the last reset.
    posted: u64,
    /// Posted here and not started, because the allowance is used up.
    waiting: VecDeque<WorkRequest>,
    most_waiting: usize,
    allowance: usize,
    /// Completed, with the poll at which it shows.
    held: VecDeque<(u64, Completion)>,
    /// How the next send that is flushed really failed.
    verdict: Option<Status>,
    immediates: u64,
    /// Receives used up by immediates that showed twice.
    owed_receives: u64,
    arrived: Vec<Completion>,
    /// When somebody first asked how long nothing had moved any more.
    silent_since: Cell<Option<Instant>>,
}

impl Faulty {
    /// Wraps a queue pair that holds up to `sends` operations.
    #[must_use]
    pub fn new(inner: Box<dyn QueuePair>, sends: usize, script: Script) -> Self {
        let random = Random::new(script.seed);
        Self {
            inner,
            script,
            random,
            polls: 0,
            posted: 0,
            waiting: VecDeque::new(),
            most_waiting: sends,
            allowance: 0,
            held: VecDeque::new(),
            verdict: None,
            immediates: 0,
            owed_receives: 0,
            arrived: Vec::new(),
            silent_since: Cell::new(None),
        }
    }

    fn is_silent(&self) -> bool {
        self.script.silent_after.is_some_and(|last| self.posted > last)
    }

    /// Breaks the connection if its time has come.
    fn break_if_due(&mut self) {
        if let Some((last, status)) = self.script.fail_after
            && self.posted > last
            && self.inner.state() == State::ReadyToSend
        {
            self.verdict = Some(status);
            self.inner.fail();
        }
    }

    /// Starts what the allowance covers. Once the queue pair is in error everything is passed on, to
    /// be flushed.
    fn start_waiting(&mut self) -> bool {
        self.allowance = match self.script.bytes_per_poll {
            Some(bytes) if !self.waiting.is_empty() => self.allowance.saturating_add(bytes),
            Some(bytes) => bytes,
            None => usize::MAX,
        };
        let mut started = false;
        while let Some(&request) = self.waiting.front() {
            let bytes = request.operation.segment().bytes;
            let covered = bytes <= self.allowance || self.inner.state() == State::Error;
            if !covered || self.inner.post_send(request).is_err() {
                break;
            }
            self.allowance = self.allowance.saturating_sub(bytes);
            self.waiting.pop_front();
            started = true;
        }
        started
    }

    fn hold(&mut self, completion: Completion) {
        let delay = self.random.below(self.script.delay_polls + 1);
        let after = self.held.back().map_or(0, |(poll, _)| *poll);
        self.held.push_back((after.max(self.polls + delay), completion));
    }

    fn take(&mut self, mut completion: Completion) {
        let is_receive =
            matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWriteWithImmediate);
        if !is_receive && completion.status == Status::Flushed {
            completion.status = self.verdict.take().unwrap_or(Status::Flushed);
        }
        self.hold(completion);
        if completion.opcode == Opcode::ReceiveWriteWithImmediate && self.shows_twice() {
            self.owed_receives += 1;
            self.hold(completion);
        }
    }

    fn shows_twice(&mut self) -> bool {
        self.immediates += 1;
        self.script.duplicate_every.is_some_and(|every| self.immediates.is_multiple_of(every))
    }
}

impl QueuePair for Faulty {
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
        if !matches!(self.inner.state(), State::ReadyToSend | State::Error) {
            return self.inner.post_send(request);
        }
        if self.waiting.len() >= self.most_waiting {
            return Err(PostError::QueueFull);
        }
        self.posted += 1;
        self.break_if_due();
        self.waiting.push_back(request);
        Ok(())
    }

    fn sends_unstaged(&self) -> bool {
        self.script.bytes_per_poll.is_none() && self.inner.sends_unstaged()
    }

    fn post_unstaged(&mut self, operations: &[Unstaged<'_>]) -> Option<usize> {
        if self.is_silent() && self.inner.state() == State::ReadyToSend {
            // The network has taken them, for all that can be known.
            self.waiting.extend(operations.iter().map(|operation| operation.request));
            return Some(operations.len());
        }
        if !self.sends_unstaged() || !self.waiting.is_empty() {
            return None;
        }
        let unfilled = self.inner.post_unstaged(operations)?;
        self.posted += operations.len() as u64;
        self.break_if_due();
        Some(unfilled)
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        if self.owed_receives > 0 {
            self.owed_receives -= 1;
            return Ok(());
        }
        self.inner.post_receive(request)
    }

    fn poll_into(
        &mut self,
        completions: &mut Vec<Completion>,
        landings: &mut dyn Landings,
    ) -> bool {
        if self.is_silent() && self.inner.state() == State::ReadyToSend {
            return false;
        }
        self.polls += 1;
        let mut moved = self.start_waiting();
        let mut arrived = std::mem::take(&mut self.arrived);
        moved |= self.inner.poll_into(&mut arrived, landings);
        for completion in arrived.drain(..) {
            self.take(completion);
        }
        self.arrived = arrived;
        while let Some(&(poll, completion)) = self.held.front()
            && poll <= self.polls
        {
            self.held.pop_front();
            completions.push(completion);
            moved = true;
        }
        moved
    }

    fn acknowledge(&mut self) {
        if !self.is_silent() {
            self.inner.acknowledge();
        }
    }

    fn fail(&mut self) {
        self.inner.fail();
    }

    fn discard(&mut self) {
        self.inner.discard();
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.waiting.clear();
        self.held.clear();
        (self.posted, self.owed_receives, self.verdict) = (0, 0, None);
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

    /// Of a queue pair that fell silent, how long ago somebody asked first.
    fn silence(&self) -> Option<Silence> {
        if !self.is_silent() || self.inner.state() != State::ReadyToSend {
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
        !self.waiting.is_empty() || !self.held.is_empty() || self.inner.needs_poll()
    }
}
