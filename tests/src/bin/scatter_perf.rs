//! `scatter_perf`: see [`ccl_tests::catalogue::SCATTER`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::SCATTER)
}
