//! How all ranks switch plans at the same collective.
//!
//! A plan depends on the health of the rails of all hosts, and a collective fails if two ranks plan it
//! differently. So a change of health is agreed on before anybody plans with it. The lowest rank that
//! is left coordinates:
//!
//! ```text
//! coordinator ──Prepare──▶ all    start no new collective
//!             ◀──Answer───        the last one I started was k, and these are my rails
//!             ──Commit───▶ all    epoch e begins with collective 1 + the highest k; go on
//!             ◀──Done─────
//! ```
//!
//! A collective that somebody has started is finished by everybody under the plan with which it began.
//! Nothing waits for a collective to end: a rank answers while it is inside one, and who is held back
//! before a collective that others are in is released by the commit alone.
//!
//! # Why it is safe
//!
//! * A commit needs the answers of all ranks, and each of them is held from its answer to the commit of
//!   that round, or of a later one. So nobody has started the collective that the epoch begins with.
//! * Rounds are numbered, and answers of earlier rounds count for nothing.
//! * When a coordinator goes in the middle, the next rank takes over with a higher [`Ballot`]. Who has
//!   answered a ballot ignores all lower ones, so that what the old coordinator still has under way
//!   changes nothing. If it managed to commit, at least one answer says so, and the commit is completed
//!   before anything else is done.
//! * Health is merged by version of each rank's rails, so that several verdicts at once are one change,
//!   and no order of arrival matters.
//!
//! All this holds among ranks that live. A rank that dies may have begun a collective with an epoch of
//! which nobody else has heard; that collective has no result without it anyway. [`Input::Gone`] must
//! be true: whoever is declared dead is out for good. What a rank sent before it left must arrive
//! before the news that it left.
//!
//! [`Agreement`] decides; whoever owns it delivers its messages, in any order, several times or not at
//! all, and holds back the calls.

mod agreement;
#[cfg(test)]
mod simulation;
mod table;
#[cfg(test)]
mod tests;

pub use agreement::Agreement;
pub use table::{Row, Table};

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Rank};

/// How long an answer may take before the question is repeated.
pub const RESEND_NS: u64 = 200_000_000;

/// From which collective on which health counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The name of the agreement.
    pub epoch: Epoch,
    /// The first collective that is planned with it; the first of a communicator is number 1.
    pub first: u64,
    /// The rails as they are in it.
    pub table: Table,
}

/// One attempt of one coordinator. A higher rank coordinates only when all lower ones have gone.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// The coordinator's rank; the lowest before there was any attempt.
    pub coordinator: u32,
    /// Counts its attempts from 1.
    pub round: u64,
}

/// What ranks say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// To the coordinator: my rails, and whose attempt holds me back.
    Report {
        /// The rails of the sender.
        row: Row,
        /// The attempt it has answered and whose end it does not know.
        held: Option<Ballot>,
    },
    /// Start no more collectives, and answer.
    Prepare {
        /// The attempt.
        ballot: Ballot,
        /// The epoch that the coordinator knows.
        known: Epoch,
    },
    /// The sender starts no more collectives.
    Answer {
        /// What it answers.
        ballot: Ballot,
        /// The last collective it started.
        last: u64,
        /// The epoch it knows.
        epoch: Epoch,
        /// That epoch, if the coordinator does not know it.
        newer: Option<Commit>,
        /// The rails of the sender.
        row: Row,
    },
    /// What was agreed on; collectives may be started again.
    Commit {
        /// The attempt that this ends.
        ballot: Ballot,
        /// The latest agreement, which may be an old one.
        commit: Commit,
    },
    /// The sender has taken the commit.
    Done {
        /// The attempt.
        ballot: Ballot,
    },
}

/// Something that happened at one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// This rank's rails have changed.
    Rails(Row),
    /// A message arrived.
    Heard {
        /// From whom.
        from: Rank,
        /// What it said.
        message: Message,
    },
    /// New collectives are held back, as [`Output::Hold`] asked.
    Held {
        /// The last collective that this rank started.
        last: u64,
    },
    /// A rank is dead or has left.
    Gone {
        /// Who.
        rank: Rank,
        /// How many collectives it started, if it left in order.
        calls: Option<u64>,
    },
    /// [`Agreement::deadline`] has passed.
    Tick,
}

/// Something to be done at once, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this to these ranks.
    Send {
        /// To whom.
        to: Vec<Rank>,
        /// What.
        message: Message,
    },
    /// Start no more collectives, and say with [`Input::Held`] which one was the last.
    Hold,
    /// From its first collective on, plan with this.
    Switch(Commit),
    /// Collectives may be started again.
    Release,
}
