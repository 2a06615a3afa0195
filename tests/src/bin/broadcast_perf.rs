//! `broadcast_perf`: see [`ccl_tests::catalogue::BROADCAST`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::BROADCAST)
}
