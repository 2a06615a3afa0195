//! NVRTC for tests: a package for Python, which holds the library and needs neither a driver nor a
//! GPU.
#![allow(dead_code, reason = "every test uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ccl_kernels::cuda::gpu::Compiler;

/// CUDA 13.0: drivers from branch 580 on take its PTX.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";
/// Where the libraries are in it.
const LIBRARIES: &str = "nvidia/cu13/lib";

/// The folder of NVRTC, downloaded once for all tests; None if that cannot be done.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(install).as_deref()
}

/// The compiler, loaded.
pub(crate) fn compiler() -> Option<Compiler> {
    Some(Compiler::find(Some(folder()?)).expect("what was installed can be loaded"))
}

fn install() -> Option<PathBuf> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let home = parent.join(PACKAGE.replace("==", "-"));
    let libraries = home.join(LIBRARIES);
    if libraries.exists() {
        return Some(libraries);
    }
    let own = parent.join(format!("nvrtc-{}", std::process::id()));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    pip.args(["--disable-pip-version-check", PACKAGE, "--target"]).arg(&own);
    let installed = pip.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        let _ = fs::remove_dir_all(&own);
        return None;
    }
    // Half of it is another build of the same compiler.
    for file in fs::read_dir(own.join(LIBRARIES)).expect("the package has libraries") {
        let path = file.expect("the folder can be read").path();
        if path.to_string_lossy().contains(".alt.") {
            fs::remove_file(path).expect("it was just written");
        }
    }
    // Programs of tests may do this at the same time: one of them is first.
    if fs::rename(&own, &home).is_err() {
        let _ = fs::remove_dir_all(&own);
    }
    libraries.exists().then_some(libraries)
}
