//! The extension module `r2ccl._native`.
//!
//! Everything a Python program passes is looked at once, here: objects become regions, names become types.
//! What remains is a call of [`ccl`]. `work` holds what must not be freed while an operation uses it, and
//! `interrupts` is how to wait in a program that may get signals. `unsafe` is in two modules below
//! `buffer`, and where it and `device` make regions of their memory.
//!
//! The shared object also exports the C interface, for the backend of PyTorch: so that a process that uses
//! both has one library, with one set of threads and shared memory.

mod buffer;
mod calls;
mod communicator;
#[cfg_attr(not(feature = "cuda"), path = "device_absent.rs")]
mod device;
mod element;
mod errors;
mod group;
mod health;
mod interrupts;
mod memory;
mod reduction;
mod request;
mod unique_id;
mod work;

// Linked for its exported functions, which nothing here calls.
use r2ccl as _;

/// The part of the package `r2ccl` that is written in Rust. Import `r2ccl` instead.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::group::Group;
    #[pymodule_export]
    use super::memory::{Memory, Registration};
    #[pymodule_export]
    use super::reduction::ReduceOp;
    #[pymodule_export]
    use super::request::Request;
    #[pymodule_export]
    use super::unique_id::UniqueId;

    /// The version of the library and of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "its name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
