//! Memory of Python objects, without copies.
//!
//! [`exported`] reads the buffer protocol (NumPy, `array`, `bytearray`, `memoryview`), [`dlpack`] the
//! protocol of tensors (PyTorch, JAX, and types of elements that the buffer protocol has no letter for), of the
//! host and of CUDA devices, [`cuda_array`] `__cuda_array_interface__` (CuPy, Numba). In all cases the object promises that the memory stays where it is until the buffer is dropped.

mod cuda_array;
mod dlpack;
mod exported;

use ccl::Region;
use pyo3::intern;
use pyo3::prelude::*;

use crate::element::{Element, Unsupported};
use crate::errors::{exception, invalid_argument};
use dlpack::Tensor;
use exported::Exported;

/// Elements in a row that an object has lent. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Buffer {
    view: View,
    _owner: Owner,
}

/// What keeps the memory where it is.
#[derive(Debug)]
enum Owner {
    Exported(#[allow(dead_code, reason = "it is kept, not used")] Exported),
    Tensor(#[allow(dead_code, reason = "it is kept, not used")] Tensor),
    Object(#[allow(dead_code, reason = "it is kept, not used")] Py<PyAny>),
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Host,
    /// A CUDA device. What an object still does with its memory, it does on this stream, unless it has said
    /// nothing about that.
    Device {
        producer: Option<usize>,
    },
}

/// Elements in a row.
#[derive(Clone, Copy, Debug)]
struct View {
    start: *mut u8,
    count: usize,
    element: Element,
    writable: bool,
    home: Home,
}

// SAFETY: a view is an address with a description; who reads and writes there is agreed on between the
// program and the library, whichever thread it is.
unsafe impl Send for View {}
// SAFETY: as above; the description never changes.
unsafe impl Sync for View {}

/// Why an object cannot be used.
#[derive(Debug)]
enum Refusal {
    /// It does not speak the protocol.
    NoBuffer,
    /// It speaks it, but not for these elements.
    Elements(Unsupported),
    /// There are gaps between the elements, or they are not in C order.
    Gaps,
    /// It is memory of a device.
    Device(String),
    /// The object refuses.
    Raised(PyErr),
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl Buffer {
    /// The memory of `object`, which messages call `what`, to be read.
    ///
    /// If it is memory of a device, the object is told the stream of the call, so that it lets that wait for what it
    /// does with the memory.
    pub(crate) fn to_read(
        what: &str,
        object: &Bound<'_, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<Self> {
        Self::new(object, stream).map_err(|refusal| refusal.explain(what, object))
    }

    /// As [`Self::to_read`], to be read and written.
    pub(crate) fn to_write(
        what: &str,
        object: &Bound<'_, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<Self> {
        let buffer = Self::to_read(what, object, stream)?;
        if buffer.view.writable {
            return Ok(buffer);
        }
        let text = format!("{what} is read-only, but the result goes there");
        Err(invalid_argument(object.py(), text))
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        self.view.count
    }

    /// Their type.
    pub(crate) fn element(&self) -> Element {
        self.view.element
    }

    /// Where it is.
    pub(crate) fn home(&self) -> Home {
        self.view.home
    }

    /// First address and number of bytes.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.view.start.addr(), self.view.count * self.view.element.bytes())
    }

    /// The memory, for an operation that ends before this buffer is dropped.
    pub(crate) fn region(&self) -> Region<'static> {
        let View { start, count, element, writable, .. } = self.view;
        let bytes = count * element.bytes();
        if bytes == 0 {
            return Region::empty();
        }
        if writable {
            // SAFETY: the owner keeps the memory valid, and a buffer lives as long as the operations on
            // it: `Work` and `Started` hold both. That nobody else uses the memory meanwhile is asked
            // of the program, as in C. Memory of a device is only handed on as an address, by `device`.
            unsafe { Region::new(start, bytes) }
        } else {
            // SAFETY: as above, for reading.
            unsafe { Region::read_only(start, bytes) }
        }
    }

    fn new(object: &Bound<'_, PyAny>, stream: Option<usize>) -> Result<Self, Refusal> {
        match Self::exported(object, None) {
            Ok(buffer) => Ok(buffer),
            // The buffer protocol has no letter for some types, and no word for devices.
            Err(refusal @ (Refusal::NoBuffer | Refusal::Raised(_))) => {
                match Tensor::of(object, stream) {
                    Ok((tensor, view)) => Ok(Self { view, _owner: Owner::Tensor(tensor) }),
                    Err(Refusal::NoBuffer) => match cuda_array::view(object)? {
                        Some(view) => {
                            Ok(Self { view, _owner: Owner::Object(object.clone().unbind()) })
                        }
                        None => Self::disguised(object)?.ok_or(refusal),
                    },
                    Err(other) => Self::disguised(object)?.ok_or(other),
                }
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn exported(object: &Bound<'_, PyAny>, known: Option<Element>) -> Result<Self, Refusal> {
        let (exported, view) = Exported::of(object, known)?;
        Ok(Self { view, _owner: Owner::Exported(exported) })
    }

    /// NumPy arrays of types that NumPy itself does not know (ml_dtypes): they tell the name of the
    /// type, and lend their memory as integers of the same size.
    fn disguised(object: &Bound<'_, PyAny>) -> Result<Option<Self>, Refusal> {
        let py = object.py();
        if object.get_type().module()?.to_cow()? != "numpy" {
            return Ok(None);
        }
        let name = object.getattr(intern!(py, "dtype"))?.getattr(intern!(py, "name"))?;
        let Ok(element) = Element::from_name(name.extract()?) else { return Ok(None) };
        let integers = format!("uint{}", 8 * element.bytes());
        let integers = object.call_method1(intern!(py, "view"), (integers,))?;
        Self::exported(&integers, Some(element)).map(Some)
    }
}

impl Refusal {
    /// The exception, where the object is called `what`.
    fn explain(self, what: &str, object: &Bound<'_, PyAny>) -> PyErr {
        let py = object.py();
        let kind = object.get_type();
        let kind = kind.name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        match self {
            Self::NoBuffer => pyo3::exceptions::PyTypeError::new_err(format!(
                "{what} is a {kind}, which has neither the buffer protocol nor __dlpack__ nor \
                 __cuda_array_interface__"
            )),
            Self::Elements(unsupported) => invalid_argument(py, format!("{what}: {unsupported}")),
            Self::Gaps => {
                let text = format!("{what} is not C-contiguous; make it so, or pass a copy");
                invalid_argument(py, text)
            }
            Self::Device(device) => {
                let text = format!(
                    "{what} is on device {device}; only memory of the host and of CUDA devices can be used: \
                     copy it there first"
                );
                invalid_argument(py, text)
            }
            Self::Raised(cause) => {
                let text = format!("{what}: the {kind} does not lend its memory: {cause}");
                let error = exception(py, &ccl::Error::InvalidArgument(text));
                error.set_cause(py, Some(cause));
                error
            }
        }
    }
}

/// Whether elements with these strides follow each other in C order. Both slices are equally long;
/// `unit` is the stride of neighbours.
fn are_in_a_row(shape: &[i64], strides: &[i64], unit: i64) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = unit;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if *extent != 1 && *stride != expected {
            return false;
        }
        expected *= extent;
    }
    true
}

/// Number of elements of an array.
fn elements(shape: &[i64]) -> Result<usize, Refusal> {
    let multiply = |product: usize, extent: &i64| {
        usize::try_from(*extent).ok().and_then(|extent| product.checked_mul(extent))
    };
    let product = shape.iter().try_fold(1, multiply);
    product.ok_or_else(|| Refusal::Elements(Unsupported("more than there is memory".into())))
}
