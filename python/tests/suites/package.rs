//! The tests that need no PyTorch; those of the backend for it are in folders below.

use crate::environment::{built, driver, skip, tests_in};

#[test]
fn the_package_passes_its_tests() {
    let (environment, wheel) = match built() {
        Ok(built) => built,
        Err(missing) => return skip(&format!("the Python package: {missing}")),
    };
    environment.install(wheel);
    environment.pytest(&tests_in("tests"), &[("CCL_TEST_CUDA_DRIVER", driver())]);
}
