//! Calls that go on in the background: a queue, and one thread that serves it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ccl_core::error::Error;

use crate::operation::Operation;

/// A started call. Its buffers belong to it until [`Self::test`] or [`Self::wait`] tells that it is
/// done; dropping it does not end the call.
#[derive(Clone, Debug)]
pub struct Pending {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    result: Mutex<Option<Result<(), Error>>>,
    done: Condvar,
}

impl Pending {
    fn new() -> Self {
        Self { state: Arc::default() }
    }

    /// The result, if the call is done.
    #[must_use]
    pub fn test(&self) -> Option<Result<(), Error>> {
        lock(&self.state.result).clone()
    }

    /// Waits for the call. It ends within the deadline of the communicator, counted from the moment
    /// its turn comes.
    ///
    /// # Errors
    /// Whatever ended the call.
    pub fn wait(&self) -> Result<(), Error> {
        let mut result = lock(&self.state.result);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = self.state.done.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the call, but not much longer than `patience`: `None` if it is not done by then.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> Option<Result<(), Error>> {
        let result = lock(&self.state.result);
        let is_open = |result: &mut Option<_>| result.is_none();
        let waited = self.state.done.wait_timeout_while(result, patience, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn finish(&self, result: Result<(), Error>) {
        *lock(&self.state.result) = Some(result);
        self.state.done.notify_all();
    }
}

/// What a call does when its turn comes.
#[derive(Debug)]
pub(crate) enum Work {
    Operations(Vec<Operation<'static>>),
    /// Waits for a stream, and works on what the stream has copied.
    #[cfg(feature = "cuda")]
    Staged(Box<crate::cuda::Job>),
    /// Watches what kernels do.
    #[cfg(feature = "cuda")]
    Direct(Box<crate::cuda::Watch>),
    /// Lets kernels and NICs take turns.
    #[cfg(feature = "cuda")]
    Wire(Box<crate::cuda::WireJob>),
    /// Both, one after the other.
    #[cfg(feature = "cuda")]
    Columns(Box<crate::cuda::ColumnsJob>),
}

/// The calls that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Jobs queued or running. Changes under the lock only; blocking calls look at it without.
    unfinished: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<(Work, Pending)>,
    closed: bool,
}

impl Queue {
    /// Adds a call at the end.
    pub(crate) fn push(&self, work: Work) -> Pending {
        let pending = Pending::new();
        let mut waiting = lock(&self.waiting);
        waiting.jobs.push_back((work, pending.clone()));
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
        pending
    }

    /// Returns when every call pushed so far is done.
    #[inline]
    pub(crate) fn drain(&self) {
        if self.unfinished.load(Ordering::Acquire) > 0 {
            self.wait_until_drained();
        }
    }

    #[cold]
    fn wait_until_drained(&self) {
        let mut waiting = lock(&self.waiting);
        while self.unfinished.load(Ordering::Acquire) > 0 {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends [`Self::serve`] once the queue is empty.
    pub(crate) fn close(&self) {
        lock(&self.waiting).closed = true;
        self.changed.notify_all();
    }

    /// Runs the calls in order until the queue is closed and empty. A call that panics ends with the error
    /// that `broke` is told.
    pub(crate) fn serve(
        &self,
        mut run: impl FnMut(Work) -> Result<(), Error>,
        broke: impl Fn(&Error),
    ) {
        while let Some((work, pending)) = self.next() {
            let result = catch_unwind(AssertUnwindSafe(|| run(work)));
            pending.finish(result.unwrap_or_else(|_| {
                let error = panicked();
                broke(&error);
                Err(error)
            }));
            let waiting = lock(&self.waiting);
            self.unfinished.fetch_sub(1, Ordering::Release);
            drop(waiting);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<(Work, Pending)> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What ends a call in which the driver thread panics.
pub(crate) fn panicked() -> Error {
    let what = "the driver thread panicked; its message is on standard error";
    Error::Internal(what.to_owned())
}

/// Locks; a panic elsewhere does not matter, since every value here is consistent at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_call_that_panics_ends_and_so_do_those_behind_it() {
        let queue = Queue::default();
        let [first, second] = [(); 2].map(|()| queue.push(Work::Operations(Vec::new())));
        queue.close();
        let (mut calls, broken) = (0, AtomicUsize::new(0));
        let run = |_: Work| {
            calls += 1;
            assert_ne!(calls, 1, "on purpose");
            Ok(())
        };
        queue.serve(run, |_| {
            broken.fetch_add(1, Ordering::Relaxed);
        });
        assert!(matches!(first.test(), Some(Err(Error::Internal(_)))), "{first:?}");
        assert!(matches!(second.wait_for(Duration::ZERO), Some(Ok(()))), "{second:?}");
        assert_eq!(broken.into_inner(), 1);
        queue.drain();
    }
}
