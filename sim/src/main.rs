//! `ccl-sim`: worlds in which the production code runs under faults.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use ccl_sim::flow::command::{FlowArguments, table};
use ccl_sim::mutation::Mutation;
use ccl_sim::runner::{Campaign, shrink};
use ccl_sim::scenario::Scenario;
use ccl_sim::world::{Options, Outcome, run};
use ccl_sim::{Plans, quiet_panics};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Deterministic simulation of the production code under faults")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many worlds and prints what was reached.
    Faults {
        /// Seeds, as FIRST..END.
        #[arg(long, value_parser = seeds, default_value = "0..10000")]
        seeds: (u64, u64),
        /// Threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// The other end of a connection may never hear that it is gone.
        #[arg(long)]
        lose_notices: bool,
    },
    /// Runs one world and writes down what happens; if it fails, the smallest world that still does.
    Replay {
        /// The seed.
        seed: u64,
        /// Do not look for a smaller world.
        #[arg(long)]
        whole: bool,
        /// The other end of a connection may never hear that it is gone.
        #[arg(long)]
        lose_notices: bool,
        /// Break this on purpose.
        #[arg(long, value_parser = mutation)]
        mutant: Option<Mutation>,
    },
    /// Breaks the protocol on purpose, in every way it knows, and looks whether that is found.
    Mutants {
        /// Seeds for each, as FIRST..END.
        #[arg(long, value_parser = seeds, default_value = "0..50000")]
        seeds: (u64, u64),
        /// Threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Tells how long an AllReduce takes on a network with these NICs, by each algorithm.
    Flow(FlowArguments),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    if !matches!(command, Command::Flow(_)) {
        quiet_panics();
    }
    let done = match command {
        Command::Faults { seeds, jobs, lose_notices } => faults(seeds, jobs, lose_notices),
        Command::Replay { seed, whole, lose_notices, mutant } => {
            let mut scenario = Scenario::draw(seed);
            scenario.physics.loses_notices = lose_notices;
            replay(scenario, whole, mutant)
        }
        Command::Mutants { seeds, jobs } => mutants(seeds, jobs),
        Command::Flow(arguments) => flow(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        // Nobody reads any more, or something was found.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

/// `FIRST..END`.
fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parse = || {
        let (first, end) = text.split_once("..")?;
        Some((first.parse().ok()?, end.parse().ok()?))
    };
    let some = parse().filter(|(first, end): &(u64, u64)| first < end);
    some.ok_or_else(|| format!("{text:?} is not FIRST..END, with END behind FIRST"))
}

fn mutation(text: &str) -> Result<Mutation, String> {
    let named = Mutation::ALL.into_iter().find(|mutation| mutation.name() == text);
    let names = Mutation::ALL.map(Mutation::name).join(", ");
    named.ok_or_else(|| format!("there are {names}"))
}

fn faults((first, end): (u64, u64), jobs: usize, loses_notices: bool) -> io::Result<bool> {
    let campaign = Campaign { jobs, mutation: None, loses_notices, most_failing: 20 };
    #[allow(clippy::disallowed_methods, reason = "how long the simulation takes is no input of it")]
    let start = Instant::now();
    let report = campaign.run(first..end);
    let seconds = start.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    write!(out, "{}", report.tally)?;
    let per_thousand = seconds * 1000.0 / report.tally.worlds.max(1) as f64;
    writeln!(out, "seeds {first}..{end} in {seconds:.1} s: {per_thousand:.2} s per 1000 seeds")?;
    for failing in &report.failing {
        writeln!(out, "seed {}: {}", failing.seed, failing.violation)?;
    }
    if let Some(failing) = report.failing.first() {
        writeln!(out, "repeat with: ccl-sim replay {}", failing.seed)?;
    }
    Ok(report.failing.is_empty())
}

fn replay(scenario: Scenario, whole: bool, mutation: Option<Mutation>) -> io::Result<bool> {
    let small = if whole { None } else { shrink(&scenario, mutation) };
    let (scenario, outcome) = small.unwrap_or_else(|| {
        let options = Options { transcript: true, mutation };
        let outcome = run(&scenario, &mut Plans::default(), options);
        (scenario, outcome)
    });
    let Outcome { violation, tally, transcript, .. } = outcome;
    let mut out = io::stdout().lock();
    writeln!(out, "{scenario}")?;
    for line in transcript {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\n{tally}")?;
    match &violation {
        Some(violation) => writeln!(out, "FAILED: {violation}")?,
        None => writeln!(out, "passed")?,
    }
    Ok(violation.is_none())
}

fn flow(arguments: &FlowArguments) -> io::Result<bool> {
    match table(arguments) {
        Ok(table) => write!(io::stdout().lock(), "{table}").map(|()| true),
        Err(cause) => writeln!(io::stderr().lock(), "ccl-sim: {cause}").map(|()| false),
    }
}

fn mutants((first, end): (u64, u64), jobs: usize) -> io::Result<bool> {
    let mut all_found = true;
    for mutant in Mutation::ALL {
        let mutation = Some(mutant);
        let campaign = Campaign { jobs, mutation, loses_notices: false, most_failing: 1 };
        let report = campaign.run(first..end);
        let mut out = io::stdout().lock();
        let name = mutant.name();
        match report.failing.first() {
            Some(failing) => {
                let worlds = report.tally.worlds;
                writeln!(out, "{name:28} found in {worlds} worlds, seed {}", failing.seed)?;
                writeln!(out, "{:28} {}", "", failing.violation)?;
            }
            None => {
                all_found = false;
                writeln!(out, "{name:28} NOT FOUND in {} worlds", report.tally.worlds)?;
            }
        }
    }
    Ok(all_found)
}
