//! What is sent again after a cut with 64 writes of 64 KiB outstanding, of which the peer had
//! executed some, by evidence. Fails if log or handshake send more than a quarter of what is sent
//! without evidence where three quarters and more had been executed.
//!
//! `cargo run --release -p ccl-transport --example resent`
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

#[path = "../tests/support/bench.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod bench;
#[path = "../tests/support/resent.rs"]
mod resent;

use std::process::ExitCode;

use ccl_transport::verbs::virtual_qp::Evidence;
use resent::{BYTES, Resent, WRITES};

fn main() -> ExitCode {
    println!("{WRITES} writes of {} KiB, each fourth with an immediate\n", BYTES >> 10);
    println!("{:>8} {:>10} {:>8} {:>10} {:>8}", "executed", "evidence", "writes", "KiB", "of all");
    let mut is_fine = true;
    for before_cut in [0, 16, 32, 48, 56, 64] {
        let results = Evidence::ALL.map(|evidence| resent::run(evidence, before_cut));
        let [all, ..] = results;
        for (evidence, Resent { executed, writes, bytes }) in Evidence::ALL.iter().zip(results) {
            let share = bytes as f64 / all.bytes as f64;
            let name = evidence.name();
            let kib = bytes >> 10;
            println!("{executed:>8} {name:>10} {writes:>8} {kib:>10} {:>7.1}%", 100.0 * share);
            let is_exempt = *evidence == Evidence::Resend || 4 * executed < 3 * WRITES;
            is_fine &= is_exempt || share <= 0.25;
        }
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
