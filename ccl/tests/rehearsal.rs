//! Rehearsed faults: rails die and return as the setting says, and the results are right all the while.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ccl::{Communicator, Config, Error, RailRecord, ReduceOp, Settings, UniqueId};
use ccl_transport::clock;

/// No test takes longer than this, or it hangs.
const DEADLINE: Duration = Duration::from_secs(120);
const COUNT: usize = 100_000;

/// Ranks of one test, each on a host of its own with two rails.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    faults: &'static str,
    size: u32,
}

impl Job {
    fn config(&self, rank: u32) -> Config {
        let host = format!("{} {rank}", self.name);
        let variables = [
            ("R2CCL_HOST_ID", host.as_str()),
            ("R2CCL_RAILS", "127.0.78.1,127.0.78.2"),
            ("R2CCL_FAULT", self.faults),
        ];
        let settings = Settings::parse(variables).unwrap().settings;
        Config { timeout: Some(DEADLINE), settings, ..Config::default() }
    }

    /// Runs `body` as every rank and returns the results in order of rank.
    fn run<T: Send + 'static>(
        self,
        body: impl Fn(Result<Communicator, Error>) -> T + Send + Copy + 'static,
    ) -> Vec<T> {
        let id = UniqueId::create(&self.config(0).settings).unwrap();
        let (sender, receiver) = mpsc::channel();
        for rank in 0..self.size {
            let sender = sender.clone();
            thread::spawn(move || {
                let created = Communicator::create(&id, rank, self.size, &self.config(rank));
                sender.send((rank, body(created))).unwrap();
            });
        }
        let mut results: Vec<(u32, T)> =
            (0..self.size).map(|_| receiver.recv_timeout(DEADLINE).unwrap()).collect();
        results.sort_by_key(|(rank, _)| *rank);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// Sums until `is_enough` on all ranks, and returns what happened to the rails of this one.
fn sum_until(
    communicator: &Communicator,
    is_enough: impl Fn(&[RailRecord]) -> bool,
) -> Vec<RailRecord> {
    let end = clock::now() + DEADLINE;
    let mut seen = Vec::new();
    loop {
        let mut sum = vec![i64::from(communicator.rank().0) + 1; COUNT];
        communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
        let ranks = i64::from(communicator.size());
        assert!(sum.iter().all(|value| *value == ranks * (ranks + 1) / 2), "wrong results");
        seen.extend(communicator.rail_records());
        let mut content = [i64::from(is_enough(&seen))];
        communicator.all_reduce_in_place(&mut content, ReduceOp::Sum).unwrap();
        if content[0] == ranks {
            return seen;
        }
        assert!(clock::now() < end, "it did not happen: {seen:?}");
    }
}

/// What speaks against the rails that were given up.
fn evidence(records: &[RailRecord]) -> Vec<&'static str> {
    records.iter().filter_map(|record| record.evidence).collect()
}

/// Rail 1 of host 1 dies and returns, more than once in case that this machine is busy at the first
/// time. Returns how it was lost, by rank.
fn dies_and_returns(name: &'static str, faults: &'static str) -> [Vec<RailRecord>; 2] {
    let all = Job { name, faults, size: 2 }.run(|created| {
        let communicator = created.unwrap();
        let seen = sum_until(&communicator, |seen| {
            let mut course = seen.iter().map(|record| record.event);
            ["given-up", "returned"].iter().all(|event| course.any(|seen| seen == *event))
        });
        communicator.finalize().unwrap();
        seen
    });
    let is_loss = |record: &RailRecord| record.event == "given-up";
    let lost = all.into_iter().map(|seen| seen.into_iter().filter(is_loss).collect::<Vec<_>>());
    let lost: Vec<Vec<RailRecord>> = lost.collect();
    assert!(lost.iter().flatten().all(|record| record.rail == 1), "{faults}: {lost:?}");
    lost.try_into().unwrap()
}

#[test]
fn a_silent_rail_is_found_by_its_silence_and_returns() {
    let faults = "flap:host=1,rail=1,at=100ms,times=50,period=2s,fault=silent";
    let lost = dies_and_returns("silent host", faults).concat();
    let evidence = evidence(&lost);
    assert!(evidence.contains(&"silence") && !evidence.contains(&"carrier"), "{evidence:?}");
}

#[test]
fn a_rail_that_loses_one_direction_is_found_by_its_silence_and_returns() {
    let faults = "flap:host=1,rail=1,at=100ms,times=50,period=2s,fault=oneway,lose=incoming";
    let lost = dies_and_returns("oneway host", faults).concat();
    let evidence = evidence(&lost);
    assert!(evidence.contains(&"silence") && !evidence.contains(&"carrier"), "{evidence:?}");
}

#[test]
fn a_card_that_is_switched_off_is_noticed_by_its_own_host_only() {
    let faults = "flap:host=1,rail=1,at=100ms,times=50,period=2s,fault=admin";
    let [far, own] = dies_and_returns("admin host", faults);
    assert!(!evidence(&far).contains(&"carrier"), "{far:?}");
    // On a machine that is busy the silence may be noticed first.
    let told = |record: &RailRecord| match record.evidence {
        Some("carrier") => record.cause.as_deref() == Some("admin on purpose (R2CCL_FAULT)"),
        other => matches!(other, Some("silence" | "peer" | "closed")),
    };
    assert!(own.iter().all(told), "{own:?}");
}

#[test]
fn parts_of_a_group_count_hosts_as_the_group_does() {
    let job = Job { name: "host of three", faults: "admin:host=0,rail=1,at=0s", size: 3 };
    let all = job.run(|created| {
        let whole = created.unwrap();
        let me = whole.rank().0;
        let seen = sum_until(&whole, |seen| {
            me != 0 || seen.iter().any(|record| record.event == "given-up")
        });
        let part = whole.split((me != 0).then_some(1), 0, None).unwrap();
        let seen_in_part = part.map(|part| sum_until(&part, |_| true)).unwrap_or_default();
        (evidence(&seen), evidence(&seen_in_part))
    });
    assert!(!all[0].0.is_empty(), "{all:?}");
    for (in_whole, in_part) in &all[1..] {
        assert!(!in_whole.contains(&"carrier") && !in_part.contains(&"carrier"), "{all:?}");
    }
}

#[test]
fn hosts_and_rails_that_do_not_exist_are_errors_of_all_ranks() {
    for (name, faults, missing) in [
        ("host of two", "silent:host=7,rail=0,at=1s", "there is no host 7 rail 0"),
        ("host with two", "silent:host=1,rail=2,at=1s", "there is no host 1 rail 2"),
    ] {
        let errors = Job { name, faults, size: 2 }.run(|created| created.unwrap_err());
        assert!(errors.iter().any(|error| matches!(error, Error::InvalidArgument(_))));
        for error in errors.iter().map(ToString::to_string) {
            assert!(error.contains("R2CCL_FAULT=") && error.contains(missing), "{error}");
        }
    }
}
