//! Virtual queue pairs over rails that are cut at any moment.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/cuts.rs"]
mod cuts;

use ccl_transport::verbs::virtual_qp::Evidence;

#[test]
fn everything_is_executed_once_however_often_rails_are_cut() {
    for evidence in Evidence::ALL {
        let tally = cuts::run(evidence, 100, 7);
        println!("{}: {tally:#?}", evidence.name());
        assert!(tally.violations.is_empty(), "{:#?}", tally.violations);
        assert!(tally.batches == 100 && tally.cuts > 0 && tally.counters.repairs > 0);
    }
}
