//! A GPU: first the battery and the protocols, bit for bit against the oracle, then rates. Bytes read
//! and written count, as a share of the driver's own copy in the same run. Beside a figure stands `ok` or
//! `BELOW` if something is required of it, else `-`; the last line counts them.
//!
//! `gpu_bench [--kernels FOLDER] [--nvrtc FOLDER] [--small] [--strict]`
//!
//! `--kernels` names what the example `cuda_modules` made, so that nothing has to be compiled.
//! `--small` uses a little memory: it tries the program where a GPU is imitated, and measures nothing.
//! `--strict` makes it a failure if a figure is below what is required.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "../tests/cuda/mod.rs"]
mod cuda;
#[path = "../tests/inputs/mod.rs"]
mod inputs;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{
    Buffer, DeviceRegion, Error, Event, Gpu, Graph, Pinned, Shape, Stream, Supply,
};
use ccl_kernels::cuda::{
    ARRIVAL_BYTES, Arithmetic, Entry, Family, LowLatencyParameters, MOST_BLOCKS, MOST_RANKS,
    Module, Operation, PushParameters, State, slice,
};

use cuda::device::Device;
use cuda::{battery, neighbours, suite};
use inputs::{Random, elements};

const USAGE: &str = "gpu_bench [--kernels FOLDER] [--nvrtc FOLDER] [--small] [--strict]";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Runs of which the median counts.
const RUNS: usize = 9;
/// Bytes of a result that are compared with the oracle.
const WINDOW: usize = 16 * KIB;
/// Calls of one graph. The driver queues a thousand kernels or so before a launch waits for earlier ones, and
/// ranks must not wait for each other there.
const CALLS: usize = 200;
/// Large calls of one run, one behind the other.
const QUEUED: usize = 20;
/// Ranks that wait longer for each other are told to give up.
const PATIENCE: Duration = Duration::from_secs(20);

type Outcome<T> = Result<T, String>;

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet. Ranks are streams that wait for each other, so none may stand
    // behind another in one queue.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let Some(request) = arguments(std::env::args().skip(1)) else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let measured = match (Gpu::open(0, request.supply), request.neighbour) {
        (Ok(gpu), Some(path)) => neighbours::follow(&gpu, &path),
        (Ok(gpu), None) => measure(gpu, request.small, request.strict),
        (Err(error), _) => Err(described(error)),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn described(error: Error) -> String {
    format!("{error}; {}", error.remedy())
}

/// What was asked for.
#[derive(Default)]
struct Request {
    supply: Supply,
    small: bool,
    strict: bool,
    /// Where the process waits that started this one to be its neighbour.
    neighbour: Option<PathBuf>,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Request> {
    let mut request = Request::default();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--kernels" => request.supply.prebuilt = Some(PathBuf::from(given.next()?)),
            "--nvrtc" => request.supply.nvrtc = Some(PathBuf::from(given.next()?)),
            "--small" => request.small = true,
            "--strict" => request.strict = true,
            "--neighbour" => request.neighbour = Some(PathBuf::from(given.next()?)),
            _ => return None,
        }
    }
    Some(request)
}

fn measure(gpu: Gpu, small: bool, strict: bool) -> Outcome<()> {
    let name = gpu.name().map_err(described)?;
    let (architecture, driver, processors) = (gpu.architecture(), gpu.driver(), gpu.processors());
    println!("{name}, architecture {architecture}, driver {driver}, {processors} processors");
    if small {
        println!("small: this tries the program, and measures nothing");
    }
    let device = Device::new(gpu).map_err(described)?;
    check(&device, small)?;
    let bars = Bars { small, ..Bars::default() };
    let bench = Bench::new(&device.gpu, &bars)?;
    let ceiling = bench.ceiling()?;
    bench.copies(ceiling)?;
    bench.reductions(ceiling)?;
    bench.replays()?;
    for ranks in [2, 4, 8] {
        for bytes in [KIB, 4 * KIB, 16 * KIB, 64 * KIB] {
            if !small || bytes == KIB {
                low_latency(&device.gpu, &bars, ranks, bytes)?;
            }
        }
    }
    for ranks in [2, 4, 8] {
        push(&device.gpu, &bars, ranks, ceiling)?;
    }
    bars.summary(strict)
}

/// What is required of a figure.
#[derive(Clone, Copy)]
enum Bar {
    /// Percent.
    AtLeast(f64),
    /// Microseconds.
    AtMost(f64),
}

/// What became of what is required.
#[derive(Default)]
struct Bars {
    /// Nothing is measured, so nothing is required.
    small: bool,
    reached: Cell<usize>,
    below: RefCell<Vec<String>>,
}

impl Bars {
    /// Bytes of an operand.
    fn large(&self) -> usize {
        if self.small { 16 * KIB } else { 256 * MIB }
    }

    /// Calls of one graph.
    fn calls(&self) -> usize {
        if self.small { CALLS / 10 } else { CALLS }
    }

    /// What is printed beside a figure.
    fn verdict(&self, label: &str, figure: f64, bar: Option<Bar>) -> String {
        let (is_reached, required) = match bar {
            Some(Bar::AtLeast(least)) if !self.small => (figure >= least, format!("{least} %")),
            Some(Bar::AtMost(most)) if !self.small => (figure <= most, format!("{most} us")),
            _ => return "-".into(),
        };
        if is_reached {
            self.reached.set(self.reached.get() + 1);
            return format!("ok ({required})");
        }
        self.below.borrow_mut().push(format!("{label}: {figure:.2}, not {required}"));
        format!("BELOW ({required})")
    }

    /// Says it all again in short, and fails if that is asked for.
    fn summary(&self, strict: bool) -> Outcome<()> {
        let below = self.below.borrow();
        below.iter().for_each(|line| println!("BELOW {line}"));
        let (reached, missed) = (self.reached.get(), below.len());
        println!("required figures: {reached} ok, {missed} BELOW");
        if strict && missed > 0 { Err("some figures are below".into()) } else { Ok(()) }
    }
}

/// Holds streams until all that is measured has been queued, so that no launch is measured with it.
struct Gate {
    word: Pinned,
    turn: Cell<u32>,
}

impl Gate {
    fn new(gpu: &Gpu) -> Result<Self, Error> {
        Ok(Self { word: gpu.pin(4)?, turn: Cell::default() })
    }

    /// Queues work that begins when all of it is there.
    fn behind<T>(
        &self,
        streams: &[Stream],
        queue: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        let held = streams.iter().try_for_each(|stream| stream.wait_for_word(&self.word, 0, turn));
        let queued = held.and_then(|()| queue());
        // After an error too: freeing memory waits for the streams.
        self.word.word(0).store(turn, Ordering::SeqCst);
        queued
    }
}

/// The battery and the protocols.
fn check(device: &Device, small: bool) -> Outcome<()> {
    let repeats = if small { 1 } else { 4 };
    println!("copies: {} bytes are right", battery::copies(device, 25 * repeats)?);
    for datatype in DataType::ALL {
        let mut checked = battery::reduces(device, datatype, repeats)?;
        if !small && datatype.is_float() && datatype.bytes() < 4 {
            checked += battery::pairs(device, datatype)?;
        }
        println!("{}: {checked} elements are right", datatype.name());
    }
    for family in [Family::LowLatency, Family::Push] {
        let mut scenes = 0;
        for (seed, datatype) in (0..).zip([DataType::Float32, DataType::Bfloat16, DataType::Int8]) {
            let seeds = seed * 20..seed * 20 + if small { 1 } else { 20 };
            for operation in [Operation::Sum, Operation::Scaled] {
                scenes += suite::all_reduces(device, family, datatype, operation, seeds.clone())?;
            }
        }
        println!("{family:?}: {scenes} series of AllReduce are right");
    }
    let scenes = suite::pulls(device, 0..if small { 1 } else { 20 })?;
    suite::pulls_in_vain(device, 0..2)?;
    println!("Pull: {scenes} series of messages are right");
    suite::flags_return(device, 2)?;
    suite::all_give_up(device)?;
    suite::relays(device, DataType::Bfloat16, Operation::Sum, 2)?;
    println!("flags return, ranks give up, relays hand on");
    two_processes(&device.gpu)?;
    println!("two processes are ranks of each other");
    Ok(())
}

/// This program again, beside this one.
fn two_processes(gpu: &Gpu) -> Outcome<()> {
    let meeting = std::env::temp_dir().join(format!("gpu_bench-{}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut neighbour = Command::new(program);
    neighbour.args(std::env::args().skip(1)).arg("--neighbour").arg(&meeting);
    let met = neighbours::lead(gpu, &meeting, &mut neighbour);
    // Whoever bound it removes it.
    let _ = std::fs::remove_file(meeting);
    met
}

/// Memory for operands, and a stream.
struct Bench<'a> {
    gpu: &'a Gpu,
    bars: &'a Bars,
    stream: Stream,
    gate: Gate,
    pool: Buffer,
    operand_bytes: usize,
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu, bars: &'a Bars) -> Outcome<Self> {
        let operand_bytes = bars.large();
        let pool = gpu.allocate(operand_bytes * 9).map_err(described)?;
        let stream = gpu.stream().map_err(described)?;
        let gate = Gate::new(gpu).map_err(described)?;
        let bench = Self { gpu, bars, stream, gate, pool, operand_bytes };
        bench.fill(DataType::Float32)?;
        Ok(bench)
    }

    /// Elements of the type everywhere, similar ones and delicate ones.
    fn fill(&self, datatype: DataType) -> Outcome<()> {
        let bytes = self.operand_bytes.min(MIB);
        let inputs = elements(&mut Random(5), datatype, bytes / datatype.bytes());
        // Operands differ from each other.
        let turned = [0, 1, 2, 3, 4].map(|turn| {
            let mut piece = inputs.clone();
            piece.rotate_left(turn * 64);
            piece
        });
        for (offset, piece) in
            (0..self.pool.region().bytes()).step_by(bytes).zip(turned.iter().cycle())
        {
            self.pool.write(offset, piece).map_err(described)?;
        }
        Ok(())
    }

    fn operand(&self, index: usize, bytes: usize) -> DeviceRegion<'_> {
        self.pool.region().part(index * self.operand_bytes, bytes)
    }

    /// Median seconds of the work.
    fn seconds(&self, work: impl Fn() -> Result<(), Error>) -> Outcome<f64> {
        let timed = || {
            let begin = self.stream.record()?;
            work()?;
            Ok((begin, self.stream.record()?))
        };
        let once = || {
            let (begin, end) = self.gate.behind(std::slice::from_ref(&self.stream), timed)?;
            end.synchronise()?;
            begin.seconds_until(&end)
        };
        // The first time kernels are loaded, which may wait for streams.
        work().and_then(|()| self.stream.synchronise()).map_err(described)?;
        let mut all =
            (0..RUNS).map(|_| once()).collect::<Result<Vec<_>, _>>().map_err(described)?;
        all.sort_by(f64::total_cmp);
        Ok(all[RUNS / 2])
    }

    /// Bytes per second, read and written, of the driver's copy.
    fn ceiling(&self) -> Outcome<f64> {
        let bytes = self.operand_bytes;
        let (from, to) = (self.operand(0, bytes), self.operand(1, bytes));
        let seconds = self.seconds(|| self.gpu.copy_plainly(&self.stream, from, to))?;
        let rate = 2.0 * bytes as f64 / seconds;
        println!("\ncopy of the driver, {} KiB: {:.1} GB/s", bytes / KIB, rate / 1e9);
        Ok(rate)
    }

    fn copies(&self, ceiling: f64) -> Outcome<()> {
        for (count, shift) in [(1, 0), (2, 0), (4, 0), (8, 0), (1, 5)] {
            let bytes = self.operand_bytes - 64;
            let source = self.operand(0, bytes + shift).part(shift, bytes);
            let targets: Vec<DeviceRegion<'_>> =
                (1..=count).map(|index| self.operand(index, bytes)).collect();
            let seconds = self.seconds(|| self.gpu.copy(&self.stream, source, &targets))?;
            let label = format!("copy 1 -> {count}, source {shift} bytes beside");
            let bar = (count == 1).then_some(Bar::AtLeast(97.0));
            self.report(&label, (1 + count) * bytes, (seconds, ceiling), bar);
            let [mut sent, mut arrived] = [vec![0; WINDOW / 2], vec![0; WINDOW / 2]];
            self.pool.read(shift, &mut sent).map_err(described)?;
            self.pool.read(count * self.operand_bytes, &mut arrived).map_err(described)?;
            expect(sent == arrived, &label)?;
        }
        Ok(())
    }

    fn reductions(&self, ceiling: f64) -> Outcome<()> {
        for datatype in DataType::ALL {
            self.fill(datatype)?;
            let operations = Operation::ALL.into_iter().filter(|o| o.is_of(datatype));
            for operation in operations {
                self.reduction((operation, datatype), (2, 1), ceiling)?;
            }
            for counts in [(4, 1), (7, 1), (2, 2), (2, 4)] {
                self.reduction((Operation::Sum, datatype), counts, ceiling)?;
            }
        }
        Ok(())
    }

    fn reduction(
        &self,
        (operation, datatype): (Operation, DataType),
        counts: (usize, usize),
        ceiling: f64,
    ) -> Outcome<()> {
        let bytes = self.operand_bytes;
        let arithmetic = battery::arithmetic(&mut Random(9), datatype);
        let region = |index| self.operand(index, bytes);
        let sources: Vec<DeviceRegion<'_>> = (0..counts.0).map(region).collect();
        let targets: Vec<DeviceRegion<'_>> = (counts.0..counts.0 + counts.1).map(region).collect();
        let kernel = (operation, datatype);
        let reduce = || self.gpu.reduce(&self.stream, kernel, arithmetic, &sources, &targets);
        let seconds = self.seconds(reduce)?;
        let label = format!("{operation:?} {} {} -> {}", datatype.name(), counts.0, counts.1);
        let bar = least_share(kernel, counts);
        self.report(&label, (counts.0 + counts.1) * bytes, (seconds, ceiling), Some(bar));
        let read = |index: usize| {
            let mut window = vec![0; WINDOW];
            let end = (index + 1) * bytes - WINDOW;
            self.pool.read(end, &mut window).map(|()| window).map_err(described)
        };
        let contributions = (0..counts.0).map(read).collect::<Outcome<Vec<_>>>()?;
        let right = battery::expected(datatype, operation, &arithmetic, &contributions);
        for target in counts.0..counts.0 + counts.1 {
            expect(read(target)? == right, &label)?;
        }
        Ok(())
    }

    /// Small reductions, many in one graph: their launches cost the host nothing.
    fn replays(&self) -> Outcome<()> {
        let calls = self.bars.calls();
        for datatype in [DataType::Float32, DataType::Bfloat16, DataType::Float8E4m3] {
            let bytes = (64 * KIB).min(self.operand_bytes);
            let region = |index| self.operand(index, bytes);
            let kernel = (Operation::Sum, datatype);
            let describe = || {
                (0..calls).try_for_each(|_| {
                    let sources = [region(0), region(1)];
                    let none = Arithmetic::default();
                    self.gpu.reduce(&self.stream, kernel, none, &sources, &[region(2)])
                })
            };
            self.gpu.prepare(Module::Elements(datatype)).map_err(described)?;
            let graph = self.stream.capture(describe).map_err(described)?;
            let seconds = self.seconds(|| graph.launch())? / calls as f64;
            let label = format!("{} 2 -> 1, {} KiB in a graph", datatype.name(), bytes / KIB);
            let verdict = self.bars.verdict(&label, seconds * 1e6, Some(Bar::AtMost(2.5)));
            println!("{label}: {:.2} us, {verdict}", seconds * 1e6);
        }
        Ok(())
    }

    fn report(&self, label: &str, bytes: usize, (seconds, ceiling): (f64, f64), bar: Option<Bar>) {
        let rate = bytes as f64 / seconds;
        let share = 100.0 * rate / ceiling;
        let verdict = self.bars.verdict(label, share, bar);
        println!("{label}: {:.1} GB/s, {share:.1} % of the driver's copy, {verdict}", rate / 1e9);
    }
}

/// What a reduction should reach of the driver's copy.
fn least_share((operation, datatype): (Operation, DataType), counts: (usize, usize)) -> Bar {
    use DataType::{Bfloat16, Float16, Float32, Int32};
    let is_light = matches!(datatype, Float32 | Int32 | Bfloat16 | Float16);
    Bar::AtLeast(match counts {
        (2, 1) if operation == Operation::Sum && is_light => 95.0,
        (4 | 7, 1) => 92.0,
        _ => 90.0,
    })
}

fn expect(is_right: bool, label: &str) -> Outcome<()> {
    if is_right { Ok(()) } else { Err(format!("{label}: the result is wrong")) }
}

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
        let states = buffers(size_of::<State>())?;
        let (abort, gate) = (gpu.pin(4)?, Gate::new(gpu)?);
        let count = bytes / 4;
        Ok(Self { gpu, streams, inputs, outputs, meetings, states, abort, gate, count })
    }

    fn addresses(buffers: &[Buffer]) -> [u64; MOST_RANKS] {
        std::array::from_fn(|k| buffers.get(k).map_or(0, |buffer| buffer.region().address()))
    }

    fn low_latency(&self, rank: usize, shape: Shape) -> Result<(), Error> {
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
        };
        let entry = sum(Family::LowLatency);
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
            arithmetic: Arithmetic::default(),
            rank: rank as u32,
            ranks: ranks as u32,
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

/// AllReduce of small messages: every rank is a graph of many calls.
fn low_latency(gpu: &Gpu, bars: &Bars, ranks: usize, bytes: usize) -> Outcome<()> {
    let label = format!("AllReduce with low latency, {ranks} ranks, {} KiB", bytes / KIB);
    let group = Ranks::new(gpu, ranks, bytes, 2 * ranks * 2 * bytes).map_err(described)?;
    gpu.prepare(sum(Family::LowLatency).module()).map_err(described)?;
    // A thread has a unit of eight bytes, as long as there are few blocks.
    let blocks = (bytes / 8).div_ceil(512).clamp(1, 16) as u32;
    let shape = Shape { blocks, threads: 512 };
    let calls = bars.calls();
    let capture = |rank: usize| {
        let describe = || (0..calls).try_for_each(|_| group.low_latency(rank, shape));
        group.streams[rank].capture(describe)
    };
    let graphs: Vec<Graph> =
        (0..ranks).map(capture).collect::<Result<_, _>>().map_err(described)?;
    let microseconds = group.seconds(|rank| graphs[rank].launch())? / calls as f64 * 1e6;
    group.check(&label)?;
    let bar = match ranks {
        2 if bytes <= 16 * KIB => Some(Bar::AtMost(3.0)),
        8 if bytes <= 16 * KIB => Some(Bar::AtMost(5.0)),
        _ => None,
    };
    let verdict = bars.verdict(&label, microseconds, bar);
    println!("{label}: {microseconds:.2} us a call, in graphs of {calls}, {verdict}");
    Ok(())
}

/// AllReduce of large messages on mapped buffers.
fn push(gpu: &Gpu, bars: &Bars, ranks: usize, ceiling: f64) -> Outcome<()> {
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
