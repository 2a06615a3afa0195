//! `sendrecv_perf`: see [`ccl_tests::catalogue::SENDRECV`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::main(&ccl_tests::catalogue::SENDRECV)
}
