//! `vqp_write_lat`: see [`ccl_tests::vqp::plan::Test::WriteLatency`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::vqp::main(ccl_tests::vqp::plan::Test::WriteLatency)
}
