//! The requests of a queue that have not been reported to the application, oldest first.

use std::collections::VecDeque;

use super::{Descriptor, Kind, Sequence};

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not posted, or not any more.
    Waiting,
    /// Posted on the active rail.
    Posted,
    /// The peer has executed it, and its answer, if it has one, is here.
    Executed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) descriptor: Descriptor,
    pub(super) progress: Progress,
    /// Whether it has been posted on some rail.
    pub(super) was_posted: bool,
    /// The word as it was, where a step found it out.
    pub(super) result: Option<u64>,
    /// Messages for a receive of the peer up to this request, itself included.
    notifications: u64,
}

/// A ring that is allocated once.
#[derive(Debug)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    /// Sequence of the oldest entry.
    base: u64,
    notifications: u64,
    /// No entry before this index waits.
    cursor: usize,
}

impl Window {
    pub(super) fn new(depth: usize) -> Self {
        Self { entries: VecDeque::with_capacity(depth), base: 0, notifications: 0, cursor: 0 }
    }

    pub(super) fn base(&self) -> Sequence {
        Sequence(self.base)
    }

    pub(super) fn push(&mut self, descriptor: Descriptor) -> Sequence {
        self.notifications += u64::from(descriptor.kind.notifies());
        self.entries.push_back(Entry {
            descriptor,
            progress: Progress::Waiting,
            was_posted: false,
            result: None,
            notifications: self.notifications,
        });
        Sequence(self.base + self.entries.len() as u64 - 1)
    }

    pub(super) fn get(&mut self, sequence: Sequence) -> Option<&mut Entry> {
        let index = usize::try_from(sequence.0.checked_sub(self.base)?).ok()?;
        self.entries.get_mut(index)
    }

    /// The next request to post.
    pub(super) fn waiting(&mut self) -> Option<(Sequence, Entry)> {
        while let Some(entry) = self.entries.get(self.cursor) {
            if entry.progress == Progress::Waiting {
                return Some((Sequence(self.base + self.cursor as u64), *entry));
            }
            self.cursor += 1;
        }
        None
    }

    /// Whether the newest request on its way is one that reports to the application.
    pub(super) fn ends_signalled(&self) -> bool {
        let newest = self.entries.iter().rev().find(|entry| entry.progress == Progress::Posted);
        newest.is_none_or(|entry| entry.descriptor.signalled)
    }

    pub(super) fn is_drained(&self) -> bool {
        self.entries.iter().all(|entry| entry.progress != Progress::Posted)
    }

    /// The oldest atomic that was posted and has no result.
    pub(super) fn outstanding_atomic(&self) -> Option<Sequence> {
        let is_lost =
            |entry: &Entry| entry.descriptor.kind.is_atomic() && entry.progress == Progress::Posted;
        let index = self.entries.iter().position(is_lost)?;
        Some(Sequence(self.base + index as u64))
    }

    /// The rail says that this request is done, and means all before it: reads have their answers, too.
    pub(super) fn completed(&mut self, sequence: Sequence) {
        let Some(last) = sequence.0.checked_sub(self.base).map(|last| last as usize) else {
            return;
        };
        for entry in self.entries.iter_mut().take(last) {
            if entry.progress == Progress::Posted {
                entry.progress = Progress::Executed;
            }
        }
    }

    /// The rail is fenced: nothing is on its way.
    pub(super) fn withdraw(&mut self) {
        for entry in &mut self.entries {
            if entry.progress == Progress::Posted {
                entry.progress = Progress::Waiting;
            }
        }
        self.cursor = 0;
    }

    /// The peer has taken so many messages: the request with the last of them has been executed, and
    /// so has everything before it. Returns how many requests need not be sent again.
    pub(super) fn delivered(&mut self, notifications: u64) -> u64 {
        let last = self.entries.iter().rposition(|entry| {
            entry.descriptor.kind.notifies() && entry.notifications <= notifications
        });
        last.map_or(0, |index| self.executed_through(index))
    }

    /// The peer's log has this request.
    pub(super) fn logged(&mut self, sequence: Sequence) -> u64 {
        let index = sequence.0.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
        match index {
            Some(index) if index < self.entries.len() => self.executed_through(index),
            Some(_) | None => 0,
        }
    }

    /// Requests are executed in order. What has an answer is not done without it.
    fn executed_through(&mut self, index: usize) -> u64 {
        let mut known = 0;
        for entry in self.entries.range_mut(..=index) {
            if entry.was_posted
                && entry.progress == Progress::Waiting
                && !entry.descriptor.kind.has_answer()
            {
                entry.progress = Progress::Executed;
                known += 1;
            }
        }
        known
    }

    /// Takes the oldest request if it is executed.
    pub(super) fn pop_executed(&mut self) -> Option<(Sequence, Option<u64>)> {
        let oldest = self.entries.pop_front_if(|entry| entry.progress == Progress::Executed)?;
        self.base += 1;
        self.cursor = self.cursor.saturating_sub(1);
        Some((Sequence(self.base - 1), oldest.result))
    }
}

impl Kind {
    /// Whether it fills a receive of the peer.
    pub(super) fn notifies(self) -> bool {
        matches!(self, Self::Send | Self::WriteWithImmediate)
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAdd { .. })
    }

    fn has_answer(self) -> bool {
        self.is_atomic() || self == Self::Read
    }
}
