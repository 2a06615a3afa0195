//! `all_reduce_perf`: see [`ccl_tests::catalogue::ALL_REDUCE`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::ALL_REDUCE)
}
