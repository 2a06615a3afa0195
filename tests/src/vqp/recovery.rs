//! What a cut in the middle of a batch costs: the time until the batch is through, and the bytes that are sent
//! again, with an evidence beside another.
//!
//! Two threads are the two ends. For each cut they connect a queue pair of its own, let a batch of writes go,
//! and the near end gives up the rail in use at a random moment of it; the far end checks every write. The
//! evidences take turns, so that what else happens on the host is the same for all.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Depth, Domain, DomainConfig, Evidence, Key, Listener, Meeting,
    MemoryRegion, Operation, PeerRegion, QueuePair, Terms, WorkId, WorkRequest,
};
use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::Outcome;
use crate::error::Failure;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "vqp_recovery";
const WORD_BYTES: usize = 8;
/// Batches without a cut that tell how long one takes, of each evidence.
const REHEARSALS: usize = 5;

/// What is compared: with the first one.
const EVIDENCES: [Evidence; 3] = Evidence::ALL;

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, about = "Measures what a cut in the middle of a batch of writes costs")]
pub struct Arguments {
    /// Devices of the end that writes
    #[arg(
        short = 'd',
        long = "device",
        default_value = "127.2.9.1,127.2.9.2",
        value_name = "NAME,..."
    )]
    pub near: String,
    /// Devices of the other end
    #[arg(long = "peer-device", default_value = "127.2.10.1,127.2.10.2", value_name = "NAME,...")]
    pub far: String,
    /// Cuts with each evidence
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub cuts: u32,
    /// Writes of a batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    pub batch: u32,
    /// Bytes of a write
    #[arg(short = 's', long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(16..), value_name = "BYTES")]
    pub size: u32,
    /// Where in the batches the cuts are
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// What one cut has cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// From the cut until every write of the batch has completed.
    recovery_s: f64,
    /// From the cut until requests are on their way again.
    fallback_s: f64,
    resent_bytes: u64,
    outstanding: usize,
}

/// Runs it as the command line says.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.told_by(NAME),
    }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    ccl::log::to_standard_error().map_err(|error| Failure::Library { rank: 0, error })?;
    let costs = measure(arguments)?;
    let written = write_table(arguments, &costs);
    written.map_err(|cause| Failure::system("writing the table", cause))
}

fn write_table(arguments: &Arguments, costs: &[Vec<Cost>]) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    let Arguments { near, cuts, batch, size, .. } = arguments;
    writeln!(output, "# {near}: {cuts} cuts in batches of {batch} writes of {size} bytes; means")?;
    writeln!(
        output,
        "| | recovery, ms | of the first | until requests flow, ms | writes sent again | of the first | of those outstanding |"
    )?;
    writeln!(output, "|---|---|---|---|---|---|---|")?;
    let mean = |costs: &[Cost], of: fn(&Cost) -> f64| {
        Summary::of(&costs.iter().map(of).collect::<Vec<_>>())
    };
    let resent = |cost: &Cost| cost.resent_bytes as f64;
    let first = [|cost: &Cost| cost.recovery_s, resent].map(|of| mean(&costs[0], of).mean);
    for (evidence, costs) in EVIDENCES.iter().zip(costs) {
        let recovery = mean(costs, |cost| cost.recovery_s);
        let fallback = mean(costs, |cost| cost.fallback_s);
        let (bytes, outstanding) =
            (mean(costs, resent).mean, mean(costs, |cost| cost.outstanding as f64).mean);
        let writes = bytes / f64::from(*size);
        writeln!(
            output,
            "| {} | {:.2} ± {:.2} | {:.1} % | {:.2} ± {:.2} | {writes:.1} | {:.1} % | {:.1} % |",
            evidence.name(),
            1e3 * recovery.mean,
            1e3 * recovery.deviation,
            100.0 * recovery.mean / first[0],
            1e3 * fallback.mean,
            1e3 * fallback.deviation,
            100.0 * bytes / first[1],
            100.0 * writes / outstanding,
        )?;
    }
    Ok(())
}

/// The costs of all cuts, by evidence.
fn measure(arguments: &Arguments) -> Outcome<Vec<Vec<Cost>>> {
    let key = Key::from_passphrase(NAME);
    let listener = Listener::bind("127.0.0.1:0", key.clone()).map_err(failed)?;
    let address = listener.address().map_err(failed)?.to_string();
    thread::scope(|scope| {
        let far = scope.spawn(|| answer(&listener, &key, arguments));
        let near = Meeting::connect(&address, &key, LIMIT)
            .map_err(failed)
            .and_then(|meeting| Near::open(meeting, &key, arguments)?.all());
        let far = far.join();
        // What the far end says explains what the near one sees.
        far.unwrap_or_else(|_| Err(Failure::system("serving", "the thread panicked"))).and(near)
    })
}

fn config(devices: &str, arguments: &Arguments) -> DomainConfig {
    let pairs = (arguments.cuts as usize + REHEARSALS) * EVIDENCES.len();
    let queue_pairs = pairs.max(1);
    DomainConfig { devices: devices.to_owned(), queue_pairs, ..DomainConfig::default() }
}

fn terms(arguments: &Arguments, evidence: Evidence) -> Terms {
    let depth = Depth { sends: arguments.batch as usize, receives: 1 };
    Terms { evidence: Some(evidence), depth, ..Terms::default() }
}

fn bytes(arguments: &Arguments) -> usize {
    arguments.batch as usize * arguments.size as usize
}

/// Batches in the order in which both ends do them: their numbers and evidences.
fn batches(arguments: &Arguments) -> impl Iterator<Item = (u32, usize, Evidence)> + '_ {
    (0..REHEARSALS as u32 + arguments.cuts).flat_map(|number| {
        let evidences = EVIDENCES.iter().enumerate();
        evidences.map(move |(column, &evidence)| (number, column, evidence))
    })
}

/// What the last word of a write is, beside its first.
fn stamp(number: u32, column: usize, write: usize) -> u64 {
    u64::from(number) << 32 | (column as u64) << 24 | write as u64 | 1 << 63
}

/// The end that writes.
struct Near<'a> {
    arguments: &'a Arguments,
    meeting: Meeting,
    domain: Domain,
    region: MemoryRegion,
    theirs: PeerRegion,
    random: StdRng,
}

impl<'a> Near<'a> {
    fn open(mut meeting: Meeting, key: &Key, arguments: &'a Arguments) -> Outcome<Self> {
        let domain = Domain::open(&config(&arguments.near, arguments), key).map_err(failed)?;
        let region = domain.allocate(bytes(arguments), Access::ALL).map_err(failed)?;
        let theirs = meeting.exchange_regions(&region, LIMIT).map_err(failed)?;
        let random = StdRng::seed_from_u64(arguments.seed);
        Ok(Self { arguments, meeting, domain, region, theirs, random })
    }

    fn all(mut self) -> Outcome<Vec<Vec<Cost>>> {
        let columns = EVIDENCES.len();
        let mut costs = vec![Vec::new(); columns];
        let mut usual: Vec<Vec<f64>> = vec![Vec::new(); columns];
        for (number, column, evidence) in batches(self.arguments) {
            let is_rehearsal = (number as usize) < REHEARSALS;
            let longest = Summary::of(&usual[column]).median;
            let cut_s = (!is_rehearsal).then(|| longest * self.random.random::<f64>());
            let (seconds, cost) = self.batch((number, column), evidence, cut_s)?;
            if is_rehearsal {
                usual[column].push(seconds);
            }
            costs[column].extend(cost);
        }
        Ok(costs)
    }

    /// One batch over a queue pair of its own, cut when it has lasted so long. Returns how long it took, and
    /// what the cut has cost; nothing if the batch was through before.
    fn batch(
        &mut self,
        (number, column): (u32, usize),
        evidence: Evidence,
        cut_s: Option<f64>,
    ) -> Outcome<(f64, Option<Cost>)> {
        let mut pair = self.domain.queue_pair(&terms(self.arguments, evidence)).map_err(failed)?;
        pair.connect(&mut self.meeting, LIMIT).map_err(failed)?;
        let (count, size) = (self.arguments.batch as usize, self.arguments.size as usize);
        for write in 0..count {
            for offset in [write * size, (write + 1) * size - WORD_BYTES] {
                self.region.memory().store(offset, stamp(number, column, write));
            }
        }
        let mut completions = Vec::new();
        while pair.connected_rails() < pair.rails() {
            pair.poll(&mut completions);
            QueuePair::rest(std::slice::from_mut(&mut pair), Duration::from_millis(1))
                .map_err(failed)?;
        }
        let watch = Stopwatch::start();
        for write in 0..count {
            let source = self.region.segment(write * size, size);
            let operation =
                Operation::Write { source, target: self.theirs.at((write * size) as u64) };
            let request = WorkRequest { id: WorkId(write as u64), operation, signalled: true };
            pair.post_send(request).map_err(failed)?;
        }
        let mut cut = None;
        while completions.len() < count {
            if !pair.poll(&mut completions) {
                thread::yield_now();
            }
            let is_due = cut_s.is_some_and(|cut_s| watch.wall_s() >= cut_s);
            if is_due && cut.is_none() && completions.len() < count {
                cut = Some(Cut { at_s: watch.wall_s(), outstanding: count - completions.len() });
                pair.suspect(pair.active_rail()).map_err(failed)?;
            }
            if watch.wall_s() > LIMIT.as_secs_f64() {
                return Err(Failure::system("waiting for a batch", format!("{pair:?}")));
            }
        }
        let seconds = watch.wall_s();
        if let Some(lost) = completions.iter().find(|one| !super::meet::succeeded(one)) {
            return Err(super::meet::unsuccessful(&pair, 0, lost));
        }
        self.meeting.exchange(b"done", LIMIT).map_err(failed)?;
        Ok((seconds, cut.map(|cut| cut.cost(&mut pair, seconds))))
    }
}

/// When it was, and how much was outstanding.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at_s: f64,
    outstanding: usize,
}

impl Cut {
    fn cost(self, pair: &mut QueuePair, end_s: f64) -> Cost {
        let events = pair.take_events();
        let first_two = events.windows(2).next();
        let fallback_ns = first_two.map_or(0, |events| events[1].at_ns - events[0].at_ns);
        Cost {
            recovery_s: end_s - self.at_s,
            fallback_s: Duration::from_nanos(fallback_ns).as_secs_f64(),
            resent_bytes: pair.counters().resent_bytes,
            outstanding: self.outstanding,
        }
    }
}

/// The far end: serves each batch, and checks that it is complete.
fn answer(listener: &Listener, key: &Key, arguments: &Arguments) -> Outcome<()> {
    let mut meeting = listener.accept(LIMIT).map_err(failed)?;
    let domain = Domain::open(&config(&arguments.far, arguments), key).map_err(failed)?;
    let region = domain.allocate(bytes(arguments), Access::ALL).map_err(failed)?;
    meeting.exchange_regions(&region, LIMIT).map_err(failed)?;
    let size = arguments.size as usize;
    for (number, column, evidence) in batches(arguments) {
        let mut pair = domain.queue_pair(&terms(arguments, evidence)).map_err(failed)?;
        pair.connect(&mut meeting, LIMIT).map_err(failed)?;
        let mut completions: Vec<Completion> = Vec::new();
        while !pair.serve(&mut completions, &meeting, LIMIT).map_err(failed)? {}
        for write in 0..arguments.batch as usize {
            let expected = stamp(number, column, write);
            let found = [write * size, (write + 1) * size - WORD_BYTES]
                .map(|offset| region.memory().load(offset));
            if found != [expected; 2] {
                let text = format!("batch {number}, write {write}: {found:x?}, not {expected:x}");
                return Err(Failure::system("checking what was written", text));
            }
        }
        meeting.exchange(b"done", LIMIT).map_err(failed)?;
    }
    Ok(())
}

fn failed(cause: ccl::vqp::Error) -> Failure {
    Failure::system("measuring", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_are_cut_are_complete_and_less_is_sent_again() {
        let line =
            "vqp_recovery -d 127.2.11.1,127.2.11.2 --peer-device 127.2.12.1,127.2.12.2 --cuts 8";
        let costs = measure(&Arguments::parse_from(line.split_whitespace())).unwrap();
        for (costs, evidence) in costs.iter().zip(EVIDENCES) {
            for cost in costs {
                let most = cost.outstanding as u64 * (64 << 10);
                assert!(cost.resent_bytes <= most, "{evidence:?}: {cost:?}");
                assert!(cost.recovery_s > 0.0, "{evidence:?}: {cost:?}");
            }
        }
        let unknown = Arguments::parse_from(["vqp_recovery", "-d", "nonesuch0"]);
        assert!(measure(&unknown).is_err());
    }
}
