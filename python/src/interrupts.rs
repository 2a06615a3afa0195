//! Waiting without the interpreter, in slices, so that signals are handled.
//!
//! Python runs handlers of signals in the main thread only, and only when that thread asks. So a wait of
//! the main thread lets go of the interpreter for a slice, asks, and waits on; a call that it does itself
//! comes back to ask. Other threads wait in the same way, where asking does nothing, but do not ask in a call:
//! it would wait for the interpreter, and the other ranks for it.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ccl::{Error, Pending};
use pyo3::prelude::*;
use rustix::process::getpid;
use rustix::thread::gettid;

use crate::errors::{exception, invalid_argument};
use crate::work::locked;

/// Why a communicator is aborted when a handler raises.
pub(crate) const INTERRUPTED: &str = "a signal interrupted a call";

/// How long a signal may wait for its handler.
const SLICE: Duration = Duration::from_millis(50);

/// Looks for signals during one call, whenever a slice has passed.
#[derive(Debug)]
pub(crate) struct Signals {
    due: Mutex<Instant>,
    raised: Mutex<Option<PyErr>>,
}

impl Default for Signals {
    fn default() -> Self {
        Self { due: Mutex::new(now() + SLICE), raised: Mutex::default() }
    }
}

impl Signals {
    /// Why the call has to end, if a handler raised. For a thread that has let go of the interpreter.
    pub(crate) fn look(&self) -> Option<String> {
        let now = now();
        if now < *locked(&self.due) {
            return None;
        }
        *locked(&self.due) = now + SLICE;
        let raised = Python::try_attach(|py| py.check_signals())?.err()?;
        *locked(&self.raised) = Some(raised);
        Some(INTERRUPTED.to_owned())
    }

    /// What the handler raised.
    pub(crate) fn raised(self) -> Option<PyErr> {
        locked(&self.raised).take()
    }
}

/// Whether handlers of signals may run in this thread: whether it is the first one of the process.
pub(crate) fn can_come() -> bool {
    gettid() == getpid()
}

/// Waits until all are done, or until `timeout` has passed: then it is false.
///
/// # Errors
/// What the handler of a signal raised. The operations go on.
pub(crate) fn wait(
    py: Python<'_>,
    operations: &[Pending],
    timeout: Option<Duration>,
) -> PyResult<bool> {
    let end = timeout.and_then(|timeout| now().checked_add(timeout));
    for operation in operations {
        loop {
            let slice = end.map_or(SLICE, |end| SLICE.min(end.saturating_duration_since(now())));
            if py.detach(|| operation.wait_for(slice)).is_some() {
                break;
            }
            py.check_signals()?;
            if end.is_some_and(|end| now() >= end) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Does something that takes its time. In a thread in which signals are handled, another thread does it;
/// if a handler raises, `give_up` is called, and the other thread is left to itself.
///
/// # Errors
/// What the handler of a signal raised.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    give_up: impl FnOnce(),
) -> PyResult<T> {
    if !can_come() {
        return Ok(py.detach(work));
    }
    let (sender, mut receiver) = sync_channel(1);
    // Nobody receives what is done after an interruption.
    let thread = move || drop(sender.send(work()));
    let started = std::thread::Builder::new().name("r2ccl-python".into()).spawn(thread);
    started.map_err(|cause| exception(py, &Error::system("start a thread", cause)))?;
    let result = loop {
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(SLICE);
            (receiver, received)
        });
        match received {
            // A signal that has come meanwhile is left to the interpreter.
            Ok(done) => break Ok(done),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    break Err(raised);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(exception(py, &Error::Internal("a thread panicked".into())));
            }
        }
    };
    result.inspect_err(|_| give_up())
}

/// Seconds of the program as a duration.
pub(crate) fn seconds(py: Python<'_>, what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        let text = format!("{what} is {value}, not a number of seconds");
        invalid_argument(py, text)
    })
}

#[allow(clippy::disallowed_methods, reason = "a timeout of the program; nothing is decided by it")]
fn now() -> Instant {
    Instant::now()
}
