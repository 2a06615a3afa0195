//! A simulation that does not find bugs is worth nothing: it has to find those made on purpose.

use std::ops::Range;

use ccl_sim::mutation::Mutation;
use ccl_sim::quiet_panics;
use ccl_sim::runner::{Campaign, shrink};
use ccl_sim::scenario::Scenario;

/// Seeds within which every mutant must be found.
const SEEDS: u64 = 5_000;

/// Where a mutant is looked for. One does harm only when a fence is overtaken by the connection that
/// replaces the one it is about, which happens in one world of ten to thirty thousand; where the first of them is
/// depends on all delays.
fn seeds(mutation: Mutation) -> Range<u64> {
    let rare = mutation == Mutation::FenceWithoutIncarnation;
    0..if rare { 20 * SEEDS } else { SEEDS }
}

#[test]
fn every_mutant_is_found() {
    quiet_panics();
    for mutation in Mutation::ALL {
        let campaign =
            Campaign { jobs: 2, mutation: Some(mutation), loses_notices: false, most_failing: 1 };
        let report = campaign.run(seeds(mutation));
        let found = report.failing.first();
        println!("{}: {} worlds, {found:?}", mutation.name(), report.tally.worlds);
        let worlds = report.tally.worlds;
        assert!(found.is_some(), "{} survives {worlds} worlds", mutation.name());
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
