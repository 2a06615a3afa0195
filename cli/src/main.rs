//! `r2ccl`: what the planner would do, on this cluster or another, healthy or not.
#![forbid(unsafe_code)]

mod arguments;
mod cluster;
mod explain;
mod plot;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let Arguments { command: Command::Explain(wish) } = Arguments::parse();
    let (text, code) = match explain::explain(&wish) {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "r2ccl: {error}");
            return ExitCode::from(2);
        }
    };
    // Nobody reads the rest when a pager was left.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}
