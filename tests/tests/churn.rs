//! Processes are killed at random, and others come for them: who is left goes on with all others that are. docs/testbed.md has
//! the same for as long as one likes.
#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::process::Command;

use support::note;
use support::program::Running;

/// Far longer than anybody takes to go on.
const PATIENCE: &str = "30s";

/// Has members killed some times, and returns what was told in the end.
fn survived(flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_churn"));
    command.args(["--rounds", "25", "--time", "10m", "--patience", PATIENCE]).args(flags);
    let finished = Running::start(&mut command).finish();
    assert!(finished.status.success(), "{flags:?}: {}{}", finished.output, finished.errors);
    note(&finished.output.replace('\n', " "));
    finished.output
}

/// The number before this word.
fn number_of(what: &str, told: &str) -> u32 {
    let words: Vec<&str> = told.split([' ', ',', '\n']).collect();
    let place = words.iter().position(|word| *word == what).expect("it is told");
    words[place - 1].parse().unwrap()
}

#[test]
fn who_is_left_goes_on_and_others_join() {
    let members = 5;
    for flags in [["--seed", "1", "--members", "5"], ["--seed", "2", "--hosts", "3"]] {
        let told = survived(&flags);
        let [joined, killed] = ["joined", "killed"].map(|what| number_of(what, &told));
        assert!(killed > members && joined > members + 1, "{told}");
        assert!(number_of("collectives", &told) > 0, "{told}");
    }
}

#[test]
fn who_does_not_go_on_in_time_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_churn"));
    let finished = Running::start(command.args(["--patience", "1us"])).finish();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.errors);
    assert!(finished.errors.contains("after 1µs"), "{}", finished.errors);
}
