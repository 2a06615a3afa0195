//! Runs, times and checks rows on one rank.

mod on_device;
mod timing;

use ccl::{Communicator, DataType, ReduceOp, Reduction, Registration};

use crate::Outcome;
use crate::arguments::Arguments;
use crate::benchmark::{Benchmark, Counts, Job, OperationColumn, Phase, Place, RequestOf, request};
use crate::buffers::{Buffers, Form, Layout, Parts};
use crate::check;
use crate::data::{self, Operation, Pattern};
use crate::error::Failure;
use crate::faults::watch::Watch;
use crate::gpu::{Device, Gpu};
use crate::statistics::Summary;
use crate::stopwatch;
use crate::table::{Measurement, Row};
use crate::traffic::Traffic;

/// One rank of a run.
#[derive(Debug)]
pub struct Engine<'a> {
    benchmark: &'a Benchmark,
    arguments: &'a Arguments,
    /// All ranks: they time and check together.
    world: &'a Communicator,
    /// The ranks that the benchmark runs on.
    group: &'a Communicator,
    traffic: Traffic,
    registrations: Vec<Registration>,
    buffers: Buffers,
    /// Where calls work, if not in these buffers.
    gpu: Option<Gpu>,
    watch: Watch,
    /// Another one for every checked call.
    seed: u64,
}

/// What the rows of one part of the table have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Type of the elements.
    pub datatype: DataType,
    /// How they are combined, where they are.
    pub operation: Option<Operation>,
    /// The root, where there is one.
    pub root: Option<usize>,
}

/// What happens in every iteration of a row.
#[derive(Debug)]
struct Plan<'a> {
    phases: &'a [Phase],
    layout: Layout<'a>,
    parts: Parts,
    request: RequestOf<'a>,
}

impl<'a> Engine<'a> {
    /// A rank with memory for every row of the run.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(
        benchmark: &'a Benchmark,
        arguments: &'a Arguments,
        [world, group]: [&'a Communicator; 2],
        traffic: Traffic,
        device: Option<&Device>,
    ) -> Outcome<Self> {
        let ranks = group.size() as usize;
        let row = |datatype: DataType, bytes| {
            let counts = counts(benchmark, bytes, datatype, ranks, &traffic);
            counts.largest() * datatype.bytes()
        };
        let sizes = || arguments.sweep().sizes().chain([arguments.most]);
        let datatypes = arguments.datatypes();
        let rows = datatypes.iter().flat_map(|datatype| sizes().map(|bytes| row(*datatype, bytes)));
        let bytes = rows.max().unwrap_or(0).max(arguments.most);
        let shared = arguments.register > 0;
        let element_bytes = datatypes.iter().map(|datatype| datatype.bytes()).max().unwrap_or(0);
        let misalignment = usize::from(arguments.misalignment) * element_bytes;
        let buffers = Buffers::new(bytes, misalignment, shared)?;
        let gpu = device.map(|device| Gpu::new(device, group, buffers.total_bytes() / 2));
        let gpu =
            gpu.transpose().map_err(|error| Failure::Library { rank: world.rank().0, error })?;
        let mut engine = Self {
            benchmark,
            arguments,
            world,
            group,
            traffic,
            registrations: Vec::new(),
            buffers,
            gpu,
            watch: Watch::new(arguments, world.rank().0)?,
            seed: 0,
        };
        if shared {
            engine.register()?;
        }
        if arguments.register == 2 {
            engine.on_windows(Gpu::register)?;
        }
        Ok(engine)
    }

    fn register(&mut self) -> Outcome<()> {
        for (address, bytes) in self.buffers.ranges() {
            let registered = self.group.register(address, bytes);
            self.registrations.push(registered.map_err(|error| self.failure(error))?);
        }
        Ok(())
    }

    /// What happened to the rails, when nothing is to be measured any more.
    #[must_use]
    pub fn into_watch(self) -> Watch {
        self.watch
    }

    /// Ends the registrations.
    ///
    /// # Errors
    /// The library refuses.
    pub fn release(&mut self) -> Outcome<()> {
        for registration in std::mem::take(&mut self.registrations) {
            self.group.deregister(registration).map_err(|error| self.failure(error))?;
        }
        self.on_windows(Gpu::deregister)
    }

    /// The parts of the table.
    #[must_use]
    pub fn cases(&self) -> Vec<Case> {
        let operations = match self.benchmark.operation {
            OperationColumn::Chosen => self.arguments.operations().into_iter().map(Some).collect(),
            OperationColumn::Fixed(_) => vec![None],
        };
        let roots = if self.benchmark.rooted {
            self.arguments.roots(self.ranks()).into_iter().map(Some).collect()
        } else {
            vec![None]
        };
        let mut cases = Vec::new();
        for datatype in self.arguments.datatypes() {
            for operation in &operations {
                let case =
                    |root: &Option<usize>| Case { datatype, operation: *operation, root: *root };
                cases.extend(roots.iter().map(case));
            }
        }
        cases
    }

    /// The sizes of the rows of a part.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        match self.traffic {
            Traffic::Bytes(_) => vec![self.arguments.least],
            Traffic::Spread(_) => self.arguments.sweep().sizes().collect(),
        }
    }

    /// Bytes of the buffers of this rank.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffers.total_bytes()
    }

    /// What the planner says about a row, if it has a choice.
    ///
    /// # Errors
    /// The chosen algorithm does not exist.
    pub fn explained(&self, case: Case, bytes: usize) -> Outcome<Option<String>> {
        let counts = self.counts(case, bytes);
        let Some(collective) = self.benchmark.collective else { return Ok(None) };
        let place = self.place(case, &counts);
        let request = request(collective, case.datatype, self.reduction(case), &place);
        self.group.explain(&request).map(Some).map_err(|error| self.failure(error))
    }

    /// Begins a part of the table: runs sizes from the first to the last, each twice the one before, without looking at the
    /// clock, as nccl-tests does.
    ///
    /// # Errors
    /// The library failed.
    pub fn warm_up(&mut self, case: Case) -> Outcome<()> {
        let misaligned = usize::from(self.arguments.misalignment);
        self.buffers.misalign(misaligned * case.datatype.bytes());
        self.prepare(case)?;
        let sizes = match self.traffic {
            Traffic::Bytes(_) => self.sizes(),
            Traffic::Spread(_) => self.arguments.sweep().doubling().collect(),
        };
        for bytes in sizes {
            let counts = self.counts(case, bytes);
            let phases = (self.benchmark.calls)(&self.place(case, &counts));
            let plan = self.plan(case, &counts, &phases, self.arguments.warm_up_form);
            self.fill(case, &plan, self.arguments.warm_up)?;
            // Of nccl-tests, -m and -z do not count here.
            (0..self.arguments.warm_up).try_for_each(|slot| self.operation(&plan, slot))?;
            self.finish()?;
        }
        Ok(())
    }

    /// Measures and checks a row.
    ///
    /// # Errors
    /// The library failed. Wrong results are counted in the row.
    pub fn row(&mut self, case: Case, bytes: usize) -> Outcome<Row> {
        let counts = self.counts(case, bytes);
        let phases = (self.benchmark.calls)(&self.place(case, &counts));
        let out_of_place = self.measured(case, &counts, &phases, Form::OutOfPlace)?;
        let in_place = self.measured(case, &counts, &phases, Form::InPlace)?;
        let operation = match self.benchmark.operation {
            OperationColumn::Chosen => case.operation.map_or("", Operation::name),
            OperationColumn::Fixed(name) => name,
        };
        Ok(Row {
            bytes: counts.largest() * case.datatype.bytes(),
            count: counts.count,
            datatype: case.datatype,
            operation,
            root: case.root,
            out_of_place,
            in_place,
            timestamp: (self.arguments.timestamps == 1).then(stopwatch::timestamp),
        })
    }

    fn measured(
        &mut self,
        case: Case,
        counts: &Counts,
        phases: &[Phase],
        form: Form,
    ) -> Outcome<Measurement> {
        let plan = self.plan(case, counts, phases, form);
        self.fill(case, &plan, self.arguments.iterations.get() * self.arguments.aggregated.get())?;
        // nccl-tests does one that is not timed, too.
        self.operation(&plan, 0)?;
        self.finish()?;
        let row_bytes = counts.largest() * case.datatype.bytes();
        self.watch.begin(row_bytes, form, self.arguments.iterations.get());
        let timing = self.timed(&plan)?;
        let wall_s = self.averaged(timing.wall_s)?;
        let processor_s = self.averaged(timing.processor_s)?;
        let by_process = self.by_process(&timing.iterations)?;
        let iterations = longest(&by_process);
        let (wrong, overwritten) = self.checked(case, &plan)?;
        self.settle(&plan)?;
        #[allow(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
        let base = ((self.benchmark.base)(counts, self.ranks()) * case.datatype.bytes()) as f64;
        let algorithm_bandwidth = if wall_s > 0.0 { base / 1e9 / wall_s } else { 0.0 };
        let skipped = self.arguments.skipped.min(iterations.len());
        let asked = self.arguments.per_iteration == 1;
        Ok(Measurement {
            wall_s,
            shown_s: if self.arguments.processor_time == 1 { processor_s } else { wall_s },
            algorithm_bandwidth,
            bus_bandwidth: algorithm_bandwidth * self.benchmark.factor.of(self.ranks()),
            wrong,
            overwritten,
            summary: asked.then(|| Summary::of(&iterations[skipped..])),
            iterations,
            by_process,
        })
    }

    /// Fills what so many operations use with [ordinary numbers](data::ordinary).
    fn fill(&mut self, case: Case, plan: &Plan<'_>, operations: usize) -> Outcome<()> {
        let numbers = data::ordinary(case.datatype);
        self.on_device(Gpu::upload, |buffers| buffers.fill(&plan.layout, operations, &numbers))
    }

    /// After a measurement in which cables were cut: goes on without looking at the clock until they
    /// are whole and all rails in use again, so that the next one begins like this one.
    fn settle(&mut self, plan: &Plan<'_>) -> Outcome<()> {
        self.watch.end([self.world, self.group]);
        while self.watch.breaks() && !self.watch.is_settled([self.world, self.group])? {
            self.iteration(plan, 0)?;
            self.finish()?;
        }
        Ok(())
    }

    /// Wrong elements (`None`: not checked) and overwritten guard bytes, of all ranks.
    fn checked(&mut self, case: Case, plan: &Plan<'_>) -> Outcome<(Option<u64>, u64)> {
        let exists = plan.layout.form == Form::OutOfPlace || self.benchmark.checks_in_place;
        if self.arguments.check == 0 || !exists {
            return Ok((None, 0));
        }
        for _ in 0..self.arguments.check {
            let found = self.check_once(case, plan)?;
            let mut total = [0, 0];
            self.world
                .all_reduce(&found, &mut total, ReduceOp::Sum)
                .map_err(|error| self.failure(error))?;
            if total != [0, 0] {
                return Ok((Some(total[0]), total[1]));
            }
        }
        Ok((Some(0), 0))
    }

    fn check_once(&mut self, case: Case, plan: &Plan<'_>) -> Outcome<[u64; 2]> {
        self.seed += 1;
        let Place { rank, ranks, .. } = plan.request.place;
        let pattern = Pattern::new(case.datatype, case.operation, ranks, self.seed);
        let (row, guard) = self.buffers.receive(&plan.layout);
        check::fill_output(row, guard);
        check::fill_input(self.buffers.input(&plan.layout), &pattern, rank);
        self.on_device(Gpu::upload, |buffers| buffers.checked(&plan.layout))?;
        self.operation(plan, 0)?;
        self.finish()?;
        self.on_device(Gpu::download, |buffers| buffers.checked(&plan.layout))?;
        let segments = (self.benchmark.expected)(&plan.request.place);
        let wrong = check::wrong_elements(self.buffers.output(&plan.layout), &pattern, &segments);
        let (_, guard) = self.buffers.receive(&plan.layout);
        Ok([wrong, check::overwritten(guard)])
    }

    /// What the ranks' values become by `-a`.
    fn averaged(&self, own: f64) -> Outcome<f64> {
        let first = self.world.rank().0 == 0;
        let (value, op) = match self.arguments.average {
            0 => (if first { own } else { 0.0 }, ReduceOp::Sum),
            2 => (own, ReduceOp::Min),
            3 => (own, ReduceOp::Max),
            _ => (own / f64::from(self.world.size()), ReduceOp::Sum),
        };
        let mut result = [0.0];
        self.world.all_reduce(&[value], &mut result, op).map_err(|error| self.failure(error))?;
        Ok(result[0])
    }

    /// For every process and iteration, the time of its rank that took longest.
    fn by_process(&self, times: &[f64]) -> Outcome<Vec<Vec<f64>>> {
        if times.is_empty() {
            return Ok(Vec::new());
        }
        let mut all = vec![0.0; times.len() * self.world.size() as usize];
        self.world.all_gather(times, &mut all).map_err(|error| self.failure(error))?;
        let ranks: Vec<&[f64]> = all.chunks(times.len()).collect();
        Ok(ranks.chunks(self.arguments.local_ranks()).map(longest).collect())
    }

    fn barrier(&self) -> Outcome<()> {
        self.world.barrier().map_err(|error| self.failure(error))
    }

    fn plan<'b>(
        &self,
        case: Case,
        counts: &'b Counts,
        phases: &'b [Phase],
        form: Form,
    ) -> Plan<'b> {
        let place = self.place(case, counts);
        let element_bytes = case.datatype.bytes();
        let layout = Layout { form, rank: place.rank, counts, element_bytes };
        Plan {
            phases,
            parts: self.buffers.parts(&layout),
            layout,
            request: RequestOf { place, datatype: case.datatype, reduction: self.reduction(case) },
        }
    }

    fn reduction(&self, case: Case) -> Reduction {
        let own = self.group.rank().index();
        case.operation
            .map_or(Reduction::Builtin(ReduceOp::Sum), |op| op.reduction(own, case.datatype))
    }

    fn place<'b>(&self, case: Case, counts: &'b Counts) -> Place<'b> {
        let rank = self.group.rank().index();
        Place { rank, ranks: self.ranks(), root: case.root.unwrap_or(0), counts }
    }

    fn counts(&self, case: Case, bytes: usize) -> Counts {
        counts(self.benchmark, bytes, case.datatype, self.ranks(), &self.traffic)
    }

    fn ranks(&self) -> usize {
        self.group.size() as usize
    }

    fn failure(&self, error: ccl::Error) -> Failure {
        Failure::Library { rank: self.world.rank().0, error }
    }
}

/// For every iteration, the time of who took longest.
fn longest<T: AsRef<[f64]>>(times: &[T]) -> Vec<f64> {
    let mut most = times.first().map_or_else(Vec::new, |first| first.as_ref().to_vec());
    for others in times {
        most.iter_mut().zip(others.as_ref()).for_each(|(most, other)| *most = most.max(*other));
    }
    most
}

fn counts(
    benchmark: &Benchmark,
    bytes: usize,
    datatype: DataType,
    ranks: usize,
    traffic: &Traffic,
) -> Counts {
    let element_bytes = datatype.bytes();
    let elements = bytes / element_bytes;
    (benchmark.counts)(&Job { elements, element_bytes, ranks, traffic: traffic.clone() })
}
