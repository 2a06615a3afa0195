//! Windows: memory of CUDA devices that all ranks register together.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use ccl::Error;

use super::entry_in_group;
use crate::abi::{CommHandle, WINDOW_DEFAULT, WINDOW_SYMMETRIC, WindowHandle};
use crate::arguments::{Buffer, Slot};
use crate::device;
use crate::group::perform;
use crate::handles::fresh_number;
use crate::outcome::on;

/// See the header.
///
/// # Safety
///
/// `size` bytes at `buffer` are left to the library until the window is deregistered; `window` is null or may be
/// written to; the stream exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_cuda_window_register(
    comm: CommHandle,
    buffer: *mut c_void,
    size: usize,
    window: *mut WindowHandle,
    flags: c_int,
    stream: *mut c_void,
) -> c_int {
    const NAME: &str = "ccl_cuda_window_register";
    entry_in_group(NAME, || {
        on(NAME, comm, |member| {
            // SAFETY: the caller's promise.
            let window = unsafe { Slot::at("window", window) }?;
            window.put(null_mut());
            let is_symmetric = match flags {
                WINDOW_DEFAULT => false,
                WINDOW_SYMMETRIC => true,
                _ => return Err(Error::InvalidArgument(format!("there are no flags {flags}"))),
            };
            member.ready()?;
            let (memory, number) = (Buffer::target("buffer", buffer, size)?, fresh_number());
            let what = (memory, is_symmetric, number);
            // SAFETY: the caller's promise.
            let register = unsafe { device::registering(member, what, stream) }?;
            let registered = perform(member, register)?;
            // It is one when all ranks have come.
            window.put(without_provenance_mut(number));
            Ok(registered)
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_cuda_window_deregister(comm: CommHandle, window: WindowHandle) -> c_int {
    const NAME: &str = "ccl_cuda_window_deregister";
    entry_in_group(NAME, || {
        on(NAME, comm, |member| {
            member.ready()?;
            let deregister = device::deregistering(&Arc::clone(member), window.addr())?;
            perform(member, deregister)
        })
    })
}
