//! The tests of the backend for PyTorch, in the smallest PyTorch that can be had.

use std::process::Command;
use std::sync::OnceLock;

use crate::environment::{
    Environment, built, driver, finish, interpreter, launcher, package_folder, skip, succeeded,
    tests_in,
};
use crate::kernels;

/// What `setup_torch.py` ends with where PyTorch cannot be had.
const SKIPPED: i32 = 77;

/// In two parts, of which one computes while the other waits for its ranks.
#[test]
fn the_backend_passes_the_first_half_of_its_tests() {
    test_backend(|file, files| file < files / 2);
}

#[test]
fn the_backend_passes_the_second_half_of_its_tests() {
    test_backend(|file, files| file >= files / 2);
}

/// Runs those files with tests whose place among so many is wanted.
fn test_backend(is_wanted: impl Fn(usize, usize) -> bool) {
    let Some(environment) = installed() else { return };
    let files = tests_in("tests/pytorch");
    let count = files.len();
    let files = files.into_iter().enumerate().filter(|(place, _)| is_wanted(*place, count));
    let files: Vec<_> = files.map(|(_, file)| file).collect();
    environment.pytest(&files, &[("CCL_TEST_LAUNCHER", launcher())]);
}

/// With devices that are interpreters, a runtime of CUDA that is small, and kernels where they can be compiled.
#[test]
fn the_backend_passes_its_tests_on_devices() {
    let Some(environment) = installed() else { return };
    let tests = package_folder().join("tests/pytorch_cuda");
    let runtime = environment.folder.join("runtime");
    succeeded(Command::new(&environment.python).arg(tests.join("cudart.py")).arg(&runtime));
    let mut variables = vec![
        ("LD_PRELOAD", runtime.join("libcudart.so.13")),
        ("LD_LIBRARY_PATH", driver()),
        ("FAKECUDA_DEVICES", "2".into()),
    ];
    variables.extend(kernels::folder().map(|folder| ("CCL_TEST_CUDA_KERNELS", folder)));
    environment.pytest(&[tests], &variables);
}

/// An environment with PyTorch and the package; None, reported, if it cannot be had. It is made once
/// for all tests: to install the package again would take its files away from a test that runs.
fn installed() -> Option<&'static Environment> {
    static MADE: OnceLock<Result<Environment, String>> = OnceLock::new();
    let environment = MADE.get_or_init(|| {
        let environment = environment()?;
        environment.install(built()?.1);
        Ok(environment)
    });
    let report = |missing: &String| skip(&format!("the backend for PyTorch: {missing}"));
    environment.as_ref().inspect_err(|missing| report(missing)).ok()
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
