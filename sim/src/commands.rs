//! The commands of `r2ccl-sim`. Each answers with what is to be printed.

mod collective;
mod montecarlo;
mod report;
mod scale;
mod serve;
mod table;
mod train;
mod what_if;

use clap::{Parser, Subcommand};

/// Plans clusters: what lost NICs cost collectives, training and serving.
#[derive(Debug, Parser)]
#[command(name = "r2ccl-sim", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How long a collective takes by each strategy, with lost NICs or with NICs that fail while it runs.
    Collective(collective::Collective),
    /// What random patterns of failures cost an iteration of training.
    Montecarlo(montecarlo::MonteCarlo),
    /// What lost NICs cost an iteration of training, and what other systems would.
    Train(train::Train),
    /// How fast a served language model answers before and after a failure, with other ways to live with it.
    Serve(serve::Serve),
    /// The figures of the R²CCL paper beside what is simulated here.
    Report(report::Report),
    /// What the failures in the file of a cluster cost.
    WhatIf(what_if::WhatIf),
    /// How the time of a simulation grows with the cluster.
    Scale(scale::Scale),
}

impl Arguments {
    /// Does what is asked.
    ///
    /// # Errors
    /// What is wrong about it, and what to do instead.
    pub fn run(&self) -> Result<String, String> {
        match &self.command {
            Command::Collective(command) => command.run(),
            Command::Montecarlo(command) => command.run(),
            Command::Train(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Report(command) => command.run(),
            Command::WhatIf(command) => command.run(),
            Command::Scale(command) => command.run(),
        }
    }
}
