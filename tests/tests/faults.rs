//! `--fault`: a benchmark makes its own testbed, breaks it in every measurement, and says how the ranks
//! got over it.
#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benchmarks;
mod support;

use std::fs;
use std::process::Command;

use benchmarks::ALL_REDUCE;
use ccl_tests::testbed::failure::STATUS_UNAVAILABLE;
use serde_json::Value;
use support::bed::{Finished, Testbed};
use support::program::Running;

/// Hosts and rails; a call that hangs says for whom it waits.
const BED: &str = "--ranks 6 --hosts 3 --rails 2 --rate 500mbit -T 60";

/// What must happen after every cut that traffic notices, in this order.
const COURSE: [&str; 4] = ["cut", "given-up", "resumed", "returned"];

/// What a run has left.
struct Records {
    finished: Finished,
    /// Lines of `--timeline`, in order of time.
    timeline: Vec<Value>,
    report: Value,
}

/// Runs with one fault; `None` if this machine cannot have a testbed.
fn run(fault: &str, sizes: &str) -> Option<Records> {
    run_on(BED, fault, sizes)
}

fn run_on(bed: &str, fault: &str, sizes: &str) -> Option<Records> {
    let folder = tempfile::tempdir().unwrap();
    let [timeline, report] = ["timeline", "report"].map(|name| folder.path().join(name));
    let files = ["--timeline", timeline.to_str().unwrap(), "-J", report.to_str().unwrap()];
    let words: Vec<&str> = bed.split(' ').chain(sizes.split(' ')).collect();
    let words = [&words[..], &["--fault", fault], &files].concat();
    let finished = Testbed::of(ALL_REDUCE, &words, "faults").finish()?;
    finished.assert_right(fault);
    let Finished { output, errors, .. } = &finished;
    assert!(!output.contains('\x1b') && !errors.contains('\x1b'), "{fault}: colours");
    let text = fs::read_to_string(timeline).unwrap();
    let mut timeline: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    timeline.sort_by_key(|line| line["at_ns"].as_u64().unwrap());
    let report = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    Some(Records { finished, timeline, report })
}

impl Records {
    fn accounts(&self) -> &[Value] {
        self.report["faults"].as_array().unwrap()
    }

    /// The events of the rail from every cut on to the next one.
    fn courses(&self) -> Vec<Vec<&str>> {
        let mut courses: Vec<Vec<&str>> = Vec::new();
        for line in &self.timeline {
            let event = line["event"].as_str().unwrap();
            if event == "cut" {
                courses.push(Vec::new());
            }
            if let Some(course) = courses.last_mut().filter(|_| line["rail"] == 1) {
                course.push(event);
            }
        }
        courses
    }
}

#[test]
fn a_rail_is_lost_and_comes_back_in_every_measurement() {
    for fault in [
        "down:host=0,rail=1,at=50%,heal=200ms",
        "silent:host=0,rail=1,at=25%,heal=500ms",
        "down:host=2,rail=1,at=5ms,heal=200ms",
    ] {
        let Some(records) = run(fault, "-b 256K -e 1M -f 4 -n 20") else { return };
        let output = &records.finished.output;
        let summaries: Vec<&str> =
            output.lines().filter(|line| line.starts_with("# fault ")).collect();
        // Two sizes, out of place and in place.
        assert_eq!((summaries.len(), records.accounts().len()), (4, 4), "{fault}: {output}");
        let courses = records.courses();
        for (place, (course, account)) in courses.iter().zip(records.accounts()).enumerate() {
            let mut events = course.iter();
            let is_complete = COURSE.iter().all(|next| events.any(|event| event == next));
            assert!(is_complete, "{fault}: {course:?}\n{output}");
            let times = ["noticed_ms", "known_ms", "elsewhere_ms", "healed_ms", "back_ms"]
                .map(|name| &account[name]);
            assert!(times.iter().all(|time| time.is_number()), "{fault}: {account}");
            let begins =
                format!("# fault {}: {} host", place + 1, account["kind"].as_str().unwrap());
            assert!(summaries[place].starts_with(&begins), "{fault}: {}", summaries[place]);
        }
        assert_eq!(courses.len(), 4, "{fault}: {output}");
        assert!(output.contains("ms  cut "), "{fault}: {output}");
    }
}

#[test]
fn who_does_not_answer_is_found_out_by_asking_third_hosts() {
    // Ranks meet over the network for management, or over the very rail that is cut.
    for (host, rail, meet) in [(1, 1, ""), (0, 0, "env MASTER_ADDR=10.0.0.1 ")] {
        // It does not heal, so that what is known at the end is about a fault that is still there.
        let bed = "--hosts 3 --rails 2 --rate 500mbit --limit 120s --from Using --fault";
        let fault = format!("silent:host={host},rail={rail},at=300ms");
        let flags: Vec<&str> = bed.split(' ').chain([fault.as_str()]).collect();
        let folder = tempfile::tempdir().unwrap();
        let timeline = folder.path().join("timeline");
        let command = format!("{meet}{ALL_REDUCE} -b 1M -e 1M -n 100 -T 60 --timeline");
        let command: Vec<&str> = command.split(' ').chain(timeline.to_str()).collect();
        let Some(finished) = Testbed::start(&flags, &command, "verdicts").finish() else { return };
        finished.assert_right(&fault);
        let output = &finished.output;
        for rank in 0..3 {
            let verdict = if rank == host { "local NIC" } else { "remote NIC" };
            let line = format!("# rank {rank} rail {rail}: ");
            let line = output.lines().find(|text| text.starts_with(&line));
            let is_named = line.is_some_and(|text| text.contains(&format!("at fault: {verdict}")));
            assert!(is_named, "{fault}: rank {rank}: {line:?}\n{output}");
        }
    }
}

#[test]
fn a_slow_rail_is_measured_and_not_lost() {
    let slow = "slow:host=0,rail=1,at=0%,heal=90%,rate=100mbit";
    let Some(records) = run(slow, "-b 4M -e 4M -n 25") else { return };
    let of = |event: &str| -> Vec<&Value> {
        records.timeline.iter().filter(|line| line["event"] == event).collect()
    };
    let measured = of("measured");
    let is_slow = |line: &&&Value| line["percent"].as_u64().is_some_and(|percent| percent < 60);
    // Other hosts move what is between them away from the rail that now carries more to host 0.
    let of_host = |line: &&&Value| line["rank"].as_u64().is_some_and(|rank| rank < 2);
    let slow: Vec<_> = measured.iter().filter(is_slow).filter(of_host).collect();
    assert!(!slow.is_empty(), "{}", records.finished.output);
    assert!(slow.iter().all(|line| line["rail"] == 1), "{slow:?}");
    // What waits in queues takes five times as long all at once, so for tens of milliseconds nothing may get
    // through between two hosts. Their path may be given up for that, once for each fault; then it is back.
    for lost in of("given-up") {
        let is_back = |line: &&Value| line["path"] == lost["path"] && line["rank"] == lost["rank"];
        let is_fresh = lost["incarnation"].as_u64().is_some_and(|incarnation| incarnation < 2);
        assert!(lost["rail"] == 1 && is_fresh, "{lost}\n{}", records.finished.output);
        let backs = of("returned").into_iter().filter(is_back);
        let is_back = backs.map(|back| back["incarnation"].as_u64()).max().flatten()
            > lost["incarnation"].as_u64();
        assert!(is_back, "{lost}\n{}", records.finished.output);
    }
}

#[test]
fn small_messages_say_nothing_about_healthy_rails() {
    let (bed, never) = ("--ranks 3 --hosts 3 --rails 4 -T 60", "down:host=0,rail=1,at=1h");
    let Some(records) = run_on(bed, never, "-b 256K -e 256K -n 1000") else { return };
    let events = records.timeline.iter().map(|line| line["event"].as_str());
    let unexpected = events.flatten().find(|event| ["measured", "given-up"].contains(event));
    assert_eq!(unexpected, None, "{}", records.finished.output);
}

#[test]
fn rails_that_only_some_hosts_share_are_not_slow() {
    // Of each of two hosts another rail is lost, so all links to them crowd on the others.
    let crowded = "--ranks 4 --hosts 4 --rails 4 --rate 100mbit -T 60 --algo balance \
                   --fault down:host=0,rail=0,at=0%";
    let Some(records) = run_on(crowded, "down:host=1,rail=1,at=0%", "-b 8M -e 8M -n 10") else {
        return;
    };
    let is_slow = |line: &&Value| line["percent"].as_u64().is_some_and(|percent| percent < 67);
    let slow: Vec<_> = records.timeline.iter().filter(is_slow).collect();
    // A host that is busy with something else may be mistaken once or twice.
    assert!(slow.len() <= 2, "{slow:?}");
}

#[test]
fn a_slow_rail_stays_in_use_and_a_fault_after_the_end_is_not_made() {
    let slow = "slow:host=0,rail=0,at=0%,heal=75%,rate=300mbit";
    let Some(records) = run(slow, "-b 64K -e 64K -n 8") else { return };
    assert_eq!(records.courses().len(), 2, "{}", records.finished.output);
    let Some(records) = run("down:host=0,rail=1,at=1h", "-b 1K -e 1K -n 2") else { return };
    assert_eq!((records.courses().len(), records.accounts().len()), (0, 0));
    let output = &records.finished.output;
    assert!(output.contains("at=1h: 2 measurements were over before it was due"), "{output}");
}

#[test]
fn every_cut_has_an_account_and_heals() {
    let kinds = [
        ("flap:host=1,rail=0,at=10%,times=3,period=60ms", 3),
        ("oneway:host=1,rail=0,at=50%,lose=incoming", 1),
    ];
    for (fault, cuts) in kinds {
        let Some(records) = run(fault, "-b 64K -e 64K -n 10") else { return };
        let accounts = records.accounts();
        assert_eq!(accounts.len(), 2 * cuts, "{fault}: {}", records.finished.output);
        assert!(accounts.iter().all(|account| account["healed_ms"].is_number()), "{accounts:?}");
    }
}

/// Runs to the end where no testbed is made.
fn refused(line: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(ALL_REDUCE);
    command.args(line.split(' ')).envs(variables.iter().copied());
    let finished = Running::start(&mut command).finish();
    (finished.status.code(), finished.errors)
}

#[test]
fn what_cannot_be_run_is_refused() {
    let fault = "--fault down:host=0,rail=1,at=50%";
    for (line, named) in [
        (format!("--ranks 5 --hosts 3 --rails 2 {fault}"), "3 hosts cannot have 5 --ranks"),
        (format!("--ranks 2 --hosts 2 --rails 1 {fault}"), "no host 0 rail 1"),
        (format!("--ranks 2 --hosts 1 --rails 2 {fault}"), "2 to"),
        (format!("--ranks 2 --hosts 2 {fault}"), "--rails"),
        (format!("-t 2 {fault}"), "--ranks"),
        ("--ranks 2 --hosts 2 --rails 2 --fault down:host=0,rail=0".to_owned(), "needs at="),
    ] {
        let (status, errors) = refused(&line, &[]);
        assert_eq!(status, Some(2), "{line}: {errors}");
        assert!(errors.contains(named), "{line}: {errors}");
    }
    let line = format!("--ranks 2 --hosts 2 --rails 2 {fault}");
    for variable in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        let (status, errors) = refused(&line, &[(variable, "0")]);
        assert!(status != Some(i32::from(STATUS_UNAVAILABLE)), "{variable}: {errors}");
        assert!(
            errors.contains("without r2ccl run, torchrun, mpirun or Slurm"),
            "{variable}: {errors}"
        );
    }
}
