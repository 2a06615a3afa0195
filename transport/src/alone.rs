//! For tests that change or count what belongs to the process, so that each needs one of its own.

use std::process::Command;

/// Whether a test has this process to itself. If not, it runs the test, which has this name, in one of its own.
///
/// # Panics
/// The test fails there, or cannot be run there.
#[must_use]
pub fn is_alone(name: &str) -> bool {
    let alone = ["--exact", name, "--test-threads=1"];
    let is_alone = alone.iter().all(|wanted| std::env::args().any(|argument| argument == *wanted));
    if !is_alone {
        let run = |program| Command::new(program).args(alone).output();
        let child = match std::env::current_exe().and_then(run) {
            Ok(child) => child,
            Err(cause) => panic!("{name} cannot have a process of its own: {cause}"),
        };
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
    is_alone
}
