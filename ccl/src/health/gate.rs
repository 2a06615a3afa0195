//! Counts the collectives that a rank starts, and can stop it before the next one.
//!
//! A call counts itself and then looks whether the gate is closed; whoever closes it closes it and then looks
//! at the count. Each must see what the other did, or both could be right and disagree: there is a fence
//! between the two steps of both. Calls are many and closing is rare, so that the [fences](ccl_transport::fence) are
//! such that a call pays nothing for its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ccl_transport::fence;

/// No collective starts.
const CLOSED: u32 = 1;
/// The next collective has something to look at first.
const NEWS: u32 = 2;

/// In a cache line of its own: one thread counts, others close.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Gate {
    /// Written only by whoever runs calls, of whom there is one at a time.
    count: AtomicU64,
    state: AtomicU32,
}

impl Gate {
    /// Counts a call, and returns its number, if it may start without asking.
    #[inline]
    pub(super) fn enter(&self) -> Option<u64> {
        let number = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(number, Ordering::Relaxed);
        fence::light();
        if self.state.load(Ordering::Relaxed) == 0 {
            return Some(number);
        }
        // Meanwhile somebody may have counted it. One call too many is no harm: what is agreed then
        // begins one call later.
        self.cancel();
        None
    }

    /// Counts a call that has looked at the news. Nobody may close the gate meanwhile.
    pub(super) fn enter_with_news(&self) -> u64 {
        self.state.fetch_and(!NEWS, Ordering::Relaxed);
        let number = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(number, Ordering::Relaxed);
        number
    }

    /// Takes back a call that was counted and has not started.
    pub(super) fn cancel(&self) {
        self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Lets no call start any more. Returns how many have.
    pub(super) fn close(&self) -> u64 {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        fence::heavy();
        self.count.load(Ordering::Relaxed)
    }

    /// Lets calls start again, the next one with a look at the news if there are any.
    pub(super) fn open(&self, news: bool) {
        if news {
            self.state.fetch_or(NEWS, Ordering::Relaxed);
        }
        self.state.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn a_closed_gate_stops_and_news_are_looked_at_once() {
        let gate = Gate::default();
        assert_eq!((gate.enter(), gate.enter()), (Some(1), Some(2)));
        assert_eq!(gate.close(), 2);
        assert_eq!(gate.enter(), None);
        gate.open(true);
        assert_eq!(gate.enter(), None);
        assert_eq!(gate.enter_with_news(), 3);
        assert_eq!(gate.enter(), Some(4));
        gate.cancel();
        assert_eq!(gate.enter(), Some(4));
    }

    /// No call is between the count that closing returns and the opening.
    #[test]
    fn nobody_passes_a_closed_gate() {
        let gate = &Gate::default();
        let done = &AtomicBool::new(false);
        let inside = &AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if let Some(sequence) = gate.enter() {
                        inside.store(sequence, Ordering::SeqCst);
                    }
                }
            });
            for _ in 0..100_000 {
                let last = gate.close();
                assert!(inside.load(Ordering::SeqCst) <= last);
                gate.open(false);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
