//! Memory of the library's own, lent as regions.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::region::Region;

/// Page size: large copies run fastest from page to page.
const ALIGNMENT_BYTES: usize = 4096;

/// Owned memory that can grow; growing forgets what was in it.
#[derive(Debug, Default)]
pub struct Scratch {
    memory: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the memory belongs to the value and is lent only through its borrows.
unsafe impl Send for Scratch {}
// SAFETY: as above; nothing changes through a shared borrow.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// `bytes` bytes of zeros.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut scratch = Self::default();
        scratch.grow(bytes);
        scratch
    }

    /// Makes sure that there are at least `bytes` bytes.
    ///
    /// # Panics
    /// `bytes` exceeds the address space.
    #[inline]
    pub fn grow(&mut self, bytes: usize) {
        if bytes > self.bytes() {
            self.replace(bytes);
        }
    }

    #[cold]
    fn replace(&mut self, bytes: usize) {
        *self = Self::default();
        let layout = Layout::from_size_align(bytes, ALIGNMENT_BYTES);
        let Ok(layout) = layout else { panic!("{bytes} bytes exceed the address space") };
        // SAFETY: more than the current size, so not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        self.memory = Some((start, layout));
    }

    /// Current size.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.memory.map_or(0, |(_, layout)| layout.size())
    }

    /// The memory, for as long as it is borrowed.
    #[must_use]
    #[inline]
    pub fn region(&mut self) -> Region<'_> {
        let Some((start, layout)) = self.memory else { return Region::empty() };
        // SAFETY: allocated with this size; the region borrows the scratch exclusively, so it is
        // neither freed nor lent twice meanwhile.
        unsafe { Region::new(start.as_ptr(), layout.size()) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some((start, layout)) = self.memory.take() {
            // SAFETY: allocated by `grow` with the same layout, and not freed before.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_never_shrinks() {
        let mut scratch = Scratch::new(0);
        assert_eq!(scratch.region().bytes(), 0);
        scratch.grow(10);
        assert_eq!(scratch.region().bytes(), 10);
        assert_eq!(scratch.region().address() % ALIGNMENT_BYTES, 0);
        scratch.grow(5);
        assert_eq!(scratch.bytes(), 10);
    }
}
