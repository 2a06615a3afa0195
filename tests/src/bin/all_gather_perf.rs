//! `all_gather_perf`: see [`ccl_tests::catalogue::ALL_GATHER`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::ALL_GATHER)
}
