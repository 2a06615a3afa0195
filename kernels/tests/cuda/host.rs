//! The kernels on this processor: their text behind a port of C++, compiled by g++ when a test runs.
#![allow(dead_code, reason = "every test uses a part of it")]

use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_kernels::cuda::{Entry, Family, Module};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::cuda::machine::{HostMemory, Job, Launch, Machine};

const PORT: &str = include_str!("host/port.h");
const RUNNERS: &str = include_str!("host/runners.cpp");

/// Neither fused operations nor assumptions about types behind addresses: a device makes none. What
/// one thread has is reached without a call.
#[rustfmt::skip]
const FLAGS: [&str; 8] = [
    "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fvisibility-inlines-hidden", "-ftls-model=initial-exec", "-U_FORTIFY_SOURCE",
];

/// More turns than any job takes that ends.
const MOST_TURNS: u64 = 50_000_000;

/// A launch as the runners know it.
#[repr(C)]
struct RawLaunch {
    kernel: unsafe extern "C" fn(*const c_void),
    parameters: *const c_void,
    blocks: u32,
    threads: u32,
    stream: u32,
    unused: u32,
}

#[repr(C)]
struct RawRange {
    start: u64,
    bytes: u64,
}

type Stir = unsafe extern "C" fn(*mut c_void);

/// The runners, loaded.
struct Runners {
    allow: Symbol<unsafe extern "C" fn(*const RawRange, u64)>,
    wrong: Symbol<unsafe extern "C" fn(*mut *const c_void) -> *const c_char>,
    run_loop: Symbol<unsafe extern "C" fn(*const RawLaunch, u64)>,
    fibers: Symbol<
        unsafe extern "C" fn(*const RawLaunch, u64, u64, u64, Option<Stir>, *mut c_void) -> bool,
    >,
}

/// The processor, with some modules of kernels.
pub(crate) struct Host {
    memory: HostMemory,
    runners: Rc<Runners>,
    modules: Vec<(Module, Library)>,
}

impl Host {
    /// Compiles the modules, or takes what was compiled of the same text. None if there is no g++.
    pub(crate) fn new(modules: &[Module]) -> Option<Self> {
        Self::with_text(modules, "-O1", |text| text)
    }

    /// As [`Host::new`], with a changed text, compiled without optimisation: it is used once.
    pub(crate) fn mutant(modules: &[Module], change: impl Fn(String) -> String) -> Option<Self> {
        Self::with_text(modules, "-O0", change)
    }

    fn with_text(
        modules: &[Module],
        optimisation: &str,
        change: impl Fn(String) -> String,
    ) -> Option<Self> {
        let runners = compile("runners", "-O1", &format!("{PORT}{RUNNERS}"))?;
        let runners = Rc::new(Runners::load(&runners));
        let load = |&module: &Module| {
            let compiled = compile(module.name(), optimisation, &change(module.source_with(PORT)))?;
            // SAFETY: the library was just made of our text and runs no code when it is loaded.
            let library = unsafe { Library::open(Some(compiled), RTLD_NOW | RTLD_LOCAL) };
            Some((module, library.expect("what was compiled can be loaded")))
        };
        let modules = modules.iter().map(load).collect::<Option<_>>()?;
        Some(Self { memory: HostMemory::default(), runners, modules })
    }

    fn raw(&self, launch: &Launch) -> RawLaunch {
        let module = launch.entry.module();
        let (_, library) = self.modules.iter().find(|(m, _)| *m == module).expect("it is loaded");
        // SAFETY: every kernel of the text has this type here.
        let kernel = unsafe { library.get(launch.entry.name().as_bytes()) };
        RawLaunch {
            kernel: *kernel.expect("the module has all its entries"),
            parameters: launch.parameters.as_ptr().cast(),
            blocks: launch.blocks,
            threads: launch.threads,
            stream: launch.stream,
            unused: 0,
        }
    }

    /// Runs the launches; false if they have not ended.
    fn run_raw(&self, launches: &[RawLaunch], mut job: Job<'_>) -> bool {
        let is_waiting = job.launches.len() > 1 || job.launches.iter().any(waits);
        if !is_waiting && let [launch] = launches {
            let threads = u64::from(launch.blocks) * u64::from(launch.threads);
            // SAFETY: the kernel, its parameter and its memory live until the call returns.
            unsafe { (self.runners.run_loop)(launch, step(threads, job.seed)) };
            return true;
        }
        let stir = job.meanwhile.is_some().then_some(call_meanwhile as Stir);
        let stirred = (&raw mut job.meanwhile).cast();
        let count = launches.len() as u64;
        // SAFETY: as above, and `stirred` is what `call_meanwhile` expects.
        unsafe {
            (self.runners.fibers)(launches.as_ptr(), count, job.seed, MOST_TURNS, stir, stirred)
        }
    }
}

/// Calls what happens meanwhile.
unsafe extern "C" fn call_meanwhile(stirred: *mut c_void) {
    // SAFETY: `run_raw` passes its own field, which nobody else uses during the run.
    let meanwhile = unsafe { &mut *stirred.cast::<Option<&mut dyn FnMut()>>() };
    if let Some(call) = meanwhile {
        call();
    }
}

/// Whether threads of the kernel wait for each other or for somebody else.
fn waits(launch: &Launch) -> bool {
    !matches!(launch.entry, Entry::Copy | Entry::Elements { family: Family::Reduce, .. })
}

/// A number without common factor with `threads`, so that its multiples visit all of them.
fn step(threads: u64, seed: u64) -> u64 {
    let greatest = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut step = seed % threads + 1;
    while greatest(step, threads) != 1 {
        step += 1;
    }
    step
}

impl Machine for Host {
    fn allocate(&self, bytes: usize) -> u64 {
        self.memory.allocate(bytes)
    }

    fn release(&self) {
        self.memory.release();
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes);
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.memory.read(address, bytes)
    }

    fn run(&self, job: Job<'_>) -> Result<(), String> {
        let launches: Vec<RawLaunch> = job.launches.iter().map(|l| self.raw(l)).collect();
        let ranges: Vec<RawRange> = job
            .allowed
            .iter()
            .map(|&(start, bytes)| RawRange { start, bytes: bytes as u64 })
            .collect();
        // SAFETY: the ranges are forgotten before they are gone.
        unsafe { (self.runners.allow)(ranges.as_ptr(), ranges.len() as u64) };
        let has_ended = self.run_raw(&launches, job);
        // SAFETY: no range is read where there is none.
        unsafe { (self.runners.allow)(std::ptr::null(), 0) };
        let mut address = std::ptr::null();
        // SAFETY: the runners write an address where they are told.
        let wrong = unsafe { (self.runners.wrong)(&raw mut address) };
        if !wrong.is_null() {
            // SAFETY: what they return is a constant string.
            let wrong = unsafe { CStr::from_ptr(wrong) }.to_string_lossy();
            return Err(format!("forbidden {wrong} at {address:p}, allowed {:x?}", {
                ranges.iter().map(|range| (range.start, range.bytes)).collect::<Vec<_>>()
            }));
        }
        if has_ended { Ok(()) } else { Err("a hang".into()) }
    }
}

impl Runners {
    fn load(path: &Path) -> Self {
        // SAFETY: the library is compiled from our text and runs no code when it is loaded. It is
        // global because the modules share its variables.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.expect("what was compiled can be loaded");
        // SAFETY: the types are those of runners.cpp.
        let allow = unsafe { library.get(b"r2ccl_host_allow") }.expect("it is there");
        // SAFETY: as above.
        let wrong = unsafe { library.get(b"r2ccl_host_wrong") }.expect("it is there");
        // SAFETY: as above.
        let run_loop = unsafe { library.get(b"r2ccl_host_loop") }.expect("it is there");
        // SAFETY: as above.
        let fibers = unsafe { library.get(b"r2ccl_host_fibers") }.expect("it is there");
        // Never unloaded: the modules refer to it.
        std::mem::forget(library);
        Self { allow, wrong, run_loop, fibers }
    }
}

/// A shared library of this text, made now or by an earlier test. None if there is no g++.
fn compile(name: &str, optimisation: &str, text: &str) -> Option<PathBuf> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    (text, optimisation, FLAGS).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-host");
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let library = folder.join(format!("{name}-{:016x}.so", hasher.finish()));
    if library.exists() {
        return Some(library);
    }
    let own = format!("{name}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let (source, made) = (folder.join(format!("{own}.cpp")), folder.join(&own));
    fs::write(&source, text).expect("the target folder can be written");
    let mut compiler = Command::new("g++");
    compiler.args(FLAGS).arg(optimisation).arg(&source).arg("-o").arg(&made);
    let output = match compiler.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.expect("g++ can be started"),
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", source.display());
    fs::remove_file(source).expect("it was just written");
    // Tests may compile the same at the same time: each moves a whole library there.
    fs::rename(made, &library).expect("both are in one folder");
    Some(library)
}
