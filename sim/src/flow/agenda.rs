//! What will happen, in order of time; what is due at the same time, in the order in which it was
//! planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Picos;
use super::parcel::Parcel;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A rank looks at its links.
    Wake(usize),
    /// A rank hands a parcel to a NIC.
    Post(Parcel),
    /// A sending port has sent what it was sending.
    Sent(usize),
    /// The head of a parcel reaches the receiving port.
    Reach(Parcel),
    /// A receiving port has taken what it was taking.
    Taken(usize),
    /// A parcel is in the memory of the receiver.
    Deliver(Parcel),
}

/// The events to come.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    events: BinaryHeap<Reverse<(Picos, u64, Event)>>,
    planned: u64,
}

impl Agenda {
    pub(super) fn plan(&mut self, at: Picos, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    pub(super) fn take(&mut self) -> Option<(Picos, Event)> {
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
