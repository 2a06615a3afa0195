//! Memory that kernels reach: of the device, of the host, and of other processes.
//!
//! Freeing memory waits until the device has nothing more to do, so memory that was lent to launches
//! outlives them. A kernel that waits for another process therefore has an abort word.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::error::Error;
use super::foreign::{BesideCaptures, give_back};
use super::stream::Stream;
use crate::region::Region;

/// Bytes at an address that a device knows.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRegion<'a> {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) life: PhantomData<&'a ()>,
}

impl DeviceRegion<'_> {
    /// Memory of somebody else.
    ///
    /// # Safety
    ///
    /// The device can read and write the bytes until every launch that was given the region has
    /// ended, and nobody else touches them meanwhile.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes, life: PhantomData }
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If they are not all inside the region.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Self {
        let is_inside = offset <= self.bytes && bytes <= self.bytes - offset;
        assert!(is_inside, "{bytes} bytes at {offset} are outside a region of {}", self.bytes);
        Self { address: self.address + offset as u64, bytes, life: PhantomData }
    }
}

/// Memory that is known by its address: of another rank, mapped here.
pub(super) fn region_at<'a>(address: u64, bytes: usize) -> DeviceRegion<'a> {
    DeviceRegion { address, bytes, life: PhantomData }
}

/// Memory of the device. It can be exported to other processes, so it is of no pool.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    /// Where the copies of [`Self::write`] and [`Self::read`] are done. The driver's own calls that are said to wait (`cuMemcpyHtoD`,
    /// `cuMemsetD8`) may return before the device has done what they ask for, and streams that wait for no other do not wait for that.
    copies: Stream,
}

impl Buffer {
    pub(super) fn new(copies: &Stream, bytes: usize) -> Result<Self, Error> {
        let buffer = Self::unwritten(copies, bytes)?;
        // SAFETY: the bytes are those just allocated.
        unsafe { result::memset_d8_async(buffer.address, 0, bytes.max(1), copies.raw()) }
            .map_err(Error::driver("zero memory"))?;
        buffer.arrived()?;
        Ok(buffer)
    }

    /// With anything in it.
    pub(super) fn unwritten(copies: &Stream, bytes: usize) -> Result<Self, Error> {
        let _beside = BesideCaptures::with(copies.context())?;
        // SAFETY: on the device every byte is a value, whatever was there before.
        let address = unsafe { result::malloc_sync(bytes.max(1)) };
        let address = address.map_err(Error::driver("allocate memory of the device"))?;
        Ok(Self { address, bytes, copies: copies.clone() })
    }

    /// Waits until the copies so far are done.
    fn arrived(&self) -> Result<(), Error> {
        let _beside = BesideCaptures::with(self.copies.context())?;
        self.copies.0.synchronize().map_err(Error::driver("wait for a copy"))
    }

    /// All of it.
    #[must_use]
    pub fn region(&self) -> DeviceRegion<'_> {
        DeviceRegion { address: self.address, bytes: self.bytes, life: PhantomData }
    }

    pub(super) fn bind(&self) -> Result<(), Error> {
        self.copies.bind()
    }

    /// The number of its device.
    pub(super) fn ordinal(&self) -> usize {
        self.copies.ordinal()
    }

    /// Copies bytes of the host to `offset`, and waits until they are there.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let target = self.region().part(offset, from.len());
        self.bind()?;
        // SAFETY: the target is inside the buffer, and the copy ends before the call does.
        unsafe { result::memcpy_htod_async(target.address, from, self.copies.raw()) }
            .map_err(Error::driver("copy to the device"))?;
        self.arrived()
    }

    /// Copies bytes at `offset` to the host, and waits for it.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let source = self.region().part(offset, to.len());
        self.bind()?;
        // SAFETY: the source is inside the buffer, and the copy ends before the call does.
        unsafe { result::memcpy_dtoh_async(to, source.address, self.copies.raw()) }
            .map_err(Error::driver("copy from the device"))?;
        self.arrived()
    }

    /// What another process on this host needs to [import](super::Gpu::import) it.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn export(&self) -> Result<Handle, Error> {
        self.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; Handle::BYTES] };
        // SAFETY: the address is the start of an allocation that is not freed.
        unsafe { sys::cuIpcGetMemHandle(&raw mut handle, self.address) }
            .result()
            .map_err(Error::driver("export memory"))?;
        Ok(Handle { bytes: handle.reserved.map(|character| character as u8), size: self.bytes })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated, and is freed once; the call waits for the device.
        give_back(self.copies.context(), || unsafe { result::free_sync(self.address) });
    }
}

/// A name of a [`Buffer`] for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// To be handed to another process as they are.
    pub bytes: [u8; Self::BYTES],
    /// Size of the buffer in bytes.
    pub size: usize,
}

impl Handle {
    /// Size of what the driver calls a handle.
    pub const BYTES: usize = 64;
}

/// A buffer of another process.
#[derive(Debug)]
pub struct Imported {
    address: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl Imported {
    pub(super) fn new(context: &Arc<CudaContext>, handle: &Handle) -> Result<Self, Error> {
        let _beside = BesideCaptures::with(context)?;
        let raw = sys::CUipcMemHandle { reserved: handle.bytes.map(|byte| byte as _) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the driver checks the handle, and writes an address where it is told.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, raw, flags) }
            .result()
            .map_err(Error::driver("import memory"))?;
        Ok(Self { address, bytes: handle.size, context: context.clone() })
    }

    /// All of it. The other process may free it: who hands out the handle answers for that.
    #[must_use]
    pub fn region(&self) -> DeviceRegion<'_> {
        DeviceRegion { address: self.address, bytes: self.bytes, life: PhantomData }
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: the handle was opened, and is closed once.
        give_back(&self.context, || unsafe { sys::cuIpcCloseMemHandle(self.address) }.result());
    }
}

/// Memory of the host that does not move, and that the device knows: staging slots, counters and abort
/// words. It is cached as other memory is.
pub struct Pinned {
    start: *mut u8,
    address: u64,
    bytes: usize,
    /// Whether somebody has it as a [`Lent`].
    is_lent: AtomicBool,
    context: Arc<CudaContext>,
}

// SAFETY: the memory belongs to this value alone, and is handed out as atomics and addresses, and to one
// borrower at a time.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pinned({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        let _beside = BesideCaptures::with(context)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the memory is zeroed before anybody reads it.
        let start = unsafe { result::malloc_host(bytes.max(1), flags) };
        let start: *mut u8 = start.map_err(Error::driver("allocate pinned memory"))?.cast();
        let is_lent = AtomicBool::new(false);
        let mut pinned = Self { start, address: 0, bytes, is_lent, context: context.clone() };
        // SAFETY: the bytes are those just allocated.
        unsafe { start.write_bytes(0, bytes.max(1)) };
        let mapped: *mut c_void = start.cast();
        // SAFETY: the memory is mapped; the address is written where it is told.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut pinned.address, mapped, 0) }
            .result()
            .map_err(Error::driver("map pinned memory"))?;
        Ok(pinned)
    }

    /// All of it, for the device.
    #[must_use]
    pub fn region(&self) -> DeviceRegion<'_> {
        DeviceRegion { address: self.address, bytes: self.bytes, life: PhantomData }
    }

    /// Where it begins for the host.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// All of it, for kernels of the host. Whoever lets the device touch the memory orders that before or
    /// after, with streams; words and counters in it are not for use meanwhile.
    ///
    /// # Panics
    ///
    /// If it is lent already.
    #[must_use]
    pub fn lend(&self) -> Lent<'_> {
        let was_lent = self.is_lent.swap(true, Ordering::Acquire);
        assert!(!was_lent, "pinned memory is lent to one borrower at a time");
        Lent { pinned: self }
    }

    /// The word at a multiple of 4: an abort word.
    ///
    /// # Panics
    ///
    /// If it is not inside, or not at a multiple of 4.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, size_of::<AtomicU32>());
        // SAFETY: the word is inside, aligned (both checked), and initialised; host and device touch
        // it as an atomic.
        unsafe { &*self.start.wrapping_add(offset).cast() }
    }

    /// The counter at a multiple of 8: the head or tail of a ring.
    ///
    /// # Panics
    ///
    /// If it is not inside, or not at a multiple of 8.
    #[must_use]
    pub fn counter(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, size_of::<AtomicU64>());
        // SAFETY: as for `word`.
        unsafe { &*self.start.wrapping_add(offset).cast() }
    }

    fn check(&self, offset: usize, size: usize) {
        let part = self.region().part(offset, size);
        assert!(part.address().is_multiple_of(size as u64), "{offset} is no multiple of {size}");
    }
}

/// Pinned memory in the hands of the host.
#[derive(Debug)]
pub struct Lent<'a> {
    pinned: &'a Pinned,
}

impl Lent<'_> {
    /// All of it.
    #[must_use]
    pub fn region(&mut self) -> Region<'_> {
        // SAFETY: allocated and zeroed with this size; there is one borrower, who is borrowed here.
        unsafe { Region::new(self.pinned.start, self.pinned.bytes) }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pinned.is_lent.store(false, Ordering::Release);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated, and is freed once; the call waits for the device.
        give_back(&self.context, || unsafe { result::free_host(self.start.cast()) });
    }
}
