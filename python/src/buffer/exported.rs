//! The buffer protocol (PEP 3118).
//!
//! Structure and functions are part of the stable ABI from Python 3.11 on. Python 3.10 has them as they
//! are described here, but not in its stable ABI, so `pyo3` does not declare them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::{Home, Refusal, View, are_in_a_row, elements};
use crate::element::Element;

/// `PyBUF_STRIDES | PyBUF_FORMAT`: shape, strides and the type of the elements; read-only is fine.
const RECORDS: c_int = 0x18 | 0x04;

/// `Py_buffer`.
#[repr(C)]
#[derive(Debug)]
struct Record {
    start: *mut c_void,
    owner: *mut PyObject,
    bytes: Py_ssize_t,
    element_bytes: Py_ssize_t,
    is_read_only: c_int,
    dimensions: c_int,
    format: *const c_char,
    shape: *const Py_ssize_t,
    strides: *const Py_ssize_t,
    suboffsets: *const Py_ssize_t,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut Record, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut Record);
}

/// Memory that an object has lent: until this is dropped it neither moves nor changes its size. The
/// record has a fixed address, because objects may let it point into itself.
#[derive(Debug)]
pub(super) struct Exported(Box<Record>);

// SAFETY: the record is only read, and released while the thread is attached to the interpreter.
unsafe impl Send for Exported {}
// SAFETY: as above.
unsafe impl Sync for Exported {}

impl Exported {
    /// Borrows the memory of an object. Its elements are what its format says, or what is `known`.
    pub(super) fn of(
        object: &Bound<'_, PyAny>,
        known: Option<Element>,
    ) -> Result<(Self, View), Refusal> {
        // SAFETY: the object is alive and the thread attached, as `Bound` proves.
        if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Err(Refusal::NoBuffer);
        }
        let mut record = Box::new(Record::EMPTY);
        // SAFETY: as above; the record may be written, and stays where it is.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *record, RECORDS) } != 0 {
            return Err(Refusal::Raised(PyErr::fetch(object.py())));
        }
        let exported = Self(record);
        let view = exported.0.view(known)?;
        Ok((exported, view))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let record = &raw mut *self.0;
        // Without an interpreter there is nobody left who could use the memory again.
        Python::try_attach(|_| {
            // SAFETY: filled by `PyObject_GetBuffer`, released once, and the thread is attached.
            unsafe { PyBuffer_Release(record) }
        });
    }
}

impl Record {
    const EMPTY: Self = Self {
        start: null_mut(),
        owner: null_mut(),
        bytes: 0,
        element_bytes: 0,
        is_read_only: 0,
        dimensions: 0,
        format: null(),
        shape: null(),
        strides: null(),
        suboffsets: null(),
        internal: null_mut(),
    };

    fn view(&self, known: Option<Element>) -> Result<View, Refusal> {
        let element_bytes = usize::try_from(self.element_bytes).unwrap_or(0);
        let element = known.map_or_else(|| Element::from_format(&self.format(), element_bytes), Ok);
        let element = element.map_err(Refusal::Elements)?;
        let (shape, strides) = (self.extents(self.shape), self.extents(self.strides));
        let unit = i64::try_from(element.bytes()).unwrap_or(i64::MAX);
        if !self.suboffsets.is_null() || !are_in_a_row(&shape, &strides, unit) {
            return Err(Refusal::Gaps);
        }
        let count = elements(&shape)?;
        let (start, writable) = (self.start.cast(), self.is_read_only == 0);
        Ok(View { start, count, element, writable, home: Home::Host })
    }

    /// The format; without one, elements are bytes.
    fn format(&self) -> String {
        if self.format.is_null() {
            return "B".to_owned();
        }
        // SAFETY: not null, so a C string that lives as long as the record.
        unsafe { CStr::from_ptr(self.format) }.to_string_lossy().into_owned()
    }

    /// The shape or the strides.
    fn extents(&self, list: *const Py_ssize_t) -> Vec<i64> {
        let dimensions = usize::try_from(self.dimensions).unwrap_or(0);
        if list.is_null() || dimensions == 0 {
            return Vec::new();
        }
        // SAFETY: asked for with `PyBUF_STRIDES`, so it has an entry for every dimension.
        let list = unsafe { std::slice::from_raw_parts(list, dimensions) };
        list.iter().map(|extent| *extent as i64).collect()
    }
}
