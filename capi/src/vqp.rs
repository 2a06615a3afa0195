//! The functions of the header for queue pairs that survive their NIC.
//!
//! What they mean is described in `include/r2ccl/ccl.h`. Behind each handle is one object of
//! [`ccl::vqp`] in a lock.

pub mod abi;
pub mod domains;
pub mod meetings;
pub mod pairs;
pub mod pools;
pub mod posting;

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use ccl::vqp::{Error, Key};

use crate::arguments::null;
use crate::calls::inquiry::copy_text;
use crate::outcome::{Status, entry_with};

/// What the inside of these functions returns.
type Outcome = Result<Status, Error>;

fn entry(function: &str, body: impl FnOnce() -> Outcome) -> c_int {
    entry_with(function, body)
}

/// A text of the program; `None` for NULL.
///
/// # Safety
///
/// `text` is null or a C string.
unsafe fn text(what: &str, text: *const c_char) -> Result<Option<String>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let valid = text.to_str();
    valid.map(|text| Some(text.to_owned())).map_err(|_| invalid(format!("{what} is not UTF-8")))
}

/// A text that must be there.
///
/// # Safety
///
/// As for [`text`].
unsafe fn needed_text(what: &str, pointer: *const c_char) -> Result<String, Error> {
    // SAFETY: the caller's promise.
    unsafe { text(what, pointer) }?.ok_or_else(|| null(what).into())
}

/// The key that a pass phrase stands for, or that of the environment.
///
/// # Safety
///
/// As for [`text`].
unsafe fn key(phrase: *const c_char) -> Result<Key, Error> {
    // SAFETY: the caller's promise.
    match unsafe { text("key", phrase) }? {
        Some(phrase) => Ok(Key::from_passphrase(&phrase)),
        None => Key::from_environment(),
    }
}

fn timeout(milliseconds: c_int) -> Result<Duration, Error> {
    let checked = u64::try_from(milliseconds).map(Duration::from_millis);
    checked.map_err(|_| invalid(format!("timeout_ms is {milliseconds}")))
}

/// Tells a text: as much as fits, and how much room it needs.
///
/// # Safety
///
/// `capacity` bytes may be written at `target`; `needed` is null or may be written to.
unsafe fn tell(said: &str, target: *mut c_char, capacity: usize, needed: *mut usize) -> Outcome {
    if target.is_null() && capacity > 0 {
        return Err(null("text").into());
    }
    if !needed.is_null() {
        // SAFETY: not null, and the caller's promise.
        unsafe { needed.write(said.len() + 1) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_text(said, target, capacity) };
    Ok(Status::Done)
}

/// Writes records of which the program knows `record_size` bytes at least.
///
/// # Safety
///
/// `capacity` records of `record_size` bytes may be written at `target`.
unsafe fn tell_records<T: Copy>(
    name: &str,
    records: &[T],
    target: *mut T,
    record_size: usize,
) -> Result<(), Error> {
    if records.is_empty() {
        return Ok(());
    }
    if target.is_null() {
        return Err(null(name).into());
    }
    for (index, record) in records.iter().enumerate() {
        let place = target.wrapping_byte_add(index * record_size);
        // SAFETY: the caller's promise; a later header may have a record whose size is no multiple of
        // our alignment.
        unsafe { place.write_unaligned(*record) };
    }
    Ok(())
}

/// Whether the program has the records of this library, or longer ones.
fn check_size<T>(name: &str, record_size: usize) -> Result<(), Error> {
    let expected = size_of::<T>();
    if record_size >= expected {
        return Ok(());
    }
    Err(invalid(format!(
        "record_size is {record_size}, a {name} has {expected} bytes: compile the program with the \
         header of this library"
    )))
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}
