//! Asks the driver of the device for the driver thread of a communicator, which never does itself.
//!
//! The driver may keep a lock while it waits for the device: when a thread of the program loads kernels or frees memory.
//! Whoever asks it something then waits until the device has nothing to do; and the device may have something to do
//! until the driver thread has let a stream go, or kernels. So there is one rule: **the driver thread asks the driver
//! nothing.** What streams tell it, it reads in pinned memory; whether the device works, the [`super::sentinel`] knows;
//! and what else has to be asked, or launched, is an errand of a thread of its own. An errand is waited for as long as the
//! call may last, and then no longer than [`PATIENCE`]: then deadlines and aborts take effect, whatever has become of it. Who drops the communicator waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_transport::clock;

use crate::driver::lock;

/// How long an errand is waited for once the call has failed without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at what ends the wait for an errand.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A question that is answered with yes after [`PATIENCE`].
pub(super) fn patience() -> impl Fn() -> bool {
    let begin = clock::now();
    move || clock::now().saturating_duration_since(begin) > PATIENCE
}

type Errand = Box<dyn FnOnce() + Send>;

/// A thread that asks, from the first errand on. It ends by itself: it may just wait for the driver.
#[derive(Debug, Default)]
pub(super) struct Envoy(Mutex<Option<Sender<Errand>>>);

impl Envoy {
    /// Has the thread do something, after what it does already, and waits for the answer until `hopeless` returns an
    /// error. What was begun goes on then.
    ///
    /// # Errors
    /// That; or the thread cannot be started, or panics.
    pub(super) fn send<T: Send + 'static>(
        &self,
        errand: impl FnOnce() -> T + Send + 'static,
        mut hopeless: impl FnMut() -> Option<Error>,
    ) -> Result<T, Error> {
        let (answer, answers) = mpsc::channel();
        // Whoever has asked may have gone.
        self.give(Box::new(move || drop(answer.send(errand()))))?;
        loop {
            match answers.recv_timeout(LOOK_PAUSE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => hopeless().map_or(Ok(()), Err)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(broken("panicked; its message is on standard error"));
                }
            }
        }
    }

    /// Waits until the thread has done all that it was sent for, as long as the driver may take: for threads of the program.
    pub(super) fn rest(&self) {
        let has_been_sent = lock(&self.0).is_some();
        if has_been_sent {
            // Without an answer the thread has ended, and does nothing any more.
            let _ = self.send(|| (), || None);
        }
    }

    fn give(&self, errand: Errand) -> Result<(), Error> {
        let mut errands = lock(&self.0);
        let given = match &*errands {
            Some(errands) => errands.send(errand),
            None => errands.insert(start()?).send(errand),
        };
        given.map_err(|_| broken("has ended"))
    }
}

fn start() -> Result<Sender<Errand>, Error> {
    let (errands, given) = mpsc::channel::<Errand>();
    let run = move || {
        for errand in given {
            // Whoever waits for it finds no answer.
            let _ = catch_unwind(AssertUnwindSafe(errand));
        }
    };
    let started = thread::Builder::new().name("r2ccl-envoy".to_owned()).spawn(run);
    started.map_err(|cause| Error::system("start a thread that asks the driver", cause))?;
    Ok(errands)
}

fn broken(how: &str) -> Error {
    Error::Internal(format!("the thread that asks the driver {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> Option<Error> {
        None
    }

    #[test]
    fn nobody_waits_for_an_errand_that_is_hopeless() {
        let (envoy, (go, gone)) = (Envoy::default(), mpsc::channel::<()>());
        assert_eq!(envoy.send(|| 5, never), Ok(5));
        let aborted = || Error::Cuda("on purpose".to_owned());
        let waited = envoy.send(move || gone.recv().is_ok(), || Some(aborted()));
        assert_eq!(waited, Err(aborted()));
        // It goes on, and the next one comes behind it.
        assert_eq!(envoy.send(|| 6, || Some(aborted())), Err(aborted()));
        go.send(()).unwrap();
        assert_eq!(envoy.send(|| 7, never), Ok(7));
    }

    #[test]
    fn an_errand_that_panics_is_an_error_and_not_the_last_one() {
        let envoy = Envoy::default();
        let told = envoy.send(|| panic!("on purpose"), never);
        assert_eq!(told, Err(broken("panicked; its message is on standard error")));
        assert_eq!(envoy.send(|| 5, never), Ok(5));
    }
}
