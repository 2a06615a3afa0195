//! What queue pairs need, each of which gives itself back.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi;
use super::context::{Context, warn_unless_closed, without_blocking};
use super::pair::errno;
use super::protection::ProtectionDomain;
use crate::TransportError;

/// Completions taken at once.
const BATCH: usize = 16;

/// Announces completions.
pub(super) struct Channel {
    pointer: NonNull<abi::CompletionChannel>,
    context: Arc<Context>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Channel {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, TransportError> {
        let functions = &context.library().functions;
        // SAFETY: the context is open.
        let pointer = unsafe { (functions.ibv_create_comp_channel)(context.pointer()) };
        let pointer =
            NonNull::new(pointer).ok_or_else(|| refused(context, "make a completion channel"))?;
        let channel = Self { pointer, context: Arc::clone(context) };
        without_blocking(channel.descriptor())
            .map_err(|cause| TransportError::system("prepare a completion channel", cause))?;
        Ok(channel)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the library made the channel, and nobody writes to its fields.
        let descriptor = unsafe { (*self.pointer.as_ptr()).fd };
        // SAFETY: it is open as long as the channel, which this borrows.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let functions = &self.context.library().functions;
        // SAFETY: its only completion queue keeps it alive, so that is gone.
        let closed = unsafe { (functions.ibv_destroy_comp_channel)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "completion channel");
    }
}

/// What has completed.
pub(super) struct Queue {
    pub(super) pointer: NonNull<abi::CompletionQueue>,
    pub(super) channel: Channel,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn new(context: &Arc<Context>, entries: usize) -> Result<Self, TransportError> {
        let channel = Channel::new(context)?;
        let entries = c_int::try_from(entries.max(1)).unwrap_or(c_int::MAX);
        let functions = &context.library().functions;
        let (opened, announcer) = (context.pointer(), channel.pointer.as_ptr());
        // SAFETY: the context is open, and the channel is of this context.
        let pointer =
            unsafe { (functions.ibv_create_cq)(opened, entries, null_mut(), announcer, 0) };
        let pointer = NonNull::new(pointer).ok_or_else(|| {
            refused(context, &format!("make a completion queue of {entries} entries"))
        })?;
        Ok(Self { pointer, channel })
    }

    /// Hands out what has completed.
    pub(super) fn poll(&self, mut take: impl FnMut(&abi::Completion)) -> io::Result<()> {
        let mut found = [abi::Completion::default(); BATCH];
        let poll_cq = self.channel.context.operations().poll_cq;
        loop {
            // SAFETY: the queue exists, and there is room for as many completions as it is told.
            let count =
                unsafe { poll_cq(self.pointer.as_ptr(), BATCH as c_int, found.as_mut_ptr()) };
            let count = usize::try_from(count)
                .map_err(|_| io::Error::other("the completion queue cannot be polled"))?;
            found[..count.min(BATCH)].iter().for_each(&mut take);
            if count < BATCH {
                return Ok(());
            }
        }
    }

    pub(super) fn arm(&self) -> io::Result<()> {
        let request = self.channel.context.operations().req_notify_cq;
        // SAFETY: the queue exists.
        errno(unsafe { request(self.pointer.as_ptr(), 0) })
    }

    pub(super) fn take_announcement(&self) -> bool {
        let functions = &self.channel.context.library().functions;
        let (mut queue, mut owner) = (null_mut(), null_mut());
        let channel = self.channel.pointer.as_ptr();
        // SAFETY: the channel exists; it does not block.
        let result =
            unsafe { (functions.ibv_get_cq_event)(channel, &raw mut queue, &raw mut owner) };
        if result != 0 {
            return false;
        }
        // SAFETY: one announcement of this queue, the only one of its channel, was just taken.
        unsafe { (functions.ibv_ack_cq_events)(self.pointer.as_ptr(), 1) };
        true
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let functions = &self.channel.context.library().functions;
        // SAFETY: the queue pairs that use it are dropped before it.
        let closed = unsafe { (functions.ibv_destroy_cq)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "completion queue");
    }
}

/// Receives that wait for what arrives at the targets that are attached to it.
pub(super) struct Shared {
    pub(super) pointer: NonNull<abi::SharedQueue>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Shared {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        entries: usize,
    ) -> Result<Self, TransportError> {
        let max_wr = u32::try_from(entries.max(1)).unwrap_or(u32::MAX);
        let srq_context = null_mut();
        let mut attributes =
            abi::SharedQueueAttributes { srq_context, max_wr, max_sge: 1, srq_limit: 0 };
        let functions = &domain.context().library().functions;
        // SAFETY: the domain exists, and the attributes are filled in.
        let pointer = unsafe { (functions.ibv_create_srq)(domain.pointer(), &raw mut attributes) };
        let pointer = NonNull::new(pointer).ok_or_else(|| {
            refused(domain.context(), &format!("make a shared receive queue of {max_wr} entries"))
        })?;
        Ok(Self { pointer, domain: Arc::clone(domain) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let functions = &self.domain.context().library().functions;
        // SAFETY: the targets that are attached to it are dropped before it.
        let closed = unsafe { (functions.ibv_destroy_srq)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "shared receive queue");
    }
}

/// How an address is reached.
pub(super) struct Handle {
    pub(super) pointer: NonNull<abi::AddressHandle>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: it is only read.
unsafe impl Sync for Handle {}

impl Handle {
    /// # Errors
    /// The device refused, or the address cannot be resolved: the second is [`TransportError::TimedOut`].
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        mut attributes: abi::AddressAttributes,
    ) -> Result<Self, TransportError> {
        let functions = &domain.context().library().functions;
        // SAFETY: the domain exists, and the attributes are filled in.
        let pointer = unsafe { (functions.ibv_create_ah)(domain.pointer(), &raw mut attributes) };
        let pointer = NonNull::new(pointer).ok_or_else(|| {
            let cause = io::Error::last_os_error();
            let call = format!("find the way to an address with {}", domain.context().name());
            if cause.kind() == io::ErrorKind::TimedOut {
                return TransportError::TimedOut(format!("{call}: {cause}"));
            }
            TransportError::system(call, cause)
        })?;
        Ok(Self { pointer, domain: Arc::clone(domain) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let functions = &self.domain.context().library().functions;
        // SAFETY: whoever uses it for requests owns it.
        let closed = unsafe { (functions.ibv_destroy_ah)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "address handle");
    }
}

pub(super) fn refused(context: &Context, call: &str) -> TransportError {
    let cause = io::Error::last_os_error();
    TransportError::system(format!("{call} of {}", context.name()), cause)
}
