//! Runs the tests of the backend for PyTorch, in the smallest PyTorch that can be had.

mod support;

use std::process::Command;

use support::{Environment, PACKAGES, finish, interpreter, package_folder, skip};

/// What `setup_torch.py` ends with where PyTorch cannot be had.
const SKIPPED: i32 = 77;

#[test]
fn the_backend_passes_its_tests() {
    let environment = match environment() {
        Ok(environment) => environment,
        Err(missing) => return skip(&format!("the backend for PyTorch: {missing}")),
    };
    let builder = match Environment::with(&PACKAGES) {
        Ok(builder) => builder,
        Err(missing) => return skip(&format!("the backend for PyTorch: {missing}")),
    };
    environment.install(&builder.build());
    environment.pytest(&[package_folder().join("tests/pytorch")]);
}

/// An environment with PyTorch. On failure: what the machine lacks.
fn environment() -> Result<Environment, String> {
    let environment = Environment::named("pytorch", &[]);
    let script = package_folder().join("tests/pytorch/setup_torch.py");
    let ended = finish(Command::new(interpreter()?).arg(script).arg(&environment.folder));
    match ended.status.code() {
        Some(0) => Ok(environment),
        Some(SKIPPED) => Err(ended.last_line().trim_start_matches("skip: ").to_owned()),
        _ => panic!("setup_torch.py: {}\n{}", ended.status, ended.printed),
    }
}
