//! Asymmetric fences: of two threads that each write and then look at what the other wrote, the one that
//! does so often pays nothing, and the one that does so rarely pays for both.
//!
//! Each of them needs a fence between its write and its look, or both may miss what the other wrote. Where
//! Linux has [`membarrier`](https://man7.org/linux/man-pages/man2/membarrier.2.html), [`heavy`] puts one into
//! every thread of the process that runs, and then [`light`] only has to keep the compiler from changing the
//! order. Elsewhere both are ordinary fences.

#[cfg(all(loom, test))]
pub use model::{heavy, is_light, light};
#[cfg(not(all(loom, test)))]
pub use real::{heavy, is_light, light};

#[cfg(not(all(loom, test)))]
mod real {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether [`heavy`] reaches the other threads.
    static IS_EXPEDITED: LazyLock<bool> = LazyLock::new(|| {
        let is_expedited = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        IS_LIGHT.store(is_expedited, Ordering::Relaxed);
        is_expedited
    });

    /// The same, as soon as somebody has asked, for those who ask all the time.
    static IS_LIGHT: AtomicBool = AtomicBool::new(false);

    /// Whether [`light`] costs nothing.
    #[must_use]
    pub fn is_light() -> bool {
        *IS_EXPEDITED
    }

    /// Between the write and the look of the thread that does this often.
    #[inline]
    pub fn light() {
        if IS_LIGHT.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            unasked();
        }
    }

    /// [`light`] where nobody has asked yet, or where it costs something.
    #[cold]
    fn unasked() {
        if is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Between the write and the look of the thread that does this rarely.
    ///
    /// # Panics
    /// The kernel takes back what it has offered.
    pub fn heavy() {
        fence(Ordering::SeqCst);
        if *IS_EXPEDITED {
            let reached = membarrier(MembarrierCommand::PrivateExpedited);
            assert!(reached.is_ok(), "membarrier worked before: {reached:?}");
        }
    }
}

/// Ordinary fences, where threads are loom's.
#[cfg(all(loom, test))]
mod model {
    use loom::sync::atomic::{Ordering, fence};

    /// They are as if they were.
    pub fn is_light() -> bool {
        true
    }

    /// As [`heavy`].
    pub fn light() {
        fence(Ordering::SeqCst);
    }

    /// Between a write and a look.
    pub fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::{hint, thread};

    use super::*;

    /// In a line of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Word(AtomicU32);

    /// Both have come to a round, with as little between that and what follows as can be.
    fn meet(own: &Word, other: &Word, round: u32) {
        own.0.store(round, Ordering::Release);
        while other.0.load(Ordering::Acquire) < round {
            hint::spin_loop();
        }
    }

    /// Of two that write and then look, at least one sees the other.
    #[test]
    fn one_of_two_sees_the_other() {
        const ROUNDS: u32 = 50_000;
        let words: [Word; 4] = Default::default();
        let [often, rarely, here, there] = &words;
        let (seen_often, seen_rarely) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let look = |round| {
                    meet(there, here, round);
                    rarely.0.store(round, Ordering::Relaxed);
                    heavy();
                    often.0.load(Ordering::Relaxed) == round
                };
                (1..=ROUNDS).map(look).collect::<Vec<_>>()
            });
            let look = |round| {
                meet(here, there, round);
                often.0.store(round, Ordering::Relaxed);
                light();
                rarely.0.load(Ordering::Relaxed) == round
            };
            let mine: Vec<_> = (1..=ROUNDS).map(look).collect();
            (other.join().expect("no panic"), mine)
        });
        assert!(seen_often.iter().zip(&seen_rarely).all(|(one, other)| *one || *other));
    }
}
