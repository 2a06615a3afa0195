//! How ranks that read the memory of a peer learn that it may have changed under their hands.
//!
//! A rank whose call ends with an error returns memory to its caller that peers may still be reading. It does not wait for
//! them. It renounces first, for good, since a communicator that has failed is over; and who has read looks afterwards, as the
//! reader of a sequence lock does:
//!
//! ```text
//!   owner   renounces ─▶ fence ─▶ returns the error ─▶ the application writes
//!   peer    reads ─▶ fence ─▶ has the owner renounced? ─ no ─▶ tells others that it has finished
//!                                                      └ yes ─▶ an error
//! ```
//!
//! If the peer has read anything that was written after the error, it sees that the owner had renounced before.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Map;
use crate::ring::atomics::{AtomicU64, Ordering, fence};

#[cfg(all(loom, test))]
mod model;

/// In the head of a segment, on lines that are written once.
const RENOUNCED_AT: usize = 256;

/// Whether the owner of a segment has renounced.
#[derive(Clone, Debug)]
pub(crate) struct Renunciation {
    word: NonNull<AtomicU64>,
    /// Keeps the word valid.
    _head: Arc<Map>,
}

// SAFETY: the word is an atomic in memory that may be used from any thread.
unsafe impl Send for Renunciation {}
// SAFETY: as above.
unsafe impl Sync for Renunciation {}

impl Renunciation {
    /// Of the owner of the segment with this head.
    pub(super) fn of(head: &Arc<Map>) -> Self {
        Self { word: NonNull::from(head.word(RENOUNCED_AT)).cast(), _head: Arc::clone(head) }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: a word of the head, which stays mapped as long as this.
        unsafe { self.word.as_ref() }
    }

    /// For the owner: who sees anything that it writes after this sees this too.
    pub(crate) fn declare(&self) {
        declare(self.word());
    }

    /// For a peer that has read memory of the owner.
    pub(crate) fn is_declared(&self) -> bool {
        is_declared(self.word())
    }
}

fn declare(word: &AtomicU64) {
    word.store(1, Ordering::Relaxed);
    // Also before stores past the caches.
    fence(Ordering::SeqCst);
}

fn is_declared(word: &AtomicU64) -> bool {
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) != 0
}
