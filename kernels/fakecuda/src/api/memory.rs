//! Memory: where it comes from, copies, fills.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::os::fd::IntoRawFd as _;
use std::sync::Arc;

use super::entry_points;
use crate::allocations::Kind;
use crate::capture;
use crate::codes::{Code, Result};
use crate::device::Device;
use crate::driver::{self, objects, stream};
use crate::ipc::{Handle, RawHandle};
use crate::outside::{Out, read, share};
use crate::settings::{self, DmaBufs};
use crate::work::{From, Work};

/// Portable, mapped, write-combined.
const PIN_FLAGS: c_uint = 7;
/// Portable, mapped, input and output, read-only.
const REGISTER_FLAGS: c_uint = 15;

/// Copies of ordinary memory that are no larger are done by a driver after it has read them.
const LATE_BYTES: usize = 64 << 10;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMABUF: c_uint = 1;
/// Of the host: what is exported are whole pages.
const PAGE_BYTES: u64 = 4096;

/// Which ends of a copy must be memory that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
    Anywhere,
}

/// Puts a copy into a stream. Memory of the host that the driver does not know is read at once, and
/// what is written to it is there when the call returns.
fn copy(to: u64, from: u64, bytes: usize, number: usize, direction: Direction) -> Result<()> {
    let stream = stream(number)?;
    if bytes == 0 {
        return Ok(());
    }
    let knows = |address| objects().allocations.has(address, bytes);
    let (knows_target, knows_source) = (knows(to), knows(from));
    let wants_target = matches!(direction, Direction::ToDevice | Direction::OnDevice);
    let wants_source = matches!(direction, Direction::ToHost | Direction::OnDevice);
    let is_nowhere = to == 0 || from == 0;
    if is_nowhere || wants_target && !knows_target || wants_source && !knows_source {
        return Err(Code::InvalidValue);
    }
    let is_capturing = stream.is_capturing();
    let source = if knows_source || is_capturing {
        From::Address(from)
    } else {
        From::Bytes(Arc::from(read(from, bytes)))
    };
    driver::push(&stream, Work::Copy { to, from: source, bytes })?;
    if knows_target || is_capturing { Ok(()) } else { stream.finish() }
}

/// A copy that has ended when the call returns; if it is late, all but a small one from ordinary memory to a device.
fn copy_now(to: u64, from: u64, bytes: usize, direction: Direction) -> Result<()> {
    let is_ordinary = direction == Direction::ToDevice && !objects().allocations.has(from, bytes);
    let is_late = settings::is_late() && is_ordinary && bytes <= LATE_BYTES;
    if is_late {
        driver::push(&stream(0)?, Work::Linger)?;
    }
    copy(to, from, bytes, 0, direction)?;
    if is_late { Ok(()) } else { stream(0)?.finish() }
}

fn fill(to: u64, element: u32, element_bytes: usize, count: usize, number: usize) -> Result<()> {
    let stream = stream(number)?;
    if count == 0 {
        return Ok(());
    }
    let bytes = count.checked_mul(element_bytes).ok_or(Code::InvalidValue)?;
    let is_known = objects().allocations.has(to, bytes);
    if !is_known || !to.is_multiple_of(element_bytes as u64) {
        return Err(Code::InvalidValue);
    }
    driver::push(&stream, Work::Fill { to, element, element_bytes, count })
}

/// A fill that has ended when the call returns, but if it is late.
fn fill_now(to: u64, element: u32, element_bytes: usize, count: usize) -> Result<()> {
    if settings::is_late() {
        driver::push(&stream(0)?, Work::Linger)?;
        return fill(to, element, element_bytes, count, 0);
    }
    fill(to, element, element_bytes, count, 0)?;
    stream(0)?.finish()
}

/// Waits until nobody uses memory any more, and frees it.
fn free(start: u64, is_meant: fn(&Kind) -> bool) -> Result<()> {
    if start == 0 {
        return Ok(());
    }
    capture::permit()?;
    driver::when_idle(|| objects().allocations.free(start, is_meant))
}

fn pin(result: Out<u64>, bytes: usize) -> Result<()> {
    capture::permit()?;
    let device = driver::device()?;
    let start = objects().allocations.pin(device, bytes)?;
    result.put(start)
}

entry_points! {
    fn cuMemAlloc_v2(result: Out<u64>, bytes: usize) {
        capture::permit()?;
        let device = driver::device()?;
        let start = objects().allocations.allocate(device, bytes)?;
        result.put(start)
    }

    fn cuMemFree_v2(start: u64) {
        free(start, |kind| matches!(kind, Kind::Device(_)))
    }

    fn cuMemHostAlloc(result: Out<u64>, bytes: usize, flags: c_uint) {
        if flags & !PIN_FLAGS != 0 {
            return Err(Code::InvalidValue);
        }
        pin(result, bytes)
    }

    fn cuMemAllocHost_v2(result: Out<u64>, bytes: usize) {
        pin(result, bytes)
    }

    fn cuMemFreeHost(start: u64) {
        free(start, |kind| matches!(kind, Kind::Pinned))
    }

    fn cuMemHostRegister_v2(start: u64, bytes: usize, flags: c_uint) {
        capture::permit()?;
        let device = driver::device()?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(Code::InvalidValue);
        }
        objects().allocations.register(device, start, bytes).map(drop)
    }

    fn cuMemHostUnregister(start: u64) {
        driver::device()?;
        capture::permit()?;
        // Nothing says that a driver waits for the device here.
        let freed = objects().allocations.free(start, |kind| matches!(kind, Kind::Registered));
        freed.map_err(|code| if code == Code::InvalidValue { Code::HostNotRegistered } else { code })
    }

    fn cuMemHostGetDevicePointer_v2(result: Out<u64>, address: u64, flags: c_uint) {
        driver::device()?;
        let objects = objects();
        let found = objects.allocations.find(address).filter(|found| !found.1.is_on_device());
        if flags != 0 || found.is_none() {
            return Err(Code::InvalidValue);
        }
        result.put(address)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, address: u64) {
        let objects = objects();
        let found = objects.allocations.find(address).filter(|found| !found.1.is_on_device());
        found.ok_or(Code::InvalidValue)?;
        // Portable and mapped.
        flags.put(3)
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let objects = objects();
        let (found, allocation) = objects.allocations.find(address).ok_or(Code::NotFound)?;
        if !start.is_null() {
            start.put(found)?;
        }
        if bytes.is_null() { Ok(()) } else { bytes.put(allocation.bytes) }
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Direction::Anywhere)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, stream, Direction::Anywhere)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Direction::ToDevice)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, stream, Direction::ToDevice)
    }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Direction::ToHost)
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, stream, Direction::ToHost)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Direction::OnDevice)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, stream, Direction::OnDevice)
    }

    fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) {
        Device::of_context(to_context)?;
        Device::of_context(from_context)?;
        copy_now(to, from, bytes, Direction::OnDevice)
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: usize,
        from: u64,
        from_context: usize,
        bytes: usize,
        stream: usize,
    ) {
        Device::of_context(to_context)?;
        Device::of_context(from_context)?;
        copy(to, from, bytes, stream, Direction::OnDevice)
    }

    fn cuMemsetD8_v2(to: u64, element: u8, count: usize) {
        fill_now(to, element.into(), 1, count)
    }

    fn cuMemsetD16_v2(to: u64, element: u16, count: usize) {
        fill_now(to, element.into(), 2, count)
    }

    fn cuMemsetD32_v2(to: u64, element: c_uint, count: usize) {
        fill_now(to, element, 4, count)
    }

    fn cuMemsetD8Async(to: u64, element: u8, count: usize, stream: usize) {
        fill(to, element.into(), 1, count, stream)
    }

    fn cuMemsetD16Async(to: u64, element: u16, count: usize, stream: usize) {
        fill(to, element.into(), 2, count, stream)
    }

    fn cuMemsetD32Async(to: u64, element: c_uint, count: usize, stream: usize) {
        fill(to, element, 4, count, stream)
    }

    fn cuMemGetHandleForAddressRange(
        result: Out<c_int>,
        address: u64,
        bytes: usize,
        kind: c_uint,
        flags: c_ulonglong,
    ) {
        driver::device()?;
        // Other than on a GPU, memory is exported from where its allocation begins.
        let pages = [address, bytes as u64].map(|number| number.is_multiple_of(PAGE_BYTES));
        if kind != DMABUF || flags != 0 || bytes == 0 || pages != [true; 2] {
            return Err(Code::InvalidValue);
        }
        let dmabufs = settings::dmabufs();
        if dmabufs == DmaBufs::None {
            return Err(Code::NotSupported);
        }
        let objects = objects();
        let shared = share(objects.allocations.file(address, bytes)?, dmabufs == DmaBufs::Open)?;
        result.put(shared.into_raw_fd())
    }

    fn cuIpcGetMemHandle(handle: Out<RawHandle>, address: u64) {
        driver::device()?;
        let found = objects().allocations.handle(address)?;
        handle.put(found.into())
    }

    fn cuIpcOpenMemHandle_v2(result: Out<u64>, handle: RawHandle, flags: c_uint) {
        capture::permit()?;
        // Peers are enabled where they are needed.
        if flags != 1 {
            return Err(Code::InvalidValue);
        }
        let (device, handle) = (driver::device()?, Handle::try_from(handle)?);
        let start = objects().allocations.open(device, handle)?;
        result.put(start)
    }

    fn cuIpcCloseMemHandle(start: u64) {
        capture::permit()?;
        driver::when_idle(|| objects().allocations.close(start))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: c_int) {
        let _ = pool;
        Device::get(device)?;
        Err(Code::NotSupported)
    }
}
