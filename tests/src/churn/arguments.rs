//! The command line of `churn`.

use std::num::NonZeroUsize;

use ccl_launcher::Member;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(
    name = super::NAME,
    about = "Kills ranks at random and starts others: whoever is left has to go on with all others that are",
    after_help = "Exit status: 0 if all went on, 1 if somebody did not or a result was wrong, 3 if this machine could \
                  not do it.\nSee docs/testbed.md."
)]
pub struct Arguments {
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// When nobody is killed any more
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub time: humantime::Duration,
    /// How often something happens, if the time is not over before
    #[arg(long, value_name = "N")]
    pub rounds: Option<u64>,
    /// Processes at most
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub members: u32,
    /// Pretend that they are on so many hosts
    #[arg(long, value_name = "N")]
    pub hosts: Option<NonZeroUsize>,
    /// After so long whoever has not gone on hangs; half of it is the bootstrap timeout of members
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub patience: humantime::Duration,
    /// Tell of each time that somebody was killed or came
    #[arg(short, long)]
    pub verbose: bool,
    /// Set for the processes that are started
    #[arg(long, hide = true)]
    pub member: Option<Member>,
}

impl Arguments {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// As a usage error of the command line.
    pub fn checked(self) -> Result<Self, clap::Error> {
        let refuse =
            |message: &str| Err(Self::command().error(ErrorKind::ValueValidation, message));
        match self {
            Self { members: 0 | 1, .. } => refuse("--members must be 2 or more: somebody is left"),
            Self { hosts: Some(hosts), .. } if hosts.get() > 250 => {
                refuse("--hosts: at most 250 can be pretended")
            }
            arguments => Ok(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("churn").chain(line.split_whitespace());
        Arguments::try_parse_from(words).and_then(Arguments::checked)
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(parse("--members 2 --hosts 250 --time 1s").unwrap().members, 2);
        for line in ["--members 1", "--hosts 0", "--hosts 251", "--time soon", "--seed -1", "more"]
        {
            parse(line).expect_err(line);
        }
    }
}
