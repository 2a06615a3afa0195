//! The scenes in which every machine must run the protocols.

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Family, Operation, State};

use super::machine::Machine;
use super::protocols::{LAST_FLAG, Scene, all_reduce, gives_up};
use super::pull::{self, Pulls};
use super::relay::{Chain, relay};
use crate::inputs::Random;

const SHAPES: [(u32, u32); 4] = [(1, 8), (1, 32), (2, 16), (3, 8)];
const COUNTS: [usize; 8] = [1, 2, 3, 8, 17, 31, 64, 150];

/// A scene of the family with `ranks`, drawn from the seed; calls count across the end of flags and
/// of 32 bits in some.
fn draw(
    family: Family,
    datatype: DataType,
    operation: Operation,
    ranks: usize,
    seed: u64,
) -> Scene {
    let mut random = Random(seed * 8 + ranks as u64);
    let calls = random.pick(&[2, 3, 5]);
    let near_end = random.below(3) == 0;
    let state = match (family, near_end) {
        (Family::LowLatency, true) => {
            let flag = LAST_FLAG - random.below(4) as u32;
            State { calls: random.next() >> 8, flag, ..State::default() }
        }
        (_, true) => State { calls: (1 << 31) - 2, ..State::default() },
        (_, false) => State::default(),
    };
    Scene {
        family,
        datatype,
        operation,
        ranks,
        shape: random.pick(&SHAPES),
        counts: (0..calls).map(|_| random.pick(&COUNTS)).collect(),
        in_place: random.below(2) == 0,
        anywhere: random.below(2) == 0,
        state,
        is_stale: false,
        of_some: false,
        in_pieces: false,
        seed,
    }
}

/// A scene for every seed and number of ranks.
fn all_scenes(
    machine: &dyn Machine,
    seeds: std::ops::Range<u64>,
    scene: impl Fn(usize, u64) -> Scene,
) -> Result<usize, String> {
    let mut scenes = 0;
    for (seed, ranks) in seeds.flat_map(|seed| (2..=8).map(move |ranks| (seed, ranks))) {
        all_reduce(machine, &scene(ranks, seed))?;
        scenes += 1;
    }
    Ok(scenes)
}

/// One scene per number of ranks for this kernel.
pub(crate) fn all_reduces(
    machine: &dyn Machine,
    family: Family,
    datatype: DataType,
    operation: Operation,
    seeds: std::ops::Range<u64>,
) -> Result<usize, String> {
    all_scenes(machine, seeds, |ranks, seed| draw(family, datatype, operation, ranks, seed))
}

/// A push of which every part is told: whose inputs, whose outputs, and by what each is multiplied.
fn push(ranks: usize, seed: u64) -> Scene {
    draw(Family::Push, DataType::Int64, Operation::Scaled, ranks, seed)
}

/// Pushes that take the inputs of some ranks, and store in the outputs of some.
pub(crate) fn pushes_of_some(
    machine: &dyn Machine,
    seeds: std::ops::Range<u64>,
) -> Result<usize, String> {
    let scene = |ranks, seed| Scene { of_some: true, ..push(ranks, seed) };
    all_scenes(machine, seeds, scene)
}

/// Pushes in pieces, of which all ranks have mapped their buffers in some calls, and some ranks in others.
pub(crate) fn pushes_in_pieces(
    machine: &dyn Machine,
    seeds: std::ops::Range<u64>,
) -> Result<usize, String> {
    let scene =
        |ranks, seed| Scene { of_some: seed % 2 == 0, in_pieces: true, ..push(ranks, seed) };
    all_scenes(machine, seeds, scene)
}

/// Small calls up to the last flag, then one that reads lines of long ago.
pub(crate) fn flags_return(machine: &dyn Machine, seeds: u64) -> Result<(), String> {
    for seed in 0..seeds {
        // Two calls at least: each empties one box. Some have a single block, and some all of them, but not all of their lines.
        for (before, count) in (2..6).flat_map(|before| [1, 70].map(|count| (before, count))) {
            let drawn = draw(Family::LowLatency, DataType::Float32, Operation::Sum, 3, seed);
            let counts = [vec![count; before], vec![100, 80, 100]].concat();
            let state =
                State { calls: 7 + seed, flag: LAST_FLAG - before as u32, ..State::default() };
            all_reduce(machine, &Scene { counts, state, is_stale: true, ..drawn })?;
        }
    }
    Ok(())
}

/// Ranks wait for one that never comes, until they are told not to.
pub(crate) fn all_give_up(machine: &dyn Machine) -> Result<(), String> {
    for (family, ranks) in [(Family::LowLatency, 2), (Family::LowLatency, 5), (Family::Push, 4)] {
        for shape in SHAPES {
            let drawn = draw(family, DataType::Float32, Operation::Sum, ranks, 1);
            gives_up(machine, &Scene { shape, counts: vec![100], ..drawn })?;
        }
    }
    Ok(())
}

/// Messages of all lengths, some of them through staging memory.
pub(crate) fn pulls(machine: &dyn Machine, seeds: std::ops::Range<u64>) -> Result<usize, String> {
    let mut scenes = 0;
    for (seed, ranks) in seeds.flat_map(|seed| (2..=8).map(move |ranks| (seed, ranks))) {
        pull::pulls(machine, &Pulls::draw(ranks, seed))?;
        scenes += 1;
    }
    Ok(scenes)
}

/// Messages that are not as long as they are expected to be, and such as never come.
pub(crate) fn pulls_in_vain(
    machine: &dyn Machine,
    seeds: std::ops::Range<u64>,
) -> Result<(), String> {
    for (seed, ranks) in seeds.flat_map(|seed| [2, 3, 5].map(|ranks| (seed, ranks))) {
        let scene = Pulls::draw(ranks, seed);
        pull::quarrel(machine, &scene)?;
        pull::gives_up(machine, &scene)?;
    }
    Ok(())
}

/// Chains of several lengths, with few and with many slots.
pub(crate) fn relays(
    machine: &dyn Machine,
    datatype: DataType,
    operation: Operation,
    seeds: u64,
) -> Result<(), String> {
    for (seed, ranks) in (0..seeds).flat_map(|seed| (3..=5).map(move |ranks| (seed, ranks))) {
        let mut random = Random(seed);
        let chain = Chain {
            datatype,
            operation,
            ranks,
            threads: random.pick(&[8, 32]),
            counts: (0..3).map(|_| 1 + random.below(200)).collect(),
            tile_count: random.pick(&[16, 32, 64]),
            slots: random.pick(&[1, 2, 4]),
            in_place: random.below(2) == 0,
            seed,
        };
        relay(machine, &chain)?;
    }
    Ok(())
}
