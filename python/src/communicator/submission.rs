//! What becomes of a call: it is done, started, put on a stream, or left to a group.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Communicator;
use crate::calls::{self, Given, Kind, Place};
use crate::device::DeviceCall;
use crate::errors::invalid_usage;
use crate::group;
use crate::request::Request;
use crate::work::{Call, Member, Work, sweep};

impl Communicator {
    /// For a call on the stream that the program names.
    pub(super) fn place_on<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Place<'py>> {
        Ok(Place { stream: stream.map(stream_number).transpose()?, ..self.place(py) })
    }

    pub(super) fn collective(
        &self,
        kind: Kind,
        place: Place<'_>,
        given: Given<'_, '_>,
        async_op: bool,
    ) -> PyResult<Option<Request>> {
        self.submit(place, kind.on(place, given)?, async_op)
    }

    /// Does a call now, starts it, puts it on its stream, or leaves it to the group of this thread.
    pub(super) fn submit(
        &self,
        place: Place<'_>,
        call: Call,
        async_op: bool,
    ) -> PyResult<Option<Request>> {
        sweep();
        let py = place.py;
        let member = self.member(py)?;
        calls::validate(place, &call)?;
        if group::is_open() && async_op {
            let text = "async_op inside a group: pass it to the group instead";
            return Err(invalid_usage(py, text));
        }
        if calls::is_on_device(place, &call)? {
            return Self::submit_on_device(place, &member, call, async_op).map(|()| None);
        }
        if group::is_open() {
            group::collect(&member, call);
            return Ok(None);
        }
        let mut work = Work::default();
        work.add(&member, call);
        if async_op {
            return Ok(Some(Request::new(work.start(py)?)));
        }
        work.run(py)?;
        Ok(None)
    }

    fn submit_on_device(
        place: Place<'_>,
        member: &Arc<Member>,
        call: Call,
        async_op: bool,
    ) -> PyResult<()> {
        if async_op {
            let text = "async_op with memory of a device: such calls return at once, and are in the order of \
                        their stream";
            return Err(invalid_usage(place.py, text));
        }
        let Call { operation, buffers } = call;
        let call = DeviceCall { operation, buffers, stream: place.stream };
        if group::is_open() {
            group::collect_on_device(member, call);
            return Ok(());
        }
        let mut work = Work::default();
        work.add_on_device(member, call);
        work.run(place.py)
    }
}

/// The `cudaStream_t` of a stream: an integer, an object with `__cuda_stream__`, or one of CuPy or PyTorch.
fn stream_number(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    if let Ok(number) = stream.extract() {
        return Ok(number);
    }
    if stream.hasattr("__cuda_stream__")? {
        let (_version, number) =
            stream.call_method0("__cuda_stream__")?.extract::<(usize, usize)>()?;
        return Ok(number);
    }
    for name in ["cuda_stream", "ptr"] {
        if let Ok(number) = stream.getattr(name).and_then(|number| number.extract()) {
            return Ok(number);
        }
    }
    let kind = stream.get_type().name()?.to_string();
    Err(PyTypeError::new_err(format!(
        "stream is a {kind}: it must be an integer, or have __cuda_stream__, cuda_stream or ptr"
    )))
}
