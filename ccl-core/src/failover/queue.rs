//! One end of a queue pair that survives its rails.
//!
//! The machine knows nothing about devices, memory or clocks. It sees sequence numbers and
//! [`Descriptor`]s, never payload. Whoever drives it hands in one [`Input`] at a time, with the time,
//! and performs the [`Output`]s in their order:
//!
//! ```text
//!   requests, completions, faults, messages, time ──▶ Queue::handle ──▶ post, fence, say, complete
//! ```
//!
//! # A repair
//!
//! One end *leads*: it says which rail is used. Both ends do the same at a fault, in this order:
//!
//! ```text
//!   leader                                   follower
//!   fence the old rail, drain it             fence the old rail, drain it
//!                          ◀── Suspect ──    on every other rail, if it saw the fault itself
//!   ── Resume(epoch, delivered) ─────────▶   on the best rail that is up; if the follower has not
//!                                            fenced the old one yet, it does so now
//!                ◀── Accept(epoch, delivered) ──
//!   evidence, then everything not executed   evidence, then everything not executed
//! ```
//!
//! To fence is to take the own end of the rail to its error state; drained is a rail when everything
//! posted there has been given back, done or not. So when an end hears `Resume` or `Accept`, nothing
//! that was posted before the fault can be executed any more, at either end: what the evidence says
//! stays true, and nothing is executed twice because its first journey was merely long.
//!
//! A fault during the repair, on whichever rail and at whichever end, starts it again with a higher
//! epoch; messages of other epochs change nothing. Evidence is asked for anew in every epoch, so it
//! does not matter how far a retransmission had come.
//!
//! # Evidence
//!
//! Requests of one queue are executed in their order, so evidence about one holds for all before it.
//! What has an answer (reads) is asked again if the answer is not here, as devices do.
//!
//! | | known to be executed | atomics outstanding at a fault |
//! |---|---|---|
//! | [`Evidence::Resend`] | what has completed | fail, and with them the queue |
//! | [`Evidence::Handshake`] | what the peer has taken from receives, and all before that | the same |
//! | [`Evidence::Log`] | also what the log says | go on, see [`atomic`] |
//!
//! # Invariants
//!
//! 1. A request is posted on one rail that is not fenced at most.
//! 2. Nothing known to be executed is posted again.
//! 3. Completions are reported in the order of the requests, each once.
//! 4. The queue ends with a named [`Cause`], after which nothing is outstanding, when no rail is left
//!    for longer than [`Limits::patience_ns`] or a repair takes longer than [`Limits::repair_ns`].

pub mod atomic;
mod message;
mod posting;
mod rails;
mod repair;
mod returning;
mod settings;
mod state;
mod window;

#[cfg(test)]
mod tests;

use crate::ids::{Epoch, Rail, Timestamp};
use atomic::{Answer, Atomic, Step};
pub use message::{LogEntry, MESSAGE_WORDS, Message};
use rails::Rails;
use repair::Phase;
use returning::Returning;
pub use settings::{Evidence, Limits, Standing};
pub use state::{ReceiveState, SendSignal, SendState};
use window::{Progress, Window};

/// The last epoch of a queue: entries of the log have room for no more.
pub const MAX_EPOCH: u32 = 0xffff;

const DEFAULT: Rail = Rail(0);

/// Position of a request, or of a receive, among all of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// What a request is, as far as repairs are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fills a receive.
    Send,
    /// Writes.
    Write,
    /// Writes, then completes a receive.
    WriteWithImmediate,
    /// Reads.
    Read,
    /// Replaces a word.
    CompareAndSwap {
        /// If it is this.
        expected: u64,
        /// By this.
        new: u64,
    },
    /// Adds to a word.
    FetchAdd {
        /// This much.
        addend: u64,
    },
}

/// A request without its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What it does.
    pub kind: Kind,
    /// Length, for the account of what is sent again.
    pub bytes: u64,
    /// Whether the application is told of its success.
    pub signalled: bool,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The application has the next request.
    Submit(Descriptor),
    /// The application has the next receive.
    SubmitReceive,
    /// A rail is connected, and the peer has introduced itself on it.
    Joined {
        /// Which.
        rail: Rail,
        /// Whether this end leads.
        leads: bool,
        /// Entries in the log that the peer keeps for this end.
        log_entries: u64,
    },
    /// A rail has failed, or is believed to have.
    Failed(Rail),
    /// Everything posted on a rail that was fenced has been given back.
    Drained(Rail),
    /// The peer said something over a rail.
    Heard(Rail, Message),
    /// A request is executed, and so is the entry behind it, if it has one. So are all that were posted before
    /// it, of which nothing may have been heard.
    Executed(Sequence),
    /// A message has filled the oldest receive.
    Delivered,
    /// The log that the peer keeps, as it was read over a rail.
    Log(Rail, &'a [u64]),
    /// The answer to the last step.
    Answered(Answer),
    /// A request was refused by this end's device, by the peer, or by its memory.
    Refused(Option<Sequence>),
    /// Nothing happened before the deadline.
    Tick,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Post a request on a rail, and behind it the entry for the peer's log.
    Post {
        /// Where.
        rail: Rail,
        /// Which.
        sequence: Sequence,
        /// What to write behind it.
        entry: Option<LogEntry>,
    },
    /// Post a receive on a rail.
    PostReceive {
        /// Where.
        rail: Rail,
        /// Which.
        receive: Sequence,
    },
    /// Ask the next thing for an atomic operation.
    Step {
        /// Where.
        rail: Rail,
        /// For which request.
        sequence: Sequence,
        /// What.
        step: Step,
    },
    /// Take a rail to its error state, and report when everything posted there was given back.
    Fence(Rail),
    /// Make a fenced rail ready to be connected again.
    Revive(Rail),
    /// Tell the peer over a rail.
    Say(Rail, Message),
    /// Read the log that the peer keeps for this end.
    ReadLog(Rail),
    /// A request is done; so are all before it.
    Complete {
        /// Which.
        sequence: Sequence,
        /// The word as it was, where a step found it out.
        result: Option<u64>,
    },
    /// The queue is over: what is outstanding fails.
    Dead(Cause),
}

/// Why a queue is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// No rail is left.
    #[error("every rail has failed")]
    NoRail,
    /// There are rails, but the peer does not answer.
    #[error("the peer does not answer on any rail")]
    NoAnswer,
    /// An atomic was outstanding at a fault, and nothing tells whether it was executed.
    #[error("the rail failed while an atomic operation was outstanding")]
    AtomicOutstanding(Sequence),
    /// A request that no rail would execute.
    #[error("a request was refused")]
    Refused(Option<Sequence>),
    /// More faults than there are epochs, or more requests than there are sequence numbers.
    #[error("the queue has used up its numbers")]
    NumbersUsedUp,
}

/// What a queue has gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Epochs that began after a fault.
    pub repairs: u64,
    /// Requests posted again.
    pub resent: u64,
    /// Their bytes.
    pub resent_bytes: u64,
    /// Requests that had been executed although no completion said so.
    pub spared: u64,
    /// Atomics whose result was recovered after its answer was lost.
    pub recovered: u64,
    /// Returns to the default rail without a fault.
    pub returns: u64,
}

/// One end of a queue pair that survives its rails.
#[derive(Debug)]
pub struct Queue {
    evidence: Evidence,
    limits: Limits,
    /// Number of this end among the clients of the peer's memory.
    client: u64,
    /// Unknown until the peer has introduced itself.
    leads: Option<bool>,
    epoch: Epoch,
    active: Rail,
    rails: Rails,
    phase: Phase,
    window: Window,
    log_entries: u64,
    atomic: Option<Atomic>,
    /// Tokens used.
    attempts: u64,
    receives: Receives,
    sending: SendState,
    returning: Option<Returning>,
    rounds: u64,
    /// When the next return may begin.
    not_before: Timestamp,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Receives {
    submitted: u64,
    delivered: u64,
}

impl Queue {
    /// A queue over these rails, the first of which is the default one, for so many requests.
    ///
    /// # Panics
    /// There is no rail.
    #[must_use]
    pub fn new(evidence: Evidence, limits: Limits, standings: &[Standing], depth: usize) -> Self {
        assert!(!standings.is_empty(), "a queue needs a rail");
        Self {
            evidence,
            limits,
            client: 0,
            leads: None,
            epoch: Epoch(0),
            active: DEFAULT,
            rails: Rails::new(standings),
            phase: Phase::Starting,
            window: Window::new(depth),
            log_entries: u64::MAX,
            atomic: None,
            attempts: 0,
            receives: Receives::default(),
            sending: SendState::Default,
            returning: None,
            rounds: 0,
            not_before: Timestamp(0),
            counters: Counters::default(),
        }
    }

    /// Sets the number of this end among the clients of the peer's memory, which the peer assigns.
    pub fn set_client(&mut self, client: u64) {
        self.client = client;
    }

    /// Sets what the rails are worth, before one is connected.
    ///
    /// # Panics
    /// One has been, or there is not a standing for each rail.
    pub fn set_standings(&mut self, standings: &[Standing]) {
        assert!(self.phase == Phase::Starting && standings.len() == self.rails.count());
        self.rails = Rails::new(standings);
    }

    /// Tokens that atomics have used, for the next queue of the same client.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// Sets how many tokens this client has used before.
    pub fn set_attempts(&mut self, attempts: u64) {
        self.attempts = attempts;
    }

    /// The rail in use.
    #[inline]
    #[must_use]
    pub fn active(&self) -> Rail {
        self.active
    }

    /// Version of the agreement about the rail in use.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What it has gone through.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Where requests go.
    #[inline]
    #[must_use]
    pub fn send_state(&self) -> SendState {
        self.sending
    }

    /// Where messages of the peer are taken.
    #[must_use]
    pub fn receive_state(&self) -> ReceiveState {
        if self.active == DEFAULT { ReceiveState::Default } else { ReceiveState::Fallback }
    }

    /// Whether requests flow.
    #[inline]
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Takes one input and appends what has to be done about it.
    ///
    /// # Panics
    /// The input contradicts the outputs: something is executed that was not posted.
    pub fn handle(&mut self, now: Timestamp, input: Input<'_>, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Dead(_)) {
            return;
        }
        match input {
            Input::Submit(descriptor) => {
                self.window.push(descriptor);
            }
            Input::SubmitReceive => self.submit_receive(out),
            Input::Joined { rail, leads, log_entries } => {
                (self.leads, self.log_entries) = (Some(leads), log_entries);
                self.joined(now, rail, out);
            }
            Input::Failed(rail) => self.failed(now, rail, out),
            Input::Drained(rail) => self.drained(now, rail, out),
            Input::Heard(rail, message) => self.heard(now, rail, message, out),
            Input::Executed(sequence) => self.executed(sequence, None, out),
            Input::Delivered => self.receives.delivered += 1,
            Input::Log(rail, words) => self.read_log(rail, words, out),
            Input::Answered(answer) => self.answered(answer, out),
            Input::Refused(sequence) => self.die(Cause::Refused(sequence), out),
            Input::Tick => self.tick(now, out),
        }
        self.post_waiting(out);
        self.advance_return(now, out);
        assert!(self.receives.delivered <= self.receives.submitted, "a receive was not posted");
    }

    fn submit_receive(&mut self, out: &mut Vec<Output>) {
        let receive = Sequence(self.receives.submitted);
        self.receives.submitted += 1;
        if self.phase.takes_receives() {
            out.push(Output::PostReceive { rail: self.active, receive });
        }
    }

    fn post_receives(&self, out: &mut Vec<Output>) {
        for receive in self.receives.delivered..self.receives.submitted {
            out.push(Output::PostReceive { rail: self.active, receive: Sequence(receive) });
        }
    }

    fn executed(&mut self, sequence: Sequence, result: Option<u64>, out: &mut Vec<Output>) {
        self.window.completed(sequence);
        let entry = self.window.get(sequence).expect("what is executed is outstanding");
        entry.progress = Progress::Executed;
        entry.result = result;
        self.complete(out);
    }

    fn complete(&mut self, out: &mut Vec<Output>) {
        while let Some((sequence, result)) = self.window.pop_executed() {
            out.push(Output::Complete { sequence, result });
        }
    }

    fn die(&mut self, cause: Cause, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Dead(_)) {
            self.phase = Phase::Dead(cause);
            out.push(Output::Dead(cause));
        }
    }
}
