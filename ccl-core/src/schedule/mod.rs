//! What moves where: the language shared by planner, verifier, lowering and simulators.
//!
//! A [`Schedule`] is a list of rounds of [`Transfer`]s. There is one operation, in two modes.
//! Everything else (buffers, links, rails, tiles, sequence numbers) is added by lowering and is not
//! part of the meaning.
//!
//! A transfer keeps the identity of its chunk: rank `a`'s copy of chunk `c` goes to, or is reduced
//! into, rank `b`'s copy of chunk `c`. Where the copies lie in memory is the business of
//! [`crate::layout`].
//!
//! All reads of a round see the state before it. In one round a place is written either by one
//! `Store` or by any number of `Accumulate`s; the latter become one reduction over all of them, in
//! order of rank.

mod verify;

use std::fmt;

pub use verify::{Fault, Holdings, run};

use crate::ids::{Chunk, Rank};

/// What the destination does with the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Overwrite the destination.
    Store,
    /// Reduce into the destination. Not idempotent: it must happen exactly once.
    Accumulate,
}

/// Moves one chunk from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// What moves.
    pub chunk: Chunk,
    /// Where it is read.
    pub source: Rank,
    /// Where it is written.
    pub target: Rank,
    /// How it is written.
    pub mode: Mode,
    /// Of what a rank sends in a round, lower turns go first. All that is written into one place in a round has the
    /// same turn, and so has all that is read from one.
    pub turn: i32,
}

impl Transfer {
    /// One without a turn of its own.
    #[must_use]
    pub fn new(chunk: Chunk, source: Rank, target: Rank, mode: Mode) -> Self {
        Self { chunk, source, target, mode, turn: 0 }
    }
}

/// A schedule that can be asked for one rank's part of one round, so that no rank has to hold the
/// whole of it.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// Size of the group.
    fn ranks(&self) -> u32;

    /// Number of rounds.
    fn rounds(&self) -> u32;

    /// Appends the transfers of `round` whose source or target is `rank`, in any order.
    ///
    /// The two ends of a transfer must report it alike; a transfer from a rank to itself is a bug.
    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>);
}

/// All transfers of one round, sorted; each one once.
pub fn round(schedule: &dyn Schedule, round: u32) -> Vec<Transfer> {
    let mut all = Vec::new();
    let mut part = Vec::new();
    for rank in (0..schedule.ranks()).map(Rank) {
        schedule.transfers(round, rank, &mut part);
        all.extend(part.drain(..).filter(|transfer| transfer.source == rank));
    }
    all.sort_unstable();
    all
}
