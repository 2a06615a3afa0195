//! Collectives finish, exact to the last bit, while network cards come and go under them.
//!
//! Every benchmark runs on a testbed of three hosts with four rails whose cables are cut and healed at
//! random. docs/testbed.md has the same for hours and with larger sizes.
#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benchmarks;
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use benchmarks::{ALL_REDUCE, OTHERS};
use ccl_tests::testbed::journal::Event;
use serde_json::Value;
use support::bed::{Finished, Testbed};
use support::note;

/// Hosts, rails and what they carry; a run that hangs is ended, after the library has had the time
/// to say for whom it waits. The first cut comes when all ranks have met.
const FLAGS: [&str; 10] = [
    "--hosts",
    "3",
    "--rails",
    "4",
    "--rate",
    "200mbit",
    "--limit",
    "120s",
    "--from",
    "Using devices",
];
const DEADLINE_S: &str = "60";

/// Sizes that fit into one tile and into a few.
const SIZES: [&str; 6] = ["-b", "1K", "-e", "64K", "-f", "4"];

/// Runs a benchmark under `faults`; `None` if this machine cannot have a testbed. Returns also how
/// many cuts there were.
fn run(benchmark: &str, faults: &[&str], sizes: &[&str]) -> Option<(Finished, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let flags = [&FLAGS, faults, &["--json", journal.to_str().unwrap()]].concat();
    let command = [&[benchmark], sizes, &["-T", DEADLINE_S]].concat();
    let finished = Testbed::start(&flags, &command, "repair").finish()?;
    let text = std::fs::read_to_string(&journal).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap());
    let is_cut = |event: &Event| matches!(event, Event::Fault { turn, .. } if turn == "cut");
    Some((finished, events.filter(is_cut).count()))
}

fn name(benchmark: &str) -> &str {
    Path::new(benchmark).file_name().unwrap().to_str().unwrap()
}

#[test]
fn every_collective_survives_cables_that_come_and_go() {
    for (seed, benchmark) in [ALL_REDUCE].into_iter().chain(OTHERS).enumerate() {
        let chaos = format!(
            "{seed}:every=60ms,heal=150ms,most=3,hosts=2,second=5ms,faults=admin+carrier+silent+oneway"
        );
        // A quick machine is through before the first cut, and does more then.
        let mut cuts = 0;
        for checks in ["50", "500", "5000"] {
            let sizes = [&SIZES[..], &["-n", "5", "-c", checks]].concat();
            let Some((finished, count)) = run(benchmark, &["--chaos", &chaos], &sizes) else {
                return;
            };
            finished.assert_right(&format!("{} --chaos {chaos}", name(benchmark)));
            cuts = count;
            if cuts > 0 {
                break;
            }
        }
        assert!(cuts > 0, "{}: nothing was cut", name(benchmark));
        note(&format!("{}: {cuts} cuts survived", name(benchmark)));
    }
}

#[test]
fn one_cut_of_every_kind_in_the_middle_of_a_large_operation_is_survived() {
    let kinds = ["admin:", "carrier:", "silent:", "oneway:lose=outgoing,", "oneway:lose=incoming,"];
    for kind in kinds {
        // Two rails of different hosts, the second while the first is being repaired; neither heals.
        let cuts = ["host=0,rail=1,at=100ms", "host=1,rail=2,at=105ms"];
        let [first, second] = cuts.map(|place| format!("{kind}{place}"));
        let sizes = ["-b", "16M", "-e", "16M", "-n", "2", "-w", "0"];
        let faults = ["--fault", &first, "--fault", &second];
        let Some((finished, cuts)) = run(ALL_REDUCE, &faults, &sizes) else { return };
        finished.assert_right(&format!("all_reduce_perf --fault {first} --fault {second}"));
        assert_eq!(cuts, 2, "{kind}");
    }
}

#[test]
fn a_nic_with_several_connections_fails_and_returns_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let timeline = folder.path().join("timeline");
    let fault = "carrier:host=0,rail=1,at=100ms,heal=100ms";
    let flags = [&FLAGS[..], &["--fault", fault]].concat();
    let calls = ["-b", "256K", "-e", "256K", "-n", "5", "-c", "500", "-T", DEADLINE_S];
    let program = ["env", "R2CCL_NET_CONNECTIONS=2", ALL_REDUCE];
    let command = [&program, &calls[..], &["--timeline", timeline.to_str().unwrap()]].concat();
    let Some(finished) = Testbed::start(&flags, &command, "repair").finish() else { return };
    finished.assert_right(fault);
    let text = std::fs::read_to_string(&timeline).unwrap();
    let lost = |line: &str| -> Option<u64> {
        let event: Value = serde_json::from_str(line).unwrap();
        (event["event"] == "given-up" && event["rank"] == 0).then(|| event["rail"].as_u64())?
    };
    // Each of the four NICs has two rails: its number, and four more.
    let lost: BTreeSet<u64> = text.lines().filter_map(lost).collect();
    assert_eq!(lost, BTreeSet::from([1, 5]), "{text}");
}
