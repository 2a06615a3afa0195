//! Reductions that the user makes.

use std::ffi::{c_int, c_void};

use ccl::{Error, Reduction};

use crate::abi::{CommHandle, FIRST_USER_OP};
use crate::arguments::{Slot, datatype as checked_datatype, null};
use crate::outcome::{Status, entry_on};

/// See the header.
///
/// # Safety
///
/// `op` is null or may be written to; `scalar` is null or an element of type `datatype`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_redop_create_premulsum(
    op: *mut c_int,
    scalar: *const c_void,
    datatype: c_int,
    comm: CommHandle,
) -> c_int {
    entry_on("ccl_redop_create_premulsum", comm, |member| {
        let datatype = checked_datatype(datatype)?;
        if scalar.is_null() {
            return Err(null("scalar"));
        }
        // SAFETY: the caller's promise.
        let op = unsafe { Slot::at("op", op) }?;
        let mut bits = [0u8; 8];
        // SAFETY: not null, so an element of this type, of at most eight bytes.
        unsafe { bits.as_mut_ptr().copy_from_nonoverlapping(scalar.cast(), datatype.bytes()) };
        let scalar = u64::from_le_bytes(bits);
        op.put(member.add_operation(Reduction::PreMulSum { datatype, scalar })?);
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_redop_destroy(op: c_int, comm: CommHandle) -> c_int {
    entry_on("ccl_redop_destroy", comm, |member| match member.remove_operation(op) {
        Some(_) => Ok(Status::Done),
        None if (0..FIRST_USER_OP).contains(&op) => {
            Err(Error::InvalidArgument(format!("operation {op} is built in")))
        }
        None => Err(member.no_operation(op)),
    })
}
