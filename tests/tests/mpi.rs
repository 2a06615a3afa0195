//! A cross-check with MPI: one random sequence of operations through both libraries, equal bits.
//!
//! Every rank is a process of `mpirun`, in which both libraries find each other on their own; the
//! script `tests/peers/mpi-cross-check` builds and starts them. Values are small enough for every
//! reduction to be exact, so that the order of summation, which is not prescribed, does not matter.
//!
//! ```text
//! mpirun -n 4 mpi [OPERATIONS [SEED]]
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it has no harness that prints")]

use std::process::ExitCode;

use ccl::{
    Collective, Communicator, Config, DataType, Element, Error, Operation, Rank, ReduceOp,
    Reduction, Region, Request, UniqueId,
};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Equivalence, Root as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// How many operations are compared if the command line does not say.
const OPERATIONS: u64 = 400;

/// Which sequence it is if the command line does not say.
const SEED: u64 = 1;

/// Counts are below two to this power; every magnitude below it is equally likely.
const MOST_COUNT_BITS: u32 = 17;

/// Sums of `f32` are exact up to so many ranks.
const MOST_RANKS: u32 = 16;

/// What output buffers hold where nobody writes.
const UNTOUCHED: i64 = 77;

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];
const DATATYPES: [DataType; 5] =
    [DataType::Uint8, DataType::Int32, DataType::Int64, DataType::Float32, DataType::Float64];

/// One call, as all ranks make it.
#[derive(Clone, Copy, Debug)]
struct Call {
    collective: Collective,
    datatype: DataType,
    op: ReduceOp,
    root: Rank,
    /// As in [`Request`]: of a block, where there are blocks.
    count: usize,
}

/// An element type of both libraries.
trait Value: Element + Equivalence + Copy {
    /// A whole number as a value; what does not fit wraps around.
    fn of(number: i64) -> Self;

    /// What is compared.
    fn bits(self) -> u64;
}

macro_rules! values {
    ($($rust:ty: $bits:expr;)*) => {$(
        impl Value for $rust {
            fn of(number: i64) -> Self {
                number as $rust
            }

            fn bits(self) -> u64 {
                let bits: fn($rust) -> u64 = $bits;
                bits(self)
            }
        }
    )*};
}

values! {
    u8: u64::from;
    i32: |value| i64::from(value) as u64;
    i64: |value| value as u64;
    f32: |value| value.to_bits().into();
    f64: f64::to_bits;
}

fn main() -> ExitCode {
    let universe = mpi::initialize().expect("MPI is initialised once");
    match cross_check(&universe.world()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rank {}: {error}", universe.world().rank());
            // Destroying the universe would wait for ranks that wait for this one.
            universe.world().abort(1)
        }
    }
}

/// Returns the number of operations whose results differ on some rank.
fn cross_check(world: &SimpleCommunicator) -> Result<u64, Error> {
    let communicator = join(world)?;
    let ranks = communicator.size();
    let ours = (i64::from(communicator.rank().0), i64::from(ranks));
    assert_eq!(ours, (world.rank().into(), world.size().into()), "both agree who this is");
    assert!(ranks <= MOST_RANKS, "{ranks} ranks could lose bits of sums");

    // A name of a test, which `cargo test` passes on, is no number.
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let operations = numbers.next().unwrap_or(OPERATIONS);
    let seed = numbers.next().unwrap_or(SEED);
    let mut sequence = StdRng::seed_from_u64(seed);
    let mut differing = 0;
    for number in 0..operations {
        let call = Call::draw(&mut sequence, ranks);
        let mut values = StdRng::seed_from_u64(seed ^ (number << 8) ^ u64::from(ours.0 as u32));
        let same = call.compare(&communicator, world, &mut values)?;
        if !same {
            // One write, as other ranks may have something to say, too.
            let line = format!("rank {}: operation {number} of seed {seed}: {call:?}\n", ours.0);
            eprint!("{line}");
        }
        differing += u64::from(!on_all(world, same));
    }
    if communicator.rank() == Rank(0) {
        println!(
            "{operations} operations compared on {ranks} ranks, seed {seed}: {differing} differ"
        );
    }
    communicator.finalize()?;
    Ok(differing)
}

/// The group of this library; a process that was started alone is a group of its own.
fn join(world: &SimpleCommunicator) -> Result<Communicator, Error> {
    let config = Config::from_environment()?;
    if world.size() == 1 {
        return Communicator::create(&UniqueId::create(&config.settings)?, 0, 1, &config);
    }
    Communicator::from_environment(&config)
}

/// Whether `own` is true on all ranks.
fn on_all(world: &SimpleCommunicator, own: bool) -> bool {
    let mut least = 0u8;
    world.all_reduce_into(&u8::from(own), &mut least, SystemOperation::min());
    least == 1
}

/// So many elements. Empty ones have memory of their own, too: to MPI, equal addresses are an error.
fn buffer<T>(count: usize, element: impl FnMut() -> T) -> Vec<T> {
    let mut elements = Vec::with_capacity(count.max(1));
    elements.extend(std::iter::repeat_with(element).take(count));
    elements
}

impl Call {
    fn draw(random: &mut StdRng, ranks: u32) -> Self {
        let most = 1 << random.random_range(0..=MOST_COUNT_BITS);
        Self {
            collective: Collective::UNIFORM[random.random_range(0..Collective::UNIFORM.len())],
            datatype: DATATYPES[random.random_range(0..DATATYPES.len())],
            op: OPS[random.random_range(0..OPS.len())],
            root: Rank(random.random_range(0..ranks)),
            count: random.random_range(0..most),
        }
    }

    /// Whether both libraries give this rank the same bits.
    fn compare(
        self,
        communicator: &Communicator,
        world: &SimpleCommunicator,
        random: &mut StdRng,
    ) -> Result<bool, Error> {
        match self.datatype {
            DataType::Uint8 => self.compare_as::<u8>(communicator, world, random),
            DataType::Int32 => self.compare_as::<i32>(communicator, world, random),
            DataType::Int64 => self.compare_as::<i64>(communicator, world, random),
            DataType::Float32 => self.compare_as::<f32>(communicator, world, random),
            DataType::Float64 => self.compare_as::<f64>(communicator, world, random),
            DataType::Int8
            | DataType::Uint32
            | DataType::Uint64
            | DataType::Float16
            | DataType::Bfloat16
            | DataType::Float8E4m3
            | DataType::Float8E5m2 => unreachable!("{} is not drawn", self.datatype.name()),
        }
    }

    fn compare_as<T: Value>(
        self,
        communicator: &Communicator,
        world: &SimpleCommunicator,
        random: &mut StdRng,
    ) -> Result<bool, Error> {
        let ranks = communicator.size();
        let (input_count, output_count) = self.shape(ranks);
        let input: Vec<T> = buffer(input_count, || self.value(random, ranks));
        let mut through_mpi = buffer(output_count, || T::of(UNTOUCHED));
        let mut through_ours = buffer(output_count, || T::of(UNTOUCHED));
        self.run_mpi(world, &input, &mut through_mpi);
        communicator.run(Operation::Collective {
            request: self.request(),
            input: Some(Region::of(&input)),
            output: Some(Region::of_mut(&mut through_ours)),
        })?;
        let bits = |values: Vec<T>| values.into_iter().map(T::bits).collect::<Vec<_>>();
        Ok(bits(through_mpi) == bits(through_ours))
    }

    fn request(self) -> Request {
        let Self { collective, datatype, op, root, count } = self;
        let (reduction, root) = (
            Reduction::Builtin(if collective.reduces() { op } else { ReduceOp::Sum }),
            if collective.is_rooted() { root } else { Rank(0) },
        );
        Request { collective, count, datatype, reduction, root }
    }

    /// Elements of the two buffers, which every rank has, the root or not.
    fn shape(self, ranks: u32) -> (usize, usize) {
        let (one, all) = (self.count, self.count * ranks as usize);
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => (one, one),
            Collective::AllGather | Collective::Gather => (one, all),
            Collective::ReduceScatter | Collective::Scatter => (all, one),
            Collective::AllToAll => (all, all),
            Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => {
                unreachable!("{} is not drawn", self.collective.name())
            }
        }
    }

    /// A value of which sums and products over `ranks` ranks are exact in every type.
    fn value<T: Value>(self, random: &mut StdRng, ranks: u32) -> T {
        let unsigned = self.datatype == DataType::Uint8;
        let number = match self.op {
            ReduceOp::Sum if unsigned => random.random_range(0..=i64::from(255 / ranks)),
            ReduceOp::Sum => random.random_range(-(1 << 20)..=1 << 20),
            ReduceOp::Prod if unsigned => random.random_range(1..=2),
            ReduceOp::Prod => [-2, -1, 1, 2][random.random_range(0..4)],
            // MPICH 4.0 compares unsigned numbers as if they were signed.
            ReduceOp::Min | ReduceOp::Max if unsigned => random.random_range(0..=127),
            ReduceOp::Min | ReduceOp::Max | ReduceOp::Avg => random.random::<i64>() >> 1,
        };
        T::of(number)
    }

    fn run_mpi<T: Value>(self, world: &SimpleCommunicator, input: &[T], output: &mut [T]) {
        let op = match self.op {
            ReduceOp::Sum | ReduceOp::Avg => SystemOperation::sum(),
            ReduceOp::Prod => SystemOperation::product(),
            ReduceOp::Min => SystemOperation::min(),
            ReduceOp::Max => SystemOperation::max(),
        };
        let root = world.process_at_rank(self.root.0.cast_signed());
        let is_root = world.rank().cast_unsigned() == self.root.0;
        match self.collective {
            Collective::AllReduce => world.all_reduce_into(input, output, op),
            Collective::AllGather => world.all_gather_into(input, output),
            Collective::ReduceScatter => world.reduce_scatter_block_into(input, output, op),
            Collective::AllToAll => world.all_to_all_into(input, output),
            Collective::Broadcast => {
                if is_root {
                    output.copy_from_slice(input);
                }
                root.broadcast_into(output);
            }
            Collective::Reduce if is_root => root.reduce_into_root(input, output, op),
            Collective::Reduce => root.reduce_into(input, op),
            Collective::Gather if is_root => root.gather_into_root(input, output),
            Collective::Gather => root.gather_into(input),
            Collective::Scatter if is_root => root.scatter_into_root(input, output),
            Collective::Scatter => root.scatter_into(output),
            Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => {
                unreachable!("{} is not drawn", self.collective.name())
            }
        }
    }
}
