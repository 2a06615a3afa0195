//! The command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use ccl_core::collective::Collective;
use ccl_core::cost::Preset;
use ccl_launcher::{Binding, Member, check_pretence};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

/// Starts ranks that use r2ccl, and looks into its planner.
#[derive(Debug, Parser)]
#[command(name = "r2ccl", version, about)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// What the command line of this process says. Where that cannot be done, the process ends.
    pub(crate) fn of_this_process() -> Self {
        let checked = Self::try_parse().and_then(Self::checked);
        checked.unwrap_or_else(|error| error.format(&mut Self::command()).exit())
    }

    /// Refuses combinations that cannot be run.
    ///
    /// # Errors
    /// As a usage error of the command line, which is not formatted yet.
    fn checked(self) -> Result<Self, clap::Error> {
        let refuse = |complaint| clap::Error::raw(ErrorKind::ValueValidation, complaint);
        if let Command::Run(Run { ranks, hosts, rails, .. }) = &self.command {
            check_pretence(*ranks, *hosts, *rails).map_err(refuse)?;
        }
        Ok(self)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts a program several times on this machine, as the ranks of a job
    #[command(
        after_help = "The processes find each other as under torchrun, by RANK, WORLD_SIZE, LOCAL_RANK, \
                      LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 has the standard input, all have \
                      the output.\n\n\
                      When one fails, the others have 3 seconds to say why they cannot go on; then they are sent \
                      SIGTERM, and killed 5 seconds later. The exit status of r2ccl is that of the first that \
                      failed. SIGINT, SIGTERM and SIGHUP are passed on, with 5 seconds to end as well, and another \
                      one, a second or more later, kills at once; then the signal ends r2ccl, which is 128 and its \
                      number in a shell. What ranks have started ends with them, in the same way, and so does what is \
                      left by processes that r2ccl had before (`monitor & exec r2ccl`). If r2ccl is killed by SIGKILL, \
                      the kernel kills the ranks, but not what they have started: let a shell exec the program."
    )]
    Run(Run),
    /// What `run` starts: becomes the program when it has taken its place
    #[command(hide = true)]
    Rank(Rank),
    /// Shows the candidates for a collective with their predicted times, the choice, and the bound
    Explain(Explain),
}

/// What is to be run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How many processes
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) ranks: NonZeroUsize,
    /// Let them pretend to be on so many hosts, neighbours on the same one
    #[arg(long, value_name = "N")]
    pub(crate) hosts: Option<NonZeroUsize>,
    /// Give every such host so many network interfaces
    #[arg(long, value_name = "N")]
    pub(crate) rails: Option<NonZeroUsize>,
    /// Let the others go on when one fails, as ranks want that shrink their communicator: all is well if one ends well
    #[arg(long)]
    pub(crate) no_kill: bool,
    /// Bind every process to a processor unless there are more processors than processes, or leave that
    /// to the kernel
    #[arg(long = "bind-to", value_enum, default_value_t)]
    pub(crate) binding: Binding,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(crate) program: Vec<OsString>,
}

/// One process of `run`.
#[derive(Debug, Args)]
pub(crate) struct Rank {
    /// Which it is
    pub(crate) member: Member,
    /// Where it runs
    #[arg(value_enum)]
    pub(crate) binding: Binding,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

/// What is to be explained.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The collective, such as allreduce
    #[arg(value_parser = collective)]
    pub(crate) collective: Collective,
    /// Number of nodes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) nodes: u32,
    /// Ranks on every node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks_per_node: u32,
    /// Rails of every node
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) rails: u32,
    /// Rails that are lost, as node:rail, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) lost: Vec<Lost>,
    /// Bytes of the collective as nccl-tests counts them: one size, or the first and the last of a table
    #[arg(long, default_value = "64K..4G")]
    pub(crate) bytes: Sizes,
    /// Constants of a kind of cluster [default: those of this library's own transport, by processors]
    #[arg(long, value_parser = presets())]
    pub(crate) preset: Option<Preset>,
    /// A file that R2CCL_TUNING has written; it says how many nodes, ranks and rails there are
    #[arg(long, conflicts_with_all = ["preset", "nodes", "rails", "ranks_per_node", "rate"])]
    pub(crate) tuning: Option<PathBuf>,
    /// Bytes per second of a rail, such as 25GB [default: 3.125GB, or that of the preset]
    #[arg(long)]
    pub(crate) rate: Option<ByteSize>,
    /// Latency between nodes, in microseconds [default: 20, or that of the preset]
    #[arg(long, value_name = "MICROSECONDS", value_parser = microseconds)]
    pub(crate) alpha: Option<f64>,
    /// CPU for a message, in microseconds [default: 4, or that of the preset]
    #[arg(long, value_name = "MICROSECONDS", value_parser = microseconds)]
    pub(crate) overhead: Option<f64>,
    /// Only this algorithm, chosen whatever it costs
    #[arg(long = "algo", value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// Write the predicted times of all candidates as curves to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// A rail that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) node: u32,
    pub(crate) rail: u8,
}

impl FromStr for Lost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(node, rail)| {
            Some(Self { node: node.parse().ok()?, rail: rail.parse().ok()? })
        });
        parsed.ok_or_else(|| "expected node:rail".to_owned())
    }
}

/// Sizes from the first to the last, each four times the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    first: u64,
    last: u64,
}

impl Sizes {
    pub(crate) fn all(self) -> Vec<usize> {
        let sizes = std::iter::successors(Some(self.first), |size| size.checked_mul(4));
        sizes
            .take_while(|size| *size <= self.last)
            .filter_map(|size| usize::try_from(size).ok())
            .collect()
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        // K is 1024 here as in nccl-tests.
        let size = |text: &str| -> Result<u64, String> {
            let binary = text.trim().trim_end_matches(['B', 'b', 'i']);
            let text = if binary.ends_with(|last: char| last.is_ascii_digit()) {
                binary.to_owned()
            } else {
                format!("{binary}iB")
            };
            text.parse::<ByteSize>().map(|size| size.as_u64())
        };
        let (first, last) = (size(first)?, size(last)?);
        if first == 0 || first > last {
            return Err("the first size must not be zero or above the last".to_owned());
        }
        Ok(Self { first, last })
    }
}

fn collective(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    let all = Collective::ALL.into_iter();
    all.clone().find(|collective| plain(collective.name()) == plain(text)).ok_or_else(|| {
        let names: Vec<&str> = all.map(Collective::name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn microseconds(text: &str) -> Result<f64, String> {
    let time = text.parse().ok().filter(|time: &f64| time.is_finite() && *time >= 0.0);
    time.ok_or_else(|| "expected a time in microseconds, 0 or longer".to_owned())
}

/// Names that `--help` lists.
fn presets() -> impl TypedValueParser<Value = Preset> {
    let names = PossibleValuesParser::new(Preset::ALL.map(|preset| preset.name));
    names.try_map(|name| Preset::named(&name).ok_or("it is not among the presets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        let sizes = |text: &str| text.parse::<Sizes>().map(Sizes::all);
        assert_eq!(sizes("64K..1M"), Ok(vec![64 << 10, 256 << 10, 1 << 20]));
        assert_eq!(sizes("3"), Ok(vec![3]));
        assert_eq!(sizes("1GiB"), Ok(vec![1 << 30]));
        for wrong in ["", "0", "4M..1M", "many", "1K.."] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_behind_the_program_are_its_own() {
        for line in ["r2ccl run -n 2 -- prog -n 3 --rails 4", "r2ccl run -n 2 prog -n 3 --rails 4"]
        {
            let parsed = Arguments::try_parse_from(line.split(' ')).expect("a good line");
            let Command::Run(wish) = parsed.command else { panic!("not run: {parsed:?}") };
            assert_eq!((wish.ranks.get(), wish.rails), (2, None), "{line}");
            assert_eq!(wish.program, ["prog", "-n", "3", "--rails", "4"]);
        }
    }

    #[test]
    fn lines_are_understood() {
        let line = "r2ccl explain all_reduce --nodes 4 --rails 2 --lost 3:1,0:0 --bytes 64M";
        let parsed = Arguments::try_parse_from(line.split(' ')).expect("a good line");
        let Command::Explain(wish) = parsed.command else { panic!("not explain: {parsed:?}") };
        assert_eq!(wish.collective, Collective::AllReduce);
        assert_eq!(wish.lost, [Lost { node: 3, rail: 1 }, Lost { node: 0, rail: 0 }]);
        for wrong in [
            "r2ccl explain magic",
            "r2ccl explain allreduce --lost 3",
            "r2ccl explain",
            "r2ccl explain allreduce --alpha nan",
            "r2ccl explain allreduce --alpha=-1",
            "r2ccl explain allreduce --overhead inf",
            "r2ccl run -n 0 -- true",
            "r2ccl run -n 2",
            "r2ccl run -n 2 --hosts 3 -- true",
            "r2ccl run -n 300 --hosts 251 -- true",
            "r2ccl run -n 2 --rails 0 -- true",
            "r2ccl run -n 2 --rails 251 -- true",
        ] {
            let parsed = Arguments::try_parse_from(wrong.split(' '));
            assert!(parsed.and_then(Arguments::checked).is_err(), "{wrong}");
        }
    }
}
