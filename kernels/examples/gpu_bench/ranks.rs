//! Ranks as streams of this process.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Buffer, Error, Event, Gpu, Graph, Pinned, Shape, Stream};
use ccl_kernels::cuda::{
    ARRIVAL_BYTES, Arithmetic, Entry, Family, LOW_LATENCY_THREADS, LowLatencyParameters,
    MOST_BLOCKS, MOST_RANKS, Operation, PushParameters, State, slice,
};

use crate::bars::{Bar, Bars};
use crate::gate::Gate;
use crate::{KIB, Outcome, described, expect};

/// Runs of which the median counts.
const RUNS: usize = 9;
/// Large calls of one run, one behind the other.
const QUEUED: usize = 20;
/// Ranks that wait longer for each other are told to give up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ranks as streams of this process.
struct Ranks<'a> {
    gpu: &'a Gpu,
    streams: Vec<Stream>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    /// Mailboxes or counters.
    meetings: Vec<Buffer>,
    states: Vec<Buffer>,
    abort: Pinned,
    gate: Gate,
    count: usize,
}

impl<'a> Ranks<'a> {
    /// Rank r contributes r + 1 everywhere.
    fn new(gpu: &'a Gpu, ranks: usize, bytes: usize, meeting_bytes: usize) -> Result<Self, Error> {
        let buffers =
            |bytes| (0..ranks).map(|_| gpu.allocate(bytes)).collect::<Result<Vec<_>, _>>();
        let streams = (0..ranks).map(|_| gpu.stream()).collect::<Result<_, _>>()?;
        let inputs = buffers(bytes)?;
        for (rank, input) in inputs.iter().enumerate() {
            input.write(0, &(rank as f32 + 1.0).to_le_bytes().repeat(bytes / 4))?;
        }
        let (outputs, meetings) = (buffers(bytes)?, buffers(meeting_bytes)?);
        let states = buffers(MOST_BLOCKS * size_of::<State>())?;
        let (abort, gate) = (gpu.pin(4)?, Gate::new(gpu)?);
        let count = bytes / 4;
        Ok(Self { gpu, streams, inputs, outputs, meetings, states, abort, gate, count })
    }

    fn addresses(buffers: &[Buffer]) -> [u64; MOST_RANKS] {
        std::array::from_fn(|k| buffers.get(k).map_or(0, |buffer| buffer.region().address()))
    }

    fn low_latency(&self, rank: usize, most_threads: u32) -> Result<(), Error> {
        let parameters = LowLatencyParameters {
            input: self.inputs[rank].region().address(),
            output: self.outputs[rank].region().address(),
            mailboxes: Self::addresses(&self.meetings),
            state: self.states[rank].region().address(),
            abort: self.abort.region().address(),
            count: self.count as u64,
            slot_bytes: self.count as u64 * 8,
            arithmetic: Arithmetic::default(),
            rank: rank as u32,
            ranks: self.streams.len() as u32,
            most_blocks: 16,
            most_threads,
        };
        let entry = sum(Family::LowLatency);
        let (blocks, threads) = parameters.shape(DataType::Float32);
        let shape = Shape { blocks, threads };
        // SAFETY: the memory outlives the calls, which `run` waits for.
        unsafe { self.gpu.launch(&self.streams[rank], entry, shape, &parameters) }
    }

    fn push(&self, rank: usize, shape: Shape) -> Result<(), Error> {
        let (ranks, size) = (self.streams.len(), size_of::<f32>());
        let parts = |buffer: &Buffer| {
            let start = buffer.region().address();
            std::array::from_fn(|k| match k < ranks {
                true => start + (slice(self.count, size, ranks, k).0 * size) as u64,
                false => 0,
            })
        };
        let parameters = PushParameters {
            sources: parts(&self.inputs[rank]),
            destinations: parts(&self.outputs[rank]),
            arrivals: Self::addresses(&self.meetings),
            state: self.states[rank].region().address(),
            abort: self.abort.region().address(),
            count: slice(self.count, size, ranks, rank).1 as u64,
            reach: self.count as u64,
            pieces: 1,
            turns: 1,
            rank: rank as u32,
            ranks: ranks as u32,
            ..PushParameters::default()
        };
        // SAFETY: as above.
        unsafe { self.gpu.launch(&self.streams[rank], sum(Family::Push), shape, &parameters) }
    }

    /// Median seconds, by the device's clock, from when the first rank may begin until all are through.
    fn seconds(&self, launch: impl Fn(usize) -> Result<(), Error>) -> Outcome<f64> {
        // The first time graphs are brought to the device, which may wait for streams.
        (0..self.streams.len()).try_for_each(&launch).map_err(described)?;
        self.ended().map_err(described)?;
        let mut all = (0..RUNS).map(|_| self.run(&launch)).collect::<Outcome<Vec<_>>>()?;
        all.sort_by(f64::total_cmp);
        Ok(all[RUNS / 2])
    }

    fn run(&self, launch: &impl Fn(usize) -> Result<(), Error>) -> Outcome<f64> {
        let timed = || {
            let begins = self.events()?;
            (0..self.streams.len()).try_for_each(launch)?;
            Ok(begins)
        };
        let begins = self.gate.behind(&self.streams, timed).map_err(described)?;
        let ends = self.ended().map_err(described)?;
        expect(self.abort.word(0).load(Ordering::SeqCst) == 0, "ranks waited in vain")?;
        let pairs = begins.iter().flat_map(|begin| ends.iter().map(move |end| (begin, end)));
        pairs.map(|(begin, end)| begin.seconds_until(end)).try_fold(0.0, |most: f64, seconds| {
            seconds.map(|seconds| most.max(seconds)).map_err(described)
        })
    }

    /// An event behind what every rank has to do.
    fn events(&self) -> Result<Vec<Event>, Error> {
        self.streams.iter().map(Stream::record).collect()
    }

    /// These events, when they have happened; ranks that wait too long for each other are told to give up.
    fn ended(&self) -> Result<Vec<Event>, Error> {
        let (begin, ends) = (Instant::now(), self.events()?);
        for end in &ends {
            while !end.has_happened()? {
                if begin.elapsed() > PATIENCE {
                    self.abort.word(0).store(1, Ordering::SeqCst);
                }
            }
        }
        Ok(ends)
    }

    /// Every rank has the sum of all.
    fn check(&self, label: &str) -> Outcome<()> {
        let ranks = self.streams.len();
        let sum = ((ranks * (ranks + 1) / 2) as f32).to_le_bytes().repeat(self.count);
        for output in &self.outputs {
            let mut result = vec![0; sum.len()];
            output.read(0, &mut result).map_err(described)?;
            expect(result == sum, label)?;
        }
        Ok(())
    }
}

fn sum(family: Family) -> Entry {
    Entry::Elements { family, operation: Operation::Sum, datatype: DataType::Float32 }
}

/// AllReduce of small messages: every rank is a graph of many calls. Other sizes of blocks than those of the library are
/// there to be compared.
pub(crate) fn low_latency(gpu: &Gpu, bars: &Bars, ranks: usize, bytes: usize) -> Outcome<()> {
    [LOW_LATENCY_THREADS, 256, 512]
        .into_iter()
        .try_for_each(|threads| low_latency_in_blocks(gpu, bars, (ranks, bytes), threads))
}

fn low_latency_in_blocks(
    gpu: &Gpu,
    bars: &Bars,
    (ranks, bytes): (usize, usize),
    most_threads: u32,
) -> Outcome<()> {
    let label = format!(
        "AllReduce with low latency, {ranks} ranks, {} KiB, {most_threads} threads a block",
        bytes / KIB
    );
    let group = Ranks::new(gpu, ranks, bytes, 2 * ranks * 2 * bytes).map_err(described)?;
    gpu.prepare(sum(Family::LowLatency).module()).map_err(described)?;
    let calls = bars.calls();
    let capture = |rank: usize| {
        let describe = || (0..calls).try_for_each(|_| group.low_latency(rank, most_threads));
        group.streams[rank].capture(describe)
    };
    let graphs: Vec<Graph> =
        (0..ranks).map(capture).collect::<Result<_, _>>().map_err(described)?;
    let microseconds = group.seconds(|rank| graphs[rank].launch())? / calls as f64 * 1e6;
    group.check(&label)?;
    let bar = match ranks {
        _ if most_threads != LOW_LATENCY_THREADS => None,
        2 if bytes <= 16 * KIB => Some(Bar::AtMost(3.0)),
        8 if bytes <= 16 * KIB => Some(Bar::AtMost(5.0)),
        _ => None,
    };
    let verdict = bars.verdict(&label, microseconds, bar);
    println!("{label}: {microseconds:.2} us a call, in graphs of {calls}, {verdict}");
    Ok(())
}

/// AllReduce of large messages on mapped buffers.
pub(crate) fn push(gpu: &Gpu, bars: &Bars, ranks: usize, ceiling: f64) -> Outcome<()> {
    let bytes = bars.large();
    let label = format!("AllReduce by pushing, {ranks} ranks, {} KiB", bytes / KIB);
    let counters = MOST_BLOCKS * MOST_RANKS * ARRIVAL_BYTES;
    let group = Ranks::new(gpu, ranks, bytes, counters).map_err(described)?;
    gpu.prepare(sum(Family::Push).module()).map_err(described)?;
    // All blocks of all ranks run together.
    let blocks = (gpu.processors() / ranks as u32).clamp(1, MOST_BLOCKS as u32);
    let shape = Shape { blocks, threads: 512 };
    let calls = if bars.small { 2 } else { QUEUED };
    let launch = |rank| (0..calls).try_for_each(|_| group.push(rank, shape));
    let seconds = group.seconds(launch)? / calls as f64;
    group.check(&label)?;
    let algbw = bytes as f64 / seconds;
    // Every rank's data is read once and written once by all together.
    let most = ceiling / (2 * ranks) as f64;
    let share = 100.0 * algbw / most;
    let verdict = bars.verdict(&label, share, Some(Bar::AtLeast(85.0)));
    println!(
        "{label}: algbw {:.1} GB/s, {share:.1} % of what memory allows, {verdict}",
        algbw / 1e9
    );
    Ok(())
}
