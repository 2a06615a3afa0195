//! The command line: nccl-tests' letters and long names, and a few of our own.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ccl::DataType;
use ccl_launcher::{Binding, Member, check_pretence};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;

use crate::buffers::Form;
use crate::data::Operation;
use crate::faults::wish::{self, Wish};
use crate::size::{self, Step, Sweep};
use crate::testbed::shape::Rate;

/// Chooses everything there is.
const ALL: &str = "all";
/// `-r`: the same, as nccl-tests has it.
const ALL_ROOTS: &str = "-1";

/// What the command line says.
///
/// The defaults are those of nccl-tests.
#[derive(Clone, Debug, Parser)]
#[command(
    about = "Measures and checks one collective, with the flags and columns of nccl-tests",
    long_about = None,
    after_help = "Sizes may have a fraction and end in K, M or G. Without --ranks, the environment of `r2ccl run`, \
                  torchrun, mpirun or Slurm says which rank this is; without such an environment there is one rank."
)]
pub struct Arguments {
    /// Ranks of this process, each a thread
    #[arg(short = 't', long = "nthreads", default_value = "1", value_parser = positive, value_name = "N")]
    pub threads: NonZeroUsize,
    /// Multiplies the ranks of this process
    #[arg(short = 'g', long = "ngpus", default_value = "1", value_parser = positive, value_name = "N")]
    pub per_thread: NonZeroUsize,
    /// First size
    #[arg(short = 'b', long = "minbytes", default_value = "32M", value_parser = size::parse, value_name = "SIZE")]
    pub least: usize,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", default_value = "32M", value_parser = size::parse, value_name = "SIZE")]
    pub most: usize,
    /// Bytes from one size to the next
    #[arg(short = 'i', long = "stepbytes", default_value = "1M", value_parser = size::parse, value_name = "SIZE")]
    pub step_bytes: usize,
    /// Factor from one size to the next; from 2 on it replaces --stepbytes
    #[arg(short = 'f', long = "stepfactor", default_value_t = 1, value_name = "N")]
    pub step_factor: usize,
    /// Timed iterations
    #[arg(short = 'n', long = "iters", default_value = "20", value_parser = positive, value_name = "N")]
    pub iterations: NonZeroUsize,
    /// Operations per iteration; more than one start together as a group
    #[arg(short = 'm', long = "agg_iters", default_value = "1", value_parser = positive, value_name = "N")]
    pub aggregated: NonZeroUsize,
    /// Iterations that are not timed, before the first row
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 1, value_name = "N")]
    pub warm_up: usize,
    /// How often every part of the table is measured; 0: the first without an end
    #[arg(short = 'N', long = "run_cycles", default_value_t = 1, value_name = "N")]
    pub cycles: usize,
    /// Accepted; ranks always start at the same time
    #[arg(short = 'p', long = "parallel_init", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub parallel_init: u8,
    /// Checked, untimed runs per row and form; 0: results are not checked
    #[arg(short = 'c', long = "check", default_value_t = 1, value_name = "N")]
    pub check: u32,
    /// How contributions are combined
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = operation_names(), value_name = "OP/all")]
    pub operation: String,
    /// Type of the elements
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = datatype_names(), value_name = "TYPE/all")]
    pub datatype: String,
    /// The root; -1 is all of them, too
    #[arg(
        short = 'r',
        long = "root",
        default_value = "0",
        allow_negative_numbers = true,
        value_name = "RANK/all"
    )]
    pub root: String,
    /// 0, 2: calls one after the other; 1: with a barrier after every call; 3: with a barrier after
    /// every iteration, which is not timed. A call always returns with its result
    #[arg(short = 'z', long = "blocking", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3), value_name = "0..3")]
    pub blocking: u8,
    /// Accepted; has no meaning on CPUs
    #[arg(short = 'y', long = "stream_null", default_value_t = 0, value_name = "0/1")]
    pub stream_null: u8,
    /// Seconds after which a call fails; 0: as the library is set
    #[arg(short = 'T', long = "timeout", default_value_t = 0.0, value_name = "SECONDS")]
    pub timeout: f64,
    /// Accepted; has no meaning on CPUs
    #[arg(short = 'G', long = "cudagraph", default_value_t = 0, value_name = "N")]
    pub graph: u32,
    /// Show the processor time of the calling thread instead of the elapsed time
    #[arg(short = 'C', long = "report_cputime", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub processor_time: u8,
    /// Show when a row was finished
    #[arg(short = 'S', long = "report_timestamps", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub timestamps: u8,
    /// Write a report in JSON; an existing file is kept and a number appended to the name
    #[arg(short = 'J', long = "output_file", value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Which time is shown: 0 that of rank 0, 1 the mean of all ranks, 2 the least, 3 the most
    #[arg(short = 'a', long = "average", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3), value_name = "0..3")]
    pub average: u8,
    /// Buffers: 0 ordinary memory; 1, 2 memory of the library that peers on the host reach, registered; with
    /// `--device cuda`, 2 registers those of the device as symmetric windows
    #[arg(short = 'R', long = "local_register", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2), value_name = "0/1/2")]
    pub register: u8,
    /// Accepted; has no meaning on CPUs
    #[arg(short = 'x', long = "cta_policy", default_value_t = 0, value_name = "N")]
    pub cta_policy: u32,
    /// Accepted; has no meaning on CPUs
    #[arg(short = 'D', long = "device_implementation", default_value_t = 0, value_name = "N")]
    pub device_implementation: u32,
    /// Accepted; has no meaning on CPUs
    #[arg(short = 'V', long = "device_cta_count", default_value_t = 16, value_name = "N")]
    pub device_ctas: u32,
    /// Report how much memory was used
    #[arg(short = 'M', long = "memory", alias = "memory_report", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub memory_report: u8,
    /// Elements by which the buffers miss their alignment
    #[arg(short = 'u', long = "unalign", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..4096), value_name = "N")]
    pub misalignment: u16,
    /// Show least, most, 99th percentile and variation of single iterations
    #[arg(short = 'I', long = "per_iter_timing", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub per_iteration: u8,
    /// First iterations that -I leaves out of its columns
    #[arg(
        short = 'K',
        long = "per_iter_skip",
        alias = "skip_samples",
        default_value_t = 0,
        value_name = "N"
    )]
    pub skipped: usize,
    /// Start so many processes of this program on this machine
    #[arg(long, value_parser = positive, value_name = "N", help_heading = "Ours")]
    pub ranks: Option<NonZeroUsize>,
    /// Bind every process to a processor unless there are more processors than processes, or leave that
    /// to the kernel
    #[arg(
        long = "bind-to",
        value_enum,
        default_value_t,
        requires = "ranks",
        help_heading = "Ours"
    )]
    pub binding: Binding,
    /// Let the processes pretend to be on so many hosts, neighbours on the same one
    #[arg(long, value_parser = positive, value_name = "N", requires = "ranks", help_heading = "Ours")]
    pub hosts: Option<NonZeroUsize>,
    /// Give every such host so many network interfaces
    #[arg(long, value_parser = positive, value_name = "N", requires = "ranks", help_heading = "Ours")]
    pub rails: Option<NonZeroUsize>,
    /// Where the buffers are. On CUDA devices, rank r of a machine with n of them uses device r % n; if there is
    /// NCCL_TESTS_DEVICE, the ranks of every process use that one and those behind it
    #[arg(long, value_enum, default_value_t, help_heading = "Ours")]
    pub device: DeviceKind,
    /// Form of the iterations of -w
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "out-of-place/in-place",
        help_heading = "Ours"
    )]
    pub warm_up_form: Form,
    /// Use this algorithm, or `collective:algorithm`, instead of the planner's choice
    #[arg(long = "algo", value_name = "NAME", help_heading = "Ours")]
    pub algorithm: Option<String>,
    /// Show what the planner could choose for every size, and why it chose what it did
    #[arg(long, help_heading = "Ours")]
    pub explain: bool,
    /// Append what happens to the rails to a file, one JSON object in each line, and show it after the
    /// table
    #[arg(long, value_name = "FILE", help_heading = "Ours")]
    pub timeline: Option<PathBuf>,
    /// Run on a testbed and break a rail in every measurement: down, silent, oneway, slow or flap, as in
    /// `down:host=0,rail=1,at=50%,heal=100ms`; may be repeated. See docs/testbed.md
    #[arg(long = "fault", value_name = "FAULT", requires_all = ["ranks", "hosts", "rails"], help_heading = "Ours")]
    pub faults: Vec<Wish>,
    /// What every rail of the testbed of --fault carries, such as 200mbit; none: no limit [default: 1gbit]
    #[arg(long, value_name = "RATE", requires = "faults", help_heading = "Ours")]
    pub rate: Option<Rate>,
    /// Set for the process that makes the testbed
    #[arg(long, hide = true)]
    pub inside: bool,
    /// Set for the ranks on a testbed: where it takes orders
    #[arg(long, hide = true)]
    pub orders: Option<String>,
    /// Set for the processes that --ranks starts
    #[arg(long, hide = true)]
    pub member: Option<Member>,
}

/// Where buffers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// In memory of the host
    #[default]
    Cpu,
    /// In memory of CUDA devices
    Cuda,
}

impl Arguments {
    /// Refuses combinations that cannot be run.
    ///
    /// # Errors
    /// As a usage error of the command line, which is not formatted yet.
    pub fn checked(mut self) -> Result<Self, clap::Error> {
        let refuse = |message: String| Err(clap::Error::raw(ErrorKind::ValueValidation, message));
        if self.least > self.most {
            return refuse(format!("-b {} is more than -e {}", self.least, self.most));
        }
        if self.most > MOST_BYTES {
            return refuse(format!("-e {}: at most {MOST_BYTES} bytes", self.most));
        }
        if self.iterations.get().max(self.aggregated.get()) > MOST_CALLS {
            return refuse(format!("-n, -m: at most {MOST_CALLS}"));
        }
        if self.per_iteration == 0 {
            self.skipped = 0;
        }
        if self.skipped >= self.iterations.get() {
            return refuse(format!("-K {} leaves nothing of -n {}", self.skipped, self.iterations));
        }
        if !(0.0..=1e6).contains(&self.timeout) {
            return refuse(format!("-T {} is no number of seconds", self.timeout));
        }
        if ![ALL, ALL_ROOTS].contains(&self.root.as_str()) && self.root.parse::<usize>().is_err() {
            return refuse(format!("-r {} is neither a rank nor {ALL}", self.root));
        }
        if self.device == DeviceKind::Cuda && !cfg!(feature = "cuda") {
            return refuse("--device cuda: build this program with --features cuda".to_owned());
        }
        let pretence =
            self.ranks.map_or(Ok(()), |ranks| check_pretence(ranks, self.hosts, self.rails));
        match pretence.and_then(|()| wish::check(&self)) {
            Err(complaint) => refuse(complaint),
            Ok(()) => Ok(self),
        }
    }

    /// Whether this process is to make the testbed of --fault.
    #[must_use]
    pub fn makes_testbed(&self) -> bool {
        !self.faults.is_empty() && self.orders.is_none()
    }

    /// Whether this process is to start the ranks and is none of them.
    #[must_use]
    pub fn launches(&self) -> Option<NonZeroUsize> {
        self.ranks.filter(|_| self.member.is_none() && self.orders.is_none())
    }

    /// Ranks of one process.
    #[must_use]
    pub fn local_ranks(&self) -> usize {
        self.threads.get() * self.per_thread.get()
    }

    /// The sizes.
    #[must_use]
    pub fn sweep(&self) -> Sweep {
        let step = match self.step_factor {
            0 | 1 => Step::Bytes(self.step_bytes),
            factor => Step::Factor(factor),
        };
        Sweep { least: self.least, most: self.most, step }
    }

    /// The types to measure.
    #[must_use]
    pub fn datatypes(&self) -> Vec<DataType> {
        let chosen = |datatype: &DataType| self.datatype == ALL || self.datatype == datatype.name();
        DataType::ALL.into_iter().filter(chosen).collect()
    }

    /// The operations to measure.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let chosen = |op: &Operation| self.operation == ALL || self.operation == op.name();
        Operation::ALL.into_iter().filter(chosen).collect()
    }

    /// The roots to measure among `ranks` ranks; empty if there is no such rank.
    #[must_use]
    pub fn roots(&self, ranks: usize) -> Vec<usize> {
        let one: Option<usize> = self.root.parse().ok();
        (0..ranks).filter(|rank| one.is_none_or(|root| root == *rank)).collect()
    }

    /// The deadline of every call, if the command line has one.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        (self.timeout > 0.0).then(|| Duration::from_secs_f64(self.timeout))
    }

    /// The flags that were given a value which has no effect here.
    #[must_use]
    pub fn without_effect(&self) -> Vec<&'static str> {
        let flags = [
            ("-y", self.stream_null != 0),
            ("-G", self.graph != 0),
            ("-x", self.cta_policy != 0),
            ("-D", self.device_implementation != 0),
            ("-V", self.device_ctas != 16),
        ];
        flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
    }
}

/// More than a machine has, and sums of some of them are numbers.
const MOST_BYTES: usize = 1 << 46;
/// Of each kind; their product is a number.
const MOST_CALLS: usize = u32::MAX as usize;

fn positive(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "expected a whole number, 1 or more".to_owned())
}

fn datatype_names() -> PossibleValuesParser {
    DataType::ALL.iter().map(|datatype| datatype.name()).chain([ALL]).collect::<Vec<_>>().into()
}

fn operation_names() -> PossibleValuesParser {
    Operation::ALL.iter().map(|operation| operation.name()).chain([ALL]).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Arguments::try_parse_from(words).and_then(Arguments::checked)
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let arguments = parse("").unwrap();
        let Sweep { least, most, step } = arguments.sweep();
        assert_eq!((least, most, step), (32 << 20, 32 << 20, Step::Bytes(1 << 20)));
        assert_eq!((arguments.iterations.get(), arguments.warm_up, arguments.cycles), (20, 1, 1));
        assert_eq!((arguments.check, arguments.average, arguments.blocking), (1, 1, 0));
        assert_eq!(arguments.datatypes(), [DataType::Float32]);
        assert_eq!(arguments.operations(), [Operation::Sum]);
        assert_eq!(arguments.roots(3), [0]);
        assert!(arguments.without_effect().is_empty());
    }

    #[test]
    fn letters_and_names_mean_the_same() {
        let short =
            parse("-b 8 -e 128M -f 2 -n 5 -w 0 -c 0 -d half -o max -r 1 -t 4 -g 2").unwrap();
        let long = parse(
            "--minbytes 8 --maxbytes 128M --stepfactor 2 --iters 5 --warmup_iters 0 --check 0 \
             --datatype half --op max --root 1 --nthreads 4 --ngpus 2",
        )
        .unwrap();
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        let short = parse("-M 1 -I 1 -K 2").unwrap();
        for long in [
            "--memory 1 --per_iter_timing 1 --per_iter_skip 2",
            "--memory_report 1 -I 1 --skip_samples 2",
        ] {
            assert_eq!(format!("{short:?}"), format!("{:?}", parse(long).unwrap()));
        }
    }

    /// As with nccl-tests.
    #[test]
    fn there_is_nothing_to_skip_without_a_summary() {
        assert_eq!(parse("-n 5 -K 9").unwrap().skipped, 0);
        assert_eq!(parse("-n 5 -I 1 -K 4").unwrap().skipped, 4);
    }

    #[test]
    fn ranks_sizes_and_roots_follow_from_the_flags() {
        let short = parse("-b 8 -e 128M -f 2 -r 1 -t 4 -g 2").unwrap();
        assert_eq!(short.local_ranks(), 8);
        assert_eq!(short.sweep().sizes().count(), 25);
        assert_eq!(short.roots(2), [1]);
    }

    #[test]
    fn all_means_all() {
        let arguments = parse("-d all -o all -r all").unwrap();
        assert_eq!(arguments.datatypes(), DataType::ALL);
        assert_eq!(arguments.operations(), Operation::ALL);
        assert_eq!(arguments.roots(3), [0, 1, 2]);
        assert_eq!(parse("-r -1").unwrap().roots(3), [0, 1, 2]);
    }

    #[test]
    fn flags_for_gpus_are_accepted_and_named() {
        let arguments = parse("-y 1 -G 3 -x 1 -D 2 -V 32").unwrap();
        assert_eq!(arguments.without_effect(), ["-y", "-G", "-x", "-D", "-V"]);
    }

    #[test]
    fn faults_need_a_testbed_and_its_ranks_do_not() {
        let fault = "--ranks 4 --hosts 2 --rails 2 --fault down:host=1,rail=1,at=50%";
        let first = parse(fault).unwrap();
        assert!(first.makes_testbed() && first.launches().is_some());
        let rank = parse(&format!("{fault} --orders=x")).unwrap();
        assert!(!rank.makes_testbed() && rank.launches().is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "-b 2M -e 1M",
            "-b 5X",
            "-n 0",
            "-d floats",
            "-o plus",
            "-r first",
            "-r -2",
            "-z 4",
            "-T -1",
            "-e 18446744073709551615",
            "-n 18446744073709551615 -m 2",
            "-n 5 -I 1 -K 5",
            "--hosts 2",
            "--ranks 2 --hosts 3",
            "--ranks 0",
            "--ranks 300 --hosts 251",
            "--rate 1gbit",
            "--fault down:host=0,rail=0,at=50%",
            "--ranks 4 --hosts 2 --fault down:host=0,rail=0,at=50%",
            "--ranks 5 --hosts 2 --rails 2 --fault down:host=0,rail=0,at=50%",
            "--ranks 4 --hosts 1 --rails 2 --fault down:host=0,rail=0,at=50%",
            "--ranks 4 --hosts 2 --rails 2 --fault down:host=0,rail=2,at=50%",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
