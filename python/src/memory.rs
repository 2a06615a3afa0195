//! Memory that the ranks of a host reach in place.

use std::mem;
use std::sync::{Arc, Mutex, Weak};

use ccl::Allocation;
use pyo3::prelude::*;

use crate::buffer::{Buffer, Home};
use crate::errors::{exception, invalid_argument};
use crate::work::{Member, check_process, locked};

/// Memory of the library, until this is dropped. `r2ccl.mem_alloc` makes something of it that lends its bytes, which
/// no class of the stable ABI of Python 3.10 can.
#[pyclass(frozen, module = "r2ccl._native")]
#[derive(Debug)]
pub(crate) struct Memory {
    allocation: Mutex<Option<Allocation>>,
    address: usize,
    process: u32,
}

/// That a communicator knows of a buffer.
#[pyclass(frozen, module = "r2ccl")]
#[derive(Debug)]
pub(crate) struct Registration {
    registered: Weak<Registered>,
    member: Weak<Member>,
    is_shared: bool,
    process: u32,
}

/// A buffer that a member knows of, and keeps alive.
#[derive(Debug)]
pub(crate) struct Registered {
    // Ends before the buffer does.
    registration: ccl::Registration,
    _buffer: Buffer,
}

#[pymethods]
impl Memory {
    #[new]
    fn new(py: Python<'_>, nbytes: isize) -> PyResult<Self> {
        let positive = usize::try_from(nbytes).ok().filter(|bytes| *bytes > 0);
        let bytes = positive.ok_or_else(|| {
            invalid_argument(py, format!("nbytes is {nbytes}, which is not positive"))
        })?;
        let allocation = py.detach(|| Allocation::new(bytes));
        let allocation = allocation.map_err(|error| exception(py, &error))?;
        let address = allocation.start().addr().get();
        let process = std::process::id();
        Ok(Self { allocation: Mutex::new(Some(allocation)), address, process })
    }

    /// The first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A forked child has no sound state of the locks.
        if check_process(self.process).is_err() {
            mem::forget(locked(&self.allocation).take());
        }
    }
}

impl Registration {
    /// Tells a communicator of a buffer.
    pub(crate) fn new(member: &Arc<Member>, buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = buffer.py();
        let buffer = Buffer::to_read("buffer", buffer, None)?;
        if buffer.home() != Home::Host {
            let text =
                "buffer is memory of a device, and only memory of the host can be registered";
            return Err(invalid_argument(py, text));
        }
        let (address, bytes) = buffer.place();
        let registration = py.detach(|| member.communicator.register(address, bytes));
        let registration = registration.map_err(|error| exception(py, &error))?;
        let is_shared = registration.is_shared();
        let registered = Arc::new(Registered { registration, _buffer: buffer });
        let weak = Arc::downgrade(&registered);
        locked(&member.registered).push(registered);
        let (member, process) = (Arc::downgrade(member), std::process::id());
        Ok(Self { registered: weak, member, is_shared, process })
    }
}

#[pymethods]
impl Registration {
    /// Whether the ranks of this host reach the memory in place.
    #[getter]
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Ends it. What has ended, also because the communicator was destroyed, stays so.
    fn deregister(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process).map_err(|error| exception(py, &error))?;
        let Some(member) = self.member.upgrade() else { return Ok(()) };
        let mut registered = locked(&member.registered);
        let place = registered.iter().position(|one| self.registered.ptr_eq(&Arc::downgrade(one)));
        let ended = place.map(|place| registered.swap_remove(place));
        drop(registered);
        let Some(Registered { registration, _buffer }) = ended.and_then(Arc::into_inner) else {
            return Ok(());
        };
        let ended = member.communicator.deregister(registration);
        ended.map_err(|error| exception(py, &error))
    }
}
