//! `r2ccl run` with real processes: ranks find each other, end together, and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::disallowed_methods,
    reason = "the ranks of a test are told by variables what to do"
)]

mod support;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;

use ccl::{Communicator, Config, Ongoing, ReduceOp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use support::{Finished, Running};

/// Set for the ranks that a test starts; to what they do.
const ROLE: &str = "CCL_CLI_TEST_RANK";
/// They add up their numbers.
const SUM: &str = "sum";
/// Rank 1 leaves, and the others find out.
const LEAVE: &str = "leave";
/// Rank 0, where all have met, leaves, and the others go on.
const GO_ON: &str = "go on";

/// The kernel needs much less to end a process.
const DEADLINE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Variables by which this test itself may have been started.
const FOREIGN: [&str; 5] = ["R2CCL_", "RANK", "OMPI_", "PMI_", "SLURM_"];

const R2CCL: &str = env!("CARGO_BIN_EXE_r2ccl");

/// A program that ignores no signals, and that this test was not started for.
fn program(words: &[&str]) -> Command {
    let mut command = Command::new("env");
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in names.filter(|name| FOREIGN.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command.arg("--default-signal").args(words).stdin(Stdio::null());
    command
}

/// `r2ccl` with the words of `line`, and `behind` behind them.
fn r2ccl(line: &str, behind: &[&str]) -> Command {
    let mut command = program(&[R2CCL]);
    command.args(line.split(' ')).args(behind);
    command
}

/// The same, of which every rank is [`child_entry`].
fn ranks(line: &str, role: &str) -> Finished {
    let this = std::env::current_exe().unwrap();
    let words = ["--", this.to_str().unwrap(), "--exact", "child_entry", "--nocapture"];
    finished(r2ccl(line, &words).env(ROLE, role))
}

fn finished(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// A shell that runs `script`, in which `$0` is `r2ccl`.
fn shell(script: &str) -> Command {
    program(&["sh", "-c", script, R2CCL])
}

/// A terminal, and where somebody types.
fn terminal() -> (OwnedFd, OwnedFd) {
    let typist = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&typist).unwrap();
    unlockpt(&typist).unwrap();
    let name = ptsname(&typist, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    (rustix::fs::open(name, flags, Mode::empty()).unwrap(), typist)
}

fn text(Finished { status, output, errors }: &Finished) -> String {
    format!("{status}\n{output}\n{errors}")
}

/// A rank; in a plain run of the tests it does nothing.
#[test]
fn each_of_its_lines_is_written_as_one() {
    for (line, what) in [("run -n 2 --no-kill --", "false"), ("run -n 1 --", "/no/program")] {
        // It keeps apart what is written at once.
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut command = r2ccl(line, &[what]);
        let status = command.stdout(Stdio::null()).stderr(OwnedFd::from(far)).status().unwrap();
        assert!(!status.success(), "{line} {what}");
        let mut bytes = [0; 4096];
        let mut lines = 0;
        while let Ok(written @ 1..) = near.recv(&mut bytes) {
            let line = String::from_utf8_lossy(&bytes[..written]);
            assert!(line.starts_with("r2ccl: ") && line.ends_with('\n'), "a part: {line:?}");
            lines += 1;
        }
        assert!(lines > 0, "{line} {what}");
    }
}

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let communicator =
        Communicator::from_environment(&Config::from_environment().unwrap()).unwrap();
    let rank = communicator.rank();
    if role == LEAVE && rank.0 == 1 {
        std::process::exit(7);
    }
    if role == GO_ON {
        // Nobody goes on before all have a communicator. Who has gone may be found before this has ended.
        let met = communicator.barrier();
        if rank.0 == 0 {
            met.unwrap();
            std::process::exit(7);
        }
    }
    let mut sum = [u64::from(rank.0) + 1];
    if role == GO_ON {
        communicator.barrier().unwrap_err();
        let left = communicator.shrink(&communicator.lost_ranks(), Ongoing::Finish, None).unwrap();
        left.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
        println!("rank {rank} goes on as {} of {}, sum {};", left.rank(), left.size(), sum[0]);
        return left.finalize().unwrap();
    }
    if let Err(error) = communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum) {
        println!("rank {rank} cannot go on: {error};");
        // Whoever is found first to have failed decides on the status: that is rank 1.
        std::process::exit(0);
    }
    let host = std::env::var("R2CCL_HOST_ID").unwrap_or_default();
    let local = std::env::var("LOCAL_RANK").unwrap();
    println!("rank {rank} local {local} sum {} host {host};", sum[0]);
    communicator.finalize().unwrap();
}

#[test]
fn ranks_find_each_other() {
    let run = ranks("run -n 3", SUM);
    let text = text(&run);
    assert!(run.status.success(), "{text}");
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} local {rank} sum 6 host ;")), "{text}");
    }
}

#[test]
fn ranks_are_on_the_hosts_that_they_are_told() {
    let run = ranks("run -n 4 --hosts 2 --rails 2 --bind-to none", SUM);
    let text = text(&run);
    assert!(run.status.success(), "{text}");
    for rank in 0..4 {
        let line = format!("rank {rank} local {rank} sum 10 host host{};", rank / 2);
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn the_first_that_fails_ends_the_others() {
    let script = "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 100";
    let run = finished(&mut r2ccl("run -n 3 -- sh -c", &[script]));
    assert_eq!(run.status.code(), Some(7), "{}", text(&run));
    let told = &run.errors;
    assert!(told.contains("rank 1 (process ") && told.contains("ended with status 7"), "{told}");
}

/// They hold the pipes of this test: it would have to wait for them.
#[test]
fn what_ranks_have_started_ends_with_them() {
    for (ranks, script, status) in [
        ("2", "if [ $RANK = 1 ]; then exit 7; fi; sleep 100; true", 7),
        (
            "2",
            "if [ $RANK = 1 ]; then sleep 100 & kill -KILL $$; fi; setsid sleep 100; true",
            128 + 9,
        ),
        ("1", "sleep 100 &", 0),
        ("1", "(trap '' TERM; sleep 100; true) &", 0),
    ] {
        let run = finished(&mut r2ccl("run -n", &[ranks, "--", "sh", "-c", script]));
        assert_eq!(run.status.code(), Some(status), "{script}: {}", text(&run));
    }
}

#[test]
fn the_others_may_tell_why_they_cannot_go_on() {
    let run = ranks("run -n 3", LEAVE);
    let text = text(&run);
    assert_eq!(run.status.code(), Some(7), "{text}");
    for rank in [0, 2] {
        assert!(text.contains(&format!("rank {rank} cannot go on: ")), "{text}");
    }
}

/// As what reads the output of a rank does, to the end.
#[test]
fn what_ranks_have_left_may_end_by_itself() {
    let run = finished(&mut r2ccl("run -n 1 -- sh -c", &["(sleep 0.5; echo written) &"]));
    assert!(run.status.success(), "{}", text(&run));
    assert_eq!(run.output, "written\n", "{}", text(&run));
}

#[test]
fn a_signal_is_passed_on() {
    let script = "trap 'echo told; exit 0' TERM INT HUP; echo ready; while :; do sleep 0.01; done";
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let running = Running::start(&mut r2ccl("run -n 2 -- sh -c", &[script]));
        assert_eq!([running.line(), running.line()], ["ready", "ready"]);
        running.send(signal);
        let run = running.finish();
        assert_eq!(run.status.signal(), Some(signal.as_raw()), "{}", text(&run));
        assert_eq!(run.output, "told\ntold\n", "{}", text(&run));
    }
}

/// As `timeout` does, which signals a process and its group.
#[test]
fn signals_that_come_at_once_are_one() {
    let script =
        "trap 'sleep 0.5; echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let running = Running::start(&mut r2ccl("run -n 1 -- sh -c", &[script]));
    assert_eq!(running.line(), "ready");
    running.send(Signal::TERM);
    running.send(Signal::TERM);
    let run = running.finish();
    assert_eq!(run.status.signal(), Some(Signal::TERM.as_raw()), "{}", text(&run));
    assert_eq!(run.output, "told\n", "{}", text(&run));
}

/// The first rank is where a terminal finds it, the other in a session of its own. Where a shell leads the session, a
/// terminal that is gone ends the shell, and that the launcher and the first rank.
#[test]
fn what_the_terminal_says_is_told_to_all_once() {
    let rank =
        "trap 'echo told; sleep 0.5; exit 0' INT HUP; echo ready; while :; do sleep 0.01; done";
    let run = "$0 run -n 2 -- \
               sh -c 'if [ $RANK = 1 ]; then exec setsid --wait sh -c \"$LOOP\"; fi; eval \"$LOOP\"'";
    for (leader, is_typed) in [("exec $RUN", true), ("exec $RUN", false), ("$RUN; true", false)] {
        let leader = leader.replace("$RUN", run);
        let (terminal, typist) = terminal();
        let mut typist = File::from(typist);
        let mut shell = shell("exec setsid --ctty --wait sh -c \"$LEADER\" $0");
        shell.env("LEADER", &leader).env("LOOP", rank).stdin(terminal);
        let running = Running::start(&mut shell);
        assert_eq!([running.line(), running.line()], ["ready", "ready"]);
        if is_typed {
            typist.write_all(b"\x03").unwrap();
        } else {
            drop(typist);
        }
        let run = running.finish();
        assert_eq!(run.output, "told\ntold\n", "typed: {is_typed}; {leader}: {}", text(&run));
    }
}

/// The first rank makes sure that the launcher is still at it.
#[test]
fn what_the_terminal_says_while_ranks_are_started_is_told_to_all() {
    let rank = "trap 'echo told $RANK; exit 0' INT; echo started $RANK; \
                if [ $RANK = 0 ]; then kill -STOP $PPID; echo $PPID; fi; \
                while :; do sleep 0.01; done";
    let (terminal, typist) = terminal();
    let mut typist = File::from(typist);
    let script = "exec setsid --ctty --wait $0 run -n 64 -- sh -c \"$LOOP\"";
    let running = Running::start(shell(script).env("LOOP", rank).stdin(terminal));
    let mut output = Vec::new();
    let launcher = loop {
        let line = running.line();
        match line.parse() {
            Ok(pid) => break Pid::from_raw(pid).unwrap(),
            Err(_) => output.push(line),
        }
    };
    typist.write_all(b"\x03").unwrap();
    while output.last().is_none_or(|line| line != "told 0") {
        output.push(running.line());
    }
    kill_process(launcher, Signal::CONT).unwrap();
    let run = running.finish();
    output.extend(run.output.lines().map(str::to_owned));
    for started in output.iter().filter_map(|line| line.strip_prefix("started ")) {
        assert!(
            output.contains(&format!("told {started}")),
            "{started}: {output:?} {}",
            run.errors
        );
    }
}

/// As a terminal tells both; the launcher looks when it has waited for long, and finds both at once.
#[test]
fn a_signal_that_has_ended_a_rank_ends_the_run_first() {
    let script = "kill -STOP $PPID; sleep 1.1; kill -INT $PPID; echo $$; kill -INT $$";
    let running = Running::start(&mut r2ccl("run -n 1 -- sh -c", &[script]));
    let stat = format!("/proc/{}/stat", running.line());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        thread::yield_now();
    }
    running.send(Signal::CONT);
    let run = running.finish();
    assert_eq!(run.status.signal(), Some(Signal::INT.as_raw()), "{}", text(&run));
}

#[test]
fn a_signal_after_a_failure_is_passed_on_and_no_other() {
    let script = "if [ $RANK = 1 ]; then trap 'exit 7' USR1; echo $$; else \
                  trap 'echo asked; exit 0' TERM; trap 'sleep 0.5; echo told; exit 0' INT; \
                  echo ready; fi; while :; do sleep 0.01; done";
    let running = Running::start(&mut r2ccl("run -n 2 -- sh -c", &[script]));
    let lines = [running.line(), running.line()];
    let failed = lines.iter().find_map(|line| Pid::from_raw(line.parse().ok()?)).unwrap();
    kill_process(failed, Signal::USR1).unwrap();
    while test_kill_process(failed).is_ok() {
        thread::yield_now();
    }
    running.send(Signal::INT);
    let run = running.finish();
    assert_eq!(run.status.code(), Some(7), "{}", text(&run));
    assert_eq!(run.output, "told\n", "{}", text(&run));
}

/// They hold the pipes of this test, too, and would write once more before the launcher kills who was patient.
#[test]
fn who_is_in_a_hurry_leaves_nothing_behind() {
    let deaf =
        "(sh -c 'sleep 1.1; echo hurry; sleep 3.5; echo late; sleep 100; true'; true) & wait";
    let script =
        "trap 'trap \"\" TERM; eval \"$DEAF\"' TERM; echo ready; while :; do sleep 0.01; done";
    let running = Running::start(r2ccl("run -n 1 -- sh -c", &[script]).env("DEAF", deaf));
    assert_eq!(running.line(), "ready");
    running.send(Signal::TERM);
    assert_eq!(running.line(), "hurry");
    for _ in 0..1000 {
        running.send(Signal::TERM);
        thread::yield_now();
    }
    let run = running.finish();
    assert_eq!(run.status.signal(), Some(Signal::TERM.as_raw()), "{}", text(&run));
    assert_eq!(run.output, "", "{}", text(&run));
}

/// For longer than who has failed would leave them.
#[test]
fn the_others_go_on_if_they_may() {
    let script = "if [ $RANK = 1 ]; then exit 7; fi; sleep 4; echo done";
    let run = finished(&mut r2ccl("run -n 3 --no-kill -- sh -c", &[script]));
    assert_eq!((run.status.code(), &*run.output), (Some(0), "done\ndone\n"), "{}", text(&run));
    assert!(run.errors.contains("rank 1 (process"), "{}", text(&run));
    assert!(run.errors.contains("ended with status 7; the others go on\n"), "{}", text(&run));
    let run = finished(&mut r2ccl("run -n 3 --no-kill -- sh -c", &["exit 3"]));
    assert_eq!(run.status.code(), Some(3), "all have failed; {}", text(&run));
    let left = run.errors.lines().filter(|line| line.ends_with("; the others go on"));
    assert!(left.count() < 3, "nobody was left at last: {}", text(&run));
}

#[test]
fn ranks_go_on_without_the_one_where_they_have_met() {
    let run = ranks("run -n 3 --no-kill", GO_ON);
    let text = text(&run);
    assert!(run.status.success(), "{text}");
    for line in ["rank 1 goes on as 0 of 2, sum 5;", "rank 2 goes on as 1 of 2, sum 5;"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn who_does_not_listen_is_killed() {
    let script = "trap '' TERM; echo ready; sleep 100; true";
    let running = Running::start(&mut r2ccl("run -n 2 -- sh -c", &[script]));
    assert_eq!([running.line(), running.line()], ["ready", "ready"]);
    running.send(Signal::TERM);
    let run = running.finish();
    assert_eq!(run.status.signal(), Some(Signal::TERM.as_raw()), "{}", text(&run));
}

/// As `nohup` and some supervisors start programs.
#[test]
fn signals_that_were_ignored_before_change_nothing() {
    for (script, status) in [
        ("trap '' CHLD; exec $0 run -n 2 -- sh -c 'exit 3'", 3),
        ("trap '' HUP; exec $0 run -n 1 -- sh -c 'kill -HUP $PPID'", 0),
    ] {
        let run = finished(&mut shell(script));
        assert_eq!(run.status.code(), Some(status), "{script}: {}", text(&run));
    }
}

#[test]
fn ends_are_seen_where_they_are_not_told() {
    let script = "exec env --block-signal=CHLD $0 run -n 2 -- sh -c 'exit 3'";
    let run = finished(&mut shell(script));
    assert_eq!(run.status.code(), Some(3), "{}", text(&run));
}

#[test]
fn processes_from_before_are_left_alone() {
    let script = "sleep 100 > /dev/null 2>&1 & echo $!; exec $0 run -n 1 -- true";
    let running = Running::start(&mut shell(script));
    let before = Pid::from_raw(running.line().parse().unwrap()).unwrap();
    let before = pidfd_open(before, PidfdFlags::empty()).unwrap();
    let run = running.finish();
    assert!(run.status.success(), "{}", text(&run));
    pidfd_send_signal(&before, Signal::KILL).expect("it is still there");
}

#[test]
fn the_exit_status_tells_what_happened() {
    for (program, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["/no/such/program"], 127),
        (&["/dev/null"], 126),
    ] {
        let run = finished(&mut r2ccl("run -n 1 --", program));
        assert_eq!(run.status.code(), Some(status), "{program:?}: {}", text(&run));
    }
}

/// A worker of torchrun that starts ranks of its own.
#[test]
fn the_store_of_another_launcher_is_not_for_the_ranks() {
    let mut command = r2ccl("run -n 1 -- sh -c", &["echo =$TORCHELASTIC_USE_AGENT_STORE="]);
    let run = finished(command.env("TORCHELASTIC_USE_AGENT_STORE", "True"));
    assert_eq!(run.output, "=False=\n", "{}", text(&run));
}

/// Rank 0 reads what is typed, and the others read nothing.
#[test]
fn standard_input_is_for_rank_0() {
    let mut command = r2ccl("run -n 2 -- sh -c", &["echo $RANK: $(wc -c)."]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "12345").unwrap();
    let text = text(&finished(command.stdin(file.reopen().unwrap())));
    assert!(text.contains("0: 5.") && text.contains("1: 0."), "{text}");
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let launcher = Running::start(&mut r2ccl("run -n 2 -- sh -c", &["echo $$; exec sleep 100"]));
    let ranks = [launcher.line(), launcher.line()]
        .map(|line| Pid::from_raw(line.parse().unwrap()).unwrap())
        .map(|rank| pidfd_open(rank, PidfdFlags::empty()).unwrap());
    launcher.send(Signal::KILL);
    launcher.finish();
    for rank in &ranks {
        let mut ends = [PollFd::new(rank, PollFlags::IN)];
        assert_eq!(poll(&mut ends, Some(&DEADLINE)), Ok(1), "a rank is still there");
    }
}
