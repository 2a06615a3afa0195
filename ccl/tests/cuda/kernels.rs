//! PTX of all kernels, made once for all tests that need it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Once;

use ccl_kernels::cuda::Module;
use ccl_kernels::cuda::gpu::{Target, compile_into};

use super::{nvrtc, skip};

/// A folder with PTX of all kernels; None, reported, if there is no compiler.
pub(super) fn folder() -> Option<PathBuf> {
    let made = make();
    if made.is_none() {
        static REPORTED: Once = Once::new();
        let missing = "collectives without the host: pip cannot install NVRTC";
        REPORTED.call_once(|| skip(missing));
    }
    made
}

fn make() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels-of-ccl");
    fs::create_dir_all(&folder).unwrap();
    // Other tests may want the same at the same time.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let marker = |module: &Module| folder.join(format!("{}.text", module.name()));
    let is_old = |module: &Module| fs::read_to_string(marker(module)).ok() != Some(module.source());
    let old: Vec<Module> = Module::all().into_iter().filter(is_old).collect();
    if !old.is_empty() {
        let compiler = nvrtc::compiler()?;
        compile_into(&folder, &compiler, &old, &[Target::Ptx(90)]).unwrap();
        old.iter().for_each(|module| fs::write(marker(module), module.source()).unwrap());
    }
    Some(folder)
}
