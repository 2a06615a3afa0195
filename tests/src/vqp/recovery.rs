//! What a cut in the middle of batches costs: the time until the batches are through, and the bytes that are sent
//! again, with an evidence beside another.
//!
//! As in section 5.3 of Varuna: several queue pairs write batches without a pause, each the next one when one has
//! completed; a batch is a list of which only the last write is signalled. At a random moment the NIC of the near end
//! is given up, by all of them. No batch is begun from then on, and when those that were on the way have completed it
//! is over.
//!
//! Two threads are the two ends. Every cut has queue pairs of its own, and the far end checks what was written. The
//! evidences take turns, so that what else happens on the host is the same for all.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Depth, Domain, DomainConfig, Evidence, Key, Meeting, MemoryRegion,
    Operation, PeerRegion, QueuePair, Terms, WorkId, WorkRequest,
};
use clap::{Parser, ValueEnum};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::Outcome;
use crate::error::Failure;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "vqp_recovery";
const WORD_BYTES: usize = 8;
/// Runs without a cut that tell how long a batch takes, of each evidence.
const REHEARSALS: usize = 3;
/// Batches of each queue pair in those.
const REHEARSED_BATCHES: usize = 4;
/// Batches before the cut is due, so that what adapts to the load has adapted.
const BATCHES_BEFORE: f64 = 2.0;

/// What is compared: with the first one.
const EVIDENCES: [Evidence; 3] = Evidence::ALL;

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, about = "Measures what a cut in the middle of batches of writes costs")]
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
    /// Queue pairs
    #[arg(short = 'q', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    pub pairs: u32,
    /// Writes of a batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    pub batch: u32,
    /// Bytes of a write
    #[arg(short = 's', long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(16..), value_name = "BYTES")]
    pub size: u32,
    /// Which writes of a batch are signalled
    #[arg(long, value_enum, default_value_t = Signal::Last)]
    pub signal: Signal,
    /// Where in the batches the cuts are
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// Which writes of a batch are signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Signal {
    /// One completion for a batch.
    Last,
    /// One for each write, and each posted by itself.
    All,
}

impl Arguments {
    /// Bytes of a batch.
    fn batch_bytes(&self) -> usize {
        self.batch as usize * self.size as usize
    }

    /// Where the writes of the batches of a queue pair lie.
    fn offset(&self, pair: usize, write: usize) -> usize {
        pair * self.batch_bytes() + write * self.size as usize
    }

    fn completions(&self) -> usize {
        match self.signal {
            Signal::Last => 1,
            Signal::All => self.batch as usize,
        }
    }
}

/// What one cut has cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// From the cut until all batches that were on the way have completed.
    recovery_s: f64,
    /// From the cut until requests are on their way again; the mean over the queue pairs.
    fallback_s: f64,
    /// Bytes sent again, of all queue pairs.
    resent_bytes: u64,
    /// Bytes of the batches that were on the way.
    interrupted_bytes: u64,
    /// Where in the time of a batch the cut was meant to be, from 0 to 1.
    phase: f64,
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
    let Arguments { near, cuts, pairs, batch, size, signal, .. } = arguments;
    writeln!(
        output,
        "# {near}: {cuts} cuts, {pairs} queue pairs with batches of {batch} writes of {size} bytes, signalled: {signal:?}; means"
    )?;
    writeln!(
        output,
        "| | recovery, ms | of the first | until requests flow, ms | MiB sent again | of the first | of the batches |"
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
        let bytes = mean(costs, resent).mean;
        let interrupted = mean(costs, |cost| cost.interrupted_bytes as f64).mean;
        writeln!(
            output,
            "| {} | {:.2} ± {:.2} | {:.1} % | {:.2} ± {:.2} | {:.2} | {:.1} % | {:.1} % |",
            evidence.name(),
            1e3 * recovery.mean,
            1e3 * recovery.deviation,
            100.0 * recovery.mean / first[0],
            1e3 * fallback.mean,
            1e3 * fallback.deviation,
            bytes / f64::from(1 << 20),
            100.0 * bytes / first[1],
            100.0 * bytes / interrupted,
        )?;
    }
    write_phases(&mut output, costs)
}

/// How much is sent again of the batches, by where in them the cut was.
fn write_phases(output: &mut impl std::io::Write, costs: &[Vec<Cost>]) -> std::io::Result<()> {
    writeln!(output, "\n| of the batches, cut in their | first quarter | second | third | last |")?;
    writeln!(output, "|---|---|---|---|---|")?;
    for (evidence, costs) in EVIDENCES.iter().zip(costs) {
        let shares = [0.0, 0.25, 0.5, 0.75].map(|start| {
            let within = costs.iter().filter(|cost| (start..start + 0.25).contains(&cost.phase));
            let add = |sum: (u64, u64), cost: &Cost| {
                (sum.0 + cost.resent_bytes, sum.1 + cost.interrupted_bytes)
            };
            match within.fold((0, 0), add) {
                (_, 0) => "–".to_owned(),
                (again, all) => format!("{:.1} %", 100.0 * again as f64 / all as f64),
            }
        });
        writeln!(output, "| {} | {} |", evidence.name(), shares.join(" | "))?;
    }
    Ok(())
}

/// The costs of all cuts, by evidence.
fn measure(arguments: &Arguments) -> Outcome<Vec<Vec<Cost>>> {
    let key = Key::from_passphrase(NAME);
    super::threads::run(
        &key,
        LIMIT,
        |meeting| Near::open(meeting, &key, arguments)?.all(),
        |meeting| answer(meeting, &key, arguments),
    )
}

fn open(devices: &str, key: &Key, arguments: &Arguments) -> Outcome<(Domain, MemoryRegion)> {
    let runs = (arguments.cuts as usize + REHEARSALS) * EVIDENCES.len();
    let queue_pairs = runs * arguments.pairs as usize;
    let devices = devices.to_owned();
    let config = DomainConfig { devices, queue_pairs, ..DomainConfig::default() };
    let domain = Domain::open(&config, key).map_err(failed)?;
    let bytes = arguments.pairs as usize * arguments.batch_bytes();
    let region = domain.allocate(bytes, Access::ALL).map_err(failed)?;
    Ok((domain, region))
}

fn connect(
    domain: &Domain,
    meeting: &mut Meeting,
    arguments: &Arguments,
    evidence: Evidence,
) -> Outcome<Vec<QueuePair>> {
    let depth = Depth { sends: arguments.batch as usize, receives: 1 };
    let terms = Terms { evidence: Some(evidence), depth, ..Terms::default() };
    let connected = (0..arguments.pairs).map(|_| {
        let mut pair = domain.queue_pair(&terms)?;
        pair.connect(meeting, LIMIT)?;
        Ok(pair)
    });
    connected.collect::<Result<_, _>>().map_err(failed)
}

/// Runs in the order in which both ends do them: their numbers and evidences.
fn runs(arguments: &Arguments) -> impl Iterator<Item = (usize, usize, Evidence)> + '_ {
    (0..REHEARSALS + arguments.cuts as usize).flat_map(|number| {
        let evidences = EVIDENCES.iter().enumerate();
        evidences.map(move |(column, &evidence)| (number, column, evidence))
    })
}

/// The words at both ends of a write, of a batch of a queue pair in a run. Never zero.
fn stamp((number, column): (usize, usize), (pair, batch, write): (usize, u64, usize)) -> u64 {
    let place = (pair as u64) << 10 | write as u64;
    let run = (number as u64) << 2 | column as u64;
    1 << 63 | run << 40 | batch << 20 | place
}

/// The end that writes.
struct Near<'a> {
    arguments: &'a Arguments,
    meeting: &'a mut Meeting,
    domain: Domain,
    region: MemoryRegion,
    theirs: PeerRegion,
    random: StdRng,
}

impl<'a> Near<'a> {
    fn open(meeting: &'a mut Meeting, key: &Key, arguments: &'a Arguments) -> Outcome<Self> {
        let (domain, region) = open(&arguments.near, key, arguments)?;
        let theirs = meeting.exchange_regions(&region, LIMIT).map_err(failed)?;
        let random = StdRng::seed_from_u64(arguments.seed);
        Ok(Self { arguments, meeting, domain, region, theirs, random })
    }

    fn all(mut self) -> Outcome<Vec<Vec<Cost>>> {
        let mut costs = vec![Vec::new(); EVIDENCES.len()];
        let mut usual: Vec<Vec<f64>> = vec![Vec::new(); EVIDENCES.len()];
        for (number, column, evidence) in runs(self.arguments) {
            let mut pairs = connect(&self.domain, self.meeting, self.arguments, evidence)?;
            await_all_rails(&mut pairs)?;
            let phase = self.random.random::<f64>();
            let mut run = Run::new(&self, (number, column), pairs);
            if number < REHEARSALS {
                usual[column].push(run.rehearse()?);
            } else {
                let batch_s = Summary::of(&usual[column]).median;
                costs[column].push(run.cut(BATCHES_BEFORE + phase, batch_s)?);
            }
            let done: Vec<u8> = run.batches().flat_map(u64::to_le_bytes).collect();
            self.meeting.exchange(&done, LIMIT).map_err(failed)?;
        }
        Ok(costs)
    }
}

fn await_all_rails(pairs: &mut [QueuePair]) -> Outcome<()> {
    let (mut completions, watch) = (Vec::new(), Stopwatch::start());
    while pairs.iter().any(|pair| pair.connected_rails() < pair.rails()) {
        for pair in &mut *pairs {
            pair.poll(&mut completions);
        }
        QueuePair::rest(pairs, Duration::from_millis(1)).map_err(failed)?;
        if watch.wall_s() > LIMIT.as_secs_f64() {
            return Err(Failure::system("connecting all rails", format!("{pairs:?}")));
        }
    }
    Ok(())
}

/// Queue pairs that write batches without a pause.
struct Run<'a> {
    arguments: &'a Arguments,
    region: &'a MemoryRegion,
    theirs: PeerRegion,
    name: (usize, usize),
    writers: Vec<Writer>,
    watch: Stopwatch,
}

/// A queue pair, and its batches.
struct Writer {
    pair: QueuePair,
    /// Begun.
    batches: u64,
    /// Of the last one.
    completions: Vec<Completion>,
    list: Vec<WorkRequest>,
}

impl<'a> Run<'a> {
    fn new(near: &'a Near<'_>, name: (usize, usize), pairs: Vec<QueuePair>) -> Self {
        let Near { arguments, region, theirs, .. } = near;
        let writer = |pair| Writer { pair, batches: 0, completions: Vec::new(), list: Vec::new() };
        let writers = pairs.into_iter().map(writer).collect();
        Self { arguments, region, theirs: *theirs, name, writers, watch: Stopwatch::start() }
    }

    fn batches(&self) -> impl Iterator<Item = u64> {
        self.writers.iter().map(|writer| writer.batches)
    }

    /// How long a batch takes as a rule.
    fn rehearse(&mut self) -> Outcome<f64> {
        self.watch = Stopwatch::start();
        for _ in 0..REHEARSED_BATCHES {
            (0..self.writers.len()).try_for_each(|index| self.begin(index))?;
            while self.are_busy() {
                self.poll_all()?;
            }
        }
        Ok(self.watch.wall_s() / REHEARSED_BATCHES as f64)
    }

    /// What it costs if the NIC is given up after the time of so many batches.
    fn cut(&mut self, cut_batches: f64, batch_s: f64) -> Outcome<Cost> {
        let cut_s = batch_s * cut_batches;
        self.watch = Stopwatch::start();
        while self.watch.wall_s() < cut_s {
            for index in 0..self.writers.len() {
                if !self.is_busy(index) {
                    self.begin(index)?;
                }
                self.poll(index)?;
            }
        }
        let at_s = self.watch.wall_s();
        let interrupted = (0..self.writers.len()).filter(|&index| self.is_busy(index)).count();
        for Writer { pair, .. } in &mut self.writers {
            pair.suspect(pair.active_rail()).map_err(failed)?;
        }
        while self.are_busy() {
            self.poll_all()?;
        }
        let recovery_s = self.watch.wall_s() - at_s;
        let pairs = self.writers.iter_mut().map(|writer| &mut writer.pair);
        let (mut fallbacks, mut resent_bytes) = (Vec::new(), 0);
        for pair in pairs {
            let events = pair.take_events();
            fallbacks.extend(events.windows(2).next().map(|two| two[1].at_ns - two[0].at_ns));
            resent_bytes += pair.counters().resent_bytes;
        }
        let fallback_ns: u64 = fallbacks.iter().sum::<u64>() / fallbacks.len().max(1) as u64;
        Ok(Cost {
            recovery_s,
            fallback_s: Duration::from_nanos(fallback_ns).as_secs_f64(),
            resent_bytes,
            interrupted_bytes: (interrupted * self.arguments.batch_bytes()) as u64,
            phase: cut_batches.fract(),
        })
    }

    fn is_busy(&self, index: usize) -> bool {
        let writer = &self.writers[index];
        writer.batches > 0 && writer.completions.len() < self.arguments.completions()
    }

    fn are_busy(&self) -> bool {
        (0..self.writers.len()).any(|index| self.is_busy(index))
    }

    /// Posts the next batch of a queue pair.
    fn begin(&mut self, index: usize) -> Outcome<()> {
        let Arguments { batch, size, signal, .. } = *self.arguments;
        let (count, size) = (batch as usize, size as usize);
        let Writer { pair, batches, completions, list } = &mut self.writers[index];
        *batches += 1;
        completions.clear();
        list.clear();
        for write in 0..count {
            let offset = self.arguments.offset(index, write);
            for place in [offset, offset + size - WORD_BYTES] {
                self.region.memory().store(place, stamp(self.name, (index, *batches, write)));
            }
            let source = self.region.segment(offset, size);
            let operation = Operation::Write { source, target: self.theirs.at(offset as u64) };
            let signalled = signal == Signal::All || write + 1 == count;
            list.push(WorkRequest { id: WorkId(write as u64), operation, signalled });
        }
        match signal {
            Signal::Last => pair.post_send_list(list).map_err(|(_, cause)| failed(cause)),
            Signal::All => list.iter().try_for_each(|one| pair.post_send(*one)).map_err(failed),
        }
    }

    fn poll_all(&mut self) -> Outcome<()> {
        let mut moved = false;
        for index in 0..self.writers.len() {
            moved |= self.poll(index)?;
        }
        if !moved {
            thread::yield_now();
        }
        Ok(())
    }

    fn poll(&mut self, index: usize) -> Outcome<bool> {
        let Writer { pair, completions, .. } = &mut self.writers[index];
        let before = completions.len();
        let moved = pair.poll(completions);
        if let Some(lost) = completions[before..].iter().find(|one| !super::meet::succeeded(one)) {
            return Err(super::meet::unsuccessful(pair, index, lost));
        }
        if self.watch.wall_s() > LIMIT.as_secs_f64() {
            return Err(Failure::system("waiting for a batch", format!("{pair:?}")));
        }
        Ok(moved)
    }
}

/// The far end: serves each run, and checks that the last batches are complete.
fn answer(meeting: &mut Meeting, key: &Key, arguments: &Arguments) -> Outcome<()> {
    let (domain, region) = open(&arguments.far, key, arguments)?;
    meeting.exchange_regions(&region, LIMIT).map_err(failed)?;
    for (number, column, evidence) in runs(arguments) {
        let mut pairs = connect(&domain, meeting, arguments, evidence)?;
        let mut completions: Vec<Completion> = Vec::new();
        while !meeting.has_message() {
            let mut moved = false;
            for pair in &mut pairs {
                moved |= pair.poll(&mut completions);
            }
            if !moved {
                thread::yield_now();
            }
        }
        let done = meeting.exchange(b"", LIMIT).map_err(failed)?;
        let (batches, _) = done.as_chunks::<WORD_BYTES>();
        for (pair, &batch) in batches.iter().enumerate() {
            let batch = u64::from_le_bytes(batch);
            check(arguments, &region, (number, column), (pair, batch))?;
        }
    }
    Ok(())
}

/// Whether a batch is in this memory.
fn check(
    arguments: &Arguments,
    region: &MemoryRegion,
    name: (usize, usize),
    (pair, batch): (usize, u64),
) -> Outcome<()> {
    let size = arguments.size as usize;
    for write in (0..arguments.batch as usize).take_while(|_| batch > 0) {
        let expected = stamp(name, (pair, batch, write));
        let offset = arguments.offset(pair, write);
        let found = [offset, offset + size - WORD_BYTES].map(|place| region.memory().load(place));
        if found != [expected; 2] {
            let text = format!(
                "{name:?}, queue pair {pair}, batch {batch}, write {write}: {found:x?}, not {expected:x}"
            );
            return Err(Failure::system("checking what was written", text));
        }
    }
    Ok(())
}

fn failed(cause: ccl::vqp::Error) -> Failure {
    Failure::system("measuring", cause)
}

#[cfg(test)]
mod tests;
