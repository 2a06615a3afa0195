//! Copies and reductions on one stream.

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Buffer, DeviceRegion, Error, Gpu, Stream};
use ccl_kernels::cuda::{Arithmetic, Module, Operation};

use crate::bars::{Bar, Bars};
use crate::cuda::battery;
use crate::gate::Gate;
use crate::inputs::{Random, elements};
use crate::{KIB, MIB, Outcome, described, expect};

/// Runs of which the median counts.
const RUNS: usize = 9;
/// Bytes of a result that are compared with the oracle.
const WINDOW: usize = 16 * KIB;

/// Memory for operands, and a stream.
pub(crate) struct Bench<'a> {
    gpu: &'a Gpu,
    bars: &'a Bars,
    stream: Stream,
    gate: Gate,
    pool: Buffer,
    operand_bytes: usize,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(gpu: &'a Gpu, bars: &'a Bars) -> Outcome<Self> {
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
    pub(crate) fn ceiling(&self) -> Outcome<f64> {
        let bytes = self.operand_bytes;
        let (from, to) = (self.operand(0, bytes), self.operand(1, bytes));
        let seconds = self.seconds(|| self.gpu.copy_plainly(&self.stream, from, to))?;
        let rate = 2.0 * bytes as f64 / seconds;
        println!("\ncopy of the driver, {} KiB: {:.1} GB/s", bytes / KIB, rate / 1e9);
        Ok(rate)
    }

    pub(crate) fn copies(&self, ceiling: f64) -> Outcome<()> {
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

    pub(crate) fn reductions(&self, ceiling: f64) -> Outcome<()> {
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
    pub(crate) fn replays(&self) -> Outcome<()> {
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
