//! Other people's launchers start the benchmark, which finds out by itself which rank it is.
//!
//! Open MPI, MPICH and torchrun are used where they are installed; what is not there is counted and
//! reported. `R2CCL_TEST_TORCHRUN` names a `torchrun` that is not on the search path.
#![allow(
    clippy::disallowed_methods,
    reason = "deadlines of processes and the search path have nothing to do with the library"
)]

mod benchmarks;

use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use benchmarks::ALL_REDUCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

/// No launcher takes nearly as long, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Seconds that the processes of a launcher have to follow it.
const FAREWELL: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

const RANKS: usize = 4;
const SIZES: [&str; 8] = ["-b", "8", "-e", "1M", "-f", "16", "-n", "3"];

/// Variables by which this test itself may have been started.
const RANK_VARIABLES: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// The variable that tells the processes of a launch from all others.
const MARKER: &str = "CCL_TESTS_LAUNCH";

/// A program that starts ranks.
#[derive(Debug)]
struct Launcher {
    name: &'static str,
    program: Option<PathBuf>,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// What is left of a launch is killed with this value.
#[derive(Debug)]
struct Marked(String);

#[test]
fn ranks_of_every_launcher_find_each_other() {
    let launchers = [open_mpi(), mpich(), mpich_with_a_script(), torchrun()];
    let (found, missing): (Vec<_>, Vec<_>) =
        launchers.iter().partition(|launcher| launcher.program.is_some());
    for launcher in &found {
        launch(launcher);
        report(&format!("launchers: {}: {RANKS} ranks, nothing wrong", launcher.name));
    }
    for launcher in &missing {
        report(&format!("skip: {}: it is not installed", launcher.name));
    }
}

fn open_mpi() -> Launcher {
    Launcher {
        name: "Open MPI",
        program: on_path("mpirun.openmpi").or_else(|| mpirun_of("Open MPI")),
        arguments: &["--oversubscribe", "-n", "4"],
        variables: &[("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")],
    }
}

fn mpich() -> Launcher {
    Launcher {
        name: "MPICH",
        program: on_path("mpirun.mpich").or_else(|| mpirun_of("HYDRA")),
        arguments: &["-n", "4"],
        variables: &[],
    }
}

/// Each rank has a shell of its own between itself and the launcher.
fn mpich_with_a_script() -> Launcher {
    let arguments = &["-n", "4", "sh", "-c", "\"$@\"; exit $?", "sh"];
    Launcher { name: "MPICH with a script", arguments, ..mpich() }
}

/// Standalone: it meets its ranks at a free port instead of one that others may use.
fn torchrun() -> Launcher {
    let given = env::var_os("R2CCL_TEST_TORCHRUN").map(PathBuf::from);
    Launcher {
        name: "torchrun",
        program: given.or_else(|| on_path("torchrun")),
        arguments: &["--standalone", "--nproc-per-node", "4", "--no-python"],
        variables: &[],
    }
}

/// The `mpirun` without a vendor's name, if it is of the one that its version names.
fn mpirun_of(vendor: &str) -> Option<PathBuf> {
    let program = on_path("mpirun")?;
    let output = Command::new(&program).arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).contains(vendor).then_some(program)
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Runs the benchmark and reads its report.
fn launch(launcher: &Launcher) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("report.json");
    let marked = Marked(format!("{MARKER}={}-{}", std::process::id(), launcher.name));
    let output = run(launcher, &path, &marked);
    let said = format!(
        "{}: {}\n{}{}",
        launcher.name,
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}: {said}"));
    check(&serde_json::from_str(&text).expect("a report in JSON"), &said);
    assert!(marked.all_end(), "processes live on: {said}");
}

/// Four ranks took part, every result was checked and none was wrong.
fn check(report: &Value, said: &str) {
    let ranks = report["config"]["devices"].as_array().map(Vec::len);
    assert_eq!(ranks, Some(RANKS), "{said}");
    let rows = report["results"].as_array().expect("rows");
    assert_eq!(rows.len(), 5, "{said}");
    for row in rows {
        for form in ["out_of_place", "in_place"] {
            assert_eq!(row[form]["nwrong"], 0, "{said}");
        }
    }
    assert_eq!(report["out_of_bounds"]["count"], 0, "{said}");
}

/// Starts the launcher and waits for its end, within the deadline.
fn run(launcher: &Launcher, report: &Path, marked: &Marked) -> Output {
    let mut command = Command::new(launcher.program.as_ref().expect("it was found"));
    command.args(launcher.arguments).arg(ALL_REDUCE).args(SIZES).arg("-J").arg(report);
    RANK_VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    let (name, value) = marked.0.split_once('=').expect("a variable");
    command.envs(launcher.variables.iter().copied()).env(name, value);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the launcher can be started");
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the launcher, which is killed if it is late.
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(DEADLINE) {
        Ok(output) => output.expect("the output of the launcher"),
        Err(_) => panic!("{} does not end", launcher.name),
    }
}

/// Writes past the harness, which hides what tests that pass print.
fn report(line: &str) {
    let line = format!("{line}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("somebody listens");
}

impl Marked {
    /// Whether all processes end by themselves; helpers of launchers end a little later than they.
    fn all_end(&self) -> bool {
        self.processes().into_iter().all(|process| {
            // What cannot be opened has ended since then.
            let Ok(open) = pidfd_open(process, PidfdFlags::empty()) else { return true };
            let mut ends = [PollFd::new(&open, PollFlags::IN)];
            poll(&mut ends, Some(&FAREWELL)).is_ok_and(|ended| ended == 1)
        })
    }

    /// The processes that have the variable.
    fn processes(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").expect("a system with /proc").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|number| self.has(*number)).filter_map(Pid::from_raw).collect()
    }

    fn has(&self, number: i32) -> bool {
        // A process that has ended since then has no environment.
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == self.0.as_bytes())
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        for process in self.processes() {
            // It may have ended in the meantime.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}
