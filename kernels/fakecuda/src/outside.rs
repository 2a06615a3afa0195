//! Everything that only the caller can promise: pointers from C, memory of others, system calls on
//! memory. All `unsafe` of the driver is here.
//!
//! The callers of a driver promise what `cuda.h` and the manual ask of them: pointers that are given
//! for results can be written, strings end with a zero, memory that is copied is there.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ccl_emulator::{Memory, Overlap, Rights};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::codes::{Code, Result};

/// Where a result goes.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub(crate) fn put(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller of the driver gives a place for a result.
        unsafe { self.0.write(value) };
        Ok(())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// What the caller has put there, where the result goes too.
    pub(crate) fn given(&self) -> Result<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Writes several results, one behind the other.
    pub(crate) fn put_all(&self, values: impl IntoIterator<Item = T>) -> Result<()> {
        for (index, value) in values.into_iter().enumerate() {
            Self(self.0.wrapping_add(index)).put(value)?;
        }
        Ok(())
    }
}

/// Something to read.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller of the driver gives something to read.
        Ok(unsafe { self.0.read() })
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The one that is so many behind it.
    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

/// A string that ends with a zero.
pub(crate) fn text(start: In<c_char>) -> Result<String> {
    if start.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller of the driver gives strings that end with a zero.
    let text = unsafe { CStr::from_ptr(start.0) };
    text.to_str().map(str::to_owned).map_err(|_| Code::InvalidValue)
}

thread_local! {
    /// Whether this thread calls a function of the program.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call, and makes a number of how it ended. Functions that streams call must not call the driver.
pub(crate) fn answer(call: impl FnOnce() -> Result<()>) -> u32 {
    if CALLS.get() {
        return Code::NotPermitted.number();
    }
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.number(),
        Err(_) => Code::Unknown.number(),
    }
}

/// A line on standard error.
pub(crate) fn say(line: &str) {
    // Nobody may listen.
    let _ = writeln!(std::io::stderr(), "fakecuda: {line}");
}

/// Bytes at an address, of memory that the driver knows or the caller of the driver promises.
pub(crate) fn read(from: u64, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    let start = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: checked against the known ranges, or promised; the copy has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(start, copy.as_mut_ptr(), bytes) };
    copy
}

/// A word that others may change meanwhile.
pub(crate) fn word(at: u64) -> u32 {
    let word = std::ptr::with_exposed_provenance::<AtomicU32>(at as usize);
    // SAFETY: checked to be known and aligned when the wait was asked for; who frees it waits for streams.
    unsafe { &*word }.load(Ordering::Acquire)
}

/// Sets a word for which others may wait.
pub(crate) fn set_word(at: u64, value: u32) {
    let word = std::ptr::with_exposed_provenance::<AtomicU32>(at as usize);
    // SAFETY: checked to be known and aligned when the write was asked for; who frees it waits for streams.
    unsafe { &*word }.store(value, Ordering::Release);
}

/// Writes bytes there.
pub(crate) fn write(to: u64, bytes: &[u8]) {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: checked against the known ranges, or promised.
    unsafe { std::ptr::copy(bytes.as_ptr(), start, bytes.len()) };
}

/// Copies bytes from one address to another.
pub(crate) fn copy(to: u64, from: u64, bytes: usize) {
    let target = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let source = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: both checked against the known ranges, or promised.
    unsafe { std::ptr::copy(source, target, bytes) };
}

/// Calls a function of the program in the order of a stream.
pub(crate) fn call(function: usize, argument: usize) {
    if function == 0 {
        return;
    }
    // SAFETY: `cuLaunchHostFunc` takes a function of this type, which may be called once with its
    // argument.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn(usize)>(function) };
    CALLS.set(true);
    function(argument);
    CALLS.set(false);
}

/// Lets kernels of a device touch memory.
pub(crate) fn register(
    memory: &Memory,
    start: u64,
    bytes: usize,
    rights: Rights,
) -> std::result::Result<(), Overlap> {
    // SAFETY: mapped by the driver until it is unregistered, or promised by the caller of the driver,
    // who also orders what hosts and kernels do.
    unsafe { memory.register(start, bytes, rights) }
}

/// Memory that is mapped into this process until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: u64,
    bytes: usize,
}

impl Mapping {
    /// Zeros of this process alone.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes.max(1), protection, flags)
        };
        Self::of(start, bytes)
    }

    /// A file that other processes may map too.
    pub(crate) fn file(file: impl AsFd, bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap(anywhere, bytes.max(1), protection, MapFlags::SHARED, file, 0)
        };
        Self::of(start, bytes)
    }

    fn of(start: rustix::io::Result<*mut std::ffi::c_void>, bytes: usize) -> Result<Self> {
        let start = start.map_err(|_| Code::OutOfMemory)?;
        Ok(Self { start: start.expose_provenance() as u64, bytes })
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Writes a byte everywhere, before anybody else knows of the memory.
    pub(crate) fn fill(&self, byte: u8) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start as usize);
        // SAFETY: the whole mapping, and nothing else.
        unsafe { start.write_bytes(byte, self.bytes) };
    }

    /// A number in it that several processes change.
    pub(crate) fn counter(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes, "outside of the mapping");
        let start = std::ptr::with_exposed_provenance::<AtomicU64>(self.start as usize);
        // SAFETY: inside of the mapping, which lives as long as the borrow, and aligned.
        unsafe { &*start.wrapping_add(index) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start as usize);
        // SAFETY: mapped by `of`, and no longer registered anywhere.
        let unmapped = unsafe { rustix::mm::munmap(start, self.bytes.max(1)) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

/// A file without a name, which ends with the last process that has it open.
pub(crate) fn file(bytes: usize) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create("fakecuda", MemfdFlags::CLOEXEC);
    let file = file.map_err(|_| Code::OutOfMemory)?;
    rustix::fs::ftruncate(&file, bytes.max(1) as u64).map_err(|_| Code::OutOfMemory)?;
    Ok(file)
}

/// A descriptor of the file for the caller of the driver, who closes it. If nobody may map it, of something that
/// cannot be mapped.
pub(crate) fn share(file: impl AsFd, is_open: bool) -> Result<OwnedFd> {
    if is_open {
        return rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| Code::MapFailed);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty()).map_err(|_| Code::MapFailed)
}

/// Which file it is, in all processes.
pub(crate) fn identity(file: impl AsFd) -> Result<u64> {
    rustix::fs::fstat(file).map(|about| about.st_ino).map_err(|_| Code::MapFailed)
}

/// A file of another process of the same user, if it is still the one that is meant.
pub(crate) fn file_of(process: u32, descriptor: u32, identity_there: u64) -> Result<OwnedFd> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| Code::InvalidValue)?;
    if identity(&file)? == identity_there { Ok(file) } else { Err(Code::InvalidValue) }
}
