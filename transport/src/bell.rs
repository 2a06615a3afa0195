//! How a rank that sleeps is woken by its peers on the same host.
//!
//! The word lies in memory that all of them can reach. Its owner arms it, looks at its links once more,
//! and sleeps on it; whoever publishes a tile or gives a slot back looks at the word, which costs a
//! cached load while its owner is awake, and wakes the owner otherwise.
//!
//! Between the tile and the look there is no fence, which would cost more than the look on every tile. So
//! a rank that arms its bell within the nanoseconds in which a tile is still on its way to the cache can be
//! left asleep: every sleep has an end.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::clock;
use crate::ring::Memory;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The bell of one rank, as itself or one of its peers holds it.
#[derive(Clone, Debug)]
pub struct Bell {
    word: NonNull<AtomicU32>,
    /// Keeps the word valid.
    _memory: Arc<dyn Memory>,
}

// SAFETY: the word is an atomic in memory that may be used from any thread.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// The bell at `offset` in `memory`, a multiple of 4.
    pub(crate) fn new(memory: Arc<dyn Memory>, offset: usize) -> Self {
        assert!(offset.is_multiple_of(4) && offset + 4 <= memory.bytes(), "a bell in its memory");
        // SAFETY: checked just before.
        let word = unsafe { memory.start().add(offset) }.cast();
        Self { word, _memory: memory }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned, zeroed at first, and only used as an atomic.
        unsafe { self.word.as_ref() }
    }

    /// Wakes the owner, if it sleeps or is about to.
    #[inline]
    pub fn ring(&self) {
        if self.word().load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.word().swap(AWAKE, Ordering::AcqRel) == ASLEEP {
            // Somebody who cannot be woken wakes by itself before long.
            let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
        }
    }

    /// From now on [`Self::ring`] prevents or ends a sleep. What was published before must be looked
    /// for after this.
    pub fn arm(&self) {
        self.word().store(ASLEEP, Ordering::SeqCst);
    }

    /// Nobody sleeps after all.
    pub fn disarm(&self) {
        self.word().store(AWAKE, Ordering::Relaxed);
    }

    /// Sleeps until the armed bell rings, at most for `longest`. Tells whether it has rung.
    pub fn sleep(&self, longest: Duration) -> bool {
        clock::wait_on(self.word(), ASLEEP, longest);
        self.word().swap(AWAKE, Ordering::Relaxed) == AWAKE
    }
}
