//! Memory that peers on the host can reach directly, and memory the library should know of.

use std::ptr::NonNull;

use ccl_core::error::Error;
use ccl_transport::shm;

use crate::communicator::Communicator;

/// Memory of the library: zeroed, page-aligned, and reached in place by ranks of this host, which
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
        // Freed with its last registration.
        self.memory.withdraw();
    }
}

/// Memory that was registered with a communicator; see [`Communicator::register`].
#[derive(Debug)]
pub struct Registration {
    /// Keeps memory that peers reach from being freed under one that reads it.
    memory: Option<shm::Allocation>,
    /// Peers reach it because it is registered.
    is_published: bool,
    address: usize,
    bytes: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.as_ref().filter(|_| self.is_published) {
            memory.withdraw();
        }
    }
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
    /// rank. Memory of an [`Allocation`] stays allocated until [`Self::deregister`]. Shared memory of the
    /// application's own (a memfd, or a file in `/dev/shm`, mapped to be read and written, which the process has open
    /// or which still has its name) is reached in place by the ranks of this host as that of an [`Allocation`] is; it
    /// must stay mapped, and its file as long as it is, until then. Other memory is staged whether it is registered or
    /// not.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the range is empty, begins at zero or exceeds the address space.
    pub fn register(&self, address: usize, bytes: usize) -> Result<Registration, Error> {
        if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let text = format!("{bytes} bytes at address {address:#x} cannot be registered");
            return Err(Error::InvalidArgument(text));
        }
        // Of its own memory the library knows until when it is there; of the application's for each registration anew.
        let known = shm::Allocation::containing(address, bytes);
        let own = known.filter(|memory| !memory.is_of_application());
        let is_published = own.is_none();
        let memory = own.or_else(|| shm::Allocation::of_application(address, bytes));
        memory.iter().filter(|_| is_published).for_each(shm::Allocation::publish);
        Ok(Registration { memory, is_published, address, bytes })
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
