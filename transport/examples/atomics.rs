//! Cuts rails in the middle of batches of writes, reads, messages, compare-and-swaps and
//! fetch-and-adds of two contending clients, and verifies every result. Fails if one is wrong.
//!
//! `cargo run --release -p ccl-transport --example atomics [batches] [seed]`
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

#[path = "../tests/support/bench.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod bench;
#[path = "../tests/support/cuts.rs"]
mod cuts;

use std::process::ExitCode;

use ccl_transport::verbs::virtual_qp::Evidence;

const BATCHES: usize = 10_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let batches = arguments.next().map_or(BATCHES, |batches| batches as usize);
    let seed = arguments.next().unwrap_or(1);
    let tally = cuts::run(Evidence::Log, batches, seed);
    let counters = tally.counters;
    println!("batches            {:>10} of 2 clients, seed {seed}", tally.batches);
    println!("operations         {:>10}", tally.operations);
    println!("  of them atomics  {:>10}", tally.atomics);
    println!("cuts               {:>10}", tally.cuts);
    println!("repairs            {:>10} at both ends", counters.repairs);
    println!("returns            {:>10} to the default rail", counters.returns);
    println!("requests repeated  {:>10}", counters.resent);
    println!("requests spared    {:>10} executed, although not acknowledged", counters.spared);
    println!("results recovered  {:>10} of atomics whose answer was lost", counters.recovered);
    println!("violations         {:>10}", tally.violations.len());
    for violation in &tally.violations {
        println!("VIOLATION {violation}");
    }
    if tally.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
