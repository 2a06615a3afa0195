//! Builds C programs against the shared library of this build.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with the library under its names, and room for programs.
#[derive(Debug)]
pub(crate) struct Workshop {
    folder: TempDir,
    /// The library.
    pub(crate) library: PathBuf,
}

impl Workshop {
    /// A fresh folder with the library that cargo built for this test.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name = concat!("libr2ccl.so.", env!("CARGO_PKG_VERSION_MAJOR"));
        let library = folder.path().join(name);
        fs::copy(shared_library(), &library).expect("copy the library");
        Self { folder, library }
    }

    /// Compiles a C program, without a warning, and links it with the library.
    pub(crate) fn build(&self, source: &Path) -> PathBuf {
        let program = self.folder.path().join(source.file_stem().expect("a name"));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]);
        compiler.arg("-I").arg(include_folder()).arg(source).arg("-o").arg(&program);
        compiler.arg(&self.library).args(["-lpthread", "-ldl"]);
        compiler.arg(format!("-Wl,-rpath,{}", self.folder.path().display()));
        succeeded(&mut compiler);
        program
    }
}

/// Runs a command that must succeed; what it printed.
pub(crate) fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    check(&format!("{command:?}"), &output)
}

/// What a program printed, if it succeeded.
pub(crate) fn check(what: &str, output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{printed}{complaints}", output.status);
    printed
}

/// Writes past the harness, which hides what tests that pass print. See docs/testing.md.
#[allow(dead_code, reason = "not every test executable skips something")]
pub(crate) fn skip(what: &str) {
    let line = format!("skip: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("somebody listens");
}

/// The folder to give to `-I`.
pub(crate) fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The newest `libr2ccl.so` where cargo puts libraries: beside this test, or one folder above.
fn shared_library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let folders = test.ancestors().skip(1).take(2);
    let libraries = folders.map(|folder| folder.join("libr2ccl.so"));
    let age = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    let newest = libraries.filter(|path| path.is_file()).max_by_key(age);
    newest.unwrap_or_else(|| panic!("cargo built no libr2ccl.so beside {}", test.display()))
}
