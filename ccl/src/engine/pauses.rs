//! When ranks ask whether their buffers can be reached, after they could not be.
//!
//! To ask takes as long as a collective of a few bytes. So it is not done before every call, but often enough that no
//! more than [`PASSED_BYTES`] are moved the slower way when a program comes with buffers that can be reached.

use ccl_core::collective::Collective;

/// Of calls that do not ask after one in vain, together: from twice as many bytes on every call asks, which is hardly
/// noticed there.
const PASSED_BYTES: usize = 4 << 20;

/// Calls that do not ask after one in vain, at most.
const LONGEST_PAUSE: u32 = 64;

/// By collective and by size to the next power of two: buffers of one size are often of one kind.
#[derive(Debug)]
pub(super) struct Pauses([[Pause; usize::BITS as usize]; Collective::ALL.len()]);

impl Default for Pauses {
    fn default() -> Self {
        Self([[Pause::default(); usize::BITS as usize]; Collective::ALL.len()])
    }
}

impl Pauses {
    /// Whether a call on so many bytes asks. To be called once for each, on all ranks.
    pub(super) fn is_over(&mut self, collective: Collective, bytes: usize) -> bool {
        self.of(collective, bytes).is_over()
    }

    /// A call on so many bytes has asked, in vain or not.
    pub(super) fn asked(&mut self, collective: Collective, bytes: usize, in_vain: bool) {
        let pause = self.of(collective, bytes);
        if in_vain {
            pause.lengthen(longest(bytes));
        } else {
            *pause = Pause::default();
        }
    }

    fn of(&mut self, collective: Collective, bytes: usize) -> &mut Pause {
        &mut self.0[collective as usize][bytes.max(1).ilog2() as usize]
    }
}

/// Calls that do not ask.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    left: u32,
    /// As long as the last one was.
    last: u32,
}

impl Pause {
    fn is_over(&mut self) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_over
    }

    fn lengthen(&mut self, longest: u32) {
        self.last = (2 * self.last).max(1).min(longest);
        self.left = self.last;
    }
}

/// The longest pause of calls on so many bytes.
fn longest(bytes: usize) -> u32 {
    let calls = PASSED_BYTES / bytes.max(1);
    u32::try_from(calls).unwrap_or(u32::MAX).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTIVE: Collective = Collective::AllReduce;

    /// How many calls do not ask before the next that does.
    fn pause(pauses: &mut Pauses, bytes: usize) -> usize {
        (0..).find(|_| pauses.is_over(COLLECTIVE, bytes)).unwrap()
    }

    #[test]
    fn who_asked_in_vain_pauses_for_longer_each_time() {
        for (bytes, lengths) in [
            (64 << 10, [1, 2, 4, 8, 16, 32, 64, 64]),
            (1 << 20, [1, 2, 4, 4, 4, 4, 4, 4]),
            (4 << 20, [1; 8]),
            (5 << 20, [0; 8]),
        ] {
            let mut pauses = Pauses::default();
            assert_eq!(pause(&mut pauses, bytes), 0, "the first call asks");
            for length in lengths {
                pauses.asked(COLLECTIVE, bytes, true);
                assert_eq!(pause(&mut pauses, bytes), length, "{bytes}");
            }
        }
    }

    #[test]
    fn who_was_answered_begins_anew() {
        let mut pauses = Pauses::default();
        let bytes = 64 << 10;
        (0..3).for_each(|_| pauses.asked(COLLECTIVE, bytes, true));
        pauses.asked(COLLECTIVE, bytes, false);
        assert_eq!(pause(&mut pauses, bytes), 0);
        pauses.asked(COLLECTIVE, bytes, true);
        assert_eq!(pause(&mut pauses, bytes), 1);
    }

    #[test]
    fn other_sizes_and_collectives_ask_for_themselves() {
        let mut pauses = Pauses::default();
        pauses.asked(COLLECTIVE, 100 << 10, true);
        assert!(pauses.is_over(COLLECTIVE, 200 << 10));
        assert!(pauses.is_over(Collective::Broadcast, 100 << 10));
        assert!(!pauses.is_over(COLLECTIVE, 65 << 10), "as large, to a power of two");
    }
}
