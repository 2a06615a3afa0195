//! `r2ccl run` with real processes: ranks find each other, end together, and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::disallowed_methods,
    reason = "the ranks of a test are told by variables what to do"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use ccl::{Communicator, Config, ReduceOp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Set for the ranks that a test starts.
const ROLE: &str = "CCL_CLI_TEST_RANK";

/// The kernel needs much less to end a process.
const DEADLINE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Variables by which this test itself may have been started.
const FOREIGN: [&str; 5] = ["R2CCL_", "RANK", "OMPI_", "PMI_", "SLURM_"];

/// `r2ccl` with the words of `line`, and `behind` behind them.
fn r2ccl(line: &str, behind: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_r2ccl"));
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in names.filter(|name| FOREIGN.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command.args(line.split(' ')).args(behind).stdin(Stdio::null());
    command
}

/// The same, of which every rank is [`child_entry`].
fn sums(line: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    let words = ["--", this.to_str().unwrap(), "--exact", "child_entry", "--nocapture"];
    r2ccl(line, &words).env(ROLE, "1").output().unwrap()
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}\n{err}", output.status)
}

/// A rank; in a plain run of the tests it does nothing.
#[test]
fn child_entry() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let communicator =
        Communicator::from_environment(&Config::from_environment().unwrap()).unwrap();
    let mut sum = [u64::from(communicator.rank().0) + 1];
    communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    let host = std::env::var("R2CCL_HOST_ID").unwrap_or_default();
    let local = std::env::var("LOCAL_RANK").unwrap();
    println!("rank {} local {local} sum {} host {host};", communicator.rank(), sum[0]);
    communicator.finalize().unwrap();
}

#[test]
fn ranks_find_each_other() {
    let output = sums("run -n 3");
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} local {rank} sum 6 host ;")), "{text}");
    }
}

#[test]
fn ranks_are_on_the_hosts_that_they_are_told() {
    let output = sums("run -n 4 --hosts 2 --rails 2 --bind-to none");
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for rank in 0..4 {
        let line = format!("rank {rank} local {rank} sum 10 host host{};", rank / 2);
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn the_first_that_fails_ends_the_others() {
    let script = "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 100";
    let output = r2ccl("run -n 3 -- sh -c", &[script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("rank 1 (process ") && told.contains("ended with status 7"), "{told}");
}

#[test]
fn the_exit_status_tells_what_happened() {
    for (program, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["/no/such/program"], 127),
        (&["/dev/null"], 126),
    ] {
        let output = r2ccl("run -n 1 --", program).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{program:?}: {}", text(&output));
    }
}

/// Rank 0 reads what is typed, and the others read nothing.
#[test]
fn standard_input_is_for_rank_0() {
    let mut command = r2ccl("run -n 2 -- sh -c", &["echo $RANK: $(wc -c)."]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "12345").unwrap();
    let output = command.stdin(file.reopen().unwrap()).output().unwrap();
    let text = text(&output);
    assert!(text.contains("0: 5.") && text.contains("1: 0."), "{text}");
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let mut launcher = r2ccl("run -n 2 -- sh -c", &["echo $$; exec sleep 100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines().take(2);
    let ranks: Vec<_> = lines
        .map(|line| Pid::from_raw(line.unwrap().parse().unwrap()).unwrap())
        .map(|rank| pidfd_open(rank, PidfdFlags::empty()).unwrap())
        .collect();
    assert_eq!(ranks.len(), 2);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    for rank in &ranks {
        let mut ends = [PollFd::new(rank, PollFlags::IN)];
        assert_eq!(poll(&mut ends, Some(&DEADLINE)), Ok(1), "a rank is still there");
    }
}
