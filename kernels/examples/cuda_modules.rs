//! Compiles all CUDA kernels into a folder, for programs on machines without a compiler. Needs NVRTC,
//! but neither a driver nor a GPU.
//!
//! `cargo run -p ccl-kernels --features cuda --example cuda_modules -- FOLDER sm_90 compute_80
//! [--nvrtc FOLDER]`
//!
//! `sm_90` is machine code for one architecture, `compute_80` PTX for it and all later ones.
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl_kernels::cuda::Module;
use ccl_kernels::cuda::gpu::{Compiler, Error, Target, compile_into};

const USAGE: &str = "cuda_modules FOLDER sm_NN|compute_NN ... [--nvrtc FOLDER]";

/// What was asked for: the folder, the targets, and where NVRTC is.
type Request = (PathBuf, Vec<Target>, Option<PathBuf>);

fn main() -> ExitCode {
    let Some((folder, targets, nvrtc)) = request(std::env::args().skip(1)) else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let Some(compiler) = Compiler::find(nvrtc.as_deref()) else {
        println!("there is no libnvrtc.so.13; pip install nvidia-cuda-nvrtc==13.0.88");
        return ExitCode::FAILURE;
    };
    match compile(&folder, &compiler, &targets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}\n{}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

fn request(mut arguments: impl Iterator<Item = String>) -> Option<Request> {
    let (folder, mut targets, mut nvrtc) = (PathBuf::from(arguments.next()?), Vec::new(), None);
    while let Some(argument) = arguments.next() {
        match argument.split_once('_') {
            Some(("sm", number)) => targets.push(Target::Machine(number.parse().ok()?)),
            Some(("compute", number)) => targets.push(Target::Ptx(number.parse().ok()?)),
            _ if argument == "--nvrtc" => nvrtc = Some(PathBuf::from(arguments.next()?)),
            _ => return None,
        }
    }
    (!targets.is_empty()).then_some((folder, targets, nvrtc))
}

fn compile(folder: &Path, compiler: &Compiler, targets: &[Target]) -> Result<(), Error> {
    for path in compile_into(folder, compiler, &Module::all(), targets)? {
        println!("{}", path.display());
    }
    Ok(())
}
