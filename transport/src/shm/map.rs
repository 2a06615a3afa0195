//! Mappings of shared memory.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{COOKIE_BYTES, FREED_AT, HEAD_BYTES, RECORD_AT, RECORD_WORDS};
use crate::TransportError;
use crate::ring::Memory;

/// A shared mapping of a whole file, or of pages of one.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
    /// Where the memory is to which this is the head, if it does not follow at once.
    elsewhere: Option<Elsewhere>,
}

/// Memory in another file.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Whole pages around it.
    pub(super) map: Box<Map>,
    /// Where it begins in them.
    pub(super) first: usize,
    pub(super) bytes: usize,
}

// SAFETY: the mapping belongs to the value, whichever thread holds it; what is in it is accessed by
// the protocol of the ring.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

// SAFETY: mapped readable and writable, and unmapped when the value is dropped. The file is sealed
// against shrinking, or belongs to a peer that sealed it.
unsafe impl Memory for Map {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Map {
    /// The whole file.
    pub(crate) fn of(file: impl AsFd, bytes: usize) -> Result<Self, TransportError> {
        Self::pages(file, 0, bytes)
    }

    /// The `bytes` bytes from a page of the file on.
    pub(super) fn pages(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
    ) -> Result<Self, TransportError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, offset)
        };
        let start = start
            .map_err(|cause| TransportError::system(format!("mmap of {bytes} bytes"), cause))?;
        NonNull::new(start.cast::<u8>())
            .map(|start| Self { start, bytes, elsewhere: None })
            .ok_or_else(|| TransportError::system("mmap", "mapped at address zero"))
    }

    /// Asks for huge pages, of which the kernel has some or has not.
    pub(super) fn request_huge_pages(&self) {
        // SAFETY: the whole mapping; its bytes stay what they are.
        let _ = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxHugepage)
        };
    }

    /// Has the kernel enter the pages of a range now, many at a time, and not each at the first access. If it cannot,
    /// that costs time only.
    ///
    /// They are entered as if they were read, 16 at a time, and can be written all the same: 64 MiB take 8 ms, and 23 as
    /// if they were written, one at a time.
    pub(crate) fn populate(&self, range: Range<usize>) {
        let page = rustix::param::page_size();
        let first = range.start / page * page;
        let bytes = range.end.min(self.bytes).saturating_sub(first);
        // SAFETY: `first` is not behind the end of the mapping, or the range is empty.
        let start = unsafe { self.start.add(first.min(self.bytes)) };
        // SAFETY: part of the mapping; its bytes stay what they are.
        let result =
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateRead) };
        if let Err(cause) = result {
            tracing::debug!(%cause, bytes, "shared memory cannot be populated");
        }
    }

    /// A word of the head, which has none but atomics behind the cookie.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at >= COOKIE_BYTES && at + size_of::<AtomicU64>() <= HEAD_BYTES);
        assert!(at.is_multiple_of(align_of::<AtomicU64>()));
        // SAFETY: inside the head (asserted), which every mapping has.
        let word = unsafe { self.start.add(at) };
        // SAFETY: aligned, as the mapping is to pages; all processes use the word as an atomic.
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }

    /// Whether the owner has freed the memory to which this is the head: only this process keeps it from the host then.
    pub(crate) fn is_freed(&self) -> bool {
        self.word(FREED_AT).load(Ordering::Relaxed) != 0
    }

    /// Where the memory to which this is the head lies: in which mapping, from which byte on, how long it is.
    fn memory(&self) -> (&Self, usize, usize) {
        match &self.elsewhere {
            Some(Elsewhere { map, first, bytes }) => (map, *first, *bytes),
            None => (self, HEAD_BYTES, self.bytes.saturating_sub(HEAD_BYTES)),
        }
    }

    /// How long that memory is.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory().2
    }

    /// The `bytes` bytes at `offset` of that memory, if they are all there.
    pub(crate) fn memory_at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let (map, first, all) = self.memory();
        // SAFETY: checked just before against the size of the memory, which is inside the mapping.
        (offset.checked_add(bytes)? <= all).then(|| unsafe { map.start.add(first + offset) })
    }

    /// As [`Self::populate`], for a range of that memory.
    pub(crate) fn populate_memory(&self, range: Range<usize>) {
        let (map, first, bytes) = self.memory();
        map.populate(first + range.start..first + range.end.min(bytes));
    }

    /// Lets this be the head of memory that lies elsewhere.
    pub(super) fn set_elsewhere(&mut self, elsewhere: Elsewhere) {
        assert!(elsewhere.first + elsewhere.bytes <= elsewhere.map.bytes, "outside of its pages");
        self.elsewhere = Some(elsewhere);
    }

    /// A line of the head that nobody changes once the file is known to others; aligned to words.
    pub(super) fn record(&self) -> NonNull<[u64; RECORD_WORDS]> {
        // SAFETY: inside the head, which every mapping of a segment has.
        unsafe { self.start.add(RECORD_AT) }.cast()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nobody can hold a reference into it any more.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of an own mapping");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::super::anonymous_file;
    use super::*;

    /// Of each page of a mapping, whether this process has entered it (`/proc/self/pagemap`, bit 63).
    pub(crate) fn entered(map: &Map) -> Vec<bool> {
        let page = rustix::param::page_size();
        let pages = File::open("/proc/self/pagemap").unwrap();
        let first = map.start.addr().get() / page;
        let is_entered = |index: usize| {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, 8 * (first + index) as u64).unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        };
        (0..map.bytes / page).map(is_entered).collect()
    }

    #[test]
    fn pages_of_a_range_are_entered_before_anybody_touches_them() {
        let page = rustix::param::page_size();
        let map = Map::of(anonymous_file("r2ccl-test", 8 * page).unwrap(), 8 * page).unwrap();
        assert_eq!(entered(&map), [false; 8], "nobody has touched them");
        map.populate(2 * page + 100..4 * page + 1);
        let only =
            |range: Range<usize>| (0..8).map(|page| range.contains(&page)).collect::<Vec<_>>();
        assert_eq!(entered(&map), only(2..5));
        map.populate(7 * page..usize::MAX);
        assert_eq!(entered(&map)[5..], [false, false, true]);
    }
}
