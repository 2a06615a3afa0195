//! Memory that kernels and NICs share: of the device, or of the host in a file that both map.
//!
//! A NIC that writes into memory of the device tells the processor that it has, not the device. What a kernel
//! finds that is launched then is up to the device: [`Gpu::flush`] makes it what was written.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Gpu;
use super::error::Error;
use super::foreign::{BesideCaptures, give_back};
use super::memory::{Buffer, DeviceRegion};

/// What a dma-buf begins and ends at: pages of the host.
const PAGE_BYTES: u64 = 4096;

impl Gpu {
    /// Why NICs cannot write into memory of this device; None if they can, and if what they have written can be made
    /// visible.
    ///
    /// # Errors
    ///
    /// The driver does not answer.
    pub fn nic_obstacle(&self) -> Result<Option<&'static str>, Error> {
        use sys::CUdevice_attribute as Attribute;
        if self.number(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? == 0 {
            return Ok(Some("the device exports no dma-buf"));
        }
        let options = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS;
        let host = sys::CUflushGPUDirectRDMAWritesOptions_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
        let can_flush = self.number(options)? & host as i32 != 0;
        let is_orderly = !self.needs_flush()?;
        Ok((!can_flush && !is_orderly).then_some("writes of NICs cannot be flushed"))
    }

    /// Whether writes of NICs have to be flushed before kernels of this device find them.
    ///
    /// # Errors
    ///
    /// The driver does not answer.
    pub fn needs_flush(&self) -> Result<bool, Error> {
        use sys::CUGPUDirectRDMAWritesOrdering_enum as Ordering;
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        let owner = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        Ok(self.number(attribute)? < owner)
    }

    /// Makes what NICs have written into memory of this device visible to kernels that are launched from now on.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn flush(&self) -> Result<(), Error> {
        use sys::{
            CUflushGPUDirectRDMAWritesScope_enum as Scope,
            CUflushGPUDirectRDMAWritesTarget_enum as Target,
        };
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        // SAFETY: the arguments are constants of the driver's.
        unsafe {
            sys::cuFlushGPUDirectRDMAWrites(target, Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
        }
        .result()
        .map_err(Error::driver("flush writes of NICs"))
    }

    /// Maps the first `bytes` bytes of a file of the host for kernels of this device, and pins them. Others who have
    /// mapped the file see the same memory.
    ///
    /// # Errors
    ///
    /// The file is shorter, or so much cannot be pinned.
    pub fn pin_file(&self, file: impl AsFd, bytes: usize) -> Result<PinnedFile, Error> {
        PinnedFile::new(&self.context, file, bytes)
    }

    fn number(&self, attribute: sys::CUdevice_attribute) -> Result<i32, Error> {
        self.context.attribute(attribute).map_err(Error::driver("ask for an attribute"))
    }
}

impl Buffer {
    /// A descriptor of all of it for NICs, as a dma-buf. Its pages stay as long as a descriptor is open.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if it does not consist of pages; or the driver refuses it.
    pub fn dmabuf(&self) -> Result<OwnedFd, Error> {
        let (address, bytes) = (self.region().address(), self.region().bytes());
        if bytes == 0 || ![address, bytes as u64].iter().all(|at| at.is_multiple_of(PAGE_BYTES)) {
            return Err(Error::Misuse(format!("{bytes} bytes at {address:#x} are no whole pages")));
        }
        self.bind()?;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut descriptor: i32 = -1;
        let place = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: the range is memory of this buffer; the driver writes a descriptor where it is told.
        unsafe { sys::cuMemGetHandleForAddressRange(place, address, bytes, kind, 0) }
            .result()
            .map_err(Error::driver("export memory as a dma-buf"))?;
        if descriptor < 0 {
            return Err(Error::Misuse("the driver has given no descriptor".into()));
        }
        // SAFETY: the driver has just opened it for the caller, who closes it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// Memory of the host in a file that others have mapped too, pinned and known to a device. Other than memory of the device
/// it is to be dropped when the kernels that were given it have ended: captures of the program would come to nothing if that
/// waited for the device.
pub struct PinnedFile {
    start: *mut c_void,
    address: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: nothing here reads or writes the memory; it is handed out as addresses for the device only.
unsafe impl Send for PinnedFile {}
// SAFETY: as above.
unsafe impl Sync for PinnedFile {}

impl fmt::Debug for PinnedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PinnedFile({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl PinnedFile {
    fn new(context: &Arc<CudaContext>, file: impl AsFd, bytes: usize) -> Result<Self, Error> {
        let refused = |cause| Error::Misuse(format!("map a file of the host: {cause}"));
        let size = rustix::fs::fstat(&file).map_err(refused)?.st_size;
        if bytes == 0 || usize::try_from(size).is_ok_and(|size| size < bytes) {
            return Err(Error::Misuse(format!("{bytes} bytes of a file of {size} are pinned")));
        }
        let _beside = BesideCaptures::with(context)?;
        let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(anywhere, bytes, protection, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(refused)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the bytes are those just mapped, inside of the file.
        let pinned = unsafe { sys::cuMemHostRegister_v2(start, bytes, flags) }.result();
        if let Err(error) = pinned {
            // SAFETY: mapped above, and known to nobody.
            let _ = unsafe { munmap(start, bytes) };
            return Err(Error::driver("pin memory of the host")(error));
        }
        let mut pinned = Self { start, address: 0, bytes, context: Arc::clone(context) };
        // SAFETY: the memory is mapped for the device; the address is written where it is told.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut pinned.address, start, 0) }
            .result()
            .map_err(Error::driver("map pinned memory"))?;
        Ok(pinned)
    }

    /// All of it, for the device.
    #[must_use]
    pub fn region(&self) -> DeviceRegion<'_> {
        DeviceRegion { address: self.address, bytes: self.bytes, life: PhantomData }
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        // SAFETY: the memory was registered, once.
        give_back(&self.context, || unsafe { sys::cuMemHostUnregister(self.start) }.result());
        // SAFETY: mapped by `new`, and no longer known to the device.
        let unmapped = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}
