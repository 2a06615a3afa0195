//! `vqp_verbs`: see [`ccl_tests::vqp::verbs`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::vqp::verbs::main()
}
