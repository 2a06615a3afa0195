//! Copies and reductions: every type, operation, number of sources and destinations, size and
//! alignment, in place and not, bit for bit against the oracle of the processors' kernels.
//!
//! For each type and operation, every size meets every alignment of [`Cases`], and every number of
//! sources meets every number of destinations; which of the ones meet which of the others is dealt out.
//! Drawn are elements, scalars, divisors, blocks, threads, which operands are in place, and where in a
//! vector operands lie that do not lie alike.

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
    /// All this many bytes into a vector, a multiple of the element.
    Same(usize),
    /// Destinations this many bytes into a vector, the first source elsewhere, others anywhere.
    SourcesApart(usize),
    /// Each at a multiple of the element.
    Elements,
    /// Anywhere.
    Bytes,
}

impl Alignment {
    /// How many bytes into a vector a source begins.
    fn source(self, random: &mut Random, size: usize, index: usize) -> usize {
        match self {
            Self::Same(shift) => shift,
            Self::SourcesApart(shift) if index == 0 => {
                (shift + 1 + random.below(VECTOR_BYTES - 1)) % VECTOR_BYTES
            }
            Self::Elements => random.below(VECTOR_BYTES / size) * size,
            Self::SourcesApart(_) | Self::Bytes => random.below(VECTOR_BYTES),
        }
    }

    /// The same of a destination.
    fn destination(self, random: &mut Random, size: usize) -> usize {
        match self {
            Self::Same(shift) | Self::SourcesApart(shift) => shift,
            Self::Elements => random.below(VECTOR_BYTES / size) * size,
            Self::Bytes => random.below(VECTOR_BYTES),
        }
    }
}

/// Which sizes and alignments there are. Every on the host, on a GPU, and on the interpreter for the
/// first of its architectures; few for the others, and on the imitation of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cases {
    /// Those of `SIZES`, and enough others for every number of elements behind the last vector, at each
    /// place. Operands that lie alike lie at every multiple of the element.
    Every,
    /// Those of `SIZES`. Operands that lie alike lie at one place, drawn anew for every size.
    Few,
}

impl Cases {
    /// Numbers of elements of `size` bytes.
    fn counts(self, size: usize) -> Vec<usize> {
        let per_vector = VECTOR_BYTES / size;
        // The first ones have a vector wherever all lie, the others also where sources lie apart.
        let ends = [2, 4].map(|vectors| vectors * per_vector..(vectors + 1) * per_vector);
        match self {
            Self::Every => SIZES.into_iter().chain(ends.into_iter().flatten()).collect(),
            Self::Few => SIZES.to_vec(),
        }
    }

    fn alignments(self, random: &mut Random, size: usize) -> Vec<Alignment> {
        let every: Vec<usize> = (0..VECTOR_BYTES).step_by(size).collect();
        let mut shifts = || match self {
            Self::Every => every.clone(),
            Self::Few => vec![random.pick(&every)],
        };
        let same = shifts().into_iter().map(Alignment::Same);
        let apart = shifts().into_iter().map(Alignment::SourcesApart);
        same.chain(apart).chain([Alignment::Elements, Alignment::Bytes]).collect()
    }

    /// All sizes with all alignments. The numbers of operands are dealt to them: each as often as the
    /// others, but for one.
    fn dealt<C: Copy>(self, random: &mut Random, size: usize, operands: &[C]) -> Vec<Case<C>> {
        let mut product = Vec::new();
        for count in self.counts(size) {
            product.extend(self.alignments(random, size).into_iter().map(|a| (count, a)));
        }
        assert!(product.len() >= operands.len(), "some numbers of operands would be left out");
        let mut deck = Vec::new();
        let deal = |(count, alignment)| {
            if deck.is_empty() {
                deck.extend_from_slice(operands);
            }
            Case { count, alignment, operands: deck.swap_remove(random.below(deck.len())) }
        };
        product.into_iter().map(deal).collect()
    }
}

/// What is not drawn in a launch.
#[derive(Clone, Copy, Debug)]
struct Case<C> {
    /// Elements, or bytes of a copy.
    count: usize,
    alignment: Alignment,
    operands: C,
}

/// Offsets of sources and destinations in one stretch of memory, with guard bytes between them.
struct Places {
    sources: Vec<usize>,
    destinations: Vec<usize>,
    total: usize,
}

impl Places {
    /// Of `bytes` each; sometimes sources are in the places of destinations.
    fn draw(
        random: &mut Random,
        alignment: Alignment,
        size: usize,
        counts: (usize, usize),
        bytes: usize,
    ) -> Self {
        let stride = (bytes + 2 * GUARD_BYTES).next_multiple_of(VECTOR_BYTES);
        let mut next = GUARD_BYTES;
        let mut place = |shift: usize| {
            let start = next + shift;
            next += stride;
            start
        };
        let mut sources: Vec<usize> =
            (0..counts.0).map(|index| place(alignment.source(random, size, index))).collect();
        let destinations: Vec<usize> =
            (0..counts.1).map(|_| place(alignment.destination(random, size))).collect();
        let total = next + GUARD_BYTES;
        if random.below(3) == 0 {
            // One source stays apart.
            let first = usize::from(matches!(alignment, Alignment::SourcesApart(_)));
            for (source, destination) in sources.iter_mut().zip(&destinations).skip(first) {
                if random.below(2) == 0 {
                    *source = *destination;
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
        ..Arithmetic::mean(random.pick(&DIVISORS))
    }
}

/// One reduction; returns the elements that were right.
fn reduce_once(
    machine: &dyn Machine,
    random: &mut Random,
    (operation, datatype): (Operation, DataType),
    case: Case<(usize, usize)>,
) -> Result<u64, String> {
    let Case { count, alignment, operands: counts } = case;
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

/// All reductions of a type, every case `repeats` times; returns the elements that were right.
pub(crate) fn reduces(
    machine: &dyn Machine,
    datatype: DataType,
    cases: Cases,
    repeats: usize,
) -> Result<u64, String> {
    let mut random = Random(2027 + datatype as u64);
    let counts: Vec<(usize, usize)> =
        (1..=MOST_RANKS).flat_map(|s| (1..=MOST_RANKS).map(move |d| (s, d))).collect();
    let mut checked = 0;
    for operation in Operation::ALL.into_iter().filter(|operation| operation.is_of(datatype)) {
        for _ in 0..repeats {
            for case in cases.dealt(&mut random, datatype.bytes(), &counts) {
                checked += reduce_once(machine, &mut random, (operation, datatype), case)?;
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

/// Copies, every case `repeats` times and as often some of any length to every number of
/// destinations; returns the bytes that were right.
pub(crate) fn copies(machine: &dyn Machine, cases: Cases, repeats: usize) -> Result<u64, String> {
    let mut random = Random(77);
    let counts: Vec<usize> = (1..=MOST_RANKS).collect();
    let mut checked = 0;
    for _ in 0..repeats {
        let mut dealt = cases.dealt(&mut random, 1, &counts);
        for &operands in &counts {
            let alignment = random.pick(&dealt).alignment;
            dealt.push(Case { count: random.below(20_000), alignment, operands });
        }
        for case in dealt {
            checked += copy_once(machine, &mut random, case)?;
        }
    }
    Ok(checked)
}

/// One copy; returns the bytes that were right.
fn copy_once(machine: &dyn Machine, random: &mut Random, case: Case<usize>) -> Result<u64, String> {
    let Case { count: length, alignment, operands: count } = case;
    let places = Places::draw(random, alignment, 1, (1, count), length);
    let mut before: Vec<u8> = (0..places.total).map(|at| (at * 41 + 7) as u8).collect();
    let source = elements(random, DataType::Uint8, length);
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
    require(machine, launch, random.next(), (&before, &after), ranges)
        .map_err(|wrong| format!("{length} bytes to {count}, {alignment:?}, {shape:?}: {wrong}"))?;
    Ok((length * count) as u64)
}
