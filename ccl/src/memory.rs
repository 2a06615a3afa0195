//! Memory that peers on the host can reach directly, and memory the library should know of.

use std::ptr::NonNull;

use ccl_core::error::Error;
use ccl_transport::shm;

use crate::communicator::Communicator;

/// Memory of `ccl_mem_alloc`: zeroed, page-aligned, and reached in place by ranks of this host, which
/// saves copies in every collective on large buffers in it. Freed when dropped.
#[derive(Debug)]
pub struct Allocation {
    memory: shm::Allocation,
}

impl Allocation {
    /// Allocates `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::System`]: the host refuses the memory.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let memory = shm::Allocation::new(bytes)
            .map_err(|cause| Error::system("allocate shared memory", cause))?;
        memory.publish();
        Ok(Self { memory })
    }

    /// The first byte.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.memory.start().as_ptr()
    }

    /// The first byte, which is never at address zero.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _freed_with_its_last_registration =
            shm::Allocation::withdraw(self.memory.start().addr().get());
    }
}

/// Memory that was registered with a communicator; see [`Communicator::register`].
#[derive(Debug)]
pub struct Registration {
    /// Keeps an [`Allocation`] that is registered from being freed under a peer that reads it.
    memory: Option<shm::Allocation>,
    address: usize,
    bytes: usize,
}

impl Registration {
    /// The registered range: first address and length.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.address, self.bytes)
    }

    /// Whether peers on this host read the memory in place.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.memory.is_some()
    }
}

impl Communicator {
    /// Tells the communicator that the `bytes` bytes at `address` will be used often. Local to this
    /// rank. Memory of an [`Allocation`] stays allocated until [`Self::deregister`]; other memory is
    /// staged by TCP and shared memory whether it is registered or not.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the range is empty, begins at zero or exceeds the address space.
    pub fn register(&self, address: usize, bytes: usize) -> Result<Registration, Error> {
        if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let text = format!("{bytes} bytes at address {address:#x} cannot be registered");
            return Err(Error::InvalidArgument(text));
        }
        let memory = shm::Allocation::containing(address, bytes);
        Ok(Registration { memory, address, bytes })
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// None today; a device may refuse.
    #[allow(clippy::unnecessary_wraps, reason = "devices that register memory can fail to undo it")]
    pub fn deregister(&self, registration: Registration) -> Result<(), Error> {
        drop(registration);
        Ok(())
    }
}
