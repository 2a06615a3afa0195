//! What runs kernels: a processor, an interpreter, a GPU.

use std::cell::RefCell;

use ccl_kernels::cuda::{Entry, Parameters};

/// One kernel, on one stream.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Launches of one stream run in order, streams side by side.
    pub(crate) stream: u32,
    pub(crate) entry: Entry,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// The bytes of the kernel's parameter.
    pub(crate) parameters: Vec<u8>,
}

impl Launch {
    /// A launch of `shape.0` blocks of `shape.1` threads.
    pub(crate) fn new(
        stream: u32,
        entry: Entry,
        shape: (u32, u32),
        parameters: &impl Parameters,
    ) -> Self {
        let parameters = parameters.bytes().to_vec();
        assert_eq!(parameters.len(), entry.parameter_bytes(), "{}", entry.name());
        Self { stream, entry, blocks: shape.0, threads: shape.1, parameters }
    }
}

/// Launches that end together.
pub(crate) struct Job<'a> {
    pub(crate) launches: &'a [Launch],
    /// Decides what is left to chance.
    pub(crate) seed: u64,
    /// Start and length of all memory that the kernels may touch, where a machine can tell. Nothing
    /// here: any memory.
    pub(crate) allowed: &'a [(u64, usize)],
    /// What somebody else does meanwhile: called again and again until all launches have ended.
    pub(crate) meanwhile: Option<&'a mut dyn FnMut()>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(launches: &'a [Launch], seed: u64) -> Self {
        Self { launches, seed, allowed: &[], meanwhile: None }
    }
}

pub(crate) trait Machine {
    /// Zeroed memory at a multiple of 256, valid until `release`.
    fn allocate(&self, bytes: usize) -> u64;
    /// Frees all memory.
    fn release(&self);
    fn write(&self, address: u64, bytes: &[u8]);
    fn read(&self, address: u64, bytes: usize) -> Vec<u8>;
    /// Runs the launches to their end.
    ///
    /// # Errors
    ///
    /// They hang, or a kernel did what a device would refuse.
    fn run(&self, job: Job<'_>) -> Result<(), String>;
}

/// Memory of machines that run kernels in this process.
#[derive(Debug, Default)]
pub(crate) struct HostMemory(RefCell<Vec<Vec<u128>>>);

impl HostMemory {
    const ALIGNMENT: usize = 256;

    pub(crate) fn allocate(&self, bytes: usize) -> u64 {
        let unit = size_of::<u128>();
        let block = vec![0u128; (bytes + Self::ALIGNMENT) / unit + 1];
        let start = block.as_ptr().addr().next_multiple_of(Self::ALIGNMENT) as u64;
        self.0.borrow_mut().push(block);
        start
    }

    pub(crate) fn release(&self) {
        self.0.borrow_mut().clear();
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.check(address, bytes.len());
        // SAFETY: the range is inside a block (checked), which stays where it is and is used by this
        // thread only.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.check(address, bytes);
        // SAFETY: as in `write`; the slice is gone before anybody else runs.
        unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
    }

    fn check(&self, address: u64, bytes: usize) {
        let end = address as usize + bytes;
        let is_inside = |block: &Vec<u128>| {
            let range = block.as_ptr_range();
            range.start.addr() <= address as usize && end <= range.end.addr()
        };
        assert!(self.0.borrow().iter().any(is_inside), "{bytes} bytes at {address:#x}");
    }
}
