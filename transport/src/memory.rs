//! Links between threads of one process: the reference implementation of the contract.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ring::{Memory, RingLink, RingShape};

/// Two ends of a link in this process.
#[must_use]
pub fn pair(shape: RingShape) -> (RingLink, RingLink) {
    let memory: Arc<dyn Memory> = Arc::new(Heap::zeroed(2 * shape.bytes()));
    let first = (Arc::clone(&memory), 0);
    let second = (memory, shape.bytes());
    let a = RingLink::new(first.clone(), second.clone(), shape);
    let b = RingLink::new(second, first, shape);
    (a, b)
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
