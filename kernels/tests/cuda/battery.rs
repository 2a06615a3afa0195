//! Copies and reductions: every type, operation, number of sources and destinations, size and
//! alignment, in place and not, bit for bit against the oracle of the processors' kernels.

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{
    Arithmetic, CopyParameters, Entry, Family, MOST_RANKS, Operands, Operation, ReduceParameters,
};
use ccl_kernels::{Combine, Kernel, Source};

use super::machine::{Job, Launch, Machine};
use crate::inputs::{GUARD_BYTES, Random, SIZES, bytes, delicate, elements, oracle, reduced};

const VECTOR_BYTES: usize = 16;
const BLOCKS: [u32; 4] = [1, 2, 3, 5];
/// Few threads, so that every one has several rounds.
const THREADS: [u32; 4] = [1, 16, 32, 96];
const DIVISORS: [u32; 9] = [1, 2, 3, 7, 8, 255, 256, 65_537, u32::MAX];

/// How places in memory lie in vectors.
#[derive(Clone, Copy, Debug)]
enum Alignment {
    /// All at the same place, a multiple of the element.
    Same,
    /// Destinations at the same place, sources anywhere.
    SourcesApart,
    /// Each at a multiple of the element.
    Elements,
    /// Anywhere.
    Bytes,
}

const ALIGNMENTS: [Alignment; 4] =
    [Alignment::Same, Alignment::SourcesApart, Alignment::Elements, Alignment::Bytes];

/// Offsets of sources and destinations in one stretch of memory, with guard bytes between them.
struct Places {
    sources: Vec<usize>,
    destinations: Vec<usize>,
    total: usize,
}

impl Places {
    /// Of `bytes` each; sometimes destinations are in the places of sources.
    fn draw(
        random: &mut Random,
        alignment: Alignment,
        size: usize,
        counts: (usize, usize),
        bytes: usize,
    ) -> Self {
        let shared = random.below(VECTOR_BYTES / size) * size;
        let stride = (bytes + 2 * GUARD_BYTES).next_multiple_of(VECTOR_BYTES);
        let mut next = GUARD_BYTES;
        let mut place = |is_source: bool| {
            let shift = match alignment {
                Alignment::Same => shared,
                Alignment::SourcesApart if !is_source => shared,
                Alignment::Elements => random.below(VECTOR_BYTES / size) * size,
                Alignment::SourcesApart | Alignment::Bytes => random.below(VECTOR_BYTES),
            };
            let start = next + shift;
            next += stride;
            start
        };
        let sources: Vec<usize> = (0..counts.0).map(|_| place(true)).collect();
        let mut destinations: Vec<usize> = (0..counts.1).map(|_| place(false)).collect();
        let total = next + GUARD_BYTES;
        if random.below(3) == 0 {
            for (destination, source) in destinations.iter_mut().zip(&sources) {
                if random.below(2) == 0 {
                    *destination = *source;
                }
            }
        }
        Self { sources, destinations, total }
    }

    /// What kernels may touch.
    fn ranges(&self, base: u64, bytes: usize) -> Vec<(u64, usize)> {
        let places = self.sources.iter().chain(&self.destinations);
        places.map(|&place| (base + place as u64, bytes)).collect()
    }
}

fn addresses(base: u64, places: &[usize]) -> [u64; MOST_RANKS] {
    std::array::from_fn(|k| places.get(k).map_or(0, |&place| base + place as u64))
}

/// Runs one launch in memory that holds `before`, and wants to see `after` there.
fn require(
    machine: &dyn Machine,
    launch: impl Fn(u64) -> Launch,
    seed: u64,
    (before, after): (&[u8], &[u8]),
    ranges: impl Fn(u64) -> Vec<(u64, usize)>,
) -> Result<(), String> {
    let base = machine.allocate(before.len());
    machine.write(base, before);
    let launches = [launch(base)];
    let allowed = ranges(base);
    let result = machine.run(Job { allowed: &allowed, ..Job::new(&launches, seed) });
    let memory = machine.read(base, before.len());
    machine.release();
    result?;
    match memory.iter().zip(after).position(|(is, should)| is != should) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} is {:#x}, not {:#x}", memory[at], after[at])),
    }
}

/// What a reduction of these contributions is.
pub(crate) fn expected(
    datatype: DataType,
    operation: Operation,
    arithmetic: &Arithmetic,
    contributions: &[Vec<u8>],
) -> Vec<u8> {
    let scaled = |(index, contribution): (usize, &Vec<u8>)| {
        let mut target = contribution.clone();
        if operation == Operation::Scaled && arithmetic.scaled >> index & 1 == 1 {
            let source = Source::from(contribution.as_slice());
            oracle().scale(datatype, arithmetic.scalars[index], source, (&mut target[..]).into());
        }
        target
    };
    let mut operands: Vec<Vec<u8>> = contributions.iter().enumerate().map(scaled).collect();
    let mut combine = match operation {
        Operation::Sum | Operation::Scaled | Operation::Mean => Combine::Sum,
        Operation::Prod => Combine::Prod,
        Operation::Max => Combine::Max,
        Operation::Min => Combine::Min,
    };
    if operands.len() == 1 {
        // The oracle copies one operand; the larger of it and itself has the one NaN.
        operands.push(operands[0].clone());
        combine = Combine::Max;
    }
    let mut result = reduced(oracle(), Kernel { datatype, combine }, &operands);
    if operation == Operation::Mean {
        oracle().divide(datatype, u64::from(arithmetic.divisor), (&mut result[..]).into());
    }
    result
}

/// Scalars for some of the sources, and a divisor.
pub(crate) fn arithmetic(random: &mut Random, datatype: DataType) -> Arithmetic {
    let scalar = |random: &mut Random| {
        let mut bits = [0; 8];
        bits[..datatype.bytes()].copy_from_slice(&elements(random, datatype, 1));
        u64::from_le_bytes(bits)
    };
    Arithmetic {
        scalars: std::array::from_fn(|_| scalar(random)),
        scaled: random.next() as u32 & 0xff,
        divisor: random.pick(&DIVISORS),
    }
}

/// One reduction; returns the elements that were right.
fn reduce_once(
    machine: &dyn Machine,
    random: &mut Random,
    (operation, datatype): (Operation, DataType),
    counts: (usize, usize),
) -> Result<u64, String> {
    let alignment = random.pick(&ALIGNMENTS);
    let count = random.pick(&SIZES);
    let (size, length) = (datatype.bytes(), count * datatype.bytes());
    let places = Places::draw(random, alignment, size, counts, length);
    let contributions: Vec<Vec<u8>> =
        (0..counts.0).map(|_| elements(random, datatype, count)).collect();
    let mut before: Vec<u8> = (0..places.total).map(|at| (at * 37 + 11) as u8).collect();
    for (&place, contribution) in places.sources.iter().zip(&contributions) {
        before[place..place + length].copy_from_slice(contribution);
    }
    let arithmetic = arithmetic(random, datatype);
    let result = expected(datatype, operation, &arithmetic, &contributions);
    let mut after = before.clone();
    for &place in &places.destinations {
        after[place..place + length].copy_from_slice(&result);
    }
    let shape = (random.pick(&BLOCKS), random.pick(&THREADS));
    let launch = |base| {
        let operands = Operands {
            sources: addresses(base, &places.sources),
            destinations: addresses(base, &places.destinations),
            source_count: counts.0 as u32,
            destination_count: counts.1 as u32,
            arithmetic,
        };
        let parameters = ReduceParameters { operands, count: count as u64 };
        let entry = Entry::Elements { family: Family::Reduce, operation, datatype };
        Launch::new(0, entry, shape, &parameters)
    };
    let ranges = |base| places.ranges(base, length);
    require(machine, launch, random.next(), (&before, &after), ranges).map_err(|wrong| {
        format!(
            "{operation:?} of {counts:?} x {count} {datatype:?}, {alignment:?}, {shape:?}: {wrong}"
        )
    })?;
    Ok((count * counts.1) as u64)
}

/// All reductions of a type, `repeats` times for each number of sources and destinations; returns the
/// elements that were right.
pub(crate) fn reduces(
    machine: &dyn Machine,
    datatype: DataType,
    repeats: usize,
) -> Result<u64, String> {
    let mut random = Random(2027 + datatype as u64);
    let mut checked = 0;
    for operation in Operation::ALL.into_iter().filter(|operation| operation.is_of(datatype)) {
        for counts in (1..=MOST_RANKS).flat_map(|s| (1..=MOST_RANKS).map(move |d| (s, d))) {
            for _ in 0..repeats {
                checked += reduce_once(machine, &mut random, (operation, datatype), counts)?;
            }
        }
    }
    Ok(checked)
}

/// Every number of a narrow float with every one (8 bits) or every delicate one (16 bits).
pub(crate) fn pairs(machine: &dyn Machine, datatype: DataType) -> Result<u64, String> {
    let codes: Vec<u64> = (0..1 << (8 * datatype.bytes())).collect();
    let others = if datatype.bytes() == 1 { codes.clone() } else { delicate(datatype) };
    let length = codes.len() * datatype.bytes();
    let all = bytes(datatype, &codes);
    let mut checked = 0;
    for (other, operation) in
        others.iter().flat_map(|&o| Operation::ALL[..4].iter().map(move |&p| (o, p)))
    {
        let others = bytes(datatype, &vec![other; codes.len()]);
        let arithmetic = Arithmetic::default();
        let result = expected(datatype, operation, &arithmetic, &[all.clone(), others.clone()]);
        let before = [all.clone(), others.clone(), vec![0; length]].concat();
        let after = [all.clone(), others, result].concat();
        let launch = |base| {
            let operands = Operands {
                sources: addresses(base, &[0, length]),
                destinations: addresses(base, &[2 * length]),
                source_count: 2,
                destination_count: 1,
                arithmetic,
            };
            let parameters = ReduceParameters { operands, count: codes.len() as u64 };
            let entry = Entry::Elements { family: Family::Reduce, operation, datatype };
            Launch::new(0, entry, (2, 64), &parameters)
        };
        require(machine, launch, other, (&before, &after), |base| vec![(base, 3 * length)])
            .map_err(|wrong| format!("{operation:?} of {datatype:?} with {other:#x}: {wrong}"))?;
        checked += codes.len() as u64;
    }
    Ok(checked)
}

/// Copies to all numbers of destinations, `repeats` times each; returns the bytes that were right.
pub(crate) fn copies(machine: &dyn Machine, repeats: usize) -> Result<u64, String> {
    let mut random = Random(77);
    let mut checked = 0;
    for count in (1..=MOST_RANKS).flat_map(|count| vec![count; repeats]) {
        let alignment = random.pick(&ALIGNMENTS);
        let length = [random.pick(&SIZES), random.below(20_000)][random.below(2)];
        let places = Places::draw(&mut random, alignment, 1, (1, count), length);
        let mut before: Vec<u8> = (0..places.total).map(|at| (at * 41 + 7) as u8).collect();
        let source = elements(&mut random, DataType::Uint8, length);
        let here = places.sources[0];
        before[here..here + length].copy_from_slice(&source);
        let mut after = before.clone();
        for &place in &places.destinations {
            after[place..place + length].copy_from_slice(&source);
        }
        let shape = (random.pick(&BLOCKS), random.pick(&THREADS));
        let launch = |base| {
            let parameters = CopyParameters {
                source: base + here as u64,
                destinations: addresses(base, &places.destinations),
                bytes: length as u64,
                destination_count: count as u32,
                unused: 0,
            };
            Launch::new(0, Entry::Copy, shape, &parameters)
        };
        let ranges = |base| places.ranges(base, length);
        require(machine, launch, random.next(), (&before, &after), ranges).map_err(|wrong| {
            format!("{length} bytes to {count}, {alignment:?}, {shape:?}: {wrong}")
        })?;
        checked += (length * count) as u64;
    }
    Ok(checked)
}
