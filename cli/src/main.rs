//! `r2ccl`: starts ranks, and tells what the planner would do, on this cluster or another, healthy or
//! not.
#![forbid(unsafe_code)]

mod arguments;
mod cluster;
mod environment;
mod explain;
mod meeting;
mod plot;
mod run;

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use arguments::{Arguments, Command};

/// Exit status when the command line asks for something impossible.
const STATUS_INPUT: u8 = 2;

fn main() -> ExitCode {
    match Arguments::of_this_process().command {
        Command::Explain(wish) => match explain::explain(&wish) {
            Ok(text) => {
                // Nobody reads the rest when a pager was left.
                let _ = std::io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Err(error) => failed(error, STATUS_INPUT),
        },
        Command::Run(wish) => match run::run(&wish) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                let status = failed(&failure, run::exit_status(&failure));
                failure.end_by_signal();
                status
            }
        },
        Command::Rank(wish) => {
            let (failure, status) = run::become_program(&wish);
            failed(failure, status)
        }
    }
}

/// Tells the reader, and is the end of the program.
fn failed(error: impl Display, status: u8) -> ExitCode {
    // As one: of ranks that cannot run their program each says so. There is nobody left to tell when stderr is gone.
    let _ = std::io::stderr().write_all(format!("r2ccl: {error}\n").as_bytes());
    ExitCode::from(status)
}
