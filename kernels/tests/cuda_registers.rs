//! Registers and spilled bytes of the CUDA kernels, as NVIDIA's assembler reports them.
//!
//! `cargo test -p ccl-kernels --test cuda_registers -- --nocapture` prints the table of docs/cuda.md.
#![allow(clippy::print_stdout, reason = "its table is a result")]

mod inputs;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Entry, Module};

use inputs::skip;

/// What all modules are compiled for.
const WHOLE: u32 = 90;
/// What only [`SOME`] are compiled for, because every module takes seconds.
const PARTLY: [u32; 2] = [80, 100];
/// Types that are among those with the most spills and the most registers there.
const SOME: [Module; 4] = [
    Module::Copies,
    Module::Elements(DataType::Int64),
    Module::Elements(DataType::Float16),
    Module::Elements(DataType::Float64),
];
/// The largest block, which `__launch_bounds__` tells the compiler.
const MOST_THREADS: u32 = 512;
/// Of a processor, which a block has to fit into.
const REGISTERS: u32 = 65_536;
/// Stored and loaded by one thread of any kernel.
const MOST_SPILLED_BYTES: u32 = 400;

/// What one kernel needs.
#[derive(Clone, Debug, Default)]
struct Usage {
    kernel: String,
    registers: u32,
    stack_bytes: u32,
    /// Stores and loads.
    spilled_bytes: u32,
}

#[test]
fn registers_suffice() {
    let (Some(_), Some(assembler)) = (nvrtc::folder(), nvrtc::assembler()) else {
        return skip("registers of CUDA kernels: pip cannot install NVRTC and ptxas");
    };
    let whole = Module::all().into_iter().map(|module| (WHOLE, module));
    let partly = PARTLY.into_iter().flat_map(|a| SOME.into_iter().map(move |m| (a, m)));
    let jobs: Vec<(u32, Module)> = whole.chain(partly).collect();
    let found = side_by_side(&jobs, |&(architecture, module)| {
        let usages = usages(&assembler, architecture, module);
        (architecture, usages)
    });
    println!(
        "| architecture | kernels | number | most registers | most stack bytes | with spills | most spilled bytes |"
    );
    println!("|---|---|---|---|---|---|---|");
    for architecture in [PARTLY[0], WHOLE, PARTLY[1]] {
        let of_it = found.iter().filter(|one| one.0 == architecture).flat_map(|one| &one.1);
        let of_it: Vec<&Usage> = of_it.collect();
        for family in ["copy", "pull", "reduce", "low_latency", "push", "relay"] {
            let prefix = format!("r2ccl_{family}");
            print_row(architecture, family, of_it.iter().filter(|u| u.kernel.starts_with(&prefix)));
        }
    }
    for (architecture, usage) in found.iter().flat_map(|(a, all)| all.iter().map(move |u| (a, u))) {
        assert!(usage.registers * MOST_THREADS <= REGISTERS, "sm_{architecture}: {usage:?}");
        assert!(usage.spilled_bytes <= MOST_SPILLED_BYTES, "sm_{architecture}: {usage:?}");
    }
}

/// The results for all jobs, in any order, by as many threads as there are processors.
fn side_by_side<J: Sync, R: Send>(jobs: &[J], act: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = act(job);
            results.lock().expect("nobody panics with it").push(result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    results.into_inner().expect("nobody panicked")
}

/// What every kernel of a module needs on an architecture.
fn usages(assembler: &Path, architecture: u32, module: Module) -> Vec<Usage> {
    let ptx = nvrtc::ptx(module, architecture).expect("there is a compiler");
    let folder = tempfile::tempdir().expect("there is room");
    let (input, output) = (folder.path().join("kernels.ptx"), folder.path().join("kernels.cubin"));
    std::fs::write(&input, &ptx).expect("there is room");
    let mut command = Command::new(assembler);
    command.args(["-v", &format!("-arch=sm_{architecture}"), "-o"]).args([&output, &input]);
    let ended = command.output().expect("it is a program");
    let report = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{report}");
    let usages = parsed(&report);
    let names: BTreeSet<String> = usages.iter().map(|usage| usage.kernel.clone()).collect();
    let entries: BTreeSet<String> = module.entries().into_iter().map(Entry::name).collect();
    assert_eq!(names, entries);
    let bounds = format!(".maxntid {MOST_THREADS}");
    let bounded = ptx.matches(&bounds).count();
    assert_eq!(bounded, entries.len(), "every kernel has its launch bounds");
    usages
}

/// Reads what `ptxas -v` writes: functions that a kernel calls follow it, and count with it.
fn parsed(report: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let (kernel, _) = rest.split_once('\'').expect("a name ends");
            usages.push(Usage { kernel: kernel.to_owned(), ..Usage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        if let Some(bytes) = before(line, " bytes stack frame") {
            usage.stack_bytes = usage.stack_bytes.max(bytes);
        }
        usage.spilled_bytes += before(line, " bytes spill stores").unwrap_or(0);
        usage.spilled_bytes += before(line, " bytes spill loads").unwrap_or(0);
        if let Some(registers) = before(line, " registers") {
            usage.registers = registers;
        }
    }
    assert!(usages.iter().all(|usage| usage.registers > 0), "{report}");
    usages
}

/// The number that stands before these words.
fn before(line: &str, words: &str) -> Option<u32> {
    let (text, _) = line.split_once(words)?;
    text.rsplit(' ').next()?.parse().ok()
}

fn print_row<'a>(architecture: u32, family: &str, usages: impl Iterator<Item = &'a &'a Usage>) {
    let all: Vec<&Usage> = usages.copied().collect();
    let most = |of: fn(&Usage) -> u32| {
        // The first name, so that the table is the same in every run.
        let (number, name) = all
            .iter()
            .map(|usage| (of(usage), std::cmp::Reverse(usage.kernel.trim_start_matches("r2ccl_"))))
            .max()
            .expect("the family has kernels");
        if number == 0 { "0".to_owned() } else { format!("{number} (`{}`)", name.0) }
    };
    let spilling = all.iter().filter(|usage| usage.spilled_bytes > 0).count();
    println!(
        "| {architecture} | {family} | {} | {} | {} | {spilling} | {} |",
        all.len(),
        most(|usage| usage.registers),
        all.iter().map(|usage| usage.stack_bytes).max().unwrap_or(0),
        most(|usage| usage.spilled_bytes),
    );
}

#[test]
fn a_report_is_read() {
    let report = "ptxas info    : 112 bytes gmem
ptxas info    : Compiling entry function 'r2ccl_push_mean_int64' for 'sm_90'
ptxas info    : Function properties for r2ccl_push_mean_int64
    448 bytes stack frame, 56 bytes spill stores, 60 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 448 bytes cumulative stack size
ptxas info    : Compile time = 158.503 ms
";
    let usages = parsed(report);
    assert_eq!((usages.len(), usages[0].kernel.as_str()), (1, "r2ccl_push_mean_int64"));
    let numbers = (usages[0].registers, usages[0].stack_bytes, usages[0].spilled_bytes);
    assert_eq!(numbers, (64, 448, 116));
}
