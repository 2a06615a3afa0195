//! The C interface of the library: `libr2ccl.so`, described by `include/r2ccl/ccl.h`.
//!
//! Everything a C program passes is looked at once, here: numbers become types, pointers become
//! regions, handles become members. What remains is a call of [`ccl`]. No panic leaves: every
//! function of the header runs inside [`outcome::entry`].
//!
//! Handles are numbers in the clothes of pointers, looked up in a table. A number is never used
//! twice, so that a handle that is gone is an error and never a read of freed memory.
//!
//! Functions are exported under the names of the header; `#[unsafe(no_mangle)]` is used in this crate
//! only, because a shared library exports such names of every crate it contains.

pub mod abi;
pub mod calls;
pub mod vqp;

mod arguments;
mod config;
#[cfg(feature = "cuda")]
mod device;
#[cfg(not(feature = "cuda"))]
#[path = "device_absent.rs"]
mod device;
#[cfg(all(test, feature = "cuda"))]
mod device_absent;
mod group;
mod handles;
mod member;
mod outcome;
mod recent;
