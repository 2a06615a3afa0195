//! The tests that need no PyTorch.

use std::fs;
use std::path::PathBuf;

use crate::environment::{built, driver, package_folder, skip};

#[test]
fn the_package_passes_its_tests() {
    let (environment, wheel) = match built() {
        Ok(built) => built,
        Err(missing) => return skip(&format!("the Python package: {missing}")),
    };
    environment.install(wheel);
    environment.pytest(&tests(), &[("CCL_TEST_CUDA_DRIVER", driver())]);
}

/// The tests that need no other package; those of the backend for PyTorch are in a folder below.
fn tests() -> Vec<PathBuf> {
    let files = fs::read_dir(package_folder().join("tests")).expect("read the folder of tests");
    let paths = files.map(|file| file.expect("read the folder of tests").path());
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("test_") && name.ends_with(".py")
    };
    let mut tests: Vec<PathBuf> = paths.filter(is_test).collect();
    tests.sort();
    tests
}
