//! Memory of the library, and memory that communicators are told about.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Mutex;

use ccl::{Allocation, Error};

use crate::abi::CommHandle;
use crate::arguments::Slot;
use crate::handles::{fresh_number, locked};
use crate::outcome::{Status, entry, entry_on};

/// What `ccl_mem_alloc` returned and `ccl_mem_free` has not taken back, by address.
static ALLOCATIONS: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

/// See the header.
///
/// # Safety
///
/// `pointer` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_mem_alloc(pointer: *mut *mut c_void, size: usize) -> c_int {
    entry("ccl_mem_alloc", || {
        // SAFETY: the caller's promise.
        let pointer = unsafe { Slot::at("pointer", pointer) }?;
        if size == 0 {
            return Err(Error::InvalidArgument("size is 0".into()));
        }
        let allocation = Allocation::new(size)?;
        let address = allocation.address();
        pointer.put(address.cast());
        locked(&ALLOCATIONS).insert(address.addr(), allocation);
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_mem_free(pointer: *mut c_void) -> c_int {
    entry("ccl_mem_free", || {
        if pointer.is_null() {
            return Ok(Status::Done);
        }
        let allocation = locked(&ALLOCATIONS).remove(&pointer.addr());
        match allocation {
            Some(_) => Ok(Status::Done),
            None => Err(Error::InvalidArgument(
                "ccl_mem_alloc did not return this address, or it was freed".into(),
            )),
        }
    })
}

/// See the header.
///
/// # Safety
///
/// `size` bytes at `buffer` stay valid until the registration ends; `registration` is null or may be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_register(
    comm: CommHandle,
    buffer: *mut c_void,
    size: usize,
    registration: *mut *mut c_void,
) -> c_int {
    entry_on("ccl_comm_register", comm, |member| {
        // SAFETY: the caller's promise.
        let registration = unsafe { Slot::at("registration", registration) }?;
        let registered = member.ready()?.register(buffer.addr(), size)?;
        let number = fresh_number();
        locked(&member.registrations).insert(number, registered);
        registration.put(without_provenance_mut(number));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_comm_deregister(comm: CommHandle, registration: *mut c_void) -> c_int {
    entry_on("ccl_comm_deregister", comm, |member| {
        let registered = locked(&member.registrations).remove(&registration.addr());
        let gone = || Error::InvalidArgument("this is no registration of the communicator".into());
        member.communicator()?.deregister(registered.ok_or_else(gone)?)?;
        Ok(Status::Done)
    })
}
