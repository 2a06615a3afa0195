//! Views of memory that this library does not own: buffers of the application, staging areas that
//! several processes map.
//!
//! Such memory may be unaligned for its element type, and the views of one call may be the same
//! bytes (an in-place collective). So a view is a pointer and a length; it becomes a Rust reference
//! only inside a kernel, for bytes that the kernel has found not to overlap what it writes.

use std::marker::PhantomData;
use std::ptr;

/// Memory of the application (or of the library) that one operation reads and writes.
///
/// It can be copied, because an operation in place has it twice, as its input and as its output. So the compiler does
/// not see everything: that no two operations, nor two threads that use views, have one region at the same time, if
/// any of them writes it, is for those who make regions to take care of. Otherwise it is a data race, also with
/// [`Region::of_mut`], which is not `unsafe`.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    start: *mut u8,
    bytes: usize,
    access: Access,
    life: PhantomData<&'a [u8]>,
}

/// What may be done to a region. As long as a word: a processor that copies what was written a moment ago waits where
/// pieces of it are not those that were written, so a region of a call of fifty nanoseconds has no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Access {
    Read,
    ReadAndWrite,
}

// SAFETY: a region is an address range; `new` and `read_only` make the caller answer for who touches
// the memory, on whichever thread the region is used.
unsafe impl Send for Region<'_> {}
// SAFETY: as above; a region itself never changes.
unsafe impl Sync for Region<'_> {}

impl<'a> Region<'a> {
    /// No memory.
    #[must_use]
    #[inline]
    pub fn empty() -> Self {
        let start = ptr::NonNull::dangling().as_ptr();
        Self { start, bytes: 0, access: Access::ReadAndWrite, life: PhantomData }
    }

    /// Where it begins.
    #[must_use]
    #[inline]
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    /// Memory that is read and written.
    ///
    /// # Safety
    ///
    /// `start..start + bytes` stays valid for reads and writes for as long as any view of the region
    /// is used, and nobody else touches a viewed part meanwhile.
    #[must_use]
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes, access: Access::ReadAndWrite, life: PhantomData }
    }

    /// Memory that is only read: [`Region::target`] panics on it.
    ///
    /// # Safety
    ///
    /// `start..start + bytes` stays valid for reads for as long as any view of the region is used,
    /// and nobody writes a viewed part meanwhile.
    #[must_use]
    pub unsafe fn read_only(start: *const u8, bytes: usize) -> Self {
        Self { start: start.cast_mut(), bytes, access: Access::Read, life: PhantomData }
    }

    /// Size in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes at `offset`, to be read.
    ///
    /// # Panics
    ///
    /// If they are not all inside the region.
    #[must_use]
    #[inline]
    pub fn source(&self, offset: usize, bytes: usize) -> Source<'a> {
        Source { start: self.at(offset, bytes), bytes, life: PhantomData }
    }

    /// The `bytes` bytes at `offset`, to be written.
    ///
    /// # Panics
    ///
    /// If they are not all inside the region, or the region is read-only.
    #[must_use]
    #[inline]
    pub fn target(&self, offset: usize, bytes: usize) -> Target<'a> {
        assert!(self.access == Access::ReadAndWrite, "a read-only region is not a target");
        Target { start: self.at(offset, bytes), bytes, life: PhantomData }
    }

    /// The `bytes` bytes at `offset`, as a region.
    ///
    /// # Panics
    ///
    /// If they are not all inside the region.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Self {
        Self { start: self.at(offset, bytes), bytes, ..*self }
    }

    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset <= self.bytes && bytes <= self.bytes - offset;
        assert!(inside, "{bytes} bytes at {offset} are outside a region of {} bytes", self.bytes);
        self.start.wrapping_add(offset)
    }
}

/// Bytes that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    start: *const u8,
    bytes: usize,
    life: PhantomData<&'a [u8]>,
}

/// Bytes that a kernel writes.
#[derive(Debug)]
pub struct Target<'a> {
    start: *mut u8,
    bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(slice: &'a [u8]) -> Self {
        Self { start: slice.as_ptr(), bytes: slice.len(), life: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(slice: &'a mut [u8]) -> Self {
        Self { start: slice.as_mut_ptr(), bytes: slice.len(), life: PhantomData }
    }
}

/// How a source lies relative to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// No common byte.
    Disjoint,
    /// The same bytes.
    Identical,
    /// Some common bytes at different positions.
    Partial,
}

/// Plain bytes, without alignment or padding, in which elements are stored.
///
/// # Safety
///
/// The type has alignment 1, and every bit pattern is a value of it.
pub(crate) unsafe trait Stored: Copy {
    /// All bytes zero.
    const ZERO: Self;
    /// The bytes.
    fn bytes(&mut self) -> &mut [u8];
}

// SAFETY: an array of bytes has alignment 1 and no invalid values.
unsafe impl<const BYTES: usize> Stored for [u8; BYTES] {
    const ZERO: Self = [0; BYTES];

    #[inline(always)]
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

impl<'a> Source<'a> {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins, for the kernel of the system.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.expose_provenance()
    }

    /// The `bytes` bytes at `offset` of this view.
    ///
    /// # Panics
    ///
    /// If they are not all inside the view.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Self {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "outside the source");
        Self { start: self.start.wrapping_add(offset), bytes, life: PhantomData }
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.start
    }

    /// Copies this view into bytes of the library's own.
    pub(crate) fn read(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.bytes);
        // SAFETY: the view is valid for reads (`Region::new`, or it was a slice), and `into` is
        // borrowed mutably, so it is valid and other memory.
        unsafe { ptr::copy(self.start, into.as_mut_ptr(), self.bytes) }
    }

    /// The `count` values from the `first` on, as a slice.
    ///
    /// # Safety
    ///
    /// Nothing writes to these bytes while the slice is used.
    #[inline(always)]
    pub(crate) unsafe fn values<T: Stored>(&self, first: usize, count: usize) -> &'a [T] {
        assert!(first + count <= self.bytes / size_of::<T>());
        let start = self.start.cast::<T>().wrapping_add(first);
        // SAFETY: the range is inside the view (asserted), `T` has alignment 1 and no invalid values,
        // and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(start, count) }
    }
}

impl Target<'_> {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes at `offset` of this view.
    ///
    /// # Panics
    ///
    /// If they are not all inside the view.
    #[must_use]
    pub fn part(&mut self, offset: usize, bytes: usize) -> Target<'_> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "outside the target");
        Target { start: self.start.wrapping_add(offset), bytes, life: PhantomData }
    }

    /// The bytes as they are now, to be read.
    pub(crate) fn as_source(&self) -> Source<'_> {
        Source { start: self.start, bytes: self.bytes, life: PhantomData }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// How `source` lies relative to this view.
    pub(crate) fn overlap(&self, source: &Source<'_>) -> Overlap {
        let (mine, other) = (self.start.addr(), source.start.addr());
        if mine + self.bytes <= other || other + source.bytes <= mine {
            Overlap::Disjoint
        } else if mine == other && self.bytes == source.bytes {
            Overlap::Identical
        } else {
            Overlap::Partial
        }
    }

    /// Overwrites this view, at `offset`, with bytes that may overlap it.
    pub(crate) fn write(&mut self, offset: usize, source: Source<'_>) {
        let part = self.part(offset, source.bytes);
        // SAFETY: both views are valid (`Region::new`, or they were slices) and equally long;
        // `ptr::copy` allows overlap.
        unsafe { ptr::copy(source.start, part.start, source.bytes) }
    }

    /// The `count` values from the `first` on, as a slice.
    ///
    /// # Safety
    ///
    /// Nothing else reads or writes these bytes while the slice is used.
    #[inline(always)]
    pub(crate) unsafe fn values<T: Stored>(&mut self, first: usize, count: usize) -> &mut [T] {
        assert!(first + count <= self.bytes / size_of::<T>());
        let start = self.start.cast::<T>().wrapping_add(first);
        // SAFETY: the range is inside the view (asserted), `T` has alignment 1 and no invalid values,
        // and the caller keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_told_from_identity() {
        let mut memory = [0u8; 16];
        // SAFETY: `memory` lives to the end of the test and is touched through the region only.
        let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
        let target = region.target(4, 4);
        assert_eq!(target.overlap(&region.source(0, 4)), Overlap::Disjoint);
        assert_eq!(target.overlap(&region.source(8, 4)), Overlap::Disjoint);
        assert_eq!(target.overlap(&region.source(4, 4)), Overlap::Identical);
        assert_eq!(target.overlap(&region.source(5, 4)), Overlap::Partial);
        assert_eq!(target.overlap(&region.source(4, 8)), Overlap::Partial);
        assert_eq!(region.target(4, 0).overlap(&region.source(4, 0)), Overlap::Disjoint);
    }

    #[test]
    #[should_panic(expected = "outside a region of 8 bytes")]
    fn a_view_ends_inside_its_region() {
        let memory = [0u8; 8];
        // SAFETY: `memory` lives to the end of the test.
        let region = unsafe { Region::read_only(memory.as_ptr(), memory.len()) };
        let _ = region.source(4, 5);
    }

    #[test]
    #[should_panic(expected = "outside a region of 8 bytes")]
    fn an_offset_that_wraps_is_outside() {
        let memory = [0u8; 8];
        // SAFETY: `memory` lives to the end of the test.
        let region = unsafe { Region::read_only(memory.as_ptr(), memory.len()) };
        let _ = region.source(4, usize::MAX);
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn read_only_memory_is_no_target() {
        let memory = [0u8; 8];
        // SAFETY: `memory` lives to the end of the test.
        let region = unsafe { Region::read_only(memory.as_ptr(), memory.len()) };
        let _ = region.target(0, 8);
    }
}
