//! PTX of all kernels, made once for all tests that need it.

use std::path::PathBuf;
use std::sync::Once;

use ccl_kernels::cuda::Module;

use super::{nvrtc, skip};

/// A folder with PTX of all kernels; None, reported, if there is no compiler.
pub(super) fn folder() -> Option<PathBuf> {
    let made = nvrtc::compiled(&Module::all());
    if made.is_none() {
        static REPORTED: Once = Once::new();
        let missing = "collectives without the host: pip cannot install NVRTC";
        REPORTED.call_once(|| skip(missing));
    }
    made
}
