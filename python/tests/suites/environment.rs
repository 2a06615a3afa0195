//! A virtual environment with the package in it, below the target folder of cargo.
//!
//! It is made once and used by later runs, until what is in it changes: the packages, or the
//! description of this one. maturin uses what cargo has built, and what maturin has built is installed
//! only where it differs from what is installed.
#![allow(
    clippy::disallowed_methods,
    reason = "a test has deadlines of its own, and waits for processes"
)]

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// What builds the package.
const BUILDER: &str = "maturin>=1.9,<2";
/// As in the group `test` of pyproject.toml.
const PACKAGES: [&str; 4] = ["ml-dtypes>=0.4", "mypy>=1.15", "numpy>=1.26", "pytest>=8"];
/// The time that wheels tell: the first that a zip archive can.
const EPOCH: &str = "315532800";
/// Far more than anything needs, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(3600);
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// Interpreters, in the order in which they are tried.
const INTERPRETERS: [&str; 6] =
    ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];

/// A virtual environment.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) folder: PathBuf,
    /// Its interpreter.
    pub(crate) python: PathBuf,
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) printed: String,
}

/// The environment that builds the package, and the wheel. They are made once for all tests, some of which run at the
/// same time. On failure: what the machine lacks.
pub(crate) fn built() -> Result<(&'static Environment, &'static Path), String> {
    static MADE: OnceLock<Result<(Environment, PathBuf), String>> = OnceLock::new();
    let make = || {
        let environment = Environment::with(&PACKAGES)?;
        let wheel = environment.build();
        Ok((environment, wheel))
    };
    let made = MADE.get_or_init(make).as_ref();
    made.map(|(environment, wheel)| (environment, wheel.as_path())).map_err(Clone::clone)
}

impl Environment {
    /// An environment with these packages. On failure: what the machine lacks.
    fn with(packages: &[&str]) -> Result<Self, String> {
        let environment = Self::named("python", packages);
        let marker = environment.folder.join("complete");
        if marker.is_file() {
            return Ok(environment);
        }
        let interpreter = interpreter()?;
        if environment.folder.exists() {
            fs::remove_dir_all(&environment.folder).expect("remove an unfinished environment");
        }
        let made = finish(Command::new(interpreter).args(["-m", "venv"]).arg(&environment.folder));
        if !made.status.success() {
            return Err(format!("no virtual environment can be made: {}", made.last_line()));
        }
        environment.download(packages)?;
        fs::write(marker, "").expect("write the marker");
        Ok(environment)
    }

    /// The environment of a name, whose folder tells what is in it.
    pub(crate) fn named(name: &str, packages: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        let description = package_folder().join("pyproject.toml");
        fs::read(description).expect("read pyproject.toml").hash(&mut hasher);
        packages.hash(&mut hasher);
        let name = format!("{name}-{:016x}", hasher.finish());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let python = folder.join("bin/python");
        Self { folder, python }
    }

    /// Installs packages of others, and what builds this one.
    fn download(&self, packages: &[&str]) -> Result<(), String> {
        let mut pip = self.pip();
        let installed = finish(pip.arg(BUILDER).args(packages));
        match installed.status.success() {
            true => Ok(()),
            false => Err(format!("pip installs no packages: {}", installed.last_line())),
        }
    }

    /// Installs a wheel of the package, unless it is the one that is installed.
    pub(crate) fn install(&self, wheel: &Path) {
        let installed = self.folder.join("installed.whl");
        let new = fs::read(wheel).expect("read the wheel");
        if fs::read(&installed).is_ok_and(|old| old == new) {
            return;
        }
        succeeded(self.pip().args(["--no-index", "--no-deps", "--force-reinstall"]).arg(wheel));
        fs::write(&installed, new).expect("keep the wheel");
    }

    /// Builds the wheel, in the profile and in the target folder of this test.
    fn build(&self) -> PathBuf {
        let folder = self.folder.join("wheels");
        // A wheel of a run that was ended is not this one's.
        let _there_may_be_none = fs::remove_dir_all(&folder);
        let mut maturin = Command::new(self.folder.join("bin/maturin"));
        maturin.args(["build", "--profile", profile(), "--compression-method", "stored"]);
        maturin.arg("--manifest-path").arg(package_folder().join("Cargo.toml"));
        maturin.arg("--interpreter").arg(&self.python).arg("--out").arg(&folder);
        maturin.env("CARGO_TARGET_DIR", target_folder());
        // Else its bill of materials tells the time, and no wheel is like another.
        maturin.env("SOURCE_DATE_EPOCH", EPOCH);
        // As in .cargo/config.toml, so that nothing is built again.
        maturin.env("PYO3_CONFIG_FILE", package_folder().join("pyo3.txt"));
        succeeded(&mut maturin);
        let mut wheels = fs::read_dir(&folder).expect("read the folder of wheels");
        wheels.next().expect("a wheel").expect("read the folder of wheels").path()
    }

    /// Runs pytest on folders or files with these variables, and lets it leave nothing there.
    pub(crate) fn pytest(&self, tests: &[PathBuf], variables: &[(&str, PathBuf)]) {
        let mut pytest = Command::new(&self.python);
        pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=-ra"]);
        pytest.args(tests).current_dir(&self.folder).env("PYTHONDONTWRITEBYTECODE", "1");
        // Not in the home of whoever runs the tests.
        pytest.env("R2CCL_TORCH_CACHE", self.folder.join("compiled"));
        pytest.envs(variables.iter().map(|(name, value)| (name, value)));
        // As "SKIPPED [1] FILE:LINE: REASON".
        let ended = succeeded(&mut pytest);
        let skipped = ended.printed.lines().filter(|line| line.starts_with("SKIPPED ["));
        skipped.filter_map(|line| line.split_once(": ").map(|(_, reason)| reason)).for_each(skip);
    }

    fn pip(&self) -> Command {
        let mut pip = Command::new(&self.python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip
    }
}

impl Ended {
    /// The line that usually says why.
    pub(crate) fn last_line(&self) -> &str {
        self.printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason")
    }
}

/// The folder with `pyproject.toml`.
pub(crate) fn package_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files with tests in a folder of the package, in order.
pub(crate) fn tests_in(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(package_folder().join(folder)).expect("read the folder of tests");
    let paths = files.map(|file| file.expect("read the folder of tests").path());
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("test_") && name.ends_with(".py")
    };
    let mut tests: Vec<PathBuf> = paths.filter(is_test).collect();
    tests.sort();
    tests
}

/// That of this test.
fn target_folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder")
}

/// That of this test, as cargo and maturin call it.
fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "release" }
}

/// The command `r2ccl`, built in the profile and in the target folder of this test.
pub(crate) fn launcher() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--profile", profile(), "--package", "ccl-cli"]);
    cargo.current_dir(package_folder()).env("CARGO_TARGET_DIR", target_folder());
    succeeded(&mut cargo);
    let folder = if cfg!(debug_assertions) { "debug" } else { "release" };
    target_folder().join(folder).join("r2ccl")
}

/// A folder with the imitation of the driver, under its names.
pub(crate) fn driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-driver-of-python");
    ccl_fakecuda::install(&folder).expect("the driver was built");
    folder
}

/// Writes past the harness, which hides what tests that pass print. See docs/testing.md.
pub(crate) fn skip(what: &str) {
    let line = format!("skip: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("somebody listens");
}

/// An interpreter that is new enough and can make virtual environments.
pub(crate) fn interpreter() -> Result<&'static str, String> {
    let check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
    let works = |name: &&str| {
        let ended = Command::new(name).args(["-c", check]).output();
        ended.is_ok_and(|output| output.status.success())
    };
    let found = INTERPRETERS.into_iter().find(works);
    found.ok_or_else(|| "there is no Python from 3.10 on with venv and ensurepip".to_owned())
}

/// Runs a command that must succeed.
pub(crate) fn succeeded(command: &mut Command) -> Ended {
    let ended = finish(command);
    assert!(ended.status.success(), "{command:?}: {}\n{}", ended.status, ended.printed);
    ended
}

/// Runs a command to its end, or ends it with everything that it has started.
pub(crate) fn finish(command: &mut Command) -> Ended {
    let output = tempfile::NamedTempFile::new().expect("a temporary file");
    let writer = |file: &File| file.try_clone().expect("a second handle of the file");
    command.stdout(writer(output.as_file())).stderr(writer(output.as_file()));
    let mut child = command.process_group(0).spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error}");
    });
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for the command") {
            break status;
        }
        if Instant::now() > end {
            let group = Pid::from_child(&child);
            kill_process_group(group, Signal::KILL).expect("end the command");
            break child.wait().expect("wait for the command");
        }
        std::thread::sleep(POLL_PERIOD);
    };
    let printed = fs::read(output.path()).expect("read what the command printed");
    Ended { status, printed: String::from_utf8_lossy(&printed).into_owned() }
}
