//! Ranks as processes that find the imitation of the driver.

use std::env;
use std::path::PathBuf;
use std::process::{self, Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use ccl::UniqueId;

use super::{config, kernels};

/// Set in the programs that find the driver: rank, number of ranks, and the id in hexadecimal digits.
const INSIDE: &str = "CCL_TEST_CUDA_RANK";

/// Set in those that have compiled kernels: the folder.
pub(super) const KERNELS: &str = "CCL_TEST_CUDA_KERNELS";

/// No test takes as long.
const DEADLINE: Duration = Duration::from_secs(200);

/// Does it in a process per rank; those of the ranks in `lost` fail.
pub(super) fn processes(test: &str, size: u32, lost: &[u32], act: impl FnOnce(u32, u32, UniqueId)) {
    in_processes(test, size, lost, (None, &[]), act);
}

/// As [`processes`], with compiled kernels; nothing if there are none.
pub(super) fn processes_with(
    test: &str,
    size: u32,
    lost: &[u32],
    act: impl FnOnce(u32, u32, UniqueId),
) {
    processes_where(test, size, lost, &[], act);
}

/// As [`processes_with`], where the environment says this.
pub(super) fn processes_where(
    test: &str,
    size: u32,
    lost: &[u32],
    variables: &[(&str, &str)],
    act: impl FnOnce(u32, u32, UniqueId),
) {
    // Inside, they have been made.
    let folder = if env::var_os(INSIDE).is_some() { None } else { kernels::folder() };
    if folder.is_some() || env::var_os(INSIDE).is_some() {
        in_processes(test, size, lost, (folder, variables), act);
    }
}

/// Does it in a process of its own with compiled kernels, for every rank in a thread.
pub(super) fn threads_with(test: &str, size: u32, act: impl Fn(u32, &UniqueId) + Sync) {
    processes_with(test, 1, &[], |_, _, _| super::in_threads(size, act));
}

fn in_processes(
    test: &str,
    size: u32,
    lost: &[u32],
    (folder, variables): (Option<PathBuf>, &[(&str, &str)]),
    act: impl FnOnce(u32, u32, UniqueId),
) {
    if let Some((rank, size, id)) = inside() {
        thread::spawn(end_at_the_deadline);
        return act(rank, size, id);
    }
    let id = UniqueId::create(&config(4096).settings).unwrap();
    let digits: String = id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let start = |rank| {
        let mut command = start(test);
        command.envs(variables.iter().copied());
        if let Some(folder) = &folder {
            command.env(KERNELS, folder);
        }
        command.env(INSIDE, format!("{rank} {size} {digits}")).spawn().unwrap()
    };
    let children: Vec<Child> = (0..size).map(start).collect();
    let ends: Vec<bool> =
        children.into_iter().map(|mut child| child.wait().unwrap().success()).collect();
    let expected: Vec<bool> = (0..size).map(|rank| !lost.contains(&rank)).collect();
    assert_eq!(ends, expected, "{test}: which ranks succeed");
}

fn inside() -> Option<(u32, u32, UniqueId)> {
    let told = env::var(INSIDE).ok()?;
    let mut words = told.split(' ');
    let mut number = || words.next().unwrap().parse().unwrap();
    let (rank, size) = (number(), number());
    let digits = words.next().unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..digits.len() / 2).map(byte).collect();
    Some((rank, size, UniqueId::from_bytes(bytes.as_slice().try_into().unwrap()).unwrap()))
}

/// Ends a program that hangs.
fn end_at_the_deadline() {
    let begin = Instant::now();
    while let Some(left) = DEADLINE.checked_sub(begin.elapsed()) {
        thread::park_timeout(left);
    }
    // Its parent names the test.
    process::abort();
}

/// This program again, with that test only.
fn start(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", driver()).env("FAKECUDA_DEVICES", "2");
    command
}

/// A folder in which the driver has its name.
fn driver() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-driver-of-ccl");
    ccl_fakecuda::install(&folder).unwrap();
    folder
}
