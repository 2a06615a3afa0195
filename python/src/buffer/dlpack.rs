//! DLPack: how tensors lend their memory. Structures as in `dlpack.h`, versions 0 and 1.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Home, Refusal, View, are_in_a_row, elements};
use crate::element::Element;

/// The newest version that is understood; asked for, so that objects do not send a newer one.
const MAX_VERSION: (u32, u32) = (1, 0);
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `kDLCUDA`.
const CUDA: i32 = 2;
/// What objects are told for the default stream of a device.
const DEFAULT_STREAM: usize = 1;

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
struct Description {
    data: *mut c_void,
    device_kind: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
struct Plain {
    description: Description,
    context: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    description: Description,
}

/// A tensor that was lent, until this is dropped.
#[derive(Debug)]
pub(super) struct Tensor(Managed);

#[derive(Clone, Copy, Debug)]
enum Managed {
    Plain(NonNull<Plain>),
    Versioned(NonNull<Versioned>),
}

// SAFETY: the structures are only read, and released while the thread is attached to the interpreter.
unsafe impl Send for Managed {}
// SAFETY: as above.
unsafe impl Sync for Managed {}

impl Tensor {
    /// Borrows the memory of an object, for a call on this stream if it is memory of a device.
    pub(super) fn of(
        object: &Bound<'_, PyAny>,
        stream: Option<usize>,
    ) -> Result<(Self, View), Refusal> {
        let py = object.py();
        if !object.hasattr(intern!(py, "__dlpack__"))? {
            return Err(Refusal::NoBuffer);
        }
        let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, number) = device.extract::<(i32, i32)>()?;
        // The object lets the stream wait for what it does itself, so nothing is left to wait for.
        let (home, stream) = match kind {
            CUDA => (Home::Device { producer: None }, Some(told(stream))),
            _ if is_host_memory(kind) => (Home::Host, None),
            _ => return Err(Refusal::Device(format!("{}:{number}", device_name(kind)))),
        };
        let tensor = Self::from_capsule(&capsule(object, stream)?)?;
        let view = View { home, ..tensor.view()? };
        Ok((tensor, view))
    }

    /// Takes the tensor out of a capsule, which is marked as used, so that it does not release it.
    fn from_capsule(capsule: &Bound<'_, PyAny>) -> Result<Self, Refusal> {
        if let Some(tensor) = take(capsule, c"dltensor_versioned", c"used_dltensor_versioned")? {
            return Ok(Self(Managed::Versioned(tensor)));
        }
        match take(capsule, c"dltensor", c"used_dltensor")? {
            Some(tensor) => Ok(Self(Managed::Plain(tensor))),
            None => {
                Err(Refusal::Raised(PyTypeError::new_err("__dlpack__ returned no DLPack capsule")))
            }
        }
    }

    fn description(&self) -> (&Description, bool) {
        match self.0 {
            Managed::Plain(tensor) => {
                // SAFETY: the tensor lives until it is released, which `drop` does.
                (unsafe { &(*tensor.as_ptr()).description }, true)
            }
            Managed::Versioned(tensor) => {
                // SAFETY: as above.
                let tensor = unsafe { tensor.as_ref() };
                (&tensor.description, tensor.flags & READ_ONLY == 0)
            }
        }
    }

    fn view(&self) -> Result<View, Refusal> {
        if let Managed::Versioned(tensor) = self.0 {
            // SAFETY: the tensor lives until it is released; all versions begin with these numbers.
            let major = unsafe { (*tensor.as_ptr()).major };
            if major != MAX_VERSION.0 {
                let text = format!("__dlpack__ returned version {major}, which was not asked for");
                return Err(Refusal::Raised(PyTypeError::new_err(text)));
            }
        }
        let (description, writable) = self.description();
        let Description { code, bits, lanes, data, byte_offset, .. } = *description;
        let element = Element::from_dlpack(code, bits, lanes).map_err(Refusal::Elements)?;
        let shape = description.extents(description.shape);
        let strides = description.extents(description.strides);
        // No strides: C order.
        if !description.strides.is_null() && !are_in_a_row(&shape, &strides, 1) {
            return Err(Refusal::Gaps);
        }
        let offset = usize::try_from(byte_offset).unwrap_or(usize::MAX);
        let start = data.cast::<u8>().wrapping_add(offset);
        let count = elements(&shape)?;
        Ok(View { start, count, element, writable, home: Home::Host })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let managed = self.0;
        // Without an interpreter there is nobody left who could use the memory again.
        Python::try_attach(|_| match managed {
            Managed::Plain(tensor) => {
                // SAFETY: the tensor lives until now.
                if let Some(release) = unsafe { (*tensor.as_ptr()).release } {
                    // SAFETY: called once, on the structure that it came in.
                    unsafe { release(tensor.as_ptr()) }
                }
            }
            Managed::Versioned(tensor) => {
                // SAFETY: the tensor lives until now.
                if let Some(release) = unsafe { (*tensor.as_ptr()).release } {
                    // SAFETY: called once, on the structure that it came in.
                    unsafe { release(tensor.as_ptr()) }
                }
            }
        });
    }
}

impl Description {
    /// The shape or the strides.
    fn extents(&self, list: *const i64) -> Vec<i64> {
        let dimensions = usize::try_from(self.dimensions).unwrap_or(0);
        if list.is_null() || dimensions == 0 {
            return Vec::new();
        }
        // SAFETY: not null, so it has an entry for every dimension and lives as long as the tensor.
        unsafe { std::slice::from_raw_parts(list, dimensions) }.to_vec()
    }
}

/// Asks an object for its tensor, without a copy; older objects know the stream only.
fn capsule<'py>(object: &Bound<'py, PyAny>, stream: Option<usize>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let (wishes, fewer) = (PyDict::new(py), PyDict::new(py));
    if let Some(stream) = stream {
        wishes.set_item(intern!(py, "stream"), stream)?;
        fewer.set_item(intern!(py, "stream"), stream)?;
    }
    wishes.set_item(intern!(py, "max_version"), MAX_VERSION)?;
    wishes.set_item(intern!(py, "copy"), false)?;
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    match method.call((), Some(&wishes)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call((), Some(&fewer)),
        result => result,
    }
}

/// The pointer in a capsule of the name `fresh`, which becomes `used`.
fn take<T>(
    capsule: &Bound<'_, PyAny>,
    fresh: &'static CStr,
    used: &'static CStr,
) -> PyResult<Option<NonNull<T>>> {
    // SAFETY: the object is alive and the thread attached; any object may be asked.
    if unsafe { PyCapsule_IsValid(capsule.as_ptr(), fresh.as_ptr()) } == 0 {
        return Ok(None);
    }
    // SAFETY: it is a capsule of this name.
    let pointer = unsafe { PyCapsule_GetPointer(capsule.as_ptr(), fresh.as_ptr()) };
    // SAFETY: it is a capsule, and the new name lives for ever.
    if unsafe { PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(NonNull::new(pointer.cast()))
}

/// What an object of CUDA is told for a stream; 0, which might be either default stream, must not be.
fn told(stream: Option<usize>) -> usize {
    stream.filter(|number| *number != 0).unwrap_or(DEFAULT_STREAM)
}

/// `kDLCPU`, `kDLCUDAHost` and `kDLROCMHost`.
fn is_host_memory(kind: i32) -> bool {
    matches!(kind, 1 | 3 | 11)
}

fn device_name(kind: i32) -> String {
    let name = match kind {
        2 => "cuda",
        4 => "opencl",
        7 => "vulkan",
        8 => "metal",
        10 => "rocm",
        13 => "cuda_managed",
        14 => "oneapi",
        _ => return format!("DLPack kind {kind}"),
    };
    name.to_owned()
}
