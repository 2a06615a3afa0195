//! `testbed`: see [`ccl_tests::testbed`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::testbed::main()
}
