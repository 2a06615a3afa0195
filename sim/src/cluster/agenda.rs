//! What will happen, in order of time; what is due at the same moment, in the order in which it was planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use ccl_core::ids::{Node, Rail};

/// Moments that are so close, in seconds, are the same: sums of many durations are not exact.
pub(super) const SAME_MOMENT: f64 = 1e-12;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// A lane has sent its segment, if its version is still this.
    Sent(usize, u32),
    /// A processor has prepared a message of a lane.
    Prepared(usize),
    /// A segment of this turn of a lane has arrived.
    Landed(usize, usize),
    /// A NIC fails.
    Cut(Node, Rail),
    /// Everybody has noticed.
    Mend(Node, Rail),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: f64,
    number: u64,
    event: Event,
}

/// The events to come.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    planned: u64,
}

impl Agenda {
    pub(super) fn plan(&mut self, at: f64, event: Event) {
        self.planned += 1;
        self.entries.push(Reverse(Entry { at, number: self.planned, event }));
    }

    /// When something happens next.
    pub(super) fn next(&self) -> Option<f64> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// What happens next, if that is not after `end`.
    pub(super) fn take_until(&mut self, end: f64) -> Option<Event> {
        self.next().filter(|at| *at <= end)?;
        self.entries.pop().map(|Reverse(entry)| entry.event)
    }
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        // Moments are never negative, so their bits are in their order.
        (self.at.to_bits(), self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
