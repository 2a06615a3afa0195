//! Prints `docs/configuration.md`, which is generated from the table of settings.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

fn main() {
    print!("{}", ccl_core::settings::reference());
}
