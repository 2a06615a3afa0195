//! Where the ranks of a communicator meet.

use std::hash::{DefaultHasher, Hash, Hasher};

use ccl::Config;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::errors::{exception, invalid_argument};

/// Brings the ranks of a new communicator together.
///
/// One process makes it and gives `bytes(unique_id)` to all ranks, by any means; keep it from people who
/// must not join. The process that makes it keeps the place where they meet: it lives until all have
/// joined.
#[pyclass(frozen, eq, module = "r2ccl")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct UniqueId {
    pub(crate) id: ccl::UniqueId,
}

#[pymethods]
impl UniqueId {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let create = || ccl::UniqueId::create(&Config::from_environment()?.settings);
        let id = py.detach(create).map_err(|error| exception(py, &error))?;
        Ok(Self { id })
    }

    /// The id that another process made, from its 128 bytes.
    #[staticmethod]
    fn from_bytes(data: &Bound<'_, PyBytes>) -> PyResult<Self> {
        let (py, data) = (data.py(), data.as_bytes());
        let bytes = data.try_into().map_err(|_| {
            invalid_argument(py, format!("a unique id has 128 bytes, not {}", data.len()))
        })?;
        let id = ccl::UniqueId::from_bytes(bytes).map_err(|error| exception(py, &error))?;
        Ok(Self { id })
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id.to_bytes())
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.id.communicator().hash(&mut hasher);
        hasher.finish()
    }

    /// Without the key in it, because it goes to logs.
    fn __repr__(&self) -> String {
        format!("<UniqueId {:016x}>", self.id.communicator())
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let maker = PyType::new::<Self>(py).getattr("from_bytes")?;
        Ok((maker, PyTuple::new(py, [self.__bytes__(py)])?))
    }
}
