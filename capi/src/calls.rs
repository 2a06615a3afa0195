//! The functions of the header, by its sections.
//!
//! What they mean, their shapes and errors are described in `include/r2ccl/ccl.h`, for the people
//! who call them. They are `unsafe` where they follow pointers of the program.

pub mod collectives;
pub mod derived;
pub mod health;
pub mod inquiry;
pub mod lifecycle;
pub mod memory;
pub mod operators;
pub mod requests;
pub mod windows;

use std::ffi::c_int;

use ccl::{Communicator, Error, ResultCode};

use crate::arguments::Place;
use crate::group;
use crate::member::Member;
use crate::outcome::{Outcome, entry, failed};

/// [`entry`] for a call that a group can contain: its failure is the group's.
#[inline]
fn entry_in_group(function: &str, body: impl FnOnce() -> Outcome) -> c_int {
    entry(function, || body().inspect_err(group::note_failure))
}

/// Tells of the failure of a call that a group can contain.
#[cold]
fn failed_in_group(function: &str, error: &Error) -> ResultCode {
    group::note_failure(error);
    failed(function, error)
}

/// Who asks, for reading the arguments.
#[inline]
fn place<'a>(member: &'a Member, communicator: &Communicator) -> Place<'a> {
    Place { member, rank: communicator.rank(), size: communicator.size() }
}

/// An id, size or rank of the program as the unsigned number that it must be.
fn natural(what: &str, number: c_int) -> Result<u32, Error> {
    u32::try_from(number).map_err(|_| Error::InvalidArgument(format!("{what} is {number}")))
}
