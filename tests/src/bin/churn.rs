//! `churn`: see [`ccl_tests::churn`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::churn::main()
}
