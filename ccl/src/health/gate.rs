//! Counts the collectives that a rank starts, and can stop it before the next one.
//!
//! Count and barrier are one word. With two, a rank that has just looked at the barrier and one that has
//! just closed it and looks at the count could both be right and disagree, unless each of them waited
//! for its own store to be seen. With one, there is an order: whoever closes the gate either sees a call
//! in the count, or the call sees the gate closed. It costs one uncontended addition for each call.

use std::sync::atomic::{AtomicU64, Ordering};

/// No collective starts.
const CLOSED: u64 = 1 << 63;
/// The next collective has something to look at first.
const NEWS: u64 = 1 << 62;
const COUNT: u64 = NEWS - 1;

/// In a cache line of its own: one thread counts, others close.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Gate {
    word: AtomicU64,
}

/// What a call finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has this number and may start.
    Free(u64),
    /// It is not counted, and must ask.
    Stopped,
}

impl Gate {
    /// Counts a call, if it may start without asking.
    pub(super) fn enter(&self) -> Entry {
        let before = self.word.fetch_add(1, Ordering::Relaxed);
        if before <= COUNT {
            return Entry::Free(before + 1);
        }
        // Meanwhile somebody may have counted it. One call too many is no harm: what is agreed then
        // begins one call later.
        self.cancel();
        Entry::Stopped
    }

    /// Counts a call that has looked at the news. Nobody may close the gate meanwhile.
    pub(super) fn enter_with_news(&self) -> u64 {
        self.word.fetch_and(!NEWS, Ordering::Relaxed);
        (self.word.fetch_add(1, Ordering::Relaxed) & COUNT) + 1
    }

    /// Takes back a call that was counted and has not started.
    pub(super) fn cancel(&self) {
        self.word.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets no call start any more. Returns how many have.
    pub(super) fn close(&self) -> u64 {
        self.word.fetch_or(CLOSED, Ordering::Relaxed) & COUNT
    }

    /// Lets calls start again, the next one with a look at the news if there are any.
    pub(super) fn open(&self, news: bool) {
        if news {
            self.word.fetch_or(NEWS, Ordering::Relaxed);
        }
        self.word.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CLOSED != 0
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
        assert_eq!((gate.enter(), gate.enter()), (Entry::Free(1), Entry::Free(2)));
        assert_eq!(gate.close(), 2);
        assert_eq!(gate.enter(), Entry::Stopped);
        gate.open(true);
        assert_eq!(gate.enter(), Entry::Stopped);
        assert_eq!(gate.enter_with_news(), 3);
        assert_eq!(gate.enter(), Entry::Free(4));
        gate.cancel();
        assert_eq!(gate.enter(), Entry::Free(4));
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
                    if let Entry::Free(sequence) = gate.enter() {
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
