//! At which rails a link looks.
//!
//! A look at a rail is a system call where it is a socket, and a rank that waits would look at all of them again and again.
//! So many rails are looked at with one call. And tiles of like size take turns on the rails, so the next one comes where
//! the next one came after the last one on the same rail: only that rail is looked at, and all of them now and then. A
//! tile that comes elsewhere, or a message about a rail, is later by a few looks.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::MAX_RAILS;
use super::carrier::Carrier;

/// From so many rails on, one look at all descriptors is cheaper than a read from each.
const LOOK_FIRST_RAILS: usize = 3;
/// After so many looks in vain one is at all rails.
const VAIN_LOOKS: u32 = 16;
/// After so many nothing is expected any more.
const PATIENCE: u32 = 4 * VAIN_LOOKS;
/// However steadily tiles come where they are expected, one of so many looks is at all rails: with eight of them it takes as
/// long as half a call.
const LOOKS: usize = 256;
/// To take so many bytes is as long as a look.
const LOOK_BYTES: usize = 2 << 10;

/// The paths that are worth a poll.
pub(super) fn ready(carriers: &[Carrier]) -> [bool; MAX_RAILS] {
    let mut ready = [true; MAX_RAILS];
    if carriers.len() < LOOK_FIRST_RAILS {
        return ready;
    }
    let pair = |index: usize| carriers.get(index)?.live.as_ref().map(|live| &live.pair);
    let descriptors: [Option<BorrowedFd<'_>>; MAX_RAILS] = std::array::from_fn(|index| {
        let descriptor = pair(index)?.descriptor()?;
        // SAFETY: the queue pair owns the descriptor and is borrowed as long as this is.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    });
    let Some(any) = descriptors.iter().flatten().next() else { return ready };
    let mut polled: [PollFd<'_>; MAX_RAILS] = std::array::from_fn(|index| {
        let descriptor = descriptors[index].as_ref().unwrap_or(any);
        PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)
    });
    if poll(&mut polled[..carriers.len()], Some(&Timespec::default())).is_err() {
        return ready;
    }
    for index in 0..carriers.len() {
        let is_readable = !polled[index].revents().is_empty();
        let needs_poll = pair(index).is_some_and(|pair| pair.needs_poll());
        ready[index] = is_readable || descriptors[index].is_none() || needs_poll;
    }
    ready
}

/// On which rail the next tile is expected.
#[derive(Debug)]
pub(super) struct Expectation {
    /// The rail on which the last tile came.
    last: usize,
    /// On which rail a tile came after one on each, the last time.
    next: [usize; MAX_RAILS],
    /// Looks in vain since then.
    vain: u32,
    /// Looks since all rails were looked at, and what has come since, in looks.
    blind: usize,
}

impl Expectation {
    pub(super) fn new() -> Self {
        Self { last: 0, next: [0; MAX_RAILS], vain: PATIENCE, blind: 0 }
    }

    /// A tile of so many bytes has come on this rail.
    pub(super) fn came(&mut self, rail: usize, bytes: usize) {
        self.next[self.last] = rail;
        self.last = rail;
        self.vain = 0;
        self.blind += bytes / LOOK_BYTES;
    }

    /// Nothing is expected any more, until the next tile has come.
    pub(super) fn give_up(&mut self) {
        self.vain = PATIENCE;
    }

    /// The rail at which to look and at no other; `None` to look at all.
    pub(super) fn look(&mut self) -> Option<usize> {
        self.vain = PATIENCE.min(self.vain + 1);
        self.blind += 1;
        if self.vain == PATIENCE || self.vain.is_multiple_of(VAIN_LOOKS) || self.blind >= LOOKS {
            self.blind = 0;
            return None;
        }
        Some(self.next[self.last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a look is at all rails.
    fn at_all(looks: &[Option<usize>]) -> usize {
        looks.iter().filter(|look| look.is_none()).count()
    }

    #[test]
    fn who_has_seen_rails_take_turns_looks_at_the_next() {
        let mut expectation = Expectation::new();
        assert_eq!(expectation.look(), None, "nothing has come");
        [0, 3, 5, 0].into_iter().for_each(|rail| expectation.came(rail, 72));
        for rail in [3, 5, 0, 3, 5] {
            assert_eq!(expectation.look(), Some(rail));
            expectation.came(rail, 72);
        }
    }

    #[test]
    fn all_rails_are_looked_at_now_and_then_and_after_a_while_always() {
        let mut expectation = Expectation::new();
        expectation.came(2, 72);
        let looks: Vec<_> = (0..2 * PATIENCE).map(|_| expectation.look()).collect();
        let all = PATIENCE as usize;
        assert_eq!(at_all(&looks[..all]), 4);
        assert_eq!(at_all(&looks[all..]), all);
        expectation.came(2, 72);
        assert_eq!(expectation.look(), Some(2), "twice on the same");
        expectation.give_up();
        assert_eq!(expectation.look(), None);
    }

    #[test]
    fn all_rails_are_looked_at_however_steadily_tiles_come_on_one() {
        for (bytes, pause) in [(72, LOOKS), (4 * LOOK_BYTES, LOOKS.div_ceil(5)), (1 << 20, 1)] {
            let mut expectation = Expectation::new();
            let looks: Vec<_> = (0..10 * pause)
                .map(|_| {
                    expectation.came(1, bytes);
                    expectation.look()
                })
                .collect();
            assert_eq!(at_all(&looks), 10, "tiles of {bytes} bytes");
        }
    }
}
