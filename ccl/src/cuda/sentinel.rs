//! Asks the driver whether the device still works, for threads that must not ask themselves.
//!
//! The driver may keep a lock while it waits for the device: when it loads kernels or frees memory. Whoever asks it something then waits too. The
//! driver thread of a communicator must not: streams wait for it, and so may the device. What has to be asked for a call is not for this thread, but for
//! the [`super::envoy`].

use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu::{self, BesideCaptures, Event, Gpu};
use ccl_transport::clock;

use super::error::error as from_device;
use crate::driver::lock;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(10);

/// What the thread that asks shares with those who want to know.
#[derive(Debug, Default)]
struct Shared {
    wishes: Mutex<Wishes>,
    changed: Condvar,
    failure: OnceLock<Error>,
}

#[derive(Debug, Default)]
struct Wishes {
    is_asked: bool,
    is_over: bool,
}

/// A thread that asks, from the first time on that somebody wants to know.
#[derive(Debug)]
pub(super) struct Sentinel {
    shared: Arc<Shared>,
    /// Has happened, as long as the device works.
    event: Mutex<Option<Event>>,
    start: Once,
}

impl Sentinel {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, gpu::Error> {
        let event = gpu.stream()?.mark()?;
        Ok(Self { shared: Arc::default(), event: Mutex::new(Some(event)), start: Once::new() })
    }

    /// What was wrong with the device when it was asked last; it is asked again. This never waits for the driver.
    pub(super) fn failure(&self) -> Option<Error> {
        self.start.call_once(|| {
            let (shared, event) = (Arc::clone(&self.shared), lock(&self.event).take());
            let named = thread::Builder::new().name("r2ccl-sentinel".to_owned());
            if let Some(event) = event
                && let Err(error) = named.spawn(move || ask(&shared, &event))
            {
                tracing::warn!(%error, "nobody looks whether the device works: no thread could be started");
            }
        });
        let failure = self.shared.failure.get().cloned();
        if failure.is_none() {
            lock(&self.shared.wishes).is_asked = true;
            self.shared.changed.notify_one();
        }
        failure
    }
}

impl Drop for Sentinel {
    /// The thread ends by itself: it may just wait for the driver.
    fn drop(&mut self) {
        lock(&self.shared.wishes).is_over = true;
        self.shared.changed.notify_one();
    }
}

fn ask(shared: &Shared, event: &Event) {
    let _beside = BesideCaptures::begin();
    loop {
        let idle = |wishes: &mut Wishes| !wishes.is_asked && !wishes.is_over;
        let wishes = shared.changed.wait_while(lock(&shared.wishes), idle);
        let mut wishes = wishes.unwrap_or_else(PoisonError::into_inner);
        if wishes.is_over {
            return;
        }
        wishes.is_asked = false;
        drop(wishes);
        if let Err(error) = event.has_happened()
            && !error.is_of_a_capture()
        {
            let _ = shared.failure.set(from_device(error));
            return;
        }
        clock::sleep(PAUSE);
    }
}
