//! What every rank contributes, constructed so that the result is known exactly.
//!
//! An element depends on (rank, index, seed) only, so every rank knows what all others contribute.
//! A library may reduce in any order and round after every step; the inputs are such that no step
//! rounds:
//!
//! | operation | integers | floats with significands of p bits |
//! |---|---|---|
//! | sum | anything: wrapping addition is associative | multiples of one power of two; their magnitudes add up to at most 2^p such multiples, so every partial sum is representable |
//! | prod | anything: wrapping multiplication is associative | ±1, for at most six ranks ±2 or ±1/2, one of these with a longer significand: no partial product rounds or leaves the range of the narrowest type |
//! | min, max | anything | anything but NaN and zero (whose signs compare equal) |
//! | avg | magnitudes add up to less than the type holds; the quotient is truncated toward zero | n a power of two: as sum, because scaling by 1/n is exact. Other n: see [`Averages`] |
//! | mulsum | anything | as sum after scaling by 1 or 2, which is exact |
//!
//! Collectives that only move data get arbitrary bits, NaNs included.
//!
//! Everything repeats after [`PERIOD`] elements. That is a prime beyond the size of any tile, so data
//! that lands in the wrong place is noticed, and a check of large buffers costs a look into a table.

use ccl::{DataType, ReduceOp, Reduction};

use crate::element::{self, Kind};

/// Elements after which contributions repeat.
pub const PERIOD: usize = 65_537;

/// How contributions are combined, as `-o` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Mean.
    Avg,
    /// Sum of contributions that every rank scales with its [`scalar`].
    MulSum,
}

impl Operation {
    /// All of them, in the order of `-o all`.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// The name on the command line and in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }

    /// What `rank` asks the library for.
    #[must_use]
    pub fn reduction(self, rank: usize, datatype: DataType) -> Reduction {
        Reduction::Builtin(match self {
            Self::Sum => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Max => ReduceOp::Max,
            Self::Min => ReduceOp::Min,
            Self::Avg => ReduceOp::Avg,
            Self::MulSum => {
                let scalar = match element::kind(datatype) {
                    Kind::Float(_) => element::encode(datatype, f64::from(scalar(rank))),
                    Kind::Signed(_) | Kind::Unsigned(_) => scalar(rank).into(),
                };
                return Reduction::PreMulSum { datatype, scalar };
            }
        })
    }
}

/// What `rank` scales its contribution with in `mulsum`: 1 on even ranks, 2 on odd ones, as
/// nccl-tests.
#[must_use]
pub fn scalar(rank: usize) -> u8 {
    if rank.is_multiple_of(2) { 1 } else { 2 }
}

/// A page of what is timed: small odd numbers, which no operation turns into slow ones. Lines of zeros would be quick: an AMD Zen 4
/// takes half as long for an AllGather of 4 MB among eight ranks if they are all that there is. (Integers that an even number of
/// ranks adds up in place, again and again, become zero nevertheless, after as many calls as they have bits.)
#[must_use]
pub fn ordinary(datatype: DataType) -> Vec<u8> {
    const BYTES: usize = 4096;
    const NUMBERS: [u8; 4] = [1, 3, 5, 7];
    let size = datatype.bytes();
    let mut page = vec![0; BYTES];
    for (index, number) in NUMBERS.iter().cycle().take(BYTES / size).enumerate() {
        let bits = match element::kind(datatype) {
            Kind::Float(_) => element::encode(datatype, f64::from(*number)),
            Kind::Signed(_) | Kind::Unsigned(_) => u64::from(*number),
        };
        element::store(&mut page, size, index, bits);
    }
    page
}

/// What an element of an output must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The bits.
    pub bits: u64,
    /// Steps between representable numbers by which the result may be off; 0 compares bits.
    pub tolerance: u64,
}

/// The contributions of all ranks to one call.
#[derive(Clone, Debug)]
pub struct Pattern {
    datatype: DataType,
    operation: Option<Operation>,
    ranks: usize,
    seed: u64,
    averages: Averages,
}

impl Pattern {
    /// The contributions of `ranks` ranks; `operation` is `None` where data is only moved.
    #[must_use]
    pub fn new(datatype: DataType, operation: Option<Operation>, ranks: usize, seed: u64) -> Self {
        let averages = Averages::among(ranks);
        Self { datatype, operation, ranks, seed, averages }
    }

    /// The type of the elements.
    #[must_use]
    pub fn datatype(&self) -> DataType {
        self.datatype
    }

    /// Bits of element `index` of the input of `rank`.
    #[must_use]
    pub fn input(&self, rank: usize, index: usize) -> u64 {
        let index = index % PERIOD;
        let kind = element::kind(self.datatype);
        match (self.operation, kind) {
            (None, _) => self.arbitrary(rank, index),
            (Some(Operation::Avg), Kind::Signed(width) | Kind::Unsigned(width)) => {
                element::truncated(self.small(rank, index).cast_unsigned(), width)
            }
            (Some(Operation::Prod), Kind::Signed(_) | Kind::Unsigned(_)) => {
                // Odd factors have odd products; with even ones most products would be zero.
                let odd = u64::from(!mix(self.seed, index as u64).is_multiple_of(8));
                self.arbitrary(rank, index) | odd
            }
            (Some(_), Kind::Signed(_) | Kind::Unsigned(_)) => self.arbitrary(rank, index),
            (Some(operation), Kind::Float(_)) => {
                element::encode(self.datatype, self.float(operation, rank, index))
            }
        }
    }

    /// Element `index` of the reduction of all inputs.
    ///
    /// # Panics
    /// The pattern has no operation.
    #[must_use]
    pub fn reduced(&self, index: usize) -> Expected {
        let index = index % PERIOD;
        let operation = self.operation.expect("a reduction was asked for");
        match element::kind(self.datatype) {
            Kind::Signed(width) => self.reduced_signed(operation, index, width),
            Kind::Unsigned(width) => self.reduced_unsigned(operation, index, width),
            Kind::Float(_) => self.reduced_float(operation, index),
        }
    }

    fn reduced_signed(&self, operation: Operation, index: usize, width: u32) -> Expected {
        let values =
            (0..self.ranks).map(|rank| (rank, element::signed(self.input(rank, index), width)));
        let n = i64::try_from(self.ranks).unwrap_or(i64::MAX);
        let value = match operation {
            Operation::Sum => values.fold(0, |sum: i64, (_, v)| sum.wrapping_add(v)),
            Operation::Prod => values.fold(1, |product: i64, (_, v)| product.wrapping_mul(v)),
            Operation::Max => values.fold(i64::MIN, |most, (_, v)| most.max(v)),
            Operation::Min => values.fold(i64::MAX, |least, (_, v)| least.min(v)),
            Operation::Avg => values.map(|(_, v)| v).sum::<i64>() / n,
            Operation::MulSum => values.fold(0, |sum: i64, (rank, v)| {
                sum.wrapping_add(v.wrapping_mul(scalar(rank).into()))
            }),
        };
        Expected { bits: element::truncated(value.cast_unsigned(), width), tolerance: 0 }
    }

    fn reduced_unsigned(&self, operation: Operation, index: usize, width: u32) -> Expected {
        let values = (0..self.ranks).map(|rank| (rank, self.input(rank, index)));
        let value = match operation {
            Operation::Sum => values.fold(0, |sum: u64, (_, v)| sum.wrapping_add(v)),
            Operation::Prod => values.fold(1, |product: u64, (_, v)| product.wrapping_mul(v)),
            Operation::Max => values.fold(0, |most, (_, v)| most.max(v)),
            Operation::Min => values.fold(u64::MAX, |least, (_, v)| least.min(v)),
            Operation::Avg => values.map(|(_, v)| v).sum::<u64>() / self.ranks as u64,
            Operation::MulSum => values.fold(0, |sum: u64, (rank, v)| {
                sum.wrapping_add(v.wrapping_mul(scalar(rank).into()))
            }),
        };
        Expected { bits: element::truncated(value, width), tolerance: 0 }
    }

    fn reduced_float(&self, operation: Operation, index: usize) -> Expected {
        let values = (0..self.ranks).map(|rank| (rank, self.float(operation, rank, index)));
        let value = match operation {
            Operation::Sum => values.map(|(_, v)| v).sum(),
            Operation::Prod => values.map(|(_, v)| v).product(),
            Operation::Max => values.map(|(_, v)| v).fold(f64::NEG_INFINITY, f64::max),
            Operation::Min => values.map(|(_, v)| v).fold(f64::INFINITY, f64::min),
            #[allow(clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
            Operation::Avg => values.map(|(_, v)| v).sum::<f64>() / self.ranks as f64,
            Operation::MulSum => values.map(|(rank, v)| v * f64::from(scalar(rank))).sum(),
        };
        let rounds = operation == Operation::Avg && !self.ranks.is_power_of_two();
        // A sum of floats that starts at -0 would be -0; none of the library's does.
        let bits = element::encode(self.datatype, value + 0.0);
        Expected { bits, tolerance: if rounds { AVERAGE_TOLERANCE } else { 0 } }
    }

    /// The contribution of `rank` to a reduction of floats; exact in the type.
    fn float(&self, operation: Operation, rank: usize, index: usize) -> f64 {
        match operation {
            Operation::Sum => self.multiple(rank, index) * self.unit(index, -2),
            Operation::MulSum => {
                self.multiple(rank, index) * self.unit(index, -2) / f64::from(scalar(rank))
            }
            Operation::Prod => self.factor(rank, index),
            Operation::Max | Operation::Min => self.comparable(rank, index),
            Operation::Avg if self.ranks.is_power_of_two() => {
                self.multiple(rank, index) * self.unit(index, 0)
            }
            Operation::Avg => self.averages.term(mix(self.seed, index as u64), rank),
        }
    }

    /// A power of two that all ranks share at `index`, between 2^`least` and 2^(`least` + 3).
    fn unit(&self, index: usize, least: i32) -> f64 {
        let step = (mix(self.seed, index as u64) >> 60) & 3;
        2f64.powi(least + i32::try_from(step).unwrap_or(0))
    }

    #[allow(clippy::cast_precision_loss, reason = "multiples are below 2^21")]
    fn multiple(&self, rank: usize, index: usize) -> f64 {
        self.small(rank, index) as f64
    }

    /// A whole number such that the magnitudes of all ranks' numbers add up to at most what the
    /// type represents without gaps. Where there are more ranks than that, some contribute zero, and
    /// which ones depends on the index.
    fn small(&self, rank: usize, index: usize) -> i64 {
        const MOST_BITS: u32 = 20;
        let (budget, negative) = match element::kind(self.datatype) {
            Kind::Float(bits) => (1i64 << bits.min(MOST_BITS), true),
            Kind::Signed(width) => ((1i64 << (width - 1).min(MOST_BITS)) - 1, true),
            Kind::Unsigned(width) => ((1i64 << width.min(MOST_BITS)) - 1, false),
        };
        let contributors = i64::try_from(self.ranks).unwrap_or(budget).min(budget);
        if self.position(rank, index) >= contributors {
            return 0;
        }
        let most = (budget / contributors).cast_unsigned();
        let random = self.random(rank, index);
        if negative {
            (random % (2 * most + 1)).cast_signed() - most.cast_signed()
        } else {
            (random % (most + 1)).cast_signed()
        }
    }

    /// A factor whose products with any other ranks' factors are exact.
    fn factor(&self, rank: usize, index: usize) -> f64 {
        const MOST_EXPONENTS: i64 = 6;
        let random = self.random(rank, index);
        let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
        let position = self.position(rank, index);
        let exponent = match (random >> 1) % 3 {
            0 if position < MOST_EXPONENTS => 2.0,
            1 if position < MOST_EXPONENTS => 0.5,
            _ => 1.0,
        };
        let significand =
            if position == 0 { [1.0, 1.25, 1.5, 1.75][random as usize >> 8 & 3] } else { 1.0 };
        sign * exponent * significand
    }

    /// Any number that compares with every other and equals only itself.
    fn comparable(&self, rank: usize, index: usize) -> f64 {
        let value = element::decode(self.datatype, self.arbitrary(rank, index));
        if value.is_finite() && value != 0.0 { value } else { 1.0 }
    }

    /// A place of `rank` among the ranks that is another one for every index.
    fn position(&self, rank: usize, index: usize) -> i64 {
        let ranks = self.ranks as u64;
        let turn = mix(self.seed, index as u64) % ranks;
        ((rank as u64 + turn) % ranks).cast_signed()
    }

    fn arbitrary(&self, rank: usize, index: usize) -> u64 {
        let width = u32::try_from(self.datatype.bytes() * 8).unwrap_or(64);
        element::truncated(self.random(rank, index), width)
    }

    fn random(&self, rank: usize, index: usize) -> u64 {
        mix(mix(self.seed, rank as u64 + 1), index as u64)
    }
}

/// How far an average over a number of ranks that is no power of two may be off: as nccl-tests.
const AVERAGE_TOLERANCE: u64 = 2;

/// Pairs of numbers for averages over n ranks where n is no power of two.
///
/// Two ranks contribute, the others zero. Scaling by 1/n rounds 1/n and the product, adding rounds
/// the sum: three errors of half a step, relative to a significand of 1. The pairs are those whose
/// average has a significand between 17/16 and 4/3, where three such errors are at most two steps.
/// Numbers of three significant bits between 32 and 224 are exact in every type, and their averages
/// over up to 1,000 ranks are no subnormals.
#[derive(Clone, Debug)]
struct Averages {
    ranks: usize,
    pairs: Vec<(f64, f64)>,
}

impl Averages {
    fn among(ranks: usize) -> Self {
        let numbers = [32.0, 40.0, 48.0, 56.0, 64.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 224.0];
        let all = numbers.iter().flat_map(|a| numbers.iter().map(move |b| (*a, *b)));
        #[allow(clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
        let average = |(a, b): &(f64, f64)| (a + b) / ranks.max(1) as f64;
        let suitable = |pair: &(f64, f64)| {
            let mean = average(pair);
            let significand = mean / 2f64.powf(mean.log2().floor());
            (17.0 / 16.0..=4.0 / 3.0).contains(&significand)
        };
        Self { ranks, pairs: all.filter(suitable).collect() }
    }

    fn term(&self, random: u64, rank: usize) -> f64 {
        let first = (random % self.ranks as u64) as usize;
        let (a, b) = self.pairs[(random >> 32) as usize % self.pairs.len()];
        match rank {
            rank if rank == first => a,
            rank if rank == (first + 1) % self.ranks => b,
            _ => 0.0,
        }
    }
}

/// Turns two numbers into one that depends on every bit of both.
fn mix(left: u64, right: u64) -> u64 {
    let mut state = left ^ right.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        state = (state ^ (state >> 32)).wrapping_mul(factor);
    }
    state ^ (state >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_timed_has_no_zeros() {
        for datatype in DataType::ALL {
            let page = ordinary(datatype);
            let elements: Vec<u64> = (0..page.len() / datatype.bytes())
                .map(|index| element::load(&page, datatype.bytes(), index))
                .collect();
            assert_eq!(elements.len() * datatype.bytes(), 4096, "{datatype:?}");
            assert_eq!(elements[..4], elements[4..8]);
            assert!(elements.iter().all(|bits| *bits != 0), "{datatype:?}");
        }
        let bits = ordinary(DataType::Float32)[4..8].try_into().unwrap();
        assert_eq!(f32::from_le_bytes(bits), 3.0);
    }

    /// Reduces in the order of `order`, rounding to the type after every step.
    fn rounded(pattern: &Pattern, operation: Operation, index: usize, order: &[usize]) -> u64 {
        let datatype = pattern.datatype();
        let round = |value: f64| element::decode(datatype, element::encode(datatype, value));
        let n = order.len() as f64;
        let terms: Vec<f64> = order
            .iter()
            .map(|rank| {
                let value = element::decode(datatype, pattern.input(*rank, index));
                match operation {
                    Operation::MulSum => round(value * f64::from(scalar(*rank))),
                    Operation::Avg => round(value * round(1.0 / n)),
                    Operation::Sum | Operation::Prod | Operation::Max | Operation::Min => value,
                }
            })
            .collect();
        let combine = |a: f64, b: f64| match operation {
            Operation::Prod => round(a * b),
            Operation::Max => a.max(b),
            Operation::Min => a.min(b),
            Operation::Sum | Operation::Avg | Operation::MulSum => round(a + b),
        };
        element::encode(datatype, terms.into_iter().reduce(combine).unwrap())
    }

    proptest! {
        #[test]
        fn floats_are_exact_in_any_order(
            datatype in prop::sample::select(
                DataType::ALL.into_iter().filter(|d| d.is_float()).collect::<Vec<_>>()),
            operation in prop::sample::select(Operation::ALL.to_vec()),
            order in (1usize..65).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle()),
            index in 0usize..10_000,
            seed in 0u64..1000,
        ) {
            let pattern = Pattern::new(datatype, Some(operation), order.len(), seed);
            let expected = pattern.reduced(index);
            let got = rounded(&pattern, operation, index, &order);
            let steps = element::distance(datatype, got, expected.bits);
            prop_assert!(
                steps.is_some_and(|steps| steps <= expected.tolerance),
                "{} {}: {:x} for {:x}, {} ranks", datatype.name(), operation.name(), got,
                expected.bits, order.len()
            );
        }

        #[test]
        fn averages_of_integers_do_not_overflow(
            datatype in prop::sample::select(
                DataType::ALL.into_iter().filter(|d| !d.is_float()).collect::<Vec<_>>()),
            ranks in 1usize..300,
            index in 0usize..10_000,
        ) {
            let pattern = Pattern::new(datatype, Some(Operation::Avg), ranks, 7);
            let bits = u32::try_from(datatype.bytes() * 8).unwrap();
            let (least, most) = match element::kind(datatype) {
                Kind::Signed(_) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                Kind::Unsigned(_) | Kind::Float(_) => (0, (1i128 << bits) - 1),
            };
            let value = |rank| match element::kind(datatype) {
                Kind::Signed(width) => i128::from(element::signed(pattern.input(rank, index), width)),
                Kind::Unsigned(_) | Kind::Float(_) => i128::from(pattern.input(rank, index)),
            };
            let sum: i128 = (0..ranks).map(value).sum();
            let magnitudes: i128 = (0..ranks).map(|rank| value(rank).abs()).sum();
            prop_assert!(sum >= least && magnitudes <= most);
        }
    }

    #[test]
    fn every_number_of_ranks_has_pairs_to_average() {
        for ranks in (1..1001).filter(|n: &usize| !n.is_power_of_two()) {
            assert!(Averages::among(ranks).pairs.len() >= 4, "{ranks}");
        }
    }

    #[test]
    fn inputs_differ_between_ranks_indices_and_seeds() {
        for operation in [None, Some(Operation::Sum), Some(Operation::Prod)] {
            let pattern = |seed| Pattern::new(DataType::Float32, operation, 4, seed);
            let row =
                |seed, rank| (0..64).map(|i| pattern(seed).input(rank, i)).collect::<Vec<_>>();
            assert_ne!(row(1, 0), row(1, 1));
            assert_ne!(row(1, 0), row(2, 0));
            assert!(row(1, 0).windows(2).any(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn results_are_not_trivial() {
        for datatype in DataType::ALL {
            for operation in Operation::ALL {
                let pattern = Pattern::new(datatype, Some(operation), 5, 3);
                let mut results: Vec<u64> = (0..256).map(|i| pattern.reduced(i).bits).collect();
                results.sort_unstable();
                results.dedup();
                let least = if operation == Operation::Avg { 3 } else { 6 };
                assert!(results.len() >= least, "{} {}", datatype.name(), operation.name());
            }
        }
    }

    #[test]
    fn the_scalar_is_stored_in_the_type() {
        let Reduction::PreMulSum { datatype, scalar } =
            Operation::MulSum.reduction(1, DataType::Float16)
        else {
            panic!("mulsum is a sum of scaled contributions");
        };
        assert_eq!((datatype, scalar), (DataType::Float16, 0x4000));
    }
}
