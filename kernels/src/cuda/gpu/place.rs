//! Where an address is.

use std::ffi::c_void;

use cudarc::driver::{DriverError, sys};

use super::error::Error;
use super::mapped::Allocation;

/// What kind of memory is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory of the device with this number, or managed memory.
    Device(usize),
    /// Memory of the host that the driver knows: pinned or registered.
    Pinned,
    /// Nothing that the driver knows: memory of the host, or no memory.
    Unknown,
}

impl Place {
    /// Asks the driver; a context is current.
    pub(super) fn of(address: u64) -> Result<Self, Error> {
        use sys::CUpointer_attribute as Attribute;
        let memory_type = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?;
        let Some(memory_type) = memory_type else { return Ok(Self::Unknown) };
        if memory_type == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
            return Ok(Self::Pinned);
        }
        let ordinal = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        Ok(ordinal.map_or(Self::Unknown, |ordinal| Self::Device(ordinal as usize)))
    }
}

/// The allocation that an address is in; a context is current.
pub(super) fn allocation(address: u64) -> Result<Allocation, Error> {
    use sys::CUpointer_attribute as Attribute;
    let ask = |which| {
        let unknown = || Error::Misuse(format!("nothing is allocated at {address:#x}"));
        long_attribute(which, address)?.ok_or_else(unknown)
    };
    Ok(Allocation {
        number: ask(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID)?,
        start: ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?,
        bytes: ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)? as usize,
    })
}

/// An attribute of four bytes; None if the driver does not know the address.
fn attribute(which: sys::CUpointer_attribute, address: u64) -> Result<Option<u32>, Error> {
    // Numbers have their low bytes first.
    Ok(long_attribute(which, address)?.map(|value| value as u32))
}

/// An attribute of up to eight bytes; None if the driver does not know the address.
fn long_attribute(which: sys::CUpointer_attribute, address: u64) -> Result<Option<u64>, Error> {
    let mut value = 0u64;
    let place = (&raw mut value).cast::<c_void>();
    // SAFETY: the attributes that are asked for have four or eight bytes, which are written where they are told.
    match unsafe { sys::cuPointerGetAttribute(place, which, address) }.result() {
        Ok(()) => Ok(Some(value)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(None),
        Err(error) => Err(Error::driver("ask where memory is")(error)),
    }
}
