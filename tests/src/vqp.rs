//! Benchmarks of queue pairs that survive their NIC: perftest's flags and columns for this library.
//!
//! Two processes take part. The *initiator* posts writes, sends, reads or atomics and measures; the
//! *responder* serves, and checks what arrives. The plan of a run is the initiator's; the responder
//! hears of it when they meet.
//!
//! | module | question it answers |
//! |---|---|
//! | [`arguments`], [`plan`] | what is to be measured? |
//! | [`meet`], [`local`] | which two processes are there, and how did they get here? |
//! | [`data`] | what is in memory, and is it right? |
//! | [`bandwidth`], [`latency`], [`respond`] | who does what? |
//! | [`verbs`] | what does a single call cost? |
//! | [`recovery`] | what does a cut in the middle of a batch cost? |
//! | `threads` | which end of two in one process has failed first? |
//! | [`meter`], [`table`] | how fast was it, over time and altogether? |

pub mod arguments;
pub mod bandwidth;
pub mod data;
pub mod latency;
pub mod local;
pub mod meet;
pub mod meter;
pub mod plan;
pub mod recovery;
pub mod respond;
pub mod table;
mod threads;
pub mod verbs;

use std::process::ExitCode;

use ccl::vqp::Event;

use crate::Outcome;
use crate::error::Failure;
use arguments::Arguments;
use meet::{Ends, Role};
use meter::Meter;
use plan::{Plan, Test};
use respond::Verdict;

/// Runs `test` as the command line says.
#[must_use]
pub fn main(test: Test) -> ExitCode {
    let arguments = Arguments::of_this_process(test);
    match run(test, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.told_by(test.name()),
    }
}

fn run(test: Test, arguments: &Arguments) -> Outcome<()> {
    // Warnings of the library, rehearsed faults among them, belong to the reader.
    ccl::log::to_standard_error().map_err(|error| Failure::Library { rank: 0, error })?;
    if arguments.local && arguments.launcher.is_none() {
        let server = local::Server::start(arguments)?;
        let outcome = initiate(test, arguments, Role::ClientOf(server.address()));
        return server.finish(outcome);
    }
    let role = Role::find(arguments)?;
    match role {
        Role::Server | Role::Responder(_) => respond::run(test, arguments, &role),
        Role::Client(_) | Role::ClientOf(_) | Role::Initiator => initiate(test, arguments, role),
    }
}

/// The initiator's side of a run: all sizes, one row each.
fn initiate(test: Test, arguments: &Arguments, role: Role) -> Outcome<()> {
    let plan = Plan::new(test, arguments);
    let mut ends = Ends::meet(&plan, arguments, role)?;
    let table = table::Table::new(&plan, arguments.report_gbits);
    table.head(&ends)?;
    let mut meter = Meter::new(arguments.interval);
    for (index, &bytes) in plan.sizes.iter().enumerate() {
        ends.begin_row(index)?;
        let row = match plan.test.is_latency() {
            true => latency::initiate(&mut ends, &plan, bytes, &mut meter),
            false => bandwidth::initiate(&mut ends, &plan, bytes, &mut meter),
        };
        let row = match row {
            Ok(row) => row,
            Err(failure) => {
                // What was seen until then is worth something, above all if a fault was asked for.
                report(&mut ends, &plan, arguments, &meter)?;
                return Err(failure);
            }
        };
        let () = ends.exchange(&row.posted)?;
        let verdict: Verdict = ends.exchange(&())?;
        table.row(&row, &verdict)?;
        if let Some(wrong) = verdict.wrong {
            return Err(Failure::Results(wrong));
        }
    }
    report(&mut ends, &plan, arguments, &meter)
}

/// What happened, below the table and in a file.
fn report(ends: &mut Ends, plan: &Plan, arguments: &Arguments, meter: &Meter) -> Outcome<()> {
    let events: Vec<Vec<Event>> = ends.pairs.iter_mut().map(|pair| pair.take_events()).collect();
    table::intervals(meter, plan, arguments.report_gbits)?;
    table::events(meter, &events)?;
    table::summary(ends, meter)?;
    match &arguments.timeline {
        Some(path) => meter.write(path, plan, &events),
        None => Ok(()),
    }
}
