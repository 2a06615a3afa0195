//! How ranks that read or write the memory of a peer learn that it is not what it was any more.
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
//!
//! What a peer writes cannot be thrown away afterwards, so the owner waits for those that write, and the peer asks before:
//!
//! ```text
//!   peer    writers += 1 ─▶ fence ─▶ has the owner renounced? ─ no ─▶ writes ─▶ writers -= 1
//!                                                             └ yes ─▶ writers -= 1, an error
//!   owner   renounces ─▶ fence ─▶ waits until writers is 0 ─▶ returns the error
//! ```
//!
//! Both store and then look at what the other one stores, with a fence between: either the peer sees that the owner has
//! renounced, or the owner sees the writer.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Map;
use crate::TransportError;
use crate::ring::atomics::{AtomicU64, Ordering, fence};

#[cfg(all(loom, test))]
mod model;

/// In the head of a segment, on lines that are written once.
const RENOUNCED_AT: usize = 256;
/// How many peers write memory of its owner.
const WRITERS_AT: usize = 384;

/// Whether the owner of a segment has renounced, and who writes its memory.
#[derive(Clone, Debug)]
pub(crate) struct Renunciation {
    renounced: NonNull<AtomicU64>,
    writers: NonNull<AtomicU64>,
    /// Keeps the words valid.
    _head: Arc<Map>,
}

// SAFETY: the words are atomics in memory that may be used from any thread.
unsafe impl Send for Renunciation {}
// SAFETY: as above.
unsafe impl Sync for Renunciation {}

impl Renunciation {
    /// Of the owner of the segment with this head.
    pub(super) fn of(head: &Arc<Map>) -> Self {
        let word = |at| NonNull::from(head.word(at)).cast();
        Self { renounced: word(RENOUNCED_AT), writers: word(WRITERS_AT), _head: Arc::clone(head) }
    }

    fn renounced(&self) -> &AtomicU64 {
        // SAFETY: a word of the head, which stays mapped as long as this.
        unsafe { self.renounced.as_ref() }
    }

    fn writers(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.writers.as_ref() }
    }

    /// For the owner: who sees anything that it writes after this sees this too.
    pub(crate) fn declare(&self) {
        declare(self.renounced());
    }

    /// For a peer that has read memory of the owner.
    pub(crate) fn is_declared(&self) -> bool {
        is_declared(self.renounced())
    }

    /// For a peer that is about to write memory of the owner.
    ///
    /// # Errors
    /// [`TransportError::PeerGone`]: the owner has renounced.
    pub(crate) fn begin_to_write(&self) -> Result<Writing, TransportError> {
        match begin_to_write(self.renounced(), self.writers()) {
            true => Ok(Writing { of: self.clone() }),
            false => Err(TransportError::PeerGone("it has taken its memory back".into())),
        }
    }

    /// For the owner that has renounced: whether a peer writes its memory still.
    pub(crate) fn is_written(&self) -> bool {
        is_written(self.writers())
    }
}

/// Memory of a peer on this host is written, as long as this lives.
#[derive(Debug)]
pub struct Writing {
    of: Renunciation,
}

impl Drop for Writing {
    fn drop(&mut self) {
        end_to_write(self.of.writers());
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

/// Tells whether the owner has not renounced; then it waits for this writer to [end](end_to_write).
fn begin_to_write(renounced: &AtomicU64, writers: &AtomicU64) -> bool {
    writers.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let may = renounced.load(Ordering::Relaxed) == 0;
    if !may {
        end_to_write(writers);
    }
    may
}

fn end_to_write(writers: &AtomicU64) {
    writers.fetch_sub(1, Ordering::Release);
}

/// After [`declare`]. What writers wrote that have ended is there before anything that follows.
fn is_written(writers: &AtomicU64) -> bool {
    writers.load(Ordering::Acquire) != 0
}
