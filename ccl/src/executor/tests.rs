//! All ranks of a group in one thread, in random order, on links with as few slots as there can be:
//! every algorithm must come to its end, with the right numbers.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "tests; the kinds that matter are named"
)]

/// Methods of a link that does these as its `ring`.
macro_rules! as_ring {
    ($($method:ident),*) => { $(as_ring!(@ $method);)* };
    (@ tile_bytes) => {
        fn tile_bytes(&self) -> usize {
            self.ring.tile_bytes()
        }
    };
    (@ reserve) => {
        fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
            self.ring.reserve(bytes)
        }
    };
    (@ commit) => {
        fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
            self.ring.commit(stamp)
        }
    };
    (@ peek) => {
        fn peek(&self) -> Option<Tile<'_>> {
            self.ring.peek()
        }
    };
    (@ release) => {
        fn release(&mut self) -> Result<(), TransportError> {
            self.ring.release()
        }
    };
}

mod doubt;
mod landing;
mod leaving;
mod looks;
mod to_all;
mod unstaged;

use ccl_algorithms::{choose, names};
use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::cost::CostModel;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::layout::Layout;
use ccl_core::program::{Buffer, Program, lower, point_to_point};
use ccl_core::topology::Topology;
use ccl_kernels::{Combine, Kernel};
use ccl_transport::ring::RingShape;
use ccl_transport::shm::Allocation;
use ccl_transport::{Tile, memory};

use super::*;
use crate::stores::Caches;
use crate::trial::TRIED;

const LEAST_TILE_BYTES: usize = 64;
const SHAPES: [RingShape; 2] = [
    RingShape { tile_bytes: LEAST_TILE_BYTES, slots: 1, tiles: 1 },
    RingShape { tile_bytes: 192, slots: 3, tiles: 5 },
];

/// More sweeps than this without an end are a hang.
const SWEEPS: usize = 2_000_000;

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Executors of `ranks` ranks with memory links between all of them; every third pair has the
/// other shape, so that tiles of different sizes meet in one reduction.
fn executors(ranks: u32) -> Vec<Executor> {
    let n = ranks as usize;
    let mut links: Vec<Links> = (0..n).map(|_| (0..2 * n).map(|_| None).collect()).collect();
    for low in 0..n {
        for high in low + 1..n {
            let (a, b) = memory::pair(SHAPES[usize::from((low + high).is_multiple_of(3))]);
            links[low][high] = Some(Box::new(a));
            links[high][low] = Some(Box::new(b));
        }
    }
    for source in 0..n {
        let (writer, readers) = memory::multicast(SHAPES[source % 2], n - 1);
        links[source][n + source] = Some(Box::new(writer));
        let others = (0..n).filter(|rank| *rank != source);
        for (rank, reader) in others.zip(readers) {
            links[rank][n + source] = Some(Box::new(reader));
        }
    }
    // Two of three store past the caches, one of those does not lend to several either.
    let executor = |(rank, links)| {
        Executor::new(Rank(rank), links).caching(match rank % 3 {
            0 => Caches { share: 0, all: 0 },
            1 => Caches { share: 0, all: usize::MAX },
            _ => Caches { share: usize::MAX, all: usize::MAX },
        })
    };
    (0..).zip(links).map(executor).collect()
}

/// What rank `rank` contributes at `index`: sums of 64 of these are exact.
fn contribution(rank: u32, index: usize) -> i32 {
    i32::try_from(index % 1000).unwrap() * 7 + i32::try_from(rank).unwrap() * 1009
}

struct Case {
    request: Request,
    ranks: u32,
    inputs: Vec<Vec<i32>>,
    outputs: Vec<Vec<i32>>,
}

impl Case {
    fn new(collective: Collective, ranks: u32, count: usize, root: u32) -> Self {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        let root = Rank(root);
        let request = Request { collective, count, datatype: DataType::Int32, reduction, root };
        let n = ranks as usize;
        let (input, output) = match collective {
            Collective::AllGather | Collective::Gather => (count, n * count),
            Collective::ReduceScatter | Collective::Scatter => (n * count, count),
            Collective::AllToAll => (n * count, n * count),
            _ => (count, count),
        };
        let fill = |rank| (0..input).map(|index| contribution(rank, index)).collect();
        let inputs = (0..ranks).map(fill).collect();
        Self { request, ranks, inputs, outputs: vec![vec![-1; output]; n] }
    }

    fn expected(&self, rank: u32) -> Vec<i32> {
        let Request { collective, count, root, .. } = self.request;
        let n = self.ranks;
        let sum = |index| (0..n).map(|rank| contribution(rank, index)).sum::<i32>();
        let me = rank as usize;
        match collective {
            Collective::AllReduce | Collective::Barrier => (0..count).map(sum).collect(),
            Collective::Reduce if rank == root.0 => (0..count).map(sum).collect(),
            Collective::Broadcast => (0..count).map(|i| contribution(root.0, i)).collect(),
            Collective::ReduceScatter => (0..count).map(|i| sum(me * count + i)).collect(),
            Collective::Scatter => {
                (0..count).map(|i| contribution(root.0, me * count + i)).collect()
            }
            Collective::AllGather => self.gathered(),
            Collective::Gather if rank == root.0 => self.gathered(),
            Collective::AllToAll => (0..n)
                .flat_map(|from| (0..count).map(move |i| contribution(from, me * count + i)))
                .collect(),
            _ => vec![-1; self.outputs[me].len()],
        }
    }

    fn check(&self, name: &str) {
        let Request { collective, count, root, .. } = self.request;
        for rank in 0..self.ranks {
            let what = format!("{collective:?} {name} n={} count={count} root={root}", self.ranks);
            assert_eq!(self.outputs[rank as usize], self.expected(rank), "{what} rank {rank}");
        }
    }

    fn gathered(&self) -> Vec<i32> {
        let count = self.request.count;
        (0..self.ranks).flat_map(|from| (0..count).map(move |i| contribution(from, i))).collect()
    }

    /// Runs the algorithm `name` with sweeps of random ranks. Tells whether it could be done; in place not
    /// every algorithm can be.
    fn play(
        &mut self,
        name: &str,
        in_place: bool,
        mut executors: Vec<Executor>,
        random: &mut Random,
    ) -> bool {
        let is_pushed = executors.iter().any(Executor::is_pushed);
        let topology = Topology::single_host(self.ranks, 2);
        let model = CostModel::default_for(&topology);
        let choice = choose(&self.request, &topology, &model, Some(name)).unwrap();
        let layout = Layout::new(&self.request, self.ranks, choice.partition);
        let programs: Vec<Program> = (0..self.ranks)
            .map(|rank| lower(&*choice.schedule, &layout, Rank(rank), 4, &topology))
            .collect();
        let programs = match in_place {
            true => (0..).zip(programs).map(|(rank, part)| part.in_place(Rank(rank))).collect(),
            false => Some(programs),
        };
        let Some(programs) = programs else { return false };
        let stamp = Stamp { sequence: 1, signature: self.request.signature(choice.digest) };
        let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
        let arithmetic = Some(Arithmetic { kernel, factor: None });

        let buffers: Vec<[Region<'_>; 2]> = self
            .inputs
            .iter()
            .zip(&mut self.outputs)
            .map(|(input, output)| {
                let output = Region::of_mut(output);
                [if in_place { output } else { Region::of(input) }, output]
            })
            .collect();
        let tasks: Vec<Task<'_>> = programs
            .iter()
            .zip(&buffers)
            .map(|(program, buffers)| {
                // Ranks that run straight through meet ranks that do not.
                let fits = program.steps.iter().all(|step| step.bytes <= LEAST_TILE_BYTES);
                let may_be = is_straight(program) && fits && !is_pushed;
                let is_straight = may_be && random.below(3) > 0;
                Task { program, buffers, stamp, arithmetic, is_straight }
            })
            .collect();
        let mut runs: Vec<Run<'_>> = executors
            .iter_mut()
            .zip(&tasks)
            .map(|(executor, task)| match task.is_straight && random.below(3) > 0 {
                true => {
                    executor.at_once(task).unwrap();
                    executor.resume(task, &[])
                }
                false => begin(executor, task, &[]),
            })
            .collect();
        for _ in 0..SWEEPS {
            if runs.iter().all(Run::finished) {
                return true;
            }
            let rank = random.below(runs.len());
            runs[rank].sweep().unwrap();
        }
        let stuck: Vec<String> = runs.iter().map(Run::waiting).collect();
        panic!("{name} of {} ranks hangs: {stuck:?}", self.ranks);
    }
}

fn begin<'a>(executor: &'a mut Executor, task: &'a Task<'a>, loans: &'a [Option<Loan>]) -> Run<'a> {
    executor.begin(task);
    executor.resume(task, loans)
}

#[test]
fn every_algorithm_ends_with_the_right_numbers_in_any_order() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for collective in Collective::UNIFORM {
        for name in names(collective) {
            for ranks in [1, 2, 3, 4, 5, 7, 8, 12] {
                for count in [1, 3, 257, 1000] {
                    let root = random.below(ranks as usize);
                    let root =
                        if collective.is_rooted() { u32::try_from(root).unwrap() } else { 0 };
                    let mut case = Case::new(collective, ranks, count, root);
                    assert!(case.play(name, false, executors(ranks), &mut random));
                    case.check(name);
                }
            }
        }
    }
}

#[test]
fn an_all_to_all_in_place_ends_with_the_right_numbers_in_any_order() {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    for name in names(Collective::AllToAll) {
        for ranks in [1, 2, 3, 4, 5, 7, 8, 12] {
            for count in [1, 3, 257, 1000] {
                let mut case = Case::new(Collective::AllToAll, ranks, count, 0);
                case.outputs.clone_from(&case.inputs);
                let is_exchange = case.play(name, true, executors(ranks), &mut random);
                assert_eq!(is_exchange, *name != "bruck" || ranks <= 3, "{name} n={ranks}");
                if is_exchange {
                    case.check(name);
                }
            }
        }
    }
}

#[test]
fn results_are_right_whichever_way_they_are_stored() {
    const COUNT: usize = 1000;
    let topology = Topology::single_host(2, 2);
    let mut case = Case::new(Collective::AllGather, 2, COUNT, 0);
    let model = CostModel::default_for(&topology);
    let choice = choose(&case.request, &topology, &model, Some("direct")).unwrap();
    let layout = Layout::new(&case.request, 2, choice.partition);
    let program = |rank| lower(&*choice.schedule, &layout, Rank(rank), 4, &topology);
    let programs = [program(0), program(1)];
    let stamp = Stamp { sequence: 1, signature: case.request.signature(choice.digest) };
    // Buffers of 12000 bytes may fit, or may not.
    let caches = Caches { share: 16 << 10, all: 32 << 10 };
    let mut executors: Vec<Executor> =
        executors(2).into_iter().map(|executor| executor.caching(caches)).collect();
    let mut ways = Vec::new();
    for _ in 0..=TRIED.len() {
        case.outputs.iter_mut().for_each(|output| output.fill(-1));
        let buffers: Vec<[Region<'_>; 2]> = case
            .inputs
            .iter()
            .zip(&mut case.outputs)
            .map(|(input, output)| [Region::of(input), Region::of_mut(output)])
            .collect();
        let tasks: Vec<Task<'_>> = programs
            .iter()
            .zip(&buffers)
            .map(|(program, buffers)| Task {
                program,
                buffers,
                stamp,
                arithmetic: None,
                is_straight: false,
            })
            .collect();
        let mut runs: Vec<Run<'_>> = executors
            .iter_mut()
            .zip(&tasks)
            .map(|(executor, task)| begin(executor, task, &[]))
            .collect();
        ways.push((runs[0].stores.pass(), runs[0].stores.is_tried()));
        for _ in 0..SWEEPS {
            runs.iter_mut().for_each(|run| {
                run.sweep().unwrap();
            });
            if runs.iter().all(Run::finished) {
                break;
            }
        }
        assert!(runs.iter().all(|run| run.finished() && !run.stores.is_tried()));
        case.check("direct");
    }
    let (tried, decided) = ways.split_at(TRIED.len());
    assert_eq!(tried, TRIED.map(|past| (past, true)));
    assert!(!decided[0].1);
    let call = Call { bytes: 12_000, ..Call::of(Collective::AllGather, &[]) };
    let times = executors[0].stores.times(call).unwrap();
    assert!([times.usual, times.other].iter().all(|time| (1..u64::MAX).contains(time)));
}

#[test]
fn a_root_is_not_compared_with_the_others() {
    let caches = Caches { share: 16 << 10, all: 32 << 10 };
    let (program, data) = (Program::default(), [0_u8; 8000]);
    let buffers = [Region::of(&data); 2];
    let request = Case::new(Collective::Broadcast, 2, 2000, 1).request;
    let stamp = Stamp { sequence: 1, signature: request.signature(0) };
    let task =
        Task { program: &program, buffers: &buffers, stamp, arithmetic: None, is_straight: false };
    for (rank, is_root) in [(0, false), (1, true)] {
        let links = (0..4).map(|_| None).collect();
        let mut executor = Executor::new(Rank(rank), links).caching(caches);
        executor.begin(&task);
        let call = Call { is_root, ..Call::of(Collective::Broadcast, &buffers) };
        assert!(executor.stores.times(call).is_some(), "rank {rank}");
        let other = Call { is_root: !is_root, ..call };
        assert!(executor.stores.times(other).is_none(), "rank {rank}");
    }
}

#[test]
fn a_peer_in_another_call_is_noticed() {
    let mut executors = executors(2);
    let program = |peer| {
        let layout_of =
            |request: &Request| Layout::new(request, 2, ccl_core::layout::Partition::even(4, 4, 1));
        let case = Case::new(Collective::AllReduce, 2, 4, 0);
        let topology = Topology::single_host(2, 2);
        let model = CostModel::default_for(&topology);
        let choice = choose(&case.request, &topology, &model, Some("one_shot")).unwrap();
        lower(&*choice.schedule, &layout_of(&case.request), Rank(peer), 4, &topology)
    };
    let programs = [program(0), program(1)];
    let data = [[1i32; 4], [2; 4]];
    let mut results = [[0i32; 4]; 2];
    let [first, second] = &mut results;
    let buffers = [
        [Region::of(&data[0]), Region::of_mut(first)],
        [Region::of(&data[1]), Region::of_mut(second)],
    ];
    let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
    let arithmetic = Some(Arithmetic { kernel, factor: None });
    let request = Case::new(Collective::AllReduce, 2, 4, 0).request;
    let stamps = [1, 2].map(|sequence| Stamp { sequence, signature: request.signature(0) });
    let tasks = [0, 1].map(|rank: usize| Task {
        program: &programs[rank],
        buffers: &buffers[rank],
        stamp: stamps[rank],
        arithmetic,
        is_straight: false,
    });
    let [one, other] = &mut executors[..] else { panic!() };
    let (mut one, mut other) = (begin(one, &tasks[0], &[]), begin(other, &tasks[1], &[]));
    assert!(one.sweep().unwrap());
    let failure = other.sweep();
    assert!(
        matches!(&failure, Err(Failure::Mismatch { peer: Rank(0), theirs, .. }) if *theirs == stamps[0]),
        "{failure:?}"
    );
}

#[test]
fn a_peer_in_another_call_is_noticed_behind_one_that_is_missing() {
    let mut executors = executors(3);
    let case = Case::new(Collective::AllReduce, 3, 4, 0);
    let topology = Topology::single_host(3, 2);
    let model = CostModel::default_for(&topology);
    let choice = choose(&case.request, &topology, &model, Some("one_shot")).unwrap();
    let layout = Layout::new(&case.request, 3, choice.partition);
    let program = |rank| lower(&*choice.schedule, &layout, Rank(rank), 4, &topology);
    let programs = [program(0), program(2)];
    let mut data = [[1i32; 4], [2; 4]];
    let buffers = data.each_mut().map(|data| [Region::of_mut(data); 2]);
    let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
    let arithmetic = Some(Arithmetic { kernel, factor: None });
    let tasks = [0u32, 1].map(|index| Task {
        program: &programs[index as usize],
        buffers: &buffers[index as usize],
        stamp: Stamp { sequence: index, signature: case.request.signature(0) },
        arithmetic,
        is_straight: is_straight(&programs[index as usize]),
    });
    assert!(tasks.iter().all(|task| task.is_straight));
    let [first, _, third] = &mut executors[..] else { panic!() };
    let (mut first, mut third) = (begin(first, &tasks[0], &[]), begin(third, &tasks[1], &[]));
    assert!(third.sweep().unwrap());
    assert!(first.sweep().unwrap(), "it sends");
    assert!(!first.sweep().unwrap(), "and waits for rank 1");
    assert_eq!(first.waiting(), "waiting for data from rank 1 (nothing has come), rank 2");
    let failure = first.inspect();
    assert!(matches!(&failure, Err(Failure::Mismatch { peer: Rank(2), .. })), "{failure:?}");
}

#[test]
fn of_whom_nothing_has_come_is_told() {
    const BYTES: usize = 100 * LEAST_TILE_BYTES;
    let mut executors = executors(3);
    let [first, _, third] = &mut executors[..] else { panic!() };
    let (sent, mut received) = ([7; BYTES], [[0; BYTES]; 2]);
    let [one, two] = received.each_mut().map(|data| Region::of_mut(data));
    let buffers = [[one, two], [Region::of(&sent), Region::empty()]];
    let (from, to) =
        ([1, 2].map(|rank| (Rank(rank), Buffer(rank - 1), BYTES)), [(Rank(0), Buffer(0), BYTES)]);
    let programs = [point_to_point(Rank(0), &[], &from), point_to_point(Rank(2), &to, &[])];
    let stamp = Stamp { sequence: 0, signature: Signature::POINT_TO_POINT };
    let tasks = [0, 1].map(|end: usize| Task {
        program: &programs[end],
        buffers: &buffers[end],
        stamp,
        arithmetic: None,
        is_straight: false,
    });
    let (mut first, mut third) = (begin(first, &tasks[0], &[]), begin(third, &tasks[1], &[]));
    let nobody = "waiting for data from rank 1 (nothing has come), rank 2 (nothing has come)";
    assert_eq!(first.waiting(), nobody);
    assert!(third.sweep().unwrap());
    let third_only = "waiting for data from rank 1 (nothing has come), rank 2";
    assert_eq!(first.waiting(), third_only);
    while first.sweep().unwrap() {}
    assert_eq!(first.waiting(), third_only, "what has come was used");
}
