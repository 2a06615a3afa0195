//! The benchmark binaries: nccl-tests' flags, columns and factors for this library.
//!
//! A benchmark is a value, a [`benchmark::Benchmark`]: how many elements each rank sends and
//! receives, which calls do it, and what must be in the output. [`catalogue`] holds the eleven of
//! them, and a binary is one line, [`main`]. Everything else is shared and knows no collective:
//!
//! | module | question it answers |
//! |---|---|
//! | [`arguments`], [`size`], [`environment`] | what is to be measured? |
//! | [`launch`], [`membership`] | which ranks are there, and how did they get here? |
//! | [`buffers`], [`data`], [`check`], [`gpu`] | what is in memory, and is it right? |
//! | [`engine`], [`statistics`] | how long did it take? |
//! | [`faults`], `timeline` | what broke meanwhile, and what did the ranks do about it? |
//! | [`table`], [`number`], [`report`], [`progress`] | what does the reader see? |
//!
//! Beside them are [`testbed`], which runs any of them, or anything else, on networks that break, and [`churn`], which
//! kills processes and starts others.
//!
//! Expected results are computed here, element by element, with code that shares nothing with the
//! library: a wrong kernel cannot agree with itself.

pub mod arguments;
pub mod benchmark;
pub mod buffers;
pub mod catalogue;
pub mod check;
pub mod churn;
pub mod data;
pub mod element;
pub mod engine;
pub mod environment;
pub mod error;
pub mod faults;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "gpu_absent.rs"]
pub mod gpu;
// In the tests of the crate the feature is on.
#[cfg(all(test, feature = "cuda"))]
pub mod gpu_absent;
pub mod launch;
pub mod membership;
pub mod number;
pub mod progress;
pub mod report;
pub mod session;
pub mod size;
pub mod split;
pub mod statistics;
pub mod stopwatch;
pub mod table;
pub mod testbed;
mod timeline;
pub mod traffic;
pub mod vqp;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use arguments::Arguments;
use benchmark::Benchmark;
use error::Failure;

/// Runs `benchmark` as the command line says.
#[must_use]
pub fn main(benchmark: &Benchmark) -> ExitCode {
    let mut command = Arguments::command().name(benchmark.name).bin_name(benchmark.name);
    let parsed = Arguments::from_arg_matches(&command.clone().get_matches());
    let checked = parsed.and_then(Arguments::checked);
    let arguments = checked.unwrap_or_else(|error| error.format(&mut command).exit());
    match run(benchmark, &arguments) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.told_by(benchmark.name),
    }
}

/// Does what this process is there for, and returns its exit status.
fn run(benchmark: &Benchmark, arguments: &Arguments) -> Outcome<u8> {
    if arguments.makes_testbed() {
        return faults::host(arguments);
    }
    match arguments.launches() {
        Some(ranks) => launch::run(arguments, ranks)?,
        None => session::run(benchmark, arguments, membership::find(arguments)?)?,
    }
    Ok(0)
}

/// What every fallible part of the benchmark returns.
pub type Outcome<T> = Result<T, Failure>;
