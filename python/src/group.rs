//! Calls that start together.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::device::DeviceCall;
use crate::request::Request;
use crate::work::{Call, Member, Work, locked};

thread_local! {
    /// The groups that are open in this thread, and the calls of the outermost.
    static OPEN: RefCell<(usize, Work)> = RefCell::default();
}

/// A context manager: calls inside it start together, at its end.
///
/// The collectives of one communicator run in the order in which they were called, and then its sends and receives
/// progress at the same time, wherever they stand among them; different communicators progress at the same time. Until the end
/// all buffers belong to the library. Groups nest: the outermost end counts. If the body raises, nothing
/// of the group runs.
///
/// With `async_op` the end does not wait; `request` is the request for everything.
#[pyclass(frozen, module = "r2ccl")]
#[derive(Debug)]
pub(crate) struct Group {
    async_op: bool,
    request: Mutex<Option<Py<Request>>>,
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (*, async_op=false))]
    fn new(async_op: bool) -> Self {
        Self { async_op, request: Mutex::default() }
    }

    /// The request of a group with `async_op` that has ended without an exception, else None.
    #[getter]
    fn request(&self, py: Python<'_>) -> Option<Py<Request>> {
        locked(&self.request).as_ref().map(|request| request.clone_ref(py))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        OPEN.with_borrow_mut(|(depth, _)| *depth += 1);
        this
    }

    #[pyo3(signature = (exception_type, exception, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception_type: &Bound<'_, PyAny>,
        exception: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exception, traceback);
        let Some(work) = close()? else { return Ok(()) };
        if !exception_type.is_none() {
            // Outside of the closure of the thread's groups: giving buffers back may run code.
            drop(work);
            return Ok(());
        }
        if !self.async_op {
            return work.run(py);
        }
        let request = Py::new(py, Request::new(work.start(py)?))?;
        *locked(&self.request) = Some(request);
        Ok(())
    }
}

/// Whether calls of this thread are only collected.
pub(crate) fn is_open() -> bool {
    OPEN.with_borrow(|(depth, _)| *depth > 0)
}

/// Adds a call to the group of this thread.
pub(crate) fn collect(member: &Arc<Member>, call: Call) {
    OPEN.with_borrow_mut(|(_, work)| work.add(member, call));
}

/// Adds a call on memory of a device to the group of this thread.
pub(crate) fn collect_on_device(member: &Arc<Member>, call: DeviceCall) {
    OPEN.with_borrow_mut(|(_, work)| work.add_on_device(member, call));
}

/// Closes the innermost group; the calls, if it is the outermost as well.
fn close() -> PyResult<Option<Work>> {
    OPEN.with_borrow_mut(|(depth, work)| {
        *depth = depth
            .checked_sub(1)
            .ok_or_else(|| PyRuntimeError::new_err("this thread has not entered the group"))?;
        Ok((*depth == 0).then(|| std::mem::take(work)))
    })
}
