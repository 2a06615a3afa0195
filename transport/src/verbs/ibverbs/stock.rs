//! Dynamic ends that were made before anybody needs them.
//!
//! An end belongs to one queue pair, once: what has been used is destroyed with it, so that nothing of it can
//! be taken for something of the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::Depth;
use super::sys::{Endpoint, Place};

/// Those of a domain.
#[derive(Debug, Default)]
pub(super) struct Stock(Mutex<Vec<Ready>>);

#[derive(Debug)]
struct Ready {
    depth: Depth,
    /// It sends and answers from there.
    place: Place,
    endpoint: Arc<Endpoint>,
}

impl Stock {
    /// One for this depth. What was made for another place, such as an address that the port had, is of no
    /// use any more.
    pub(super) fn take(&self, depth: Depth, place: Place) -> Option<Arc<Endpoint>> {
        let mut ready = self.lock();
        ready.retain(|one| one.place == place);
        let index = ready.iter().position(|one| one.depth == depth)?;
        Some(ready.swap_remove(index).endpoint)
    }

    /// Makes what is missing until there are so many for this depth, or none can be made; tells how many
    /// there are.
    pub(super) fn fill(
        &self,
        depth: Depth,
        place: Place,
        count: usize,
        make: impl Fn() -> Option<Arc<Endpoint>>,
    ) -> usize {
        loop {
            let there = self.count(depth, place);
            if there >= count {
                return there;
            }
            // Devices take their time, and somebody may want one meanwhile.
            let Some(endpoint) = make() else { return there };
            self.lock().push(Ready { depth, place, endpoint });
        }
    }

    fn count(&self, depth: Depth, place: Place) -> usize {
        let mut ready = self.lock();
        ready.retain(|one| one.place == place);
        ready.iter().filter(|one| one.depth == depth).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Ready>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
