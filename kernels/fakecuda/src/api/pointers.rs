//! What a pointer points to.

use std::ffi::{c_int, c_uint};

use super::entry_points;
use crate::codes::Code;
use crate::device::Device;
use crate::driver::{self, objects};
use crate::outside::{In, write};

/// Numbers of attributes in `cuda.h`.
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const DEVICE_POINTER: c_uint = 3;
const HOST_POINTER: c_uint = 4;
const SYNC_MEMOPS: c_uint = 6;
const BUFFER_ID: c_uint = 7;
const IS_MANAGED: c_uint = 8;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_BYTES: c_uint = 12;

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The bytes of an attribute of known memory.
fn attribute(number: c_uint, address: u64) -> crate::codes::Result<Vec<u8>> {
    let objects = objects();
    let (start, allocation) = objects.allocations.find(address).ok_or(Code::InvalidValue)?;
    let is_on_device = allocation.is_on_device();
    let device = Device::all().get(allocation.device).ok_or(Code::InvalidValue)?;
    Ok(match number {
        CONTEXT => device.context().to_le_bytes().to_vec(),
        MEMORY_TYPE => (if is_on_device { DEVICE } else { HOST }).to_le_bytes().to_vec(),
        DEVICE_POINTER => address.to_le_bytes().to_vec(),
        HOST_POINTER if !is_on_device => address.to_le_bytes().to_vec(),
        BUFFER_ID => allocation.number.to_le_bytes().to_vec(),
        SYNC_MEMOPS | IS_MANAGED => vec![0],
        DEVICE_ORDINAL => (allocation.device as c_int).to_le_bytes().to_vec(),
        RANGE_START => start.to_le_bytes().to_vec(),
        RANGE_BYTES => allocation.bytes.to_le_bytes().to_vec(),
        _ => return Err(Code::InvalidValue),
    })
}

/// How many bytes an attribute has; zeros stand for memory that the driver does not know.
fn bytes(number: c_uint) -> usize {
    match number {
        MEMORY_TYPE | DEVICE_ORDINAL => 4,
        SYNC_MEMOPS | IS_MANAGED => 1,
        _ => 8,
    }
}

entry_points! {
    fn cuPointerGetAttribute(value: In<u8>, number: c_uint, address: u64) {
        driver::require_initialised()?;
        let found = attribute(number, address)?;
        if value.is_null() {
            return Err(Code::InvalidValue);
        }
        write(value.address(), &found);
        Ok(())
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        numbers: In<c_uint>,
        values: In<u64>,
        address: u64,
    ) {
        driver::require_initialised()?;
        for index in 0..count as usize {
            let number = numbers.at(index).get()?;
            let found = attribute(number, address).unwrap_or_else(|_| vec![0; bytes(number)]);
            write(values.at(index).get()?, &found);
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<u8>, number: c_uint, address: u64) {
        let _ = value;
        let is_known = objects().allocations.find(address).is_some();
        // Copies of this driver are synchronous with each other anyway.
        if number == SYNC_MEMOPS && is_known { Ok(()) } else { Err(Code::InvalidValue) }
    }
}
