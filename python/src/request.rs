//! Operations in the background.

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::interrupts::seconds;
use crate::work::Started;

/// An operation that goes on in the background; several, for a group.
///
/// Its buffers belong to the library until `wait()` has returned or `test()` was true. They stay alive as
/// long as that takes, also if the program drops them, or the request.
#[pyclass(frozen, module = "r2ccl")]
#[derive(Debug)]
pub(crate) struct Request {
    started: Started,
}

impl Request {
    /// The request for operations that have started.
    pub(crate) fn new(started: Started) -> Self {
        Self { started }
    }
}

#[pymethods]
impl Request {
    /// Waits until the operation is done, at most `timeout` seconds.
    ///
    /// A signal whose handler raises (Ctrl-C) ends the wait, not the operation.
    ///
    /// Raises:
    ///     TimeoutError: It is not done by then. It goes on; wait again.
    ///     r2ccl.Error: It failed.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = timeout.map(|value| seconds(py, "timeout", value)).transpose()?;
        if !self.started.wait(py, limit)? {
            let text = format!("not done after {} s; it goes on", timeout.unwrap_or_default());
            return Err(PyTimeoutError::new_err(text));
        }
        self.started.outcome(py).unwrap_or(Ok(()))
    }

    /// Whether the operation is done. Never waits.
    ///
    /// Raises:
    ///     r2ccl.Error: It is done, and has failed.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        self.started.outcome(py).map_or(Ok(false), |result| result.map(|()| true))
    }
}
