//! The objects behind an endpoint, each of which gives itself back.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::super::super::Depth;
use super::abi;
use super::context::{Context, ProtectionDomain, warn_unless_closed, without_blocking};
use crate::TransportError;

/// Bytes that a small write may carry in the request itself, if the device can.
pub(super) const INLINE_BYTES: u32 = 64;

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
        // SAFETY: its only queue pair keeps it alive, so that is gone.
        let closed = unsafe { (functions.ibv_destroy_cq)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "completion queue");
    }
}

/// A queue pair of the device.
pub(super) struct Pair {
    pub(super) pointer: NonNull<abi::QueuePair>,
    pub(super) queue: Queue,
    pub(super) domain: Arc<ProtectionDomain>,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Pair {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Pair {}

impl Pair {
    /// A queue pair, and how many bytes its requests carry themselves.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        queue: Queue,
        depth: Depth,
    ) -> Result<(Self, usize), TransportError> {
        let count = |entries: usize| u32::try_from(entries.max(1)).unwrap_or(u32::MAX);
        let cap = abi::Capacities {
            max_send_wr: count(depth.sends),
            max_recv_wr: count(depth.receives),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES,
        };
        let made = Self::make(domain, &queue, cap)
            .or_else(|| Self::make(domain, &queue, abi::Capacities { max_inline_data: 0, ..cap }));
        let (pointer, inline_bytes) = made.ok_or_else(|| {
            refused(domain.context(), &format!("make a queue pair for {depth:?}"))
        })?;
        let pair = Self { pointer, queue, domain: Arc::clone(domain) };
        Ok((pair, inline_bytes as usize))
    }

    fn make(
        domain: &ProtectionDomain,
        queue: &Queue,
        cap: abi::Capacities,
    ) -> Option<(NonNull<abi::QueuePair>, u32)> {
        let mut attributes = abi::InitAttributes {
            qp_context: null_mut(),
            send_cq: queue.pointer.as_ptr(),
            recv_cq: queue.pointer.as_ptr(),
            srq: null_mut(),
            cap,
            qp_type: abi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let functions = &domain.context().library().functions;
        // SAFETY: the domain and the queue are of the same context.
        let pointer = unsafe { (functions.ibv_create_qp)(domain.pointer(), &raw mut attributes) };
        // What was granted may be more than was asked for.
        let inline_bytes = attributes.cap.max_inline_data.min(cap.max_inline_data);
        Some((NonNull::new(pointer)?, inline_bytes))
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({:?})", self.pointer)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let functions = &self.domain.context().library().functions;
        // SAFETY: the queue pair exists, and nobody has its pointer any more. When this returns the device
        // does not execute anything for it.
        let closed = unsafe { (functions.ibv_destroy_qp)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "queue pair");
    }
}

fn refused(context: &Context, call: &str) -> TransportError {
    let cause = io::Error::last_os_error();
    TransportError::system(format!("{call} of {}", context.name()), cause)
}
