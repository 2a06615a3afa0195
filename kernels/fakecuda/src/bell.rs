//! How threads of the driver wait for each other.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Between two looks at what other processes or kernels change.
const LOOK_PAUSE: Duration = Duration::from_micros(200);

static CHANGED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Says that something has changed for which somebody may wait.
pub(crate) fn ring() {
    drop(CHANGED.0.lock());
    CHANGED.1.notify_all();
}

/// Waits until it is so.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        let Ok(guard) = CHANGED.0.lock() else { continue };
        if !is_so() {
            drop(CHANGED.1.wait_timeout(guard, LOOK_PAUSE));
        }
    }
}

/// Lets others run for a while.
pub(crate) fn pause() {
    let Ok(guard) = CHANGED.0.lock() else { return };
    drop(CHANGED.1.wait_timeout(guard, LOOK_PAUSE));
}
