//! The benchmark binaries as real processes: every collective, several numbers of ranks, pretended
//! hosts and rails; results must be right, processes must not outlive their launcher.
#![allow(clippy::disallowed_methods, reason = "a test has deadlines for the processes it starts")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benchmarks;
mod support;

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use benchmarks::{ALL_REDUCE, OTHERS};
use rustix::process::{Pid, Signal};
use support::bed::wait_for_end;
use support::program::{Finished, Running, drain};

/// How long the first row of a run may take, and its last words.
const DEADLINE: Duration = Duration::from_secs(120);

/// Seconds after which the library gives up, so that a hang names the ranks it waited for.
const CALL_TIMEOUT: &str = "40";

/// How often something is looked at that cannot be waited for with a deadline.
const GLANCE: Duration = Duration::from_millis(5);

/// A benchmark for which nothing of this environment counts.
fn benchmark(program: &str, arguments: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    let foreign = ["R2CCL_", "NCCL_TESTS_", "RANK", "OMPI_", "PMI_", "SLURM_"];
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in names.filter(|name| foreign.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command.args(arguments.split_whitespace()).args(["-T", CALL_TIMEOUT]);
    command.envs(variables.iter().copied());
    command
}

fn start(program: &str, arguments: &str, variables: &[(&str, &str)]) -> Running {
    Running::start(&mut benchmark(program, arguments, variables))
}

fn run(program: &str, arguments: &str) -> Finished {
    start(program, arguments, &[]).finish()
}

fn name(program: &str) -> &str {
    Path::new(program).file_name().unwrap().to_str().unwrap()
}

#[test]
fn ranks_do_not_write_into_each_others_last_lines() {
    // It keeps apart what is written at once.
    let (near, far) = UnixDatagram::pair().unwrap();
    near.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut command = benchmark(ALL_REDUCE, "--ranks 1 -b 8 -e 8", &[("R2CCL_CMA", "maybe")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(OwnedFd::from(far));
    assert!(!command.status().unwrap().success());
    let mut bytes = [0; 4096];
    let written = near.recv(&mut bytes).unwrap();
    let line = String::from_utf8_lossy(&bytes[..written]);
    assert!(line.starts_with("all_reduce_perf: ") && line.contains("maybe"), "{line}");
    assert!(line.ends_with('\n'), "a part: {line}");
}

#[test]
fn all_reduce_is_right_for_every_type_and_operation() {
    let finished = run(ALL_REDUCE, "--ranks 4 -b 8 -e 64K -f 8 -d all -o all -n 2");
    finished.assert_right("all_reduce_perf");
    let sizes = 5;
    assert_eq!(finished.rows().len(), sizes * 12 * 6);
}

#[test]
fn the_other_collectives_are_right_for_two_three_and_five_ranks() {
    for program in OTHERS {
        for ranks in [2, 3, 5] {
            let line = format!("--ranks {ranks} -b 64 -e 32K -f 16 -n 2 -d half -r all -w 0");
            run(program, &line).assert_right(&format!("{} {line}", name(program)));
        }
    }
}

#[test]
fn all_collectives_are_right_between_hosts_with_several_rails() {
    for program in OTHERS.into_iter().chain([ALL_REDUCE]) {
        let line = "--ranks 6 --hosts 3 --rails 4 -b 1K -e 256K -f 16 -n 2 -r 1";
        let finished = run(program, line);
        finished.assert_right(&format!("{} {line}", name(program)));
        assert!(
            finished
                .output
                .contains("[host2] CPU, rails 127.1.3.1,127.1.3.2,127.1.3.3,127.1.3.4\n")
        );
    }
}

/// Processes read each other's memory, unless somebody forbids it; the log tells which way was found to be faster.
#[test]
fn ranks_compare_the_ways_to_move_large_blocks() {
    let log = ("R2CCL_LOG", "ccl=debug");
    let program = OTHERS.into_iter().find(|program| name(program) == "alltoall_perf").unwrap();
    let compare = |variables: &[(&str, &str)]| {
        let finished = start(program, "--ranks 3 -b 1M -e 1M -n 60", variables).finish();
        finished.assert_right("alltoall_perf");
        finished.errors
    };
    let told = compare(&[log]);
    if told.contains("memory of peers cannot be read") {
        eprintln!("skip: processes cannot read each other's memory here");
    } else {
        let compared = told.lines().filter(|line| line.contains("ways compared"));
        let never = u64::MAX.to_string();
        let both = compared.filter(|line| line.contains("attached: ") && !line.contains(&never));
        assert!(both.count() >= 3, "{told}");
    }
    for chosen in ["0", "always"] {
        let told = compare(&[log, ("R2CCL_CMA", chosen)]);
        assert!(!told.contains("ways compared"), "{told}");
    }
}

/// Where ranks share processors, what is combined goes through tiles without being compared.
#[test]
fn ranks_with_processors_of_their_own_compare_the_ways_to_combine() {
    let processors = thread::available_parallelism().unwrap().get();
    let compared = |ranks: usize| {
        let line = format!("--ranks {ranks} -b 1M -e 1M -n 60");
        let finished = start(ALL_REDUCE, &line, &[("R2CCL_LOG", "ccl=debug")]).finish();
        finished.assert_right("all_reduce_perf");
        let compares = |line: &str| line.contains("attached: ") && line.contains("ways compared");
        let is_possible = !finished.errors.contains("memory of peers cannot be read");
        is_possible.then(|| finished.errors.lines().any(compares))
    };
    match compared(2) {
        None => eprintln!("skip: processes cannot read each other's memory here"),
        Some(are) => assert_eq!(are, processors >= 2),
    }
    if processors < 8 {
        assert!(!compared(processors + 1).unwrap_or(false));
    } else {
        eprintln!("skip: more ranks than processors: there are {processors}");
    }
}

#[test]
fn threads_groups_registration_and_odd_addresses_are_right() {
    for (program, line) in [
        (ALL_REDUCE, "-t 3 -b 4 -e 64K -f 16 -n 2 -m 3 -d all -o avg"),
        (ALL_REDUCE, "-t 2 -g 2 -b 1K -e 64K -f 8 -n 3 -u 3 -z 1 -a 3 -d all"),
        (
            ALL_REDUCE,
            "--ranks 2 -t 2 -b 1K -e 4K -f 2 -n 3 -z 3 -m 2 -C 1 -S 1 -I 1 -K 1 -M 1 -R 1 -c 2",
        ),
        (ALL_REDUCE, "--ranks 2 -b 64K -e 4M -f 8 -n 2 -R 1"),
        (ALL_REDUCE, "--ranks 3 -b 1200K -e 1200K -n 1 -R 1 -d all -o all"),
        (OTHERS[0], "-b 1K -e 1K -n 1"),
        (OTHERS[8], "-t 2 -b 0 -e 4K -i 2K -n 2 -m 4"),
        (OTHERS[9], "-t 4 -b 64 -e 64K -f 4 -n 2 -m 2"),
    ] {
        let finished = run(program, line);
        assert!(finished.status.success(), "{line}: {}{}", finished.output, finished.errors);
        assert!(finished.output.contains("# Out of bounds values : 0 OK\n"), "{line}");
    }
}

#[test]
fn the_table_is_that_of_nccl_tests() {
    let finished = run(ALL_REDUCE, "-b 1K -e 2K -f 2 -n 1 -t 2");
    let lines: Vec<&str> = finished.output.lines().collect();
    assert_eq!(lines[1], "# Collective test starting: all_reduce_perf");
    assert_eq!(lines[4], "# Using devices");
    assert!(lines[5].starts_with("#  Rank  0 Group  0 Pid "), "{}", lines[5]);
    assert!(lines[8].ends_with("out-of-place                       in-place          "));
    assert_eq!(
        lines[11].split_whitespace().collect::<Vec<_>>()[..5],
        ["1024", "256", "float", "sum", "-1"]
    );
    assert_eq!(lines[11].len(), 118, "{:?}", lines[11]);
    assert_eq!(lines[13], "# Out of bounds values : 0 OK");
    assert!(lines[14].starts_with("# Avg bus bandwidth    : "));
    assert_eq!(lines[15..], ["#", "# Collective test concluded: all_reduce_perf"]);
}

#[test]
fn a_rank_that_is_alone_is_told_how_to_start_others() {
    for (line, is_alone) in [("-b 8 -e 8 -n 1", true), ("-b 8 -e 8 -n 1 -t 2", false)] {
        let output = run(ALL_REDUCE, line).output;
        assert_eq!(output.contains("# Note: one rank"), is_alone, "{line}: {output}");
    }
}

#[test]
fn cycles_repeat_the_rows_of_a_type() {
    let finished = run(ALL_REDUCE, "-t 2 -b 1K -e 2K -f 2 -n 1 -N 2 -d all");
    let rows = finished.rows();
    let seen: Vec<_> = rows[..6].iter().map(|row| (row[0], row[2])).collect();
    let cycle = |name| [("1024", name), ("2048", name)];
    assert_eq!(seen, [cycle("int8"), cycle("int8"), cycle("uint8")].concat());
}

#[test]
fn the_head_names_all_rails_however_many() {
    let finished = run(ALL_REDUCE, "--ranks 2 --hosts 2 --rails 30 -b 8 -e 8 -n 1");
    finished.assert_right("all_reduce_perf --rails 30");
    for host in [1, 2] {
        let last = format!(",127.1.{host}.29,127.1.{host}.30\n");
        assert!(finished.output.contains(&last), "{}", finished.output);
    }
}

#[test]
fn a_matrix_file_gives_the_counts_of_alltoallv() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("matrix");
    fs::write(&file, "0 4096 16\n 32 64 0\n 0 0 8192\n").unwrap();
    let variables = [("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", file.to_str().unwrap())];
    let finished = start(OTHERS[5], "-t 3 -b 8K -n 2 -d int8", &variables).finish();
    finished.assert_right("alltoallv_perf with a file");
    assert_eq!(finished.rows()[0][..2], ["8208", "0"]);
    let finished = start(OTHERS[5], "-t 4 -b 8K", &variables).finish();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.errors);
    assert!(finished.errors.contains("4 ranks need 4"), "{}", finished.errors);
}

#[test]
fn a_bandwidth_that_is_not_reached_fails() {
    let variables = [("NCCL_TESTS_MIN_BW", "1e9")];
    let finished = start(ALL_REDUCE, "--ranks 2 -b 1K -e 1K -n 1", &variables).finish();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.errors);
    let verdict = finished.output.lines().find(|line| line.contains("Avg bus")).unwrap();
    assert!(verdict.ends_with(" FAILED"), "{verdict}");
}

#[test]
fn the_candidates_are_explained_and_chosen_by_name() {
    let finished = run(ALL_REDUCE, "--ranks 4 -b 1K -e 1M -f 1024 -n 1 --explain --algo ring");
    finished.assert_right("all_reduce_perf --explain");
    assert!(finished.output.contains("# 1048576 bytes:\n"), "{}", finished.output);
    assert!(finished.output.contains("ring"), "{}", finished.output);
    let unknown = run(ALL_REDUCE, "--ranks 2 -b 1K -e 1K -n 1 --algo no-such-thing");
    assert_eq!(unknown.status.code(), Some(3), "{}", unknown.output);
    assert!(unknown.errors.contains("no-such-thing"), "{}", unknown.errors);
}

#[test]
fn the_report_is_json() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let line = format!("--ranks 2 -b 1K -e 4K -f 2 -n 2 -I 1 -K 1 -J {}", file.display());
    let finished = run(ALL_REDUCE, &line);
    assert!(finished.status.success(), "{}", finished.errors);
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["results"].as_array().unwrap().len(), 3);
    assert_eq!(report["results"][2]["out_of_place"]["nwrong"], 0);
    let iterations = &report["results"][0]["in_place_per_iter"];
    let times =
        |value: &serde_json::Value| serde_json::from_value::<Vec<f64>>(value.clone()).unwrap();
    let [first, second] = [0, 1].map(|rank| times(&iterations["per_process_max_times_us"][rank]));
    let longest: Vec<f64> = first.iter().zip(&second).map(|(one, other)| one.max(*other)).collect();
    assert_eq!((times(&iterations["times_us"]), longest.len()), (longest, 2));
    assert_eq!(iterations["skipped_iterations"], 1);
    assert_eq!((&report["version"], &report["config"]["per_iter_skip"]), (&3.into(), &1.into()));
    assert_eq!(report["config"]["devices"].as_array().unwrap().len(), 2);
    let words = report["args"].as_array().unwrap()[1..].iter().map(|word| word.as_str().unwrap());
    assert_eq!(words.collect::<Vec<_>>().join(" "), format!("{line} -T {CALL_TIMEOUT}"));
}

#[test]
fn impossible_arguments_are_refused() {
    for line in ["-b 2M -e 1M", "-d float128", "--hosts 2", "--ranks 2 --hosts 3"] {
        let finished = run(ALL_REDUCE, line);
        assert_eq!(finished.status.code(), Some(2), "{line}: {}", finished.errors);
        assert!(!finished.errors.contains("Usage: ccl-tests"), "{line}: {}", finished.errors);
    }
    let none = run(ALL_REDUCE, "-n 0");
    assert!(none.errors.contains("expected a whole number, 1 or more"), "{}", none.errors);
    let help = run(ALL_REDUCE, "--help");
    assert!(help.output.starts_with("Measures and checks one collective"), "{}", help.output);
    let finished = run(OTHERS[2], "-t 2 -r 2 -b 8 -e 8");
    assert_eq!(finished.status.code(), Some(3), "{}", finished.errors);
    assert!(finished.errors.contains("there are only 2 ranks"), "{}", finished.errors);
}

/// A run without an end, and the processes of its ranks once the first row is there.
fn endless(ranks: usize) -> (Running, Vec<PathBuf>) {
    let line = format!("--ranks {ranks} -b 64K -e 64K -n 5 -N 0");
    let mut running = start(ALL_REDUCE, &line, &[]);
    let mut output = running.child.stdout.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            if text.lines().any(|line| !line.starts_with('#') && line.contains("float")) {
                // Reading goes on, so that the run does not end for want of a reader.
                let _ = sender.send(());
                text.clear();
            }
        }
    });
    receiver.recv_timeout(DEADLINE).unwrap();
    let pid = running.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children: Vec<PathBuf> =
        children.split_whitespace().map(|child| Path::new("/proc").join(child)).collect();
    assert_eq!(children.len(), ranks);
    (running, children)
}

/// Waits until none of the processes runs any more.
fn assert_gone(processes: &[PathBuf]) {
    let end = Instant::now() + DEADLINE;
    let runs = |process: &PathBuf| {
        let status = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| state != 'Z')
    };
    while processes.iter().any(runs) {
        assert!(Instant::now() < end, "{processes:?} still run");
        thread::sleep(GLANCE);
    }
}

fn kill(process: &Path) {
    send(process, Signal::KILL);
}

fn send(process: &Path, signal: Signal) {
    let number = process.file_name().unwrap().to_str().unwrap().parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
}

#[test]
fn a_rank_that_dies_ends_the_run() {
    let (mut running, ranks) = endless(3);
    let errors = drain(running.child.stderr.take().unwrap());
    kill(&ranks[2]);
    wait_for_end(running.pid());
    let status = running.child.wait().unwrap();
    assert_gone(&ranks);
    let errors = errors.recv_timeout(DEADLINE).unwrap();
    assert!(!status.success(), "{status}");
    assert!(errors.contains("rank "), "{errors}");
}

#[test]
fn a_signal_ends_the_ranks_and_their_launcher() {
    let (mut running, ranks) = endless(2);
    send(&Path::new("/proc").join(running.pid().to_string()), Signal::TERM);
    wait_for_end(running.pid());
    let status = running.child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    assert_gone(&ranks);
}

#[test]
fn ranks_end_with_their_launcher() {
    let (running, ranks) = endless(3);
    let launcher = Path::new("/proc").join(running.pid().to_string());
    kill(&launcher);
    assert_gone(&ranks);
}

#[test]
fn measurements_are_kept_in_a_file_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let run = |line: &str| {
        let variables = [("R2CCL_TUNING", file.to_str().unwrap())];
        start(ALL_REDUCE, line, &variables).finish()
    };
    let line = "--ranks 4 --hosts 2 --rails 2 -b 64K -e 1M -f 4 -n 2";
    run(line).assert_right("with measurements that are made now");
    let first = fs::read_to_string(&file).unwrap();
    let measured: serde_json::Value = serde_json::from_str(&first).unwrap();
    let hosts = measured["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "{first}");
    for host in hosts {
        let rails: Vec<f64> = serde_json::from_value(host["rails"].clone()).unwrap();
        assert!(rails.len() == 2 && rails.iter().all(|rate| *rate > 1e6), "{first}");
    }
    run(line).assert_right("with measurements that were made before");
    assert_eq!(fs::read_to_string(&file).unwrap(), first, "not measured again");
    let other = run("--ranks 2 --hosts 2 --rails 2 -b 64K -e 64K -n 1");
    assert!(other.errors.contains("it is for hosts with 2 ranks"), "{}", other.errors);
    fs::write(&file, &first[..first.len() / 2]).unwrap();
    let truncated = run(line);
    assert!(!truncated.status.success(), "{}", truncated.output);
    for named in [file.to_str().unwrap(), "EOF", "remove the file"] {
        assert!(truncated.errors.contains(named), "{named}: {}", truncated.errors);
    }
}
