//! The command line of the testbed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};

use super::chaos::ChaosPlan;
use super::shape::{MOST_HOSTS, MOST_RAILS, Rate, Shape};
use super::specification::FaultPlan;

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "testbed",
    about = "Runs a command on several hosts with several networks each, all on this machine, and breaks the networks",
    after_help = "Faults are written KIND:key=value,key=value; times look like 2s or 500ms.\n\
                  \n  carrier:host=0,rail=1,at=2s,heal=1s   the switch's port goes down, the host loses its carrier\
                  \n  admin:…                               the host's network card is switched off\
                  \n  silent:…                              nothing arrives any more, the carrier stays\
                  \n  oneway:…,lose=outgoing|incoming       the same in one direction\
                  \n  slow:…,rate=50mbit                    the cable carries less\
                  \n  flap:…,times=5,period=200ms[,fault=carrier]\
                  \n\nChaos is SEED:every=500ms,heal=500ms,most=1,hosts=1,faults=admin+carrier+silent,second=TIME.\n\
                  See docs/testbed.md."
)]
pub struct Arguments {
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub hosts: usize,
    /// Network cards of every host
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub rails: usize,
    /// What each of them carries in each direction, such as 200mbit; none: no limit
    #[arg(long, default_value_t = Rate::Limited { bytes_per_second: 125_000_000 })]
    pub rate: Rate,
    /// Processes of the command on every host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks_per_host: usize,
    /// A fault while the command runs; may be repeated
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<FaultPlan>,
    /// Random faults from a seed while the command runs
    #[arg(long, value_name = "SEED:…")]
    pub chaos: Option<ChaosPlan>,
    /// Count the times of faults from the first line of rank 0 that contains this, not from the start
    #[arg(long, value_name = "TEXT")]
    pub from: Option<String>,
    /// Kill everything after so long, and exit with status 124
    #[arg(long, value_name = "TIME")]
    pub limit: Option<humantime::Duration>,
    /// Write what happens to a file, one JSON object in each line
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Obey requests like `cut silent:host=0,rail=1` at a socket of this name; see --tell
    #[arg(long, value_name = "NAME")]
    pub control: Option<String>,
    /// Send COMMAND as a request to the testbed with this --control, and print its answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["control", "json", "chaos", "faults"])]
    pub tell: Option<String>,
    /// Set for the process that makes the bed
    #[arg(long, hide = true)]
    pub inside: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

impl Arguments {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// As a usage error of the command line.
    pub fn checked(self) -> Result<Self, clap::Error> {
        let refuse =
            |message: String| Err(Self::command().error(ErrorKind::ValueValidation, message));
        if !(1..=MOST_HOSTS).contains(&self.hosts) {
            return refuse(format!("--hosts must be between 1 and {MOST_HOSTS}"));
        }
        if !(1..=MOST_RAILS).contains(&self.rails) {
            return refuse(format!("--rails must be between 1 and {MOST_RAILS}"));
        }
        if self.ranks_per_host == 0 {
            return refuse("--ranks-per-host must not be zero".to_owned());
        }
        let mut timed = self.faults.iter().flat_map(|FaultPlan(plan)| plan);
        match timed.find_map(|timed| self.shape().check(timed.action.cable).err()) {
            Some(complaint) => refuse(format!("--fault: {complaint}")),
            None => Ok(self),
        }
    }

    /// The size of the bed.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape { hosts: self.hosts, rails: self.rails, rate: self.rate }
    }

    /// Number of all processes.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.hosts * self.ranks_per_host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("testbed").chain(line.split_whitespace());
        Arguments::try_parse_from(words).and_then(Arguments::checked)
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_command_keeps_its_own_flags() {
        let line = "--hosts 3 --rails 4 --rate 100mbit --ranks-per-host 2 -- perf -b 8 --hosts 9";
        let arguments = parse(line).unwrap();
        let rate = Rate::Limited { bytes_per_second: 12_500_000 };
        assert_eq!(arguments.shape(), Shape { hosts: 3, rails: 4, rate });
        assert_eq!((arguments.ranks(), arguments.command.len()), (6, 5));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "--hosts 0 true",
            "--rails 0 true",
            "--rails 65 true",
            "--ranks-per-host 0 true",
            "--rate fast true",
            "--limit soon true",
            "--chaos x true",
            "--fault carrier:host=2,rail=0,at=1s true",
            "--control a --tell b true",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
