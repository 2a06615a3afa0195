//! Asking and waiting for started operations.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use ccl::{Error, Pending};

use crate::abi::RequestHandle;
use crate::arguments::{Slot, null};
use crate::handles::Table;
use crate::member::Member;
use crate::outcome::{Outcome, Status, entry, message};

/// The started operations this process knows by `ccl_request_t`.
pub(crate) static REQUESTS: Table<Started> = Table::new("request");

/// What stands behind a `ccl_request_t`.
#[derive(Debug)]
pub(crate) struct Started {
    /// The operation.
    pub(crate) pending: Pending,
    /// Whose it is, for the message of a failure.
    pub(crate) member: Arc<Member>,
}

/// See the header.
///
/// # Safety
///
/// `request` and `done` are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_request_test(request: *mut RequestHandle, done: *mut c_int) -> c_int {
    const NAME: &str = "ccl_request_test";
    entry(NAME, || {
        // SAFETY: the caller's promise.
        let request = unsafe { request.as_mut() }.ok_or_else(|| null("request"))?;
        // SAFETY: the caller's promise.
        let done = unsafe { Slot::at("done", done) }?;
        let result = match request.is_null() {
            true => Some(Ok(())),
            false => REQUESTS.get(request.addr())?.pending.test(),
        };
        done.put(c_int::from(result.is_some()));
        result.map_or(Ok(Status::Done), |result| release(NAME, request, result))
    })
}

/// See the header.
///
/// # Safety
///
/// `request` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_request_wait(request: *mut RequestHandle) -> c_int {
    const NAME: &str = "ccl_request_wait";
    entry(NAME, || {
        // SAFETY: the caller's promise.
        let request = unsafe { request.as_mut() }.ok_or_else(|| null("request"))?;
        if request.is_null() {
            return Ok(Status::Done);
        }
        let result = REQUESTS.get(request.addr())?.pending.wait();
        release(NAME, request, result)
    })
}

/// See the header.
///
/// # Safety
///
/// `request` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_request_free(request: *mut RequestHandle) -> c_int {
    entry("ccl_request_free", || {
        // SAFETY: the caller's promise.
        let request = unsafe { request.as_mut() }.ok_or_else(|| null("request"))?;
        if !request.is_null() {
            REQUESTS.remove(request.addr())?;
            *request = null_mut();
        }
        Ok(Status::Done)
    })
}

/// Frees a request whose operation is done, and passes its result on.
fn release(function: &str, request: &mut RequestHandle, result: Result<(), Error>) -> Outcome {
    // Another thread that waited for the same request may have been faster.
    if let Ok(started) = REQUESTS.remove(request.addr())
        && let Err(error) = &result
    {
        started.member.remember(message(function, error));
    }
    *request = null_mut();
    result.map(|()| Status::Done)
}
