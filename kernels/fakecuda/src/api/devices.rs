//! The driver itself, devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::entry_points;
use crate::capture;
use crate::codes::Code;
use crate::device::Device;
use crate::driver::{self, objects, require_initialised};
use crate::outside::{In, Out, text};
use crate::settings::{self, DmaBufs};
use crate::work::RESIDENT_THREADS;

/// As `cuda.h` counts: 13.0.
const VERSION: c_int = 13000;
/// Threads of a block and blocks of a grid in every direction; a block has no more threads altogether than in the first.
pub(super) const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
pub(super) const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
pub(super) const MULTIPROCESSORS: u32 = 16;
pub(super) const MULTIPROCESSOR_THREADS: u32 = RESIDENT_THREADS / MULTIPROCESSORS;
pub(super) const MULTIPROCESSOR_BLOCKS: u32 = 32;
/// Shared memory of a block, as every kernel may have it and as it may ask for.
pub(super) const SHARED_BYTES: u32 = 48 << 10;
pub(super) const MOST_SHARED_BYTES: u32 = 227 << 10;
pub(super) const MULTIPROCESSOR_SHARED_BYTES: u32 = 228 << 10;
const TOTAL_BYTES: usize = 16 << 30;
const NAME: &[u8] = b"PTX interpreter (no GPU)\0";
const ATTRIBUTES: c_int = 150;

/// Attributes that are not zero, by their numbers in `cuda.h`.
fn attribute(device: &Device, number: c_int) -> c_int {
    (match number {
        1 => MOST_THREADS[0],
        2..=4 => MOST_THREADS[number as usize - 2],
        5..=7 => MOST_BLOCKS[number as usize - 5],
        8 => SHARED_BYTES,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX as u32,
        12 | 82 => 65_536,
        13 | 36 => 1_000_000,
        16 => MULTIPROCESSORS,
        // Maps host memory; has concurrent kernels, unified addresses, priorities.
        19 | 31 | 41 | 78 => 1,
        33 => device.ordinal as u32 + 1,
        37 => 512,
        38 => 32 << 20,
        39 => MULTIPROCESSOR_THREADS,
        40 => 2,
        75 => 9,
        76 => 0,
        81 => MULTIPROCESSOR_SHARED_BYTES,
        // Cooperative launches; registered memory; its address is that of the host; events between
        // processes.
        95 | 99 | 91 | 125 => 1,
        97 => MOST_SHARED_BYTES,
        106 => MULTIPROCESSOR_BLOCKS,
        // Writes of NICs, which hosts can flush; and must, because nothing orders them (118).
        116 | 117 => 1,
        124 => u32::from(settings::dmabufs() != DmaBufs::None),
        _ => 0,
    }) as c_int
}

entry_points! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::InvalidValue);
        }
        driver::initialise();
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(VERSION)
    }

    fn cuGetErrorName(error: c_uint, name: Out<*const c_char>) {
        let code = Code::of(error);
        name.put(code.map_or(std::ptr::null(), |code| code.symbol().as_ptr()))?;
        code.map(drop).ok_or(Code::InvalidValue)
    }

    fn cuGetErrorString(error: c_uint, string: Out<*const c_char>) {
        let code = Code::of(error);
        string.put(code.map_or(std::ptr::null(), |code| code.text().as_ptr()))?;
        code.map(drop).ok_or(Code::InvalidValue)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        require_initialised()?;
        count.put(Device::all().len() as c_int)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        require_initialised()?;
        Device::get(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, length: c_int, device: c_int) {
        Device::get(device)?;
        let room = usize::try_from(length).map_err(|_| Code::InvalidValue)?;
        name.put_all(NAME.iter().copied().take(room))
    }

    fn cuDeviceGetUuid(uuid: Out<u8>, device: c_int) {
        put_uuid(&uuid, device)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<u8>, device: c_int) {
        put_uuid(&uuid, device)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        Device::get(device)?;
        bytes.put(TOTAL_BYTES)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_int, device: c_int) {
        let device = Device::get(device)?;
        if !(1..ATTRIBUTES).contains(&number) {
            return Err(Code::InvalidValue);
        }
        value.put(attribute(device, number))
    }

    fn cuDeviceGetPCIBusId(name: Out<u8>, length: c_int, device: c_int) {
        let device = Device::get(device)?;
        let bus = format!("0000:{:02X}:00.0\0", device.ordinal + 1);
        let room = usize::try_from(length).map_err(|_| Code::InvalidValue)?;
        name.put_all(bus.bytes().take(room))
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, bus: In<c_char>) {
        let bus = text(bus)?;
        let number = bus.split(':').nth(1).and_then(|bus| i32::from_str_radix(bus, 16).ok());
        let ordinal = number.ok_or(Code::InvalidValue)? - 1;
        Device::get(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let (device, peer) = (Device::get(device)?, Device::get(peer)?);
        can.put(c_int::from(device.ordinal != peer.ordinal))
    }

    fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) {
        require_initialised()?;
        context.put(Device::get(device)?.context())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        Device::get(device).map(drop)
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        Device::get(device)?.reset();
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        let _ = flags;
        Device::get(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        Device::get(device)?;
        flags.put(0)?;
        active.put(1)
    }

    fn cuCtxSetCurrent(context: usize) {
        require_initialised()?;
        if context != 0 {
            Device::of_context(context)?;
        }
        driver::change_contexts(|contexts| {
            contexts.pop();
            if context != 0 {
                contexts.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<usize>) {
        require_initialised()?;
        context.put(driver::context())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        Device::of_context(context)?;
        driver::change_contexts(|contexts| contexts.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<usize>) {
        let popped = driver::context();
        Device::of_context(popped)?;
        driver::change_contexts(|contexts| contexts.truncate(contexts.len().saturating_sub(1)));
        if context.is_null() { Ok(()) } else { context.put(popped) }
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(driver::device()?.ordinal as c_int)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        driver::device()?;
        flags.put(0)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let _ = flags;
        driver::device().map(drop)
    }

    fn cuCtxGetApiVersion(context: usize, version: Out<c_uint>) {
        Device::of_context(context)?;
        version.put(VERSION as c_uint)
    }

    fn cuCtxSynchronize() {
        capture::permit()?;
        driver::finish(driver::device()?)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        driver::device()?;
        if !least.is_null() {
            least.put(0)?;
        }
        if greatest.is_null() { Ok(()) } else { greatest.put(super::streams::HIGHEST_PRIORITY) }
    }

    fn cuCtxEnablePeerAccess(context: usize, flags: c_uint) {
        let (device, peer) = (driver::device()?, Device::of_context(context)?);
        if flags != 0 || device.ordinal == peer.ordinal {
            return Err(Code::InvalidValue);
        }
        objects().allocations.set_peer(device, peer.ordinal, true)
    }

    fn cuCtxDisablePeerAccess(context: usize) {
        let (device, peer) = (driver::device()?, Device::of_context(context)?);
        objects().allocations.set_peer(device, peer.ordinal, false)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        driver::device()?;
        free.put(TOTAL_BYTES)?;
        total.put(TOTAL_BYTES)
    }

    fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) {
        driver::device()?.check()?;
        // The current context; for its owner, or for all devices.
        if target != 0 || !matches!(scope, 100 | 200) {
            return Err(Code::InvalidValue);
        }
        Ok(())
    }

    fn cuProfilerStart() {
        Ok(())
    }

    fn cuProfilerStop() {
        Ok(())
    }
}

fn put_uuid(uuid: &Out<u8>, device: c_int) -> crate::codes::Result<()> {
    let device = Device::get(device)?;
    let mut bytes = *b"ptx-interpreter\0";
    bytes[15] = device.ordinal as u8;
    uuid.put_all(bytes)
}
