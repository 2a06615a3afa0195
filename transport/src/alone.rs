//! Tests that change or count what belongs to the process, so that each needs one of its own.

use std::process::Command;

/// Whether a test has this process to itself. If not, it runs the test, which has this name, in one of its own.
pub(crate) fn is_alone(name: &str) -> bool {
    let alone = ["--exact", name, "--test-threads=1"];
    let is_alone = alone.iter().all(|wanted| std::env::args().any(|argument| argument == *wanted));
    if !is_alone {
        let child = Command::new(std::env::current_exe().unwrap()).args(alone).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
    is_alone
}
