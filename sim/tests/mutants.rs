//! A simulation that does not find bugs is worth nothing: it has to find those made on purpose.

use ccl_sim::mutation::Mutation;
use ccl_sim::quiet_panics;
use ccl_sim::runner::{Campaign, shrink};
use ccl_sim::scenario::Scenario;

/// Seeds within which every mutant must be found.
const SEEDS: u64 = 5_000;

#[test]
fn every_mutant_is_found() {
    quiet_panics();
    for mutation in Mutation::ALL {
        let campaign =
            Campaign { jobs: 2, mutation: Some(mutation), loses_notices: false, most_failing: 1 };
        let report = campaign.run(0..SEEDS);
        let found = report.failing.first();
        println!("{}: {} worlds, {found:?}", mutation.name(), report.tally.worlds);
        assert!(found.is_some(), "{} survives {SEEDS} worlds", mutation.name());
    }
}

#[test]
fn a_failing_world_becomes_smaller() {
    quiet_panics();
    let mutation = Some(Mutation::RewindOffByOne);
    let report =
        Campaign { jobs: 2, mutation, loses_notices: false, most_failing: 1 }.run(0..SEEDS);
    let scenario = Scenario::draw(report.failing[0].seed);
    let (smaller, outcome) = shrink(&scenario, mutation).unwrap();
    assert!(outcome.violation.is_some() && !outcome.transcript.is_empty());
    assert!(smaller.faults.len() <= scenario.faults.len());
    assert!(smaller.calls.len() <= scenario.calls.len());
    assert!(!smaller.faults.is_empty(), "this mutant needs a fault");
}
