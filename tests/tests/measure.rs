//! The programs that measure, tested by themselves: that they start, what they decide, and that they find what was planted.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::program::{Finished, Running};
use support::skip;

/// Tests that are programs of Python without any package.
const TESTS: [&str; 2] = ["measure/test_regression.py", "peers/test_tables.py"];

/// Packages of Python without which a program cannot start.
const PACKAGES: [&str; 2] = ["matplotlib", "torch"];

/// Runs a program of this folder; `None`: there is no Python, which is reported.
fn python(program: &Path, arguments: &[&str]) -> Option<Finished> {
    // No compiled files are left beside the programs.
    match Running::try_start(Command::new("python3").arg("-B").arg(program).args(arguments)) {
        Ok(running) => Some(running.finish()),
        Err(cause) => {
            skip(&format!("programs that measure: `python3`: {cause}"));
            None
        }
    }
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn programs_that_measure_find_what_was_planted() {
    for test in TESTS {
        let Some(ended) = python(&folder().join(test), &[]) else { return };
        let said = &ended.errors;
        assert!(ended.status.success(), "{test}: {said}");
        assert!(said.contains("\nRan "), "{test} tests nothing: {said}");
    }
}

/// What they import from each other is there, and their options can be read. Modules print nothing.
#[test]
fn programs_that_measure_start() {
    let of =
        |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = ["measure", "peers"].into_iter().flat_map(|name| of(folder().join(name)));
    for program in files.filter(|file| file.extension().is_some_and(|end| end == "py")) {
        let Some(ended) = python(&program, &["--help"]) else { return };
        let Finished { output: said, errors: complaint, .. } = &ended;
        let lacks = |package: &str| complaint.contains(&format!("No module named '{package}'"));
        if let Some(package) = PACKAGES.iter().find(|package| lacks(package)) {
            let name = program.file_name().unwrap().display();
            skip(&format!("{name}: Python has no {package}"));
            continue;
        }
        assert!(ended.status.success(), "{}: {complaint}", program.display());
        let is_program = std::fs::read_to_string(&program).unwrap().contains("__main__");
        assert_eq!(said.starts_with("usage: "), is_program, "{}: {said}", program.display());
    }
}
