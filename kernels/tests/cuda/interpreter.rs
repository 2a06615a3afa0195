//! The kernels as NVIDIA's compiler makes them, instruction by instruction.

use std::cell::RefCell;
use std::sync::Arc;

use ccl_emulator::{
    Kernel, Launch, Machine as Emulator, Memory, Options, Progress, Rights, Schedule,
};
use ccl_kernels::cuda::{Entry, Module};

use crate::cuda::machine::{HostMemory, Job, Machine};
use crate::nvrtc;

/// Instructions between two looks of whoever else takes part.
const STEP: u64 = 500;

/// An interpreter with some modules of kernels.
pub(crate) struct Interpreter {
    memory: Arc<Memory>,
    bytes: HostMemory,
    allocated: RefCell<Vec<(u64, usize)>>,
    modules: Vec<Arc<ccl_emulator::Module>>,
}

impl Interpreter {
    /// With these modules, compiled for an architecture. None if there is no compiler.
    #[allow(dead_code, reason = "every test uses a part of it")]
    pub(crate) fn new(modules: &[Module], architecture: u32) -> Option<Self> {
        Self::with_text(modules, architecture, |text| text)
    }

    /// As [`Interpreter::new`], with a changed text of instructions.
    pub(crate) fn with_text(
        modules: &[Module],
        architecture: u32,
        change: impl Fn(String) -> String,
    ) -> Option<Self> {
        let memory = Memory::new();
        let load = |&module: &Module| {
            let text = change(nvrtc::ptx(module, architecture)?);
            let loaded = ccl_emulator::Module::load(&text, &memory);
            Some(loaded.unwrap_or_else(|error| panic!("{}: {error}", module.name())))
        };
        let modules = modules.iter().map(load).collect::<Option<_>>()?;
        Some(Self { memory, bytes: HostMemory::default(), allocated: RefCell::default(), modules })
    }

    fn kernel(&self, entry: Entry) -> Kernel {
        let name = entry.name();
        let found = self.modules.iter().find_map(|module| module.kernel(&name));
        found.unwrap_or_else(|| panic!("no module has {name}"))
    }

    /// Lets kernels touch these ranges, of which some may be the same.
    fn register(&self, ranges: &[(u64, usize)]) -> Vec<u64> {
        let mut ranges: Vec<_> = ranges.iter().copied().filter(|range| range.1 > 0).collect();
        ranges.sort_unstable();
        ranges.dedup();
        for &(start, bytes) in &ranges {
            // SAFETY: blocks of `bytes`, which live until `release`; this thread is the only one.
            let registered = unsafe { self.memory.register(start, bytes, Rights::ReadWrite) };
            registered.expect("operands overlap only if they are the same");
        }
        ranges.into_iter().map(|range| range.0).collect()
    }

    fn run_registered(&self, job: Job<'_>) -> Result<(), String> {
        let options = Options {
            schedule: if job.seed.is_multiple_of(4) {
                Schedule::InOrder
            } else {
                Schedule::Random(job.seed)
            },
            torn: job.seed % 2 == 1,
            split: job.seed % 3 == 1,
            weak: job.seed % 5 > 1,
            ..Options::default()
        };
        let mut emulator = Emulator::new(&self.memory, options);
        for launch in job.launches {
            let launched = emulator.launch(
                launch.stream,
                Launch {
                    kernel: self.kernel(launch.entry),
                    grid: [launch.blocks, 1, 1],
                    block: [launch.threads, 1, 1],
                    shared_bytes: 0,
                    arguments: launch.parameters.clone(),
                },
            );
            launched.map_err(|error| error.to_string())?;
        }
        let mut meanwhile = job.meanwhile;
        while emulator.step(STEP).map_err(|fault| fault.to_string())? != Progress::Idle {
            if let Some(meanwhile) = &mut meanwhile {
                meanwhile();
            }
        }
        Ok(())
    }
}

impl Machine for Interpreter {
    fn allocate(&self, bytes: usize) -> u64 {
        let start = self.bytes.allocate(bytes);
        self.allocated.borrow_mut().push((start, bytes));
        start
    }

    fn release(&self) {
        self.allocated.borrow_mut().clear();
        self.bytes.release();
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.bytes.write(address, bytes);
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.bytes.read(address, bytes)
    }

    fn run(&self, job: Job<'_>) -> Result<(), String> {
        let allocated = self.allocated.borrow().clone();
        let ranges = if job.allowed.is_empty() { &allocated } else { job.allowed };
        let registered = self.register(ranges);
        let ended = self.run_registered(job);
        for start in registered {
            self.memory.unregister(start);
        }
        ended
    }
}
