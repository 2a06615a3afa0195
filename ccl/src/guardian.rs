//! Looks after the links between hosts while no call is under way.
//!
//! A call ends when everything it sends was handed to the network. If a rail dies just then, the
//! peer still waits for bytes that nobody would send again before this rank's next call. So a thread
//! calls now and then, and only between calls; it also lets rails that came back carry traffic again.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl_core::error::Error;

use crate::driver::lock;

/// Time between two looks while a peer is not known to have everything.
const EAGER: Duration = Duration::from_millis(2);
/// So many of them: a second. Whoever has said nothing by then does something else, and says it with its next call.
const EAGER_LOOKS: u32 = 500;
/// Time between two looks otherwise, at first. If nothing happens, it grows: who looks seldom is late only to let a rail
/// carry traffic again, or to answer a peer whose call this rank has not come to.
const CALM: Duration = Duration::from_millis(10);
const CALMEST: Duration = Duration::from_millis(320);

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Peers are not known to have everything.
    Unsettled,
    /// Calls are made, and do what is necessary.
    Busy,
    /// Nothing to do.
    Settled,
    /// There is nothing to look after any more.
    Gone,
}

/// The thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Guardian {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Guardian {
    /// Calls `look` from time to time.
    pub(crate) fn start(mut look: impl FnMut() -> Found + Send + 'static) -> Result<Self, Error> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let watch = move || {
            let (mut pause, mut eager_looks) = (CALM, 0);
            while !sleep(&stopped, pause) {
                (pause, eager_looks) = match look() {
                    Found::Unsettled if eager_looks < EAGER_LOOKS => (EAGER, eager_looks + 1),
                    Found::Unsettled | Found::Settled => {
                        ((2 * pause).clamp(CALM, CALMEST), eager_looks)
                    }
                    Found::Busy => (CALM, 0),
                    Found::Gone => return,
                };
            }
        };
        let thread = std::thread::Builder::new()
            .name("r2ccl-guardian".into())
            .spawn(watch)
            .map_err(|cause| Error::system("start the guardian thread", cause))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Sleeps for `pause`, or less if it is time to stop, which is what it tells.
fn sleep(stop: &(Mutex<bool>, Condvar), pause: Duration) -> bool {
    let (stopped, changed) = stop;
    let guard = lock(stopped);
    match changed.wait_timeout_while(guard, pause, |stopped| !*stopped) {
        Ok((stopped, _)) => *stopped,
        Err(_) => true,
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the guardian thread panicked");
        }
    }
}
