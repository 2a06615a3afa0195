//! The memory that kernels may touch.
//!
//! It is memory of this process, at its own addresses: whoever owns a range registers it, and a
//! kernel that touches anything else is stopped. So buffers can be shared with threads of the host
//! and, where they are mapped from a file, with other processes. Every access of up to 8 bytes is
//! atomic, as it is on a GPU.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use thiserror::Error;

/// What kernels may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// Another range is registered there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes at {start:#x} overlap registered memory, or do not exist")]
pub struct Overlap {
    /// Where the refused range begins.
    pub start: u64,
    /// Its size.
    pub bytes: usize,
}

/// All memory that kernels may touch. Shared by the machines that run them.
#[derive(Debug, Default)]
pub struct Memory {
    ranges: RwLock<Arc<Vec<Range>>>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    rights: Rights,
}

impl Range {
    const NONE: Self = Self { start: 0, end: 0, rights: Rights::Read };

    #[inline]
    fn permits(&self, address: u64, bytes: usize, writes: bool) -> bool {
        address >= self.start
            && address <= self.end
            && (self.end - address) as usize >= bytes
            && (!writes || self.rights == Rights::ReadWrite)
    }
}

impl Memory {
    /// No memory at all.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets kernels touch the bytes from an address on.
    ///
    /// # Errors
    ///
    /// A part of them is registered already.
    ///
    /// # Safety
    ///
    /// Until the range is unregistered and no machine is in a step, the bytes stay valid for reads,
    /// and for writes where the rights say so, and everybody else touches them in ways only that are
    /// allowed beside atomics of other threads.
    pub unsafe fn register(&self, start: u64, bytes: usize, rights: Rights) -> Result<(), Overlap> {
        let refused = Overlap { start, bytes };
        let end = start.checked_add(bytes as u64).ok_or(refused)?;
        let mut ranges = self.ranges.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let place = ranges.partition_point(|range| range.start < start);
        let before = place.checked_sub(1).is_some_and(|index| ranges[index].end > start);
        if before
            || ranges.get(place).is_some_and(|range| range.start < end || start == range.start)
        {
            return Err(refused);
        }
        Arc::make_mut(&mut ranges).insert(place, Range { start, end, rights });
        Ok(())
    }

    /// Takes back the range that begins there. Says whether there was one.
    pub fn unregister(&self, start: u64) -> bool {
        let mut ranges = self.ranges.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Ok(place) = ranges.binary_search_by_key(&start, |range| range.start) else {
            return false;
        };
        Arc::make_mut(&mut ranges).remove(place);
        true
    }

    /// The ranges as they are now.
    pub(crate) fn ranges(self: &Arc<Self>) -> Ranges {
        Ranges { seen: self.now(), memory: Arc::clone(self) }
    }

    fn now(&self) -> Arc<Vec<Range>> {
        let ranges = self.ranges.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Arc::clone(&ranges)
    }
}

/// The ranges that there were at some time, and where later ones are found: a kernel that waits may be told of memory that was
/// registered since it began.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    seen: Arc<Vec<Range>>,
    memory: Arc<Memory>,
}

impl Ranges {
    /// The one that has all of these bytes.
    fn find(&self, address: u64, bytes: usize, writes: bool) -> Option<Range> {
        let find = |ranges: &[Range]| {
            let place = ranges.partition_point(|range| range.start <= address).checked_sub(1)?;
            Some(ranges[place]).filter(|range| range.permits(address, bytes, writes))
        };
        find(&self.seen).or_else(|| find(&self.memory.now()))
    }
}

/// Owned memory of exactly so many bytes, registered while it lives: the first byte before and
/// after it is out of bounds.
#[derive(Debug)]
pub struct Buffer {
    words: Words,
    bytes: usize,
    memory: Arc<Memory>,
}

impl Buffer {
    /// Zeros, at a multiple of 256 bytes plus `misalignment`.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, bytes: usize, misalignment: usize) -> Self {
        let mut words = Words::new(bytes + misalignment + 256 + 8);
        words.skip(misalignment);
        let buffer = Self { words, bytes, memory: Arc::clone(memory) };
        // SAFETY: owned by the buffer, which takes it back when it ends; everybody touches it
        // through atomics.
        let registered = unsafe { memory.register(buffer.address(), bytes, Rights::ReadWrite) };
        assert!(registered.is_ok(), "memory that was just allocated is registered");
        buffer
    }

    /// The same with these bytes in it.
    #[must_use]
    pub fn of(memory: &Arc<Memory>, bytes: &[u8], misalignment: usize) -> Self {
        let buffer = Self::new(memory, bytes.len(), misalignment);
        buffer.write(0, bytes);
        buffer
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words.start
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes bytes from an offset on.
    ///
    /// # Panics
    ///
    /// They do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes, "outside of the buffer");
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside of the buffer, as was just asserted.
            unsafe { store(self.address() + (offset + index) as u64, 1, u64::from(byte)) };
        }
    }

    /// All bytes.
    #[must_use]
    pub fn read(&self) -> Vec<u8> {
        let at = |offset: usize| self.address() + offset as u64;
        // SAFETY: inside of the buffer.
        (0..self.bytes).map(|offset| unsafe { load(at(offset), 1) } as u8).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.unregister(self.address());
    }
}

/// What memory and registers hold before they are written.
pub(crate) const GARBAGE: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Memory of a machine's own, from a multiple of 256 bytes on.
#[derive(Debug)]
pub(crate) struct Words {
    _memory: Box<[AtomicU64]>,
    start: u64,
    end: u64,
}

impl Words {
    /// Zeros.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::filled(bytes, 0)
    }

    /// What a thread or a block finds that nobody has written.
    pub(crate) fn unwritten(bytes: usize) -> Self {
        Self::filled(bytes, GARBAGE)
    }

    fn filled(bytes: usize, word: u64) -> Self {
        let words = if bytes == 0 { 0 } else { bytes.div_ceil(8) + 32 };
        let memory: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(word)).collect();
        let start = (memory.as_ptr().expose_provenance() as u64).next_multiple_of(256);
        Self { _memory: memory, start, end: start + bytes as u64 }
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes as u64;
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes(), "outside of the memory");
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside of the memory, as was just asserted.
            unsafe { store(self.start + (offset + index) as u64, 1, u64::from(byte)) };
        }
    }

    /// Copies bytes from one place to another.
    pub(crate) fn copy(&self, from: usize, to: usize, bytes: usize) {
        assert!(from.max(to) + bytes <= self.bytes(), "outside of the memory");
        for index in 0..bytes as u64 {
            // SAFETY: inside of the memory, as was just asserted.
            let byte = unsafe { load(self.start + from as u64 + index, 1) };
            // SAFETY: as above.
            unsafe { store(self.start + to as u64 + index, 1, byte) };
        }
    }

    fn part(&self, offset: usize, bytes: usize, rights: Rights) -> Range {
        let start = self.start + offset as u64;
        Range { start, end: start + bytes as u64, rights }
    }
}

/// What the threads of one warp reach.
#[derive(Debug)]
pub(crate) struct Reach<'a> {
    ranges: &'a Ranges,
    /// What the last access to registered memory was to.
    last: Range,
    pub(crate) own: Own<'a>,
}

/// Memory that is not registered.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    pub(crate) shared: &'a Words,
    pub(crate) parameters: &'a Words,
    /// The private memory of all threads of the warp, and how much of it a thread has.
    pub(crate) local: &'a Words,
    pub(crate) local_bytes: usize,
}

impl<'a> Reach<'a> {
    pub(crate) fn new(ranges: &'a Ranges, own: Own<'a>) -> Self {
        Self { ranges, last: Range::NONE, own }
    }

    /// Registered memory only.
    pub(crate) fn registered(ranges: &'a Ranges, none: &'a Words) -> Self {
        Self::new(ranges, Own { shared: none, parameters: none, local: none, local_bytes: 0 })
    }

    /// Whether a thread may touch so many bytes.
    #[inline]
    pub(crate) fn permits(
        &mut self,
        lane: usize,
        address: u64,
        bytes: usize,
        writes: bool,
    ) -> bool {
        self.last.permits(address, bytes, writes) || self.search(lane, address, bytes, writes)
    }

    fn search(&mut self, lane: usize, address: u64, bytes: usize, writes: bool) -> bool {
        if self.own.permits(lane, address, bytes, writes) {
            return true;
        }
        let found = self.ranges.find(address, bytes, writes);
        self.last = found.unwrap_or(self.last);
        found.is_some()
    }

    /// Whether memory that was found permitted is registered, and not the block's own.
    #[inline]
    pub(crate) fn is_registered(&self, address: u64) -> bool {
        self.last.permits(address, 1, false)
    }

    /// Reads 1, 2, 4 or 8 aligned bytes; `None` if the thread may not.
    #[inline]
    pub(crate) fn load(&mut self, lane: usize, address: u64, bytes: usize) -> Option<u64> {
        // SAFETY: in a registered range or in memory that `self` borrows.
        self.permits(lane, address, bytes, false).then(|| unsafe { load(address, bytes) })
    }

    /// Writes 1, 2, 4 or 8 aligned bytes; `None` if the thread may not.
    #[inline]
    pub(crate) fn store(
        &mut self,
        lane: usize,
        address: u64,
        bytes: usize,
        value: u64,
    ) -> Option<()> {
        // SAFETY: in a registered range or in memory that `self` borrows, with the right to write.
        self.permits(lane, address, bytes, true).then(|| unsafe { store(address, bytes, value) })
    }

    /// Replaces 2, 4 or 8 aligned bytes by a function of them, at once. Gives what was there.
    pub(crate) fn update(
        &mut self,
        lane: usize,
        address: u64,
        bytes: usize,
        new: impl FnMut(u64) -> u64,
    ) -> Option<u64> {
        // SAFETY: in a registered range or in memory that `self` borrows, with the right to write.
        self.permits(lane, address, bytes, true).then(|| unsafe { update(address, bytes, new) })
    }
}

impl Own<'_> {
    /// Whether it is in memory of the thread, of its block, or in the arguments.
    fn permits(&self, lane: usize, address: u64, bytes: usize, writes: bool) -> bool {
        let local = self.local.part(lane * self.local_bytes, self.local_bytes, Rights::ReadWrite);
        let shared = self.shared.part(0, self.shared.bytes(), Rights::ReadWrite);
        let parameters = self.parameters.part(0, self.parameters.bytes(), Rights::Read);
        [local, shared, parameters].iter().any(|range| range.permits(address, bytes, writes))
    }
}

/// The atomic of a type at an address, in functions whose callers promise that it is there.
macro_rules! atomic {
    ($type:ty, $address:expr) => {{
        let pointer = std::ptr::with_exposed_provenance::<$type>($address as usize);
        // SAFETY: the caller's promise.
        unsafe { &*pointer }
    }};
}

/// # Safety
///
/// There are so many bytes, aligned, that may be read.
#[inline]
unsafe fn load(address: u64, bytes: usize) -> u64 {
    match bytes {
        1 => u64::from(atomic!(AtomicU8, address).load(Ordering::Acquire)),
        2 => u64::from(atomic!(AtomicU16, address).load(Ordering::Acquire)),
        4 => u64::from(atomic!(AtomicU32, address).load(Ordering::Acquire)),
        _ => atomic!(AtomicU64, address).load(Ordering::Acquire),
    }
}

/// # Safety
///
/// There are so many bytes, aligned, that may be written.
#[inline]
unsafe fn store(address: u64, bytes: usize, value: u64) {
    match bytes {
        1 => atomic!(AtomicU8, address).store(value as u8, Ordering::Release),
        2 => atomic!(AtomicU16, address).store(value as u16, Ordering::Release),
        4 => atomic!(AtomicU32, address).store(value as u32, Ordering::Release),
        _ => atomic!(AtomicU64, address).store(value, Ordering::Release),
    }
}

/// # Safety
///
/// There are so many bytes, aligned, that may be written.
unsafe fn update(address: u64, bytes: usize, mut new: impl FnMut(u64) -> u64) -> u64 {
    const ORDER: Ordering = Ordering::SeqCst;
    match bytes {
        2 => atomic!(AtomicU16, address)
            .fetch_update(ORDER, ORDER, |old| Some(new(u64::from(old)) as u16))
            .map_or_else(u64::from, u64::from),
        4 => atomic!(AtomicU32, address)
            .fetch_update(ORDER, ORDER, |old| Some(new(u64::from(old)) as u32))
            .map_or_else(u64::from, u64::from),
        _ => atomic!(AtomicU64, address)
            .fetch_update(ORDER, ORDER, |old| Some(new(old)))
            .unwrap_or_else(|old| old),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap() {
        let memory = Memory::new();
        // SAFETY: nothing runs, so nothing is touched.
        let register = |start, bytes| unsafe { memory.register(start, bytes, Rights::Read) };
        assert_eq!(register(1000, 100), Ok(()));
        assert_eq!(register(1100, 100), Ok(()));
        assert!(register(1099, 1).is_err());
        assert!(register(900, 101).is_err());
        assert!(register(1000, 0).is_err());
        assert!(register(u64::MAX, 2).is_err());
        assert_eq!(register(900, 100), Ok(()));
        assert!(memory.unregister(1000));
        assert!(!memory.unregister(1000));
        assert_eq!(register(1010, 90), Ok(()));
    }

    #[test]
    fn reach_ends_where_the_buffer_ends() {
        let memory = Memory::new();
        let buffer = Buffer::of(&memory, &[1, 2, 3, 4, 5, 6, 7], 1);
        assert_eq!(buffer.address() % 256, 1);
        let none = Words::new(0);
        let local = Words::new(32 * 8);
        let ranges = memory.ranges();
        let own = Own { shared: &none, parameters: &none, local: &local, local_bytes: 8 };
        let mut reach = Reach::new(&ranges, own);
        let start = buffer.address();
        assert_eq!(reach.load(0, start + 6, 1), Some(7));
        assert_eq!(reach.load(0, start + 7, 1), None);
        assert_eq!(reach.load(0, start - 1, 1), None);
        assert_eq!(reach.load(0, start + 3, 4), Some(0x0706_0504));
        assert_eq!(reach.store(0, start + 7, 2, 0), None);
        assert_eq!(reach.store(0, start + 1, 2, 0xabcd), Some(()));
        assert_eq!(reach.update(0, start + 3, 4, |old| old + 1), Some(0x0706_0504));
        assert_eq!(buffer.read(), [1, 0xcd, 0xab, 5, 5, 6, 7]);
        assert_eq!(reach.store(3, local.start() + 24, 8, 5), Some(()), "its own");
        assert_eq!(reach.load(2, local.start() + 24, 8), None, "of another thread");
    }
}
