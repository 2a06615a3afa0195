//! Links between threads of one process: the reference implementation of the contract.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ring::{Memory, Ring, RingLink, RingShape};

/// Two ends of a link in this process.
#[must_use]
pub fn pair(shape: RingShape) -> (RingLink, RingLink) {
    let [first, second] = [0, 1].map(|_| ring(shape, 1));
    let end = |outgoing: &Ring, incoming: &Ring| {
        RingLink::new(Some((outgoing.clone(), vec![0])), Some((incoming.clone(), 0)), false)
    };
    (end(&first, &second), end(&second, &first))
}

/// An end that writes, and `readers` ends that each read all of it.
#[must_use]
pub fn multicast(shape: RingShape, readers: usize) -> (RingLink, Vec<RingLink>) {
    let ring = ring(shape, readers);
    let writer = RingLink::new(Some((ring.clone(), (0..readers).collect())), None, false);
    let reader = |index| RingLink::new(None, Some((ring.clone(), index)), false);
    (writer, (0..readers).map(reader).collect())
}

/// A ring of this process.
pub(crate) fn ring(shape: RingShape, readers: usize) -> Ring {
    Ring::new(Arc::new(Heap::zeroed(shape.bytes(readers))), 0, shape, readers)
}

#[derive(Debug)]
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to the value, whichever thread holds it; what is in it is accessed by
// the protocol of the ring.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

// SAFETY: allocated with this layout, and freed when the value is dropped.
unsafe impl Memory for Heap {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Heap {
    fn zeroed(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 64).unwrap_or_else(|_| {
            unreachable!("a ring of {bytes} bytes is larger than the address space")
        });
        // SAFETY: a ring has at least its first line, so the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with the same layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
