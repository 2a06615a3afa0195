//! The library's side of CUDA: what a machine without driver is told, what NVRTC makes of the
//! kernels, and, where there is a GPU, the battery and the protocols on it.

mod cuda;
mod inputs;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Error, Gpu, Supply, Target, compile_into};
use ccl_kernels::cuda::{Family, Module, Operation};

use cuda::battery::{self, Cases};
use cuda::device::Device;
use cuda::{neighbours, suite};
use inputs::skip;

/// The first device, or None where there is none, which was reported.
fn device() -> Option<Device> {
    let supply = Supply { nvrtc: nvrtc::folder().map(Into::into), ..Supply::default() };
    match Gpu::open(0, supply) {
        Ok(gpu) => Some(Device::new(gpu).expect("it has streams")),
        Err(error) => {
            static REPORTED: Once = Once::new();
            REPORTED.call_once(|| skip(&format!("CUDA kernels on a GPU: {error}")));
            None
        }
    }
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn who_has_no_driver_is_told() {
    match (Gpu::open(0, Supply::default()), Gpu::count()) {
        (Ok(_), count) => assert!(count.unwrap() > 0),
        (Err(Error::NoDriver), count) => {
            assert!(matches!(count, Err(Error::NoDriver)));
            assert!(Error::NoDriver.to_string().starts_with("no CUDA driver"));
            assert!(Error::NoDriver.remedy().contains("install the driver"));
        }
        (Err(other), _) => skip(&format!("a machine without CUDA driver: there is one: {other}")),
    }
}

/// The benchmark, if it was built with this test.
fn gpu_bench() -> Option<PathBuf> {
    let test = env::current_exe().expect("the test has a path");
    let program = test.ancestors().nth(2)?.join("examples/gpu_bench");
    program.is_file().then_some(program)
}

#[test]
fn the_benchmark_tells_who_has_no_driver() {
    let Some(program) = gpu_bench() else {
        return skip("gpu_bench without a CUDA driver: this run of cargo builds no examples");
    };
    if !matches!(Gpu::count(), Err(Error::NoDriver)) {
        return skip("gpu_bench without a CUDA driver: there is one");
    }
    let output = Command::new(program).arg("--small").output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("no CUDA driver: there is no libcuda.so.1; "), "{text}");
}

/// Name and size of the parameter of every kernel of a PTX text.
fn kernels(ptx: &str) -> Vec<(String, usize)> {
    let kernel = |text: &str| {
        let (name, rest) = text.split_once('(').expect("a kernel has parameters");
        let (_, size) = rest.split_once(&format!("{name}_param_0[")).expect("it is named so");
        let (size, after) = size.split_once(']').expect("it is an array");
        assert!(after.trim_start().starts_with(')'), "{name} has one parameter");
        (name.to_owned(), size.parse().expect("a number"))
    };
    ptx.split(".entry ").skip(1).map(kernel).collect()
}

#[test]
fn nvrtc_finds_the_parameters_that_rust_describes() {
    let Some(compiler) = nvrtc::compiler() else {
        return skip("what NVRTC makes of CUDA kernels: pip cannot install it");
    };
    // The first architecture has no instructions for 8-bit floats.
    for (module, architecture) in [
        (Module::Copies, 80),
        (Module::Elements(DataType::Float8E5m2), 80),
        (Module::Elements(DataType::Float8E4m3), 90),
        (Module::Elements(DataType::Int8), 100),
    ] {
        let image = compiler.compile(module, Target::Ptx(architecture)).unwrap();
        let text = String::from_utf8(image).unwrap();
        assert!(text.ends_with('\0'));
        let mut found = kernels(&text);
        let mut entries: Vec<(String, usize)> =
            module.entries().iter().map(|entry| (entry.name(), entry.parameter_bytes())).collect();
        found.sort();
        entries.sort();
        assert_eq!(found, entries);
        assert!(!text.contains(".ftz"), "subnormals are numbers");
        assert!(!text.contains("fma.rn"), "every operation rounds");
        assert!(!text.contains("ld.global.nc"), "others write meanwhile");
    }
}

#[test]
fn modules_are_compiled_to_be_taken_along() {
    let Some(compiler) = nvrtc::compiler() else {
        return skip("machine code for GPUs: pip cannot install NVRTC");
    };
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("kernels");
    let targets = [Target::Machine(90), Target::Ptx(80)];
    let files = compile_into(&into, &compiler, &[Module::Copies], &targets).unwrap();
    let content = |path| fs::read(path).unwrap();
    assert!(content(&files[0]).starts_with(b"\x7fELF"));
    let text = String::from_utf8(content(&files[1])).unwrap();
    assert!(text.contains(".target sm_80") && !text.contains('\0'));
    let refused = compiler.compile(Module::Copies, Target::Machine(1));
    assert!(matches!(refused, Err(Error::Compiler { module: "copies", .. })), "{refused:?}");
}

#[test]
fn a_device_gives_the_bits_of_the_oracle() {
    let Some(device) = device() else { return };
    right(battery::copies(&device, Cases::Every, 2));
    for datatype in DataType::ALL {
        right(battery::reduces(&device, datatype, Cases::Every, 1));
        if datatype.is_float() && datatype.bytes() < 4 {
            right(battery::pairs(&device, datatype));
        }
    }
}

#[test]
fn ranks_on_a_device_meet() {
    let Some(device) = device() else { return };
    for (datatype, operation) in
        [(DataType::Float32, Operation::Sum), (DataType::Bfloat16, Operation::Scaled)]
    {
        for family in [Family::LowLatency, Family::Push] {
            right(suite::all_reduces(&device, family, datatype, operation, 0..4));
        }
        right(suite::relays(&device, datatype, operation, 3));
    }
    right(suite::pulls(&device, 0..4));
    right(suite::pulls_in_vain(&device, 0..2));
    right(suite::flags_return(&device, 2));
    right(suite::all_give_up(&device));
}

/// Where the neighbour of a test is to go; set in that process only.
const MEETING: &str = "R2CCL_TEST_NEIGHBOUR";

#[test]
#[allow(clippy::disallowed_methods, reason = "a process of a test is told its part so")]
fn two_processes_are_ranks_of_each_other() {
    let Some(device) = device() else { return };
    if let Some(path) = env::var_os(MEETING) {
        return right(neighbours::follow(&device.gpu, Path::new(&path)));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    let mut neighbour = Command::new(env::current_exe().unwrap());
    neighbour.args(["two_processes_are_ranks_of_each_other", "--exact"]).env(MEETING, &path);
    right(neighbours::lead(&device.gpu, &path, &mut neighbour));
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let Some(device) = device() else { return };
    let gpu = &device.gpu;
    let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
    let (whole, half) = (buffer.region(), buffer.region().part(0, 32));
    let refuse = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Misuse(_))));
    refuse(gpu.copy(&stream, whole, &[]));
    refuse(gpu.copy(&stream, whole, &[whole; 9]));
    refuse(gpu.copy(&stream, whole, &[half]));
    let float = DataType::Float32;
    let reduce = |operation, sources: &[_], destinations: &[_]| {
        gpu.reduce(&stream, (operation, float), Default::default(), sources, destinations)
    };
    refuse(reduce(Operation::Sum, &[], &[whole]));
    refuse(reduce(Operation::Mean, &[whole], &[whole]));
    refuse(reduce(Operation::Sum, &[whole.part(0, 3)], &[whole.part(0, 3)]));
    reduce(Operation::Sum, &[whole, whole], &[whole]).unwrap();
    stream.synchronise().unwrap();
}
