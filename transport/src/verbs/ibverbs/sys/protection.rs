//! Protection domains and registered memory.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::super::super::{Access, DmaBuf, Memory};
use super::abi;
use super::context::{Context, warn_unless_closed};
use super::library::REGISTER_DMABUF;
use super::work::first_address;
use crate::TransportError;

/// Memory and queue pairs that may touch each other.
#[derive(Debug)]
pub(in super::super) struct ProtectionDomain {
    pointer: NonNull<abi::ProtectionDomain>,
    context: Arc<Context>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// # Errors
    /// The device refused.
    pub(in super::super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, TransportError> {
        // SAFETY: the context is open.
        let pointer = unsafe { (context.library().functions.ibv_alloc_pd)(context.pointer()) };
        let pointer = NonNull::new(pointer).ok_or_else(|| {
            let call = format!("make a protection domain of {}", context.name());
            TransportError::system(call, io::Error::last_os_error())
        })?;
        Ok(Arc::new(Self { pointer, context: Arc::clone(context) }))
    }

    pub(in super::super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn pointer(&self) -> *mut abi::ProtectionDomain {
        self.pointer.as_ptr()
    }

    /// Makes all of `memory` known to the device, at addresses below the size of a page and from there on.
    ///
    /// # Errors
    /// The device refused, or the process may not lock so much memory; or it is a dma-buf, and library or
    /// driver do not take those.
    pub(in super::super) fn register(
        self: &Arc<Self>,
        memory: &Memory,
        access: Access,
    ) -> Result<Registration, TransportError> {
        let mut flags = abi::IBV_ACCESS_LOCAL_WRITE;
        for (granted, flag) in [
            (access.remote_write, abi::IBV_ACCESS_REMOTE_WRITE),
            (access.remote_read, abi::IBV_ACCESS_REMOTE_READ),
            (access.remote_atomic, abi::IBV_ACCESS_REMOTE_ATOMIC),
        ] {
            flags |= if granted { flag } else { 0 };
        }
        let flags = flags.cast_signed();
        let pointer = match memory.dmabuf() {
            None => self.register_mapped(memory, flags),
            Some(buffer) => self.register_dmabuf(buffer, memory.bytes(), flags)?,
        };
        let pointer = NonNull::new(pointer).ok_or_else(|| self.refused(memory))?;
        Ok(Registration { pointer, memory: memory.clone(), domain: Arc::clone(self) })
    }

    fn register_mapped(&self, memory: &Memory, flags: c_int) -> *mut abi::MemoryRegion {
        let (start, bytes) = (memory.start().as_ptr().cast(), memory.bytes());
        let (functions, address) = (&self.context.library().functions, first_address(memory));
        // SAFETY: the memory is mapped, and stays so because the registration owns a clone of it.
        unsafe { (functions.ibv_reg_mr_iova)(self.pointer(), start, bytes, address, flags) }
    }

    fn register_dmabuf(
        &self,
        buffer: &DmaBuf,
        bytes: usize,
        flags: c_int,
    ) -> Result<*mut abi::MemoryRegion, TransportError> {
        let Some(register) = self.context.library().register_dmabuf else {
            let (name, version) = REGISTER_DMABUF;
            let text = format!(
                "libibverbs is too old: it has no {name} of {version} (rdma-core 34 has it)"
            );
            let call = format!("register a dma-buf with {}", self.context.name());
            return Err(TransportError::system(call, text));
        };
        let descriptor = buffer.descriptor().as_raw_fd();
        // SAFETY: the descriptor is open, and the kernel checks that it is a dma-buf of that size.
        Ok(unsafe { register(self.pointer(), buffer.offset(), bytes, 0, descriptor, flags) })
    }

    fn refused(&self, memory: &Memory) -> TransportError {
        let cause = io::Error::last_os_error();
        let call = format!("register {} bytes with {}", memory.bytes(), self.context.name());
        if memory.dmabuf().is_some() {
            return TransportError::system(
                call,
                format!(
                    "{cause} (a dma-buf: the driver of the device must be able to use those, and the \
                     descriptor must be one; memory of this process needs neither)"
                ),
            );
        }
        if cause.kind() != io::ErrorKind::OutOfMemory {
            return TransportError::system(call, cause);
        }
        let limit = getrlimit(Resource::Memlock).current;
        let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
        TransportError::system(
            call,
            format!(
                "{cause} (memory that may be locked, ulimit -l: {limit}; raise it, as with memlock in \
                 limits.conf or LimitMEMLOCK of systemd)"
            ),
        )
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made from it keeps it alive, so nothing is left.
        let freed = unsafe { (self.context.library().functions.ibv_dealloc_pd)(self.pointer()) };
        warn_unless_closed(freed, "protection domain");
    }
}

/// Registered memory.
#[derive(Debug)]
pub(in super::super) struct Registration {
    pointer: NonNull<abi::MemoryRegion>,
    /// Stays mapped until the device does not know it any more.
    memory: Memory,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Registration {}
// SAFETY: it is only read.
unsafe impl Sync for Registration {}

impl Registration {
    /// Keys for this end and for the peer.
    pub(in super::super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the library made it, and nobody writes to its fields.
        let local = unsafe { (*self.pointer.as_ptr()).lkey };
        // SAFETY: as above.
        let remote = unsafe { (*self.pointer.as_ptr()).rkey };
        (local, remote)
    }

    /// By which address devices know its first byte.
    pub(in super::super) fn address(&self) -> u64 {
        first_address(&self.memory)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let functions = &self.domain.context.library().functions;
        // SAFETY: it is registered, and nobody has its pointer any more.
        let freed = unsafe { (functions.ibv_dereg_mr)(self.pointer.as_ptr()) };
        warn_unless_closed(freed, "memory region");
    }
}
