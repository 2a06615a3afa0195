//! Memory that devices may read and write.
//!
//! [`Memory`] is page-aligned, zeroed, owned, and never moves; clones name the same bytes. It is
//! registered with one domain or with several, which gives a [`MemoryRegion`] for each. Everything
//! that touches the bytes from software holds the memory's lock for as long as it does, so threads
//! cannot race; whoever wants to keep a slice beyond that must know that nobody else uses those bytes
//! meanwhile, and says so with `unsafe`.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::{LocalKey, RemoteAddress, RemoteKey, Segment};
use crate::{Stretch, TransportError};

/// Page-aligned memory with a stable address.
#[derive(Clone)]
pub struct Memory(Arc<Mapping>);

struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
    lock: Mutex<()>,
}

/// Whose memory it is.
enum Owner {
    /// Unmapped with the last clone.
    This,
    Other,
    /// No memory of this process: its start is none.
    Device(DmaBuf),
}

/// Memory of a device, such as a GPU, for other devices: part of what a descriptor stands for.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    descriptor: Arc<OwnedFd>,
    offset: u64,
}

impl DmaBuf {
    /// The descriptor, as whoever exports the memory has given it.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Where the memory begins in it.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

// SAFETY: the mapping belongs to this value alone, or is lent to it, and has no tie to a thread.
unsafe impl Send for Mapping {}
// SAFETY: the bytes are touched under `lock`, or through `lend`, whose caller rules out others.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::This) {
            return;
        }
        // SAFETY: the range was mapped by `allocate` or `mapped`, and no slice of it outlives its owner.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        unmapped.expect("a mapping of our own can be unmapped");
    }
}

impl Memory {
    /// Zeroed memory of `bytes` bytes, which must not be 0.
    ///
    /// # Errors
    /// There is no more memory.
    pub fn allocate(bytes: usize) -> Result<Self, TransportError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let start = start.map_err(|cause| {
            TransportError::system(format!("allocate {bytes} bytes of memory"), cause)
        })?;
        let start = NonNull::new(start.cast()).expect("the kernel never maps address 0");
        Ok(Self(Arc::new(Mapping { start, bytes, owner: Owner::This, lock: Mutex::new(()) })))
    }

    /// Zeroed memory of `bytes` bytes, which must not be 0, in a file without a name: whoever has the descriptor
    /// can map it too, as a GPU's driver has to whose kernels use it.
    ///
    /// # Errors
    /// There is no more memory.
    pub fn in_file(bytes: usize) -> Result<(Self, OwnedFd), TransportError> {
        let failed = |cause| {
            TransportError::system(format!("allocate {bytes} bytes of memory in a file"), cause)
        };
        let file = memfd_create("r2ccl", MemfdFlags::CLOEXEC).map_err(failed)?;
        // All of it, now: what is missing later would be a signal.
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(failed)?;
        let memory = Self::mapped(file.as_fd(), 0, bytes).map_err(failed)?;
        Ok((memory, file))
    }

    /// A file that is at least so long.
    fn mapped(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing here; whoever else has mapped
        // the file is, as a peer that writes into a region, somebody with whom operations are ordered.
        let start = unsafe { mmap(anywhere, bytes, protection, MapFlags::SHARED, file, offset) }?;
        let start = NonNull::new(start.cast()).expect("the kernel never maps address 0");
        Ok(Self(Arc::new(Mapping { start, bytes, owner: Owner::This, lock: Mutex::new(()) })))
    }

    /// The same memory as this process sees it; itself, if it is memory of this process. Of a dma-buf only if
    /// whoever exports it lets processors map it, which drivers of GPUs as a rule do not.
    ///
    /// # Errors
    /// It cannot be mapped, or is shorter than was said; or the processor's caches are not kept in order with
    /// devices, as they are on x86-64.
    pub fn reached(&self) -> Result<Self, TransportError> {
        let Some(DmaBuf { descriptor, offset }) = self.dmabuf() else { return Ok(self.clone()) };
        let failed = |cause: &dyn fmt::Display| {
            TransportError::system("map a dma-buf into this process", cause)
        };
        if !cfg!(target_arch = "x86_64") {
            return Err(failed(&"devices and caches need not agree on this architecture"));
        }
        let end = offset.checked_add(self.bytes() as u64);
        let size = seek(descriptor, SeekFrom::End(0)).map_err(|cause| failed(&cause))?;
        if end.is_none_or(|end| end > size) {
            let (bytes, text) = (self.bytes(), "behind its end");
            return Err(failed(&format!("{bytes} bytes from {offset} on are {text}: {size}")));
        }
        Self::mapped(descriptor.as_fd(), *offset, self.bytes()).map_err(|cause| failed(&cause))
    }

    /// Memory of somebody else, who keeps it.
    ///
    /// # Safety
    /// Until the last clone is gone ([`Self::is_shared`]) the bytes can be read and written, and their
    /// owner does neither while an operation that names them is under way.
    #[must_use]
    pub unsafe fn lent(start: NonNull<u8>, bytes: usize) -> Self {
        Self(Arc::new(Mapping { start, bytes, owner: Owner::Other, lock: Mutex::new(()) }))
    }

    /// `bytes` bytes of a dma-buf from `offset` on: memory of another device, which a NIC reads and writes
    /// by itself. This process can do neither: it is for [`Domain::register`](super::Domain::register), and
    /// the operations that name the region.
    ///
    /// # Errors
    /// It is empty, or `offset` is not a multiple of the size of a page.
    pub fn of_dmabuf(
        descriptor: OwnedFd,
        offset: u64,
        bytes: usize,
    ) -> Result<Self, TransportError> {
        let page = rustix::param::page_size() as u64;
        if bytes == 0 || !offset.is_multiple_of(page) {
            let text = format!(
                "{bytes} bytes from {offset} on: at least one byte, from a multiple of {page} on"
            );
            return Err(TransportError::system("use a dma-buf", text));
        }
        let owner = Owner::Device(DmaBuf { descriptor: Arc::new(descriptor), offset });
        let (start, lock) = (NonNull::dangling(), Mutex::new(()));
        Ok(Self(Arc::new(Mapping { start, bytes, owner, lock })))
    }

    /// What it is part of, if it is memory of a device.
    #[must_use]
    pub fn dmabuf(&self) -> Option<&DmaBuf> {
        match &self.0.owner {
            Owner::Device(buffer) => Some(buffer),
            Owner::This | Owner::Other => None,
        }
    }

    /// Whether there are other clones: a region in which it is registered, or an operation under way.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Address of the first byte; of no meaning if it is memory of a device.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Copies the bytes from `offset` on into `target`.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(self.lock().bytes(offset..offset + target.len()));
    }

    /// Copies `source` to the bytes from `offset` on.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn write(&self, offset: usize, source: &[u8]) {
        self.lock().bytes_mut(offset..offset + source.len()).copy_from_slice(source);
    }

    /// Copies what `source` has from `skipped` on to the bytes from `offset` on.
    ///
    /// # Panics
    /// They are not all inside.
    pub(crate) fn fill(&self, offset: usize, source: Stretch<'_>, skipped: usize) {
        let end = offset + source.bytes() - skipped;
        source.read_from(skipped, self.lock().bytes_mut(offset..end));
    }

    /// The little-endian word at `offset`.
    ///
    /// # Panics
    /// It is not inside.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_le_bytes(word)
    }

    /// Sets the little-endian word at `offset`.
    ///
    /// # Panics
    /// It is not inside.
    pub fn store(&self, offset: usize, word: u64) {
        self.write(offset, &word.to_le_bytes());
    }

    /// Keeps everybody else who is in software away from the bytes.
    #[must_use]
    pub fn lock(&self) -> Locked<'_> {
        let guard = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { memory: self, _guard: guard }
    }

    /// Whether these bytes are there for this process.
    fn contains(&self, range: &Range<usize>) -> bool {
        self.dmabuf().is_none() && range.start <= range.end && range.end <= self.0.bytes
    }

    /// The bytes of `range`, without the lock.
    ///
    /// # Safety
    /// For the life of the slice nobody writes to these bytes: not through another clone, and not
    /// through a queue pair that is polled meanwhile.
    ///
    /// # Panics
    /// The range is not inside.
    #[must_use]
    pub unsafe fn lend(&self, range: Range<usize>) -> &[u8] {
        assert!(self.contains(&range), "{range:?} is outside of {self:?}");
        // SAFETY: the range is inside the mapping, as just checked.
        let start = unsafe { self.0.start.add(range.start) };
        // SAFETY: the bytes are initialised (zeroed by the kernel), and the caller rules out writers.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// The bytes of `range`, to write, without the lock.
    ///
    /// # Safety
    /// For the life of the slice nobody else reads or writes these bytes: not through another clone,
    /// and not through a queue pair that is polled meanwhile.
    ///
    /// # Panics
    /// The range is not inside.
    #[must_use]
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees that the slice is the only one")]
    pub unsafe fn lend_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(self.contains(&range), "{range:?} is outside of {self:?}");
        // SAFETY: the range is inside the mapping, as just checked.
        let start = unsafe { self.0.start.add(range.start) };
        // SAFETY: the bytes are initialised (zeroed by the kernel), and the caller rules out others.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_device = if self.dmabuf().is_some() { " of a dma-buf" } else { "" };
        write!(f, "Memory({} bytes{of_device})", self.0.bytes)
    }
}

/// Memory whose lock is held.
#[derive(Debug)]
pub struct Locked<'a> {
    memory: &'a Memory,
    _guard: MutexGuard<'a, ()>,
}

impl Locked<'_> {
    /// The bytes of `range`.
    ///
    /// # Panics
    /// The range is not inside.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the lock is held, and slices lent without it do not overlap what others use.
        unsafe { self.memory.lend(range) }
    }

    /// The bytes of `range`, to write.
    ///
    /// # Panics
    /// The range is not inside.
    #[must_use]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the lock is held, and slices lent without it do not overlap what others use.
        unsafe { self.memory.lend_mut(range) }
    }
}

/// What the peer may do with a region. The owner's own operations may always use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Write into it.
    pub remote_write: bool,
    /// Read from it.
    pub remote_read: bool,
    /// Compare-and-swap and fetch-and-add on it.
    pub remote_atomic: bool,
}

impl Access {
    /// Nothing.
    pub const LOCAL: Self = Self { remote_write: false, remote_read: false, remote_atomic: false };
    /// Write.
    pub const WRITE: Self = Self { remote_write: true, ..Self::LOCAL };
    /// Read.
    pub const READ: Self = Self { remote_read: true, ..Self::LOCAL };
    /// Compare-and-swap and fetch-and-add.
    pub const ATOMIC: Self = Self { remote_atomic: true, ..Self::LOCAL };
    /// All of it.
    pub const ALL: Self = Self { remote_write: true, remote_read: true, remote_atomic: true };

    /// Whether everything in `wanted` is allowed.
    #[must_use]
    pub fn allows(self, wanted: Self) -> bool {
        (self.remote_write || !wanted.remote_write)
            && (self.remote_read || !wanted.remote_read)
            && (self.remote_atomic || !wanted.remote_atomic)
    }
}

/// Memory registered with one domain, until this is dropped.
pub struct MemoryRegion {
    memory: Memory,
    local: LocalKey,
    remote: RemoteKey,
    address: u64,
    /// Undoes the registration when it is dropped.
    _registration: Box<dyn Any + Send + Sync>,
}

impl MemoryRegion {
    /// For devices: `memory` under these keys, its first byte at `address`, until `registration` is
    /// dropped.
    #[must_use]
    pub fn new(
        memory: Memory,
        (local, remote): (LocalKey, RemoteKey),
        address: u64,
        registration: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { memory, local, remote, address, _registration: registration }
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Part of it, for operations posted here.
    #[must_use]
    pub fn segment(&self, offset: usize, bytes: usize) -> Segment {
        Segment { key: self.local, offset, bytes }
    }

    /// A place in it, for operations of the peer.
    #[must_use]
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { key: self.remote, address: self.address + offset as u64 }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes, {:?})", self.memory.bytes(), self.local)
    }
}

#[cfg(test)]
mod tests;
