//! What is measured begins when all of it is there.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use ccl_kernels::cuda::gpu::{Error, Gpu, Pinned, Stream};

/// Holds streams until all that is measured has been queued, so that no launch is measured with it.
pub(crate) struct Gate {
    word: Pinned,
    turn: Cell<u32>,
}

impl Gate {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, Error> {
        Ok(Self { word: gpu.pin(4)?, turn: Cell::default() })
    }

    /// Queues work that begins when all of it is there.
    pub(crate) fn behind<T>(
        &self,
        streams: &[Stream],
        queue: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        let held = streams.iter().try_for_each(|stream| stream.wait_for_word(&self.word, 0, turn));
        let queued = held.and_then(|()| queue());
        // After an error too: freeing memory waits for the streams.
        self.word.word(0).store(turn, Ordering::SeqCst);
        queued
    }
}
