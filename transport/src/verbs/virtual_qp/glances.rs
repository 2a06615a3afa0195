//! When a poll looks at rails that are not in use.
//!
//! What the application waits for comes over the rail in use, and a look at any other takes as long: a call of the
//! kernel, with the software device. So rails on which nothing is under way share a look now and then. That
//! they have died, and what the peer says there of a fault that only it has seen, is known so much later. While
//! no requests flow every poll looks at all of them.

use ccl_core::ids::Timestamp;

use super::queue_pair::VirtualQp;

/// From one look to the next where polls follow each other closely; the fastest repairs take twenty times as long.
const PAUSE_NS: u64 = 50_000;
/// Between two looks the clock is read so often, as long as polls come as fast as before: reading it takes a tenth of
/// a poll.
const READINGS: u32 = 4;
/// Polls between two readings, at most.
const MOST_BLIND: u32 = 32;

/// When the next look is due.
#[derive(Debug, Default)]
pub(super) struct Glances {
    due: Timestamp,
    /// Polls since the last look.
    polls: u32,
    /// Polls that will not read the clock.
    blind: u32,
    /// From one that does to the next.
    stride: u32,
}

impl Glances {
    /// Has the next poll look.
    pub(super) fn hurry(&mut self) {
        (self.due, self.blind) = (Timestamp(0), 0);
    }

    /// Whether this poll need not even know what time it is.
    fn is_early(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        let is_blind = self.blind > 0;
        self.blind = self.blind.saturating_sub(1);
        is_blind
    }

    /// Whether this poll looks.
    fn take(&mut self, now: Timestamp) -> bool {
        let is_due = self.due <= now;
        if is_due {
            self.due = now.after(PAUSE_NS);
            self.stride = (std::mem::take(&mut self.polls) / READINGS).min(MOST_BLIND);
        }
        self.blind = self.stride;
        is_due
    }
}

impl VirtualQp {
    /// Whether this poll looks at rails that it could leave alone.
    pub(super) fn glances(&mut self) -> bool {
        if !self.is_running() {
            return true;
        }
        if self.glances.is_early() {
            return false;
        }
        let now = self.now();
        self.glances.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls so many nanoseconds apart: how many of them read the clock, and looked.
    fn polled(glances: &mut Glances, polls: u64, apart_ns: u64) -> (usize, Vec<u64>) {
        let (mut readings, mut looks) = (0, Vec::new());
        for poll in 0..polls {
            if !glances.is_early() {
                readings += 1;
                if glances.take(Timestamp(poll * apart_ns)) {
                    looks.push(poll);
                }
            }
        }
        (readings, looks)
    }

    #[test]
    fn fast_polls_rarely_read_the_clock_and_look_all_the_same() {
        let mut glances = Glances::default();
        let (readings, looks) = polled(&mut glances, 10_000, 400);
        assert!(readings < 1_000, "{readings}");
        let furthest = looks.windows(2).map(|pair| (pair[1] - pair[0]) * 400).max();
        assert!(furthest < Some(2 * PAUSE_NS), "{furthest:?}");
    }

    #[test]
    fn every_slow_poll_looks_once_it_is_known_that_it_is_slow() {
        let mut glances = Glances::default();
        let (_, looks) = polled(&mut glances, 1_000, 1_000_000);
        assert_eq!(looks.len(), 1_000);
        polled(&mut glances, 10_000, 400);
        glances.due = Timestamp(0);
        let (_, looks) = polled(&mut glances, 100, 1_000_000);
        assert!(looks.len() > 100 - 2 * MOST_BLIND as usize, "{looks:?}");
        polled(&mut glances, 10_000, 400);
        glances.hurry();
        assert!(!glances.is_early() && glances.take(Timestamp(0)), "who sleeps looks at once");
    }
}
