//! The benchmarks of virtual queue pairs as real processes: everything that arrives is right, NICs fail in
//! the middle, and nothing outlives its launcher.
#![allow(clippy::disallowed_methods, reason = "a test has deadlines for the processes it starts")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ccl_tests::testbed::port::ReservedPort;

const WRITE_BW: &str = env!("CARGO_BIN_EXE_vqp_write_bw");
const WRITE_LAT: &str = env!("CARGO_BIN_EXE_vqp_write_lat");
const SEND_BW: &str = env!("CARGO_BIN_EXE_vqp_send_bw");
const READ_BW: &str = env!("CARGO_BIN_EXE_vqp_read_bw");
const ATOMIC_LAT: &str = env!("CARGO_BIN_EXE_vqp_atomic_lat");
const ALL: [&str; 5] = [WRITE_BW, WRITE_LAT, SEND_BW, READ_BW, ATOMIC_LAT];
const EVIDENCES: [&str; 4] = ["off", "resend", "handshake", "log"];

/// No run of this file takes nearly as long on an idle machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// How often something is looked at that cannot be waited for with a deadline.
const GLANCE: Duration = Duration::from_millis(5);

/// Both processes of a run poll, so runs of other tests would only take their processors.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is killed with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process printed, and its exit status.
#[derive(Debug)]
struct Finished {
    status: Option<i32>,
    output: String,
    errors: String,
}

impl Finished {
    fn check(self) -> Self {
        assert_eq!(self.status, Some(0), "{self:#?}");
        self
    }

    /// The words of the rows of the table.
    fn rows(&self) -> Vec<Vec<&str>> {
        let lines = self
            .output
            .lines()
            .filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()));
        lines.map(|line| line.split_whitespace().collect()).collect()
    }

    /// The number behind a word of the summary.
    fn count(&self, word: &str) -> u64 {
        let (_, rest) = self.output.split_once(&format!("{word} ")).unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    }
}

fn start(program: &str, line: &str, variables: &[(&str, &str)]) -> Running {
    let mut command = Command::new(program);
    let foreign = ["R2CCL_", "RANK", "WORLD_SIZE", "MASTER_"];
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in names.filter(|name| foreign.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command.args(line.split_whitespace()).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(command.spawn().unwrap())
}

fn finish(mut running: Running) -> Finished {
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        })
    };
    let output = read(Box::new(running.0.stdout.take().unwrap()));
    let errors = read(Box::new(running.0.stderr.take().unwrap()));
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "process {} hangs", running.0.id());
        thread::sleep(GLANCE);
    };
    Finished {
        status: status.code(),
        output: output.join().unwrap(),
        errors: errors.join().unwrap(),
    }
}

fn run(program: &str, line: &str) -> Finished {
    finish(start(program, line, &[]))
}

fn name(program: &str) -> &str {
    Path::new(program).file_name().unwrap().to_str().unwrap()
}

#[test]
fn every_test_is_right_with_every_evidence() {
    let _turn = turn();
    for program in ALL {
        for evidence in EVIDENCES {
            let line = format!("--local -n 300 -s 4K --evidence {evidence}");
            let finished = run(program, &line).check();
            let bytes = if program == ATOMIC_LAT { "8" } else { "4096" };
            let [row] = &finished.rows()[..] else { panic!("{finished:#?}") };
            assert_eq!(row[..2], [bytes, "300"], "{finished:#?}");
            assert_eq!(finished.count("repairs"), 0, "{finished:#?}");
        }
    }
}

#[test]
fn ends_that_sleep_for_events_are_right_too() {
    let _turn = turn();
    for program in ALL {
        let finished = run(program, "--local -e -n 300 -s 4K -q 2 --evidence log").check();
        let operations = if name(program).ends_with("_bw") { "600" } else { "300" };
        assert_eq!(finished.rows()[0][1], operations, "{finished:#?}");
    }
    // Somebody who sleeps wakes up for a fault.
    let fault = "admin:host=1,rail=0,at=300ms";
    let line = format!("--local -e -D 1500ms --evidence handshake --fault {fault}");
    let finished = run(SEND_BW, &line).check();
    assert!(finished.output.contains("queue pair 0 resumed on rail 1"), "{finished:#?}");
}

#[test]
fn all_sizes_and_several_queue_pairs_are_right() {
    let _turn = turn();
    for program in [WRITE_BW, SEND_BW, READ_BW] {
        let finished = run(program, "--local -a -n 10 -q 3 -t 8 --evidence log").check();
        let rows = finished.rows();
        assert_eq!(rows.len(), 23, "{finished:#?}");
        for (shift, row) in rows.iter().enumerate() {
            assert_eq!(row[..2], [&(2u64 << shift).to_string()[..], "30"], "{finished:#?}");
        }
    }
    let odd = run(WRITE_LAT, "--local -s 7 -n 300 --evidence resend").check();
    assert_eq!(odd.rows()[0][..2], ["7", "300"]);
    let swaps = run(ATOMIC_LAT, "--local -A CMP_AND_SWAP -n 200 --evidence log").check();
    assert_eq!(swaps.rows()[0][..2], ["8", "200"]);
    for evidence in EVIDENCES {
        let line =
            format!("--local -A CMP_AND_SWAP --batch 16 --reads 3 -n 20 --evidence {evidence}");
        assert_eq!(run(ATOMIC_LAT, &line).check().rows()[0][..2], ["8", "320"], "{evidence}");
    }
}

/// Every operation goes on where its evidence says so, whichever end fails and however it shows.
#[test]
fn a_fault_in_the_middle_is_survived() {
    let _turn = turn();
    let faults = [
        "admin:host=1,rail=0,at=300ms",
        "admin:host=0,rail=0,at=300ms",
        "silent:host=0,rail=0,at=300ms",
    ];
    let tests = [
        (WRITE_BW, "resend"),
        (SEND_BW, "handshake"),
        (SEND_BW, "resend"),
        (READ_BW, "log"),
        (WRITE_LAT, "log"),
        (ATOMIC_LAT, "log"),
    ];
    for (index, (program, evidence)) in tests.into_iter().enumerate() {
        let fault = faults[index % faults.len()];
        let line = format!(
            "--local -D 1500ms -s 16K --evidence {evidence} --silence 200ms --fault {fault}"
        );
        let finished = run(program, &line).check();
        assert!(finished.count("repairs") >= 1, "{line}: {finished:#?}");
        let output = &finished.output;
        assert!(output.contains("queue pair 0 interrupted on rail 0"), "{finished:#?}");
        assert!(output.contains("queue pair 0 resumed on rail 1"), "{finished:#?}");
    }
}

/// Of many queue pairs each finds a backup in the pool, whichever end fails, however it shows, and whichever end leads;
/// and after a return to the first rail there is another one.
#[test]
fn queue_pairs_share_the_backups_of_a_pool() {
    let _turn = turn();
    let twice = "admin:host=1,rail=0,at=500ms,heal=500ms --fault admin:host=0,rail=0,at=3s";
    for (line, rails) in [
        ("--fault admin:host=1,rail=0,at=500ms", "2"),
        ("-e --fault admin:host=0,rail=0,at=500ms", "3"),
        ("--patience 5s --fault silent:host=1,rail=0,at=500ms", "2"),
        (&format!("--settle 100ms --fault {twice}"), "2"),
    ] {
        let line =
            format!("--local --rails {rails} -q 8 --pool 8 -s 4K -D 4s --silence 200ms {line}");
        let finished = run(SEND_BW, &line).check();
        for pair in 0..8 {
            let interrupted = format!("queue pair {pair} interrupted on rail 0");
            assert!(finished.output.contains(&interrupted), "{line}: {finished:#?}");
        }
        assert!(finished.count("repairs") >= 8, "{line}: {finished:#?}");
    }
    // What is used up is replaced, so a small pool only takes longer.
    let line = "--local -q 6 --pool 1 -D 4s --patience 10s --fault admin:host=1,rail=0,at=500ms";
    let finished = run(SEND_BW, line).check();
    for pair in 0..6 {
        let resumed = format!("queue pair {pair} resumed on rail 1");
        assert!(finished.output.contains(&resumed), "{line}: {finished:#?}");
    }
}

#[test]
fn traffic_returns_to_the_first_rail_and_the_file_tells_it() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("timeline");
    let line = format!(
        "--local -D 3s --interval 100ms --settle 100ms --timeline {} --fault {}",
        file.display(),
        "admin:host=1,rail=0,at=500ms,heal=500ms"
    );
    let finished = run(WRITE_BW, &line).check();
    // If the other end goes back first, that looks like a loss of the second rail here.
    let ways: [(&str, &[&str]); 2] = [
        ("returned on rail 0", &["interrupted", "resumed", "returned"]),
        ("resumed on rail 0", &["interrupted", "resumed", "interrupted", "resumed"]),
    ];
    let way = ways.iter().find(|(words, _)| finished.output.contains(words));
    let Some((_, expected)) = way else { panic!("{finished:#?}") };
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |record: &str| -> Vec<&serde_json::Value> {
        lines.iter().filter(|line| line["record"] == record).collect()
    };
    assert_eq!(of("run").len(), 1, "{text}");
    let kinds: Vec<&str> = of("event").iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, *expected, "{text}");
    let intervals = of("interval");
    for pair in intervals.windows(2) {
        assert_eq!(pair[0]["end_s"], pair[1]["start_s"], "{text}");
    }
    let rails: Vec<u64> = intervals.iter().map(|one| one["rail"].as_u64().unwrap()).collect();
    assert!(rails.contains(&1), "the backup is seen: {text}");
    assert_eq!((rails[0], rails[rails.len() - 1]), (0, 0), "{text}");
    assert!(intervals.iter().any(|one| one["bytes"].as_u64().unwrap() > 0), "{text}");
}

#[test]
fn without_a_rail_there_is_an_error_with_its_reason() {
    let _turn = turn();
    let both = "--local -D 60 --patience 300ms --silence 200ms \
                --fault admin:host=1,rail=0,at=200ms --fault silent:host=1,rail=1,at=500ms";
    for program in [WRITE_BW, SEND_BW] {
        let finished = run(program, both);
        assert_eq!(finished.status, Some(3), "{finished:#?}");
        assert!(finished.errors.contains("RetryExceeded"), "{finished:#?}");
        assert!(finished.output.contains("failed on rail"), "{finished:#?}");
    }
    // A plain queue pair ends with its rail, although there is another one.
    for fault in ["admin:host=1,rail=0,at=200ms", "silent:host=0,rail=0,at=200ms"] {
        let line = format!("--local -D 60 --evidence off --silence 200ms --fault {fault}");
        let finished = run(WRITE_BW, &line);
        assert_eq!(finished.status, Some(3), "{finished:#?}");
        assert!(finished.errors.contains("RetryExceeded"), "{finished:#?}");
    }
    // Without a log nobody knows what became of an atomic.
    let line = "--local -D 60 --evidence handshake --fault admin:host=1,rail=0,at=200ms";
    let finished = run(ATOMIC_LAT, line);
    assert_eq!(finished.status, Some(3), "{finished:#?}");
    assert!(finished.errors.contains("atomic operation was outstanding"), "{finished:#?}");
}

/// A server and a client, each with its own command line and variables.
fn both(
    server: (&str, &str, &[(&str, &str)]),
    client: (&str, &str, &[(&str, &str)]),
) -> [Finished; 2] {
    let reserved = ReservedPort::new().unwrap();
    let port = reserved.number();
    let (program, line, variables) = server;
    let line = format!("-p {port} -d 127.2.3.1,127.2.3.2 {line}");
    let server = start(program, &line, variables);
    let (program, line, variables) = client;
    let line = format!("127.0.0.1 -p {port} {line}");
    let client = finish(start(program, &line, variables));
    [finish(server), client]
}

const DEVICES: &str = "-d 127.2.4.1,127.2.4.2";

#[test]
fn a_server_and_a_client_meet_and_the_flags_of_the_client_count() {
    let _turn = turn();
    let line = format!("{DEVICES} -n 100 -s 1000 --evidence log --report_gbits");
    let key: &[(&str, &str)] = &[("R2CCL_JOB_KEY", "one and the same")];
    let [server, client] = both((SEND_BW, "-s 8 --evidence off", key), (SEND_BW, &line, key));
    let (server, client) = (server.check(), client.check());
    assert!(server.output.starts_with("# waiting for a client on port "), "{server:#?}");
    assert_eq!(client.rows()[0][..2], ["1000", "100"], "{client:#?}");
    assert!(client.output.contains("BW average[Gb/sec]"), "{client:#?}");
}

#[test]
fn rank_0_of_a_launcher_measures_and_rank_1_answers() {
    let _turn = turn();
    let reserved = ReservedPort::new().unwrap();
    let port = reserved.number();
    let rank = |rank: &str, line: &str| {
        let variables = [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
        start(READ_BW, &format!("-p {port} {line}"), &variables)
    };
    let first = rank("0", "-d 127.2.5.1 -n 50");
    let second = rank("1", "-d 127.2.6.1");
    let (first, second) = (finish(first).check(), finish(second).check());
    assert_eq!(first.rows()[0][..2], ["65536", "50"], "{first:#?}");
    assert_eq!(second.output, "");
    let alone = finish(start(READ_BW, "", &[("RANK", "0"), ("WORLD_SIZE", "3")]));
    assert_eq!(alone.status, Some(3));
    assert!(alone.errors.contains("two processes take part, not 3"), "{alone:#?}");
}

#[test]
fn what_does_not_fit_is_refused_with_a_name() {
    let _turn = turn();
    let [server, client] = both((READ_BW, "", &[]), (WRITE_BW, DEVICES, &[]));
    for finished in [server, client] {
        assert_eq!(finished.status, Some(3), "{finished:#?}");
        assert!(finished.errors.contains("the other process is vqp_"), "{finished:#?}");
    }
    let [server, client] = both((WRITE_BW, "", &[]), (WRITE_BW, "-d 127.2.4.1", &[]));
    for finished in [server, client] {
        assert_eq!(finished.status, Some(3), "{finished:#?}");
        assert!(finished.errors.contains("number of rails"), "{finished:#?}");
    }
    let [server, client] = both(
        (WRITE_BW, "--limit 1s", &[("R2CCL_JOB_KEY", "one")]),
        (WRITE_BW, "--limit 1s", &[("R2CCL_JOB_KEY", "another")]),
    );
    for finished in [server, client] {
        assert_eq!(finished.status, Some(3), "{finished:#?}");
        assert!(finished.errors.contains("meeting the other process"), "{finished:#?}");
    }
}

#[test]
fn impossible_command_lines_are_refused() {
    for (line, status, named) in [
        ("--evidence luck", 2, "luck"),
        ("--fault silent:host=0,rail=0", 2, "needs at="),
        ("--fault slow:host=0,rail=0,at=0s,rate=1mbit", 2, "cannot be rehearsed"),
        ("-s 0", 2, "0 bytes"),
        ("--local server", 2, "cannot be used with"),
        ("--local -d nonesuch0", 3, "nonesuch0"),
        ("--local -d nonesuch_0:1", 3, "no RDMA device \"nonesuch_0:1\""),
        ("--local --fault silent:host=0,rail=2,at=0s", 3, "there is no host 0 rail 2"),
        ("--local --fault silent:host=2,rail=0,at=0s", 3, "there is no host 2 rail 0"),
        ("127.0.0.1 -p 1 --limit 100ms", 3, "127.0.0.1:1"),
        ("no.such.host.invalid --limit 100ms", 3, "no.such.host.invalid"),
    ] {
        let finished = run(WRITE_BW, line);
        assert_eq!(finished.status, Some(status), "{line}: {finished:#?}");
        assert!(finished.errors.contains(named), "{line}: {finished:#?}");
        assert!(!finished.errors.contains("panicked"), "{line}: {finished:#?}");
    }
    for program in ALL {
        let help = run(program, "--help").check();
        assert!(help.output.contains(&format!("Usage: {}", name(program))), "{help:#?}");
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<String> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    listed.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_server_does_not_outlive_the_client_that_has_started_it() {
    let _turn = turn();
    let running = start(WRITE_BW, "--local -D 100", &[]);
    let end = Instant::now() + DEADLINE;
    let server = loop {
        if let Some(server) = children(running.0.id()).pop() {
            break server;
        }
        assert!(Instant::now() < end, "no server was started");
        thread::sleep(GLANCE);
    };
    // Dropping kills the client, as `kill -9` does.
    drop(running);
    let status = format!("/proc/{server}/status");
    let is_alive = || fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
    while is_alive() {
        assert!(Instant::now() < end, "process {server} lives on");
        thread::sleep(GLANCE);
    }
}
