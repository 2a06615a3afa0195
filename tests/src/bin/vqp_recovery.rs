//! `vqp_recovery`: see [`ccl_tests::vqp::recovery`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::vqp::recovery::main()
}
