//! `reduce_scatter_perf`: see [`ccl_tests::catalogue::REDUCE_SCATTER`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::REDUCE_SCATTER)
}
