//! The programs that measure, tested by themselves: what they decide, and that they find what was planted.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::Path;
use std::process::Command;

use support::skip;

/// Tests that are programs of Python without any package.
const TESTS: [&str; 2] = ["measure/test_regression.py", "peers/test_tables.py"];

#[test]
fn programs_that_measure_find_what_was_planted() {
    if let Err(cause) = Command::new("python3").arg("--version").output() {
        return skip(&format!("programs that measure: `python3`: {cause}"));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for test in TESTS {
        // No compiled files are left beside the programs.
        let output = Command::new("python3").arg("-B").arg(folder.join(test)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{test}: {said}");
        assert!(said.contains("\nRan "), "{test} tests nothing: {said}");
    }
}
