//! A GPU: first the battery and the protocols, bit for bit against the oracle, then rates. Bytes read
//! and written count, as a share of the driver's own copy in the same run. Beside a figure stands `ok` or
//! `BELOW` if something is required of it, else `-`; the last line counts them.
//!
//! `gpu_bench [--kernels FOLDER] [--nvrtc FOLDER] [--small] [--strict]`
//!
//! `--kernels` names what the example `cuda_modules` made, so that nothing has to be compiled.
//! `--small` uses a little memory: it tries the program where a GPU is imitated, and measures nothing.
//! `--strict` makes it a failure if a figure is below what is required.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "../../tests/cuda/mod.rs"]
mod cuda;
#[path = "../../tests/inputs/mod.rs"]
mod inputs;

mod bars;
mod gate;
mod operations;
mod ranks;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Error, Gpu, Supply};
use ccl_kernels::cuda::{Family, Operation};

use bars::Bars;
use cuda::battery::{self, Cases};
use cuda::device::Device;
use cuda::{neighbours, suite};
use operations::Bench;
use ranks::{low_latency, push};

const USAGE: &str = "gpu_bench [--kernels FOLDER] [--nvrtc FOLDER] [--small] [--strict]";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
type Outcome<T> = Result<T, String>;

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet. Ranks are streams that wait for each other, so none may stand
    // behind another in one queue.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let Some(request) = arguments(std::env::args().skip(1)) else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let measured = match (Gpu::open(0, request.supply), request.neighbour) {
        (Ok(gpu), Some(path)) => neighbours::follow(&gpu, &path),
        (Ok(gpu), None) => measure(gpu, request.small, request.strict),
        (Err(error), _) => Err(described(error)),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn described(error: Error) -> String {
    format!("{error}; {}", error.remedy())
}

/// What was asked for.
#[derive(Default)]
struct Request {
    supply: Supply,
    small: bool,
    strict: bool,
    /// Where the process waits that started this one to be its neighbour.
    neighbour: Option<PathBuf>,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Request> {
    let mut request = Request::default();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--kernels" => request.supply.prebuilt = Some(PathBuf::from(given.next()?)),
            "--nvrtc" => request.supply.nvrtc = Some(PathBuf::from(given.next()?)),
            "--small" => request.small = true,
            "--strict" => request.strict = true,
            "--neighbour" => request.neighbour = Some(PathBuf::from(given.next()?)),
            _ => return None,
        }
    }
    Some(request)
}

fn measure(gpu: Gpu, small: bool, strict: bool) -> Outcome<()> {
    let name = gpu.name().map_err(described)?;
    let (architecture, driver, processors) = (gpu.architecture(), gpu.driver(), gpu.processors());
    println!("{name}, architecture {architecture}, driver {driver}, {processors} processors");
    if small {
        println!("small: this tries the program, and measures nothing");
    }
    let device = Device::new(gpu).map_err(described)?;
    check(&device, small)?;
    let bars = Bars::new(small);
    let bench = Bench::new(&device.gpu, &bars)?;
    let ceiling = bench.ceiling()?;
    bench.copies(ceiling)?;
    bench.reductions(ceiling)?;
    bench.replays()?;
    for ranks in [2, 4, 8] {
        for bytes in [KIB, 4 * KIB, 16 * KIB, 64 * KIB] {
            if !small || bytes == KIB {
                low_latency(&device.gpu, &bars, ranks, bytes)?;
            }
        }
    }
    for ranks in [2, 4, 8] {
        push(&device.gpu, &bars, ranks, ceiling)?;
    }
    bars.summary(strict)
}

/// The battery and the protocols.
fn check(device: &Device, small: bool) -> Outcome<()> {
    let (cases, repeats) = if small { (Cases::Few, 1) } else { (Cases::Every, 2) };
    println!("copies: {} bytes are right", battery::copies(device, cases, 2 * repeats)?);
    for datatype in DataType::ALL {
        let mut checked = battery::reduces(device, datatype, cases, repeats)?;
        if !small && datatype.is_float() && datatype.bytes() < 4 {
            checked += battery::pairs(device, datatype)?;
        }
        println!("{}: {checked} elements are right", datatype.name());
    }
    for family in [Family::LowLatency, Family::Push] {
        let mut scenes = 0;
        for (seed, datatype) in (0..).zip([DataType::Float32, DataType::Bfloat16, DataType::Int8]) {
            let seeds = seed * 20..seed * 20 + if small { 1 } else { 20 };
            for operation in [Operation::Sum, Operation::Scaled] {
                scenes += suite::all_reduces(device, family, datatype, operation, seeds.clone())?;
            }
        }
        println!("{family:?}: {scenes} series of AllReduce are right");
    }
    let scenes = suite::pushes_in_pieces(device, 0..if small { 1 } else { 20 })?;
    println!("Push: {scenes} series of pushes in pieces are right");
    let scenes = suite::pulls(device, 0..if small { 1 } else { 20 })?;
    suite::pulls_in_vain(device, 0..2)?;
    println!("Pull: {scenes} series of messages are right");
    suite::flags_return(device, 2)?;
    suite::all_give_up(device)?;
    suite::relays(device, DataType::Bfloat16, Operation::Sum, 2)?;
    println!("flags return, ranks give up, relays hand on");
    two_processes(&device.gpu)?;
    println!("two processes are ranks of each other");
    Ok(())
}

/// This program again, beside this one.
fn two_processes(gpu: &Gpu) -> Outcome<()> {
    let meeting = std::env::temp_dir().join(format!("gpu_bench-{}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut neighbour = Command::new(program);
    neighbour.args(std::env::args().skip(1)).arg("--neighbour").arg(&meeting);
    let met = neighbours::lead(gpu, &meeting, &mut neighbour);
    // Whoever bound it removes it.
    let _ = std::fs::remove_file(meeting);
    met
}

fn expect(is_right: bool, label: &str) -> Outcome<()> {
    if is_right { Ok(()) } else { Err(format!("{label}: the result is wrong")) }
}
