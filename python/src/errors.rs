//! From errors of the library to exceptions of `r2ccl.errors`.

use ccl::Error;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// The exception for an error: its class says what the caller can do about it.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    match build(py, error) {
        Ok(value) => PyErr::from_value(value),
        Err(failure) => failure,
    }
}

/// The exception as an object that nobody has raised.
pub(crate) fn build<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let attributes = PyDict::new(py);
    attributes.set_item("code", error.code() as i32)?;
    attributes.set_item("remedy", error.remedy())?;
    let name = describe(&error.clone().unnamed(), &attributes)?;
    let class = py.import("r2ccl.errors")?.getattr(name)?.cast_into::<PyType>()?;
    class.call((error.to_string(),), Some(&attributes))
}

/// The exception for a wrong argument.
pub(crate) fn invalid_argument(py: Python<'_>, text: impl Into<String>) -> PyErr {
    exception(py, &Error::InvalidArgument(text.into()))
}

/// The exception for a call that does not fit to the others.
pub(crate) fn invalid_usage(py: Python<'_>, text: impl Into<String>) -> PyErr {
    exception(py, &Error::InvalidUsage(text.into()))
}

/// The name of the class, and what its instance knows.
fn describe(error: &Error, attributes: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    match error {
        Error::InvalidArgument(reason) => {
            attributes.set_item("reason", reason)?;
            Ok("InvalidArgumentError")
        }
        Error::InvalidUsage(reason) => {
            attributes.set_item("reason", reason)?;
            Ok("InvalidUsageError")
        }
        Error::Disagreement { rank, call, other, other_call, .. } => {
            attributes.set_item("rank", other.0)?;
            attributes.set_item("noticed_by", rank.0)?;
            attributes.set_item("reason", format!("{other_call} instead of {call}"))?;
            Ok("DisagreementError")
        }
        Error::PeerLost { rank, reason } => {
            attributes.set_item("rank", rank.0)?;
            attributes.set_item("reason", reason)?;
            Ok("PeerLostError")
        }
        Error::Deadline { waiting, .. } => {
            attributes.set_item("reason", waiting)?;
            Ok("DeadlineError")
        }
        Error::Aborted { rank, reason } => {
            attributes.set_item("rank", rank.0)?;
            attributes.set_item("reason", reason)?;
            Ok("AbortedError")
        }
        Error::System { cause, .. } => {
            attributes.set_item("reason", cause)?;
            Ok("OperatingSystemError")
        }
        Error::Cuda(reason) => {
            attributes.set_item("reason", reason)?;
            Ok("CudaError")
        }
        Error::Internal(reason) => {
            attributes.set_item("reason", reason)?;
            Ok("InternalError")
        }
    }
}
