//! NVRTC and ptxas for tests: packages for Python, which hold them and need neither a driver nor a
//! GPU.
#![allow(dead_code, reason = "every test uses a part of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ccl_kernels::cuda::Module;
use ccl_kernels::cuda::gpu::{Compiler, Target, compile_into};

/// CUDA 13.0: drivers from branch 580 on take its PTX.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";
/// Where the libraries are in it.
const LIBRARIES: &str = "nvidia/cu13/lib";
/// The assembler of the same release, which NVRTC has inside and says nothing of.
const ASSEMBLER_PACKAGE: &str = "nvidia-cuda-nvcc==13.0.88";
/// Where the programs are in it.
const PROGRAMS: &str = "nvidia/cu13/bin";
const ASSEMBLER: &str = "ptxas";

/// The folder of NVRTC, downloaded once for all tests; None if that cannot be done.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Half of it is another build of the same compiler.
    let needed = |name: &str| !name.contains(".alt.");
    FOLDER.get_or_init(|| install(PACKAGE, LIBRARIES, needed)).as_deref()
}

/// The compiler, loaded.
pub(crate) fn compiler() -> Option<Compiler> {
    Some(Compiler::find(Some(folder()?)).expect("what was installed can be loaded"))
}

/// The architecture of the devices of tests.
pub(crate) const ARCHITECTURE: u32 = 90;

/// A folder with PTX of these modules for devices of tests, and perhaps of others; None if there is no compiler.
pub(crate) fn compiled(modules: &[Module]) -> Option<PathBuf> {
    modules.iter().try_for_each(|module| file(*module, ARCHITECTURE).map(drop))?;
    modules_folder()
}

/// PTX of a module for an architecture; None if there is no compiler.
pub(crate) fn ptx(module: Module, architecture: u32) -> Option<String> {
    let path = file(module, architecture)?;
    Some(fs::read_to_string(path).expect("the target folder can be read"))
}

/// The file with PTX of a module, made now or by an earlier test.
fn file(module: Module, architecture: u32) -> Option<PathBuf> {
    let folder = modules_folder()?;
    let beside = |end: &str| folder.join(format!("{}-{architecture}.{end}", module.name()));
    // Other tests may want the same at the same time.
    let lock = File::create(beside("lock")).expect("the target folder can be written");
    lock.lock().expect("nobody keeps it");
    // What it was made of, and where it is.
    let (marker, origin) = (beside("origin"), origin(module));
    let made = fs::read_to_string(&marker).unwrap_or_default();
    if let Some((name, of)) = made.split_once('\n')
        && of == origin
    {
        return Some(folder.join(name));
    }
    let target = Target::Ptx(architecture);
    let paths = compile_into(&folder, &compiler()?, &[module], &[target]).expect("it compiles");
    let [path] = &paths[..] else { panic!("one module for one target: {paths:?}") };
    let name = path.strip_prefix(&folder).expect("it is there").display();
    fs::write(marker, format!("{name}\n{origin}")).expect("the target folder can be written");
    Some(path.clone())
}

fn modules_folder() -> Option<PathBuf> {
    let folder = folder()?.join("modules");
    fs::create_dir_all(&folder).expect("the target folder can be written");
    Some(folder)
}

/// All that compiled kernels of a module depend on: the compiler, how it is called, and their text.
fn origin(module: Module) -> String {
    let calls = include_str!("../../src/cuda/gpu/compile.rs");
    [PACKAGE, calls, &module.source()].join("\n")
}

/// The program ptxas, downloaded in the same way.
pub(crate) fn assembler() -> Option<PathBuf> {
    let programs = install(ASSEMBLER_PACKAGE, PROGRAMS, |name| name == ASSEMBLER)?;
    Some(programs.join(ASSEMBLER))
}

/// The folder of a package, in which only the needed files are kept.
fn install(package: &str, folder: &str, needed: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = package.replace("==", "-");
    let (home, own) = (parent.join(&name), parent.join(format!("{name}-{}", std::process::id())));
    let installed_folder = home.join(folder);
    if installed_folder.exists() {
        return Some(installed_folder);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    pip.args(["--disable-pip-version-check", package, "--target"]).arg(&own);
    let installed = pip.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        let _ = fs::remove_dir_all(&own);
        return None;
    }
    for file in fs::read_dir(own.join(folder)).expect("the package has this folder") {
        let file = file.expect("the folder can be read");
        let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && !needed(&file.file_name().to_string_lossy()) {
            fs::remove_file(file.path()).expect("it was just written");
        }
    }
    // Programs of tests may do this at the same time: one of them is first.
    if fs::rename(&own, &home).is_err() {
        let _ = fs::remove_dir_all(&own);
    }
    installed_folder.exists().then_some(installed_folder)
}
