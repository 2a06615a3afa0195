//! `r2ccl-sim`: what lost NICs cost clusters that one has or not.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use ccl_sim::commands::Arguments;
use clap::Parser;

fn main() -> ExitCode {
    let written = match Arguments::parse().run() {
        Ok(text) => io::stdout().lock().write_all(text.as_bytes()).is_ok(),
        Err(why) => {
            // If nobody reads this either, the exit status still tells.
            let _ = writeln!(io::stderr().lock(), "r2ccl-sim: {why}");
            false
        }
    };
    if written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
