//! `__cuda_array_interface__`, version 3 and before: how CuPy and Numba lend memory of a device.
//!
//! The object keeps the memory for as long as somebody has a reference to it.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Home, Refusal, View, are_in_a_row, elements};
use crate::element::Element;

/// The memory of an object; None if it does not speak the protocol.
pub(super) fn view(object: &Bound<'_, PyAny>) -> Result<Option<View>, Refusal> {
    let py = object.py();
    let name = intern!(py, "__cuda_array_interface__");
    if !object.hasattr(name)? {
        return Ok(None);
    }
    let described = object.getattr(name)?.cast_into::<PyDict>().map_err(PyErr::from)?;
    let required = |key: &str| {
        let value = described.get_item(key)?;
        value.ok_or_else(|| PyValueError::new_err(format!("the interface has no \"{key}\"")))
    };
    let optional = |key: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(described.get_item(key)?.filter(|value| !value.is_none()))
    };
    if optional("mask")?.is_some() {
        return Err(Refusal::Raised(PyValueError::new_err("it has a mask")));
    }
    let typestr: String = required("typestr")?.extract()?;
    let element = Element::from_typestr(&typestr).map_err(Refusal::Elements)?;
    let shape: Vec<i64> = required("shape")?.extract()?;
    let unit = i64::try_from(element.bytes()).unwrap_or(i64::MAX);
    if let Some(strides) = optional("strides")? {
        let strides: Vec<i64> = strides.extract()?;
        if strides.len() != shape.len() || !are_in_a_row(&shape, &strides, unit) {
            return Err(Refusal::Gaps);
        }
    }
    let (address, read_only): (usize, bool) = required("data")?.extract()?;
    let producer = optional("stream")?.map(|stream| stream.extract::<usize>()).transpose()?;
    if producer == Some(0) {
        let text = "its stream is 0, which the interface does not allow";
        return Err(Refusal::Raised(PyValueError::new_err(text)));
    }
    Ok(Some(View {
        start: std::ptr::with_exposed_provenance_mut(address),
        count: elements(&shape)?,
        element,
        writable: !read_only,
        home: Home::Device { producer },
    }))
}
