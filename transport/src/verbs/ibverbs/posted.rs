//! What was posted and has not completed, and how the device is told of it.

use std::collections::VecDeque;

use super::super::{Depth, Memory, Operation, RemoteAddress, Segment, Status, WorkRequest};
use super::sys::{Post, Source, Target, What};

/// An operation that has not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) request: WorkRequest,
    /// Whether the device tells also that it has succeeded.
    pub(super) is_reported: bool,
    /// What is wrong with it, so that it is not given to the device.
    pub(super) doomed: Option<Status>,
}

/// What was posted and has not completed, oldest first.
#[derive(Debug)]
pub(super) struct Queue<T> {
    entries: VecDeque<T>,
    /// How many of the oldest the device has.
    pub(super) posted: usize,
    /// Number of the oldest.
    first: u64,
}

impl<T> Queue<T> {
    pub(super) fn new(entries: usize) -> Self {
        Self { entries: VecDeque::with_capacity(entries), posted: 0, first: 0 }
    }

    pub(super) fn push(&mut self, entry: T) {
        self.entries.push_back(entry);
    }

    /// The newest.
    pub(super) fn newest(&mut self) -> Option<&mut T> {
        self.entries.back_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Those that the device does not have, oldest first, and the numbers by which it will know them.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, &T)> {
        let numbers = self.first + self.posted as u64..;
        numbers.zip(self.entries.range(self.posted..))
    }

    /// The same, so that they can be changed.
    pub(super) fn waiting_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let numbers = self.first + self.posted as u64..;
        numbers.zip(self.entries.range_mut(self.posted..))
    }

    /// The oldest that the device does not have, and the number by which it will know it.
    pub(super) fn unposted(&mut self) -> Option<(u64, &mut T)> {
        let entry = self.entries.get_mut(self.posted)?;
        Some((self.first + self.posted as u64, entry))
    }

    /// The device gives back this one, and thereby all before it of which it says nothing.
    pub(super) fn pass_over(&mut self, number: u64, is_silent: impl Fn(&T) -> bool) {
        while self.first < number
            && self.posted > 0
            && self.entries.pop_front_if(|entry| is_silent(entry)).is_some()
        {
            (self.first, self.posted) = (self.first + 1, self.posted - 1);
        }
    }

    /// The device gives back the oldest; `None` if that is not this one.
    pub(super) fn take_back(&mut self, number: u64) -> Option<T> {
        if self.posted == 0 || number != self.first {
            return None;
        }
        self.posted -= 1;
        self.pop()
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some(entry)
    }
}

/// How many operations of a queue the device is given at a time. Its ring has a power of two of places, of which
/// some devices use one less: one that is a little smaller than the queue takes half the memory.
pub(super) fn ring(entries: usize) -> usize {
    let smaller = (entries + 1).next_power_of_two() / 2 - 1;
    if 4 * smaller >= 3 * entries { smaller } else { entries }
}

/// How many operations the device is given at a time.
pub(super) fn at_the_device(depth: Depth) -> Depth {
    Depth { sends: ring(depth.sends), ..depth }
}

/// An operation that the device is given.
pub(super) struct Handover {
    pub(super) number: u64,
    pub(super) is_reported: bool,
    pub(super) operation: Operation,
    pub(super) memory: Memory,
}

impl Handover {
    pub(super) fn post(&self) -> Post<'_> {
        let Segment { key, offset, bytes } = self.operation.segment();
        let bytes = u32::try_from(bytes).expect("checked when it was posted");
        let source = Some(Source { key: key.0, memory: &self.memory, offset, bytes });
        let (what, target) = translate(&self.operation);
        Post { id: self.number, is_reported: self.is_reported, what, source, target }
    }
}

fn translate(operation: &Operation) -> (What, Target) {
    let at = |target: RemoteAddress| Target { address: target.address, key: target.key.0 };
    match *operation {
        Operation::Send { .. } => (What::Send, Target::default()),
        Operation::Write { target, .. } => (What::Write, at(target)),
        Operation::WriteWithImmediate { target, immediate, .. } => {
            (What::WriteWithImmediate(immediate), at(target))
        }
        Operation::Read { source, .. } => (What::Read, at(source)),
        Operation::CompareAndSwap { target, expected, new, .. } => {
            (What::CompareAndSwap { expected, new }, at(target))
        }
        Operation::FetchAdd { target, addend, .. } => (What::FetchAdd { addend }, at(target)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_smaller_than_its_queue_where_that_takes_half_the_memory() {
        let rings = [1, 3, 4, 63, 64, 84, 85, 96, 128, 160, 169, 170].map(ring);
        assert_eq!(rings, [1, 3, 3, 63, 63, 63, 85, 96, 127, 127, 127, 170]);
    }

    #[test]
    fn the_device_gives_back_what_it_has_in_order() {
        let mut queue = Queue::new(4);
        for name in ["a", "b", "c"] {
            queue.push(name);
        }
        assert_eq!(queue.take_back(0), None, "the device has nothing");
        assert_eq!(queue.unposted(), Some((0, &mut "a")));
        queue.posted = 2;
        assert_eq!(queue.unposted(), Some((2, &mut "c")));
        assert_eq!((queue.take_back(1), queue.take_back(0)), (None, Some("a")));
        assert_eq!((queue.take_back(0), queue.take_back(1)), (None, Some("b")));
        assert_eq!((queue.take_back(2), queue.posted, queue.len()), (None, 0, 1));
        assert_eq!(queue.pop(), Some("c"));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.unposted(), None);
    }

    #[test]
    fn what_the_device_says_nothing_of_is_over_when_something_behind_it_is() {
        let is_silent = |name: &&str| name.starts_with('-');
        let mut queue = Queue::new(6);
        for name in ["-a", "-b", "c", "-d", "e", "-f"] {
            queue.push(name);
        }
        queue.posted = 5;
        queue.pass_over(2, is_silent);
        assert_eq!((queue.take_back(2), queue.posted, queue.len()), (Some("c"), 2, 3));
        queue.pass_over(5, is_silent);
        assert_eq!(queue.take_back(5), None, "\"e\" has to be told of");
        assert_eq!((queue.take_back(4), queue.posted, queue.len()), (Some("e"), 0, 1));
        queue.pass_over(6, is_silent);
        assert_eq!(queue.len(), 1, "the device does not have it");
    }
}
