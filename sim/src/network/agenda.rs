//! What will happen, in order of time; what is due at the same time, in the order in which it was
//! planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::end::EndId;
use super::link::NewsItem;
use crate::Nanos;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The first packet of this end's wire reaches the other card.
    Arrive(EndId),
    /// The first acknowledgement for this end reaches it.
    Acknowledge(EndId),
    /// The end learns that the other one is gone.
    Notice(EndId),
    /// The end's card looks whether it has waited too long for an answer.
    GiveUp(EndId),
    /// The connection breaks at this end.
    Break(EndId),
    /// A rank has something to look at.
    Wake(usize),
    /// A fault begins.
    FaultBegins(usize),
    /// A fault ends.
    FaultEnds(usize),
    /// The keeper of one side of a link has news.
    News { link: usize, side: usize, item: NewsItem },
    /// The keepers of a link try to connect a path again.
    Attempt { link: usize, path: usize },
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    planned: u64,
}

impl Agenda {
    pub(super) fn plan(&mut self, at: Nanos, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next event, if it is due at `now`.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Nanos, Event)> {
        if self.next()? > now {
            return None;
        }
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
