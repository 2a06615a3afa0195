//! The command line: perftest's letters and long names, and a few of our own.

use std::ffi::OsString;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ccl::vqp::{Evidence, Rehearsal};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, ValueEnum};

use super::plan::{AtomicType, Test};
use crate::size;

/// Most rails that a process pretends to have.
const MOST_RAILS: usize = 16;

/// How the ends learn what has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvidenceChoice {
    /// They do not: everything outstanding is sent again
    Resend,
    /// They tell each other how many messages they have taken
    Handshake,
    /// From a log in the memory of the peer
    Log,
    /// A plain queue pair, which ends with its NIC
    Off,
}

impl EvidenceChoice {
    /// Its name, as the library has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resend => Evidence::Resend.name(),
            Self::Handshake => Evidence::Handshake.name(),
            Self::Log => Evidence::Log.name(),
            Self::Off => "off",
        }
    }
}

/// Atomics of a batch, and reads behind each.
const MOST_OF_A_BATCH: u64 = 128;

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(
    about = "Measures and checks queue pairs that survive their NIC, with the flags of perftest",
    after_help = "Without SERVER this is the server: it waits for one client, whose flags count. \
                  Under `r2ccl run`, torchrun, mpirun or the testbed rank 0 measures and rank 1 answers. Sizes may \
                  end in K, M or G; times are like 500ms or 2s."
)]
pub struct Arguments {
    /// Name or address of the server
    pub server: Option<String>,
    /// Bytes of an operation
    #[arg(short = 's', long, value_parser = size::parse, value_name = "SIZE", conflicts_with = "all")]
    pub size: Option<usize>,
    /// All sizes from 2 to 2^23, a row each
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Operations of a row, on each queue pair (5000; 1000 for latencies)
    #[arg(short = 'n', long = "iters", value_name = "N")]
    pub iterations: Option<NonZeroU64>,
    /// Time of a row, instead of a number of operations; without a unit in seconds
    #[arg(short = 'D', long, value_parser = time, value_name = "TIME", conflicts_with_all = ["iterations", "all"])]
    pub duration: Option<Duration>,
    /// Queue pairs
    #[arg(short = 'q', long = "qp", default_value = "1", value_name = "N")]
    pub pairs: NonZeroUsize,
    /// Backups come from a pool of which each end may give away so many on each rail, in place of own ones
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=ccl::vqp::MAX_SPARES as u64), value_name = "N")]
    pub pool: Option<usize>,
    /// Requests outstanding on each queue pair; fewer where they are large
    #[arg(short = 't', long = "tx-depth", default_value = "128", value_name = "N")]
    pub tx_depth: NonZeroUsize,
    /// Receives posted on each queue pair; fewer where they are large
    #[arg(short = 'r', long = "rx-depth", default_value = "512", value_name = "N")]
    pub rx_depth: NonZeroUsize,
    /// Port of the server
    #[arg(short = 'p', long, default_value_t = 18515)]
    pub port: u16,
    /// Sleep until something happens, instead of polling all the time; at both ends, but not where a write
    /// is the answer to a write
    #[arg(short = 'e', long)]
    pub events: bool,
    /// Which atomic
    #[arg(
        short = 'A',
        long = "atomic_type",
        default_value = "FETCH_AND_ADD",
        ignore_case = true,
        value_name = "TYPE"
    )]
    pub atomic: AtomicType,
    /// Atomics that are posted together and timed as one, each with its reads behind it; vqp_atomic_lat only
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MOST_OF_A_BATCH), value_name = "N")]
    pub batch: usize,
    /// Reads of 8 bytes behind each atomic, of other words; vqp_atomic_lat only
    #[arg(long, default_value_t = 0, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=MOST_OF_A_BATCH), value_name = "N")]
    pub reads: usize,
    /// Bandwidths in Gb/s, not in MiB/s
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    pub report_gbits: bool,
    /// `soft` for all NICs, `verbs` for all RDMA devices, or names of RDMA devices (mlx5_0, mlx5_0:1), interfaces
    /// or addresses, the default one first
    #[arg(
        short = 'd',
        long = "device",
        visible_alias = "ib-dev",
        value_name = "soft|verbs|NAME,..."
    )]
    pub device: Option<String>,
    /// What is known about requests that were under way at a fault
    #[arg(long, value_enum, default_value = "handshake")]
    pub evidence: EvidenceChoice,
    /// A fault to rehearse, such as silent:host=1,rail=0,at=2s,heal=1s; host 0 is the server, host 1 the
    /// client. Repeatable
    #[arg(long = "fault", value_name = "FAULT", value_parser = fault)]
    pub faults: Vec<String>,
    /// Also show what each stretch of this length has carried
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub interval: Option<Duration>,
    /// Write intervals and events to this file, one JSON object in each line
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Silence of a rail that has to confirm something after which it is given up
    #[arg(long, value_parser = time, default_value = "1s", value_name = "TIME")]
    pub silence: Duration,
    /// How long to wait for a rail when none is left
    #[arg(long, value_parser = time, default_value = "1s", value_name = "TIME")]
    pub patience: Duration,
    /// How long the default rail has been back before it is used again
    #[arg(long, value_parser = time, default_value = "1s", value_name = "TIME")]
    pub settle: Duration,
    /// How long to wait for the other end, whatever for
    #[arg(long, value_parser = time, default_value = "30s", value_name = "TIME")]
    pub limit: Duration,
    /// Start the server too, on this machine
    #[arg(long, conflicts_with = "server")]
    pub local: bool,
    /// With --local and without --device: addresses of the loopback interface that pass for NICs
    #[arg(long, default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MOST_RAILS as u64), requires = "local", value_name = "N")]
    pub rails: usize,
    /// For the server of --local: the process that has started it
    #[arg(long = "member-of", hide = true, value_name = "PID")]
    pub launcher: Option<i32>,
}

impl Arguments {
    /// What this process was called with; ends it if that is impossible.
    #[must_use]
    pub fn of_this_process(test: Test) -> Self {
        Self::parsed(test, std::env::args_os().skip(1)).unwrap_or_else(|error| error.exit())
    }

    /// What a command line says.
    ///
    /// # Errors
    /// It is impossible; or it asks for help.
    pub fn parsed<I, T>(test: Test, line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let name = OsString::from(test.name());
        let line = [name].into_iter().chain(line.into_iter().map(Into::into));
        let command = Self::command().name(test.name()).bin_name(test.name());
        Self::from_arg_matches(&command.try_get_matches_from(line)?)?.checked()
    }

    fn checked(self) -> Result<Self, clap::Error> {
        let refuse = |text: &str| Err(Self::command().error(ErrorKind::ValueValidation, text));
        if self.size == Some(0) {
            return refuse("operations of 0 bytes have no bandwidth");
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return refuse("a duration of 0 measures nothing");
        }
        if self.interval.is_some_and(|interval| interval < Duration::from_millis(1)) {
            return refuse("an interval is 1ms at least");
        }
        let most = ccl::vqp::MAX_DEPTH;
        if self.tx_depth.get() > most || self.rx_depth.get() > most || self.pairs.get() > most {
            return refuse(&format!("depths and queue pairs are {most} at most"));
        }
        Ok(self)
    }
}

/// A time; a number alone is seconds, as in perftest.
fn time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    humantime::parse_duration(text).map_err(|cause| cause.to_string())
}

/// Faults that queue pairs can imitate.
fn fault(text: &str) -> Result<String, String> {
    text.parse::<Rehearsal>().map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::parsed(Test::WriteBandwidth, line.split_whitespace())
    }

    #[test]
    fn perftests_flags_mean_the_same() {
        let line = "-s 4K -n 100 -q 2 -t 16 -p 9999 --report_gbits -d eth0,eth1 server1";
        let arguments = parsed(line).unwrap();
        assert_eq!((arguments.size, arguments.port), (Some(4096), 9999));
        assert_eq!((arguments.pairs.get(), arguments.tx_depth.get()), (2, 16));
        assert_eq!(arguments.device.as_deref(), Some("eth0,eth1"));
        assert_eq!(arguments.server.as_deref(), Some("server1"));
        assert!(arguments.report_gbits && !arguments.local);
        assert!(!arguments.events && parsed("-e").unwrap().events);
        let seconds = parsed("-D 5").unwrap().duration;
        assert_eq!(seconds, Some(Duration::from_secs(5)));
    }

    #[test]
    fn what_is_impossible_is_refused() {
        for (line, named) in [
            ("-s 0", "0 bytes"),
            ("-s big", "-s"),
            ("-n 0", "--iters"),
            ("-D 0", "duration of 0"),
            ("-D 5 -n 10", "cannot be used"),
            ("-D 5 -a", "cannot be used"),
            ("-a -s 8", "cannot be used"),
            ("-q 0", "--qp"),
            ("-t 70000", "65536"),
            ("--interval 1us", "1ms at least"),
            ("--evidence luck", "luck"),
            ("--fault silent:host=0", "needs rail="),
            ("--fault slow:host=0,rail=0,at=0s,rate=1mbit", "cannot be rehearsed"),
            ("--local server1", "cannot be used"),
            ("--rails 2", "--local"),
            ("--local --rails 17", "17"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
