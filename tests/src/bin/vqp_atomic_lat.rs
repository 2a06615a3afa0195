//! `vqp_atomic_lat`: see [`ccl_tests::vqp::plan::Test::AtomicLatency`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::vqp::main(ccl_tests::vqp::plan::Test::AtomicLatency)
}
