//! Atomic operations whose result survives the rail, with nothing but one-sided operations.
//!
//! A compare-and-swap whose answer is lost leaves no trace of whether it happened, and reading the
//! word later does not tell, since others may have changed it. So the swap installs a *token* in
//! place of the value: a word that no other swap ever installs. What the token stands for lies in a
//! record at the peer, one per queue pair: the value, and a status word which is the token, or the
//! token with the bit [`DONE`].
//!
//! ```text
//!   try     write (value, token) into the own record; swap(word: expected -> token)
//!   settle  swap(status of the record: token -> token | DONE); swap(word: token -> value)
//! ```
//!
//! Whoever finds a token of somebody else in the word reads its record, *settles* it, and tries
//! again; so nobody waits for a queue pair that has lost its rails. What makes this sound:
//!
//! 1. The record is written before the token is installed: whoever sees a token finds its value.
//! 2. `DONE` is set before the token is replaced, and only by somebody who saw the token in the
//!    word, and only while the record is still that of the token.
//! 3. A token is never used twice, and a record belongs to one token until that is replaced.
//!
//! After a failure, when the fence makes sure that nothing sent earlier is still executed, the owner
//! looks at the word *first* and at its record afterwards. The token is in the word: the swap
//! happened. It is not, and the record says `DONE`: the swap happened, and somebody settled it. It
//! is not, and the record does not say so: by 2 it never was there, and the swap is tried again with
//! a new token. The returned word is known in the first two cases: it is the expected one. A swap
//! that found another value has changed nothing, so it is no harm to try it again.
//!
//! A fetch-and-add looks at the word and swaps in the sum, until nobody was faster.
//!
//! The price: a word used so never holds values that look like tokens (see [`is_token`]), must be
//! accessed in this way by everybody while it is contended, and costs two round trips.

use super::Sequence;

/// Twelve bits that tokens start with.
const TAG: u64 = 0xb5c;
const TAG_SHIFT: u32 = 52;
/// Set in the status of a record when its token has been installed.
pub const DONE: u64 = 1 << 51;
const CLIENT_BITS: u32 = 14;
const ATTEMPT_BITS: u32 = 37;
/// Clients that tokens can tell apart.
pub const MAX_CLIENTS: u64 = 1 << CLIENT_BITS;
/// Attempts after which a client runs out of tokens.
pub const MAX_ATTEMPTS: u64 = 1 << ATTEMPT_BITS;

/// Whether an application must not use a word as a value, because it looks like a token.
#[must_use]
pub fn is_token(word: u64) -> bool {
    word >> TAG_SHIFT == TAG
}

fn token(client: u64, attempt: u64) -> u64 {
    assert!(client < MAX_CLIENTS && attempt < MAX_ATTEMPTS, "{client} {attempt}");
    TAG << TAG_SHIFT | client << ATTEMPT_BITS | attempt
}

fn client_of(token: u64) -> u64 {
    token >> ATTEMPT_BITS & (MAX_CLIENTS - 1)
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Replace a word if it has the expected value.
    CompareAndSwap {
        /// Replaced only if it is this.
        expected: u64,
        /// The replacement.
        new: u64,
    },
    /// Add to a word, wrapping.
    FetchAdd {
        /// What is added.
        addend: u64,
    },
}

/// What is sent to the peer, in this order, and answered before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the word; answered with [`Answer::Word`].
    Look,
    /// Write the own record, then swap; answered with the word as it was.
    Try {
        /// What the word must be.
        expected: u64,
        /// What it becomes, and the status of the record.
        token: u64,
        /// The value in the record.
        value: u64,
    },
    /// Read the record of a client; answered with [`Answer::Record`].
    ReadRecord {
        /// Whose.
        client: u64,
    },
    /// Swap the status of the client's record from `token` to `token | DONE`, then swap the word
    /// from `token` to `value`; answered with [`Answer::Settled`].
    Settle {
        /// Whose record.
        client: u64,
        /// What is replaced.
        token: u64,
        /// By what.
        value: u64,
    },
}

/// What the peer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The word as it was.
    Word(u64),
    /// A record.
    Record {
        /// What the token stands for.
        value: u64,
        /// The token, perhaps with [`DONE`].
        status: u64,
    },
    /// Both swaps were executed, whatever they found.
    Settled,
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Step(Step),
    /// The word as the application would have got it from the device.
    Done(u64),
    /// The word holds, or would get, a value that looks like a token.
    Impossible,
}

/// The attempt that is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    expected: u64,
    token: u64,
    value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The word is being read.
    Looking,
    Trying(Attempt),
    /// Somebody else's token was found, and its record is being read.
    Reading {
        token: u64,
    },
    /// Somebody else's token is being replaced.
    Helping,
    /// The own token is in the word, or was.
    Settling(Attempt),
    /// After a failure: the word is being read.
    Verifying(Attempt),
    /// After a failure, the token was not in the word: the own record is being read.
    Checking(Attempt),
}

/// One atomic operation.
#[derive(Clone, Debug)]
pub(super) struct Atomic {
    pub(super) sequence: Sequence,
    request: Request,
    client: u64,
    phase: Phase,
    /// A token whose record belongs to another one already: if it is still in the word then it is
    /// no token.
    outdated: Option<u64>,
    pub(super) was_recovered: bool,
    /// The rail of the last step is fenced.
    pub(super) is_interrupted: bool,
}

impl Atomic {
    /// The operation of a client, and its first step.
    pub(super) fn start(
        sequence: Sequence,
        request: Request,
        client: u64,
        attempts: &mut u64,
    ) -> (Self, Next) {
        let mut atomic = Self {
            sequence,
            request,
            client,
            phase: Phase::Looking,
            outdated: None,
            was_recovered: false,
            is_interrupted: false,
        };
        let first = atomic.begin(attempts);
        (atomic, first)
    }

    fn begin(&mut self, attempts: &mut u64) -> Next {
        match self.request {
            Request::CompareAndSwap { expected, new } => self.attempt(expected, new, attempts),
            Request::FetchAdd { .. } => {
                self.phase = Phase::Looking;
                Next::Step(Step::Look)
            }
        }
    }

    fn attempt(&mut self, expected: u64, value: u64, attempts: &mut u64) -> Next {
        if is_token(expected) || is_token(value) || *attempts >= MAX_ATTEMPTS {
            return Next::Impossible;
        }
        let token = token(self.client, *attempts);
        *attempts += 1;
        self.phase = Phase::Trying(Attempt { expected, token, value });
        Next::Step(Step::Try { expected, token, value })
    }

    /// The rail of the step was fenced before its answer came: what to ask on the next one.
    pub(super) fn recover(&mut self, attempts: &mut u64) -> Next {
        self.is_interrupted = false;
        match self.phase {
            Phase::Looking | Phase::Reading { .. } | Phase::Helping => self.begin(attempts),
            Phase::Trying(attempt) | Phase::Verifying(attempt) | Phase::Checking(attempt) => {
                self.phase = Phase::Verifying(attempt);
                Next::Step(Step::Look)
            }
            Phase::Settling(attempt) => self.settle(attempt),
        }
    }

    /// What follows the answer to the last step.
    ///
    /// # Panics
    /// It is an answer to another step.
    pub(super) fn answered(&mut self, answer: Answer, attempts: &mut u64) -> Next {
        match (self.phase, answer) {
            (Phase::Looking, Answer::Word(word)) => self.found(word, attempts),
            (Phase::Trying(attempt), Answer::Word(word)) if word == attempt.expected => {
                self.settle(attempt)
            }
            (Phase::Trying(_), Answer::Word(word)) => self.found(word, attempts),
            (Phase::Reading { token }, Answer::Record { value, status }) => {
                self.help(token, value, status, attempts)
            }
            (Phase::Helping, Answer::Settled) => self.begin(attempts),
            (Phase::Settling(attempt), Answer::Settled) => Next::Done(attempt.expected),
            (Phase::Verifying(attempt), Answer::Word(word)) if word == attempt.token => {
                self.was_recovered = true;
                self.settle(attempt)
            }
            (Phase::Verifying(attempt), Answer::Word(_)) => {
                self.phase = Phase::Checking(attempt);
                Next::Step(Step::ReadRecord { client: self.client })
            }
            (Phase::Checking(attempt), Answer::Record { status, .. }) => {
                if status == attempt.token | DONE {
                    self.was_recovered = true;
                    return Next::Done(attempt.expected);
                }
                self.begin(attempts)
            }
            (
                Phase::Looking
                | Phase::Trying(_)
                | Phase::Reading { .. }
                | Phase::Helping
                | Phase::Settling(_)
                | Phase::Verifying(_)
                | Phase::Checking(_),
                Answer::Word(_) | Answer::Record { .. } | Answer::Settled,
            ) => panic!("{answer:?} does not answer {:?}", self.phase),
        }
    }

    fn settle(&mut self, attempt: Attempt) -> Next {
        self.phase = Phase::Settling(attempt);
        let Attempt { token, value, .. } = attempt;
        Next::Step(Step::Settle { client: self.client, token, value })
    }

    /// The word holds a value that was not expected, or that the sum starts from.
    fn found(&mut self, word: u64, attempts: &mut u64) -> Next {
        if is_token(word) {
            if self.outdated == Some(word) || word & DONE != 0 {
                return Next::Impossible;
            }
            self.phase = Phase::Reading { token: word };
            return Next::Step(Step::ReadRecord { client: client_of(word) });
        }
        match self.request {
            Request::CompareAndSwap { expected, new } if word == expected => {
                self.attempt(expected, new, attempts)
            }
            Request::CompareAndSwap { .. } => Next::Done(word),
            Request::FetchAdd { addend } => self.attempt(word, word.wrapping_add(addend), attempts),
        }
    }

    fn help(&mut self, token: u64, value: u64, status: u64, attempts: &mut u64) -> Next {
        if status & !DONE != token {
            // Its owner has gone on, so the token is not in the word any more.
            self.outdated = Some(token);
            return self.begin(attempts);
        }
        self.phase = Phase::Helping;
        Next::Step(Step::Settle { client: client_of(token), token, value })
    }
}

#[cfg(test)]
#[path = "atomic/tests.rs"]
mod tests;
