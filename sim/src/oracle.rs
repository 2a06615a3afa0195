//! What every collective must give, computed from its definition alone.
//!
//! Contributions are small integers, so that every sum, product and mean is exact in every element
//! type and in any order: a result is right or wrong, bit for bit.

use ccl_core::collective::Collective;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::scenario::CallPlan;

/// What output bytes are before a call.
pub(crate) const UNTOUCHED: u8 = 0xa5;

/// Factor of the reduction that scales contributions.
const FACTOR: i64 = 2;

/// The results of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oracle<'a> {
    pub(crate) plan: &'a CallPlan,
    pub(crate) ranks: usize,
}

/// The reduction of a call: all kinds that are exact for this many ranks.
pub(crate) fn reduction(plan: &CallPlan, ranks: usize) -> Reduction {
    if !plan.collective.reduces() {
        return Reduction::Builtin(ReduceOp::Sum);
    }
    match ReduceOp::from_number(i32::from(plan.reduction)) {
        Some(ReduceOp::Avg) if plan.datatype.is_float() && !ranks.is_power_of_two() => {
            Reduction::Builtin(ReduceOp::Sum)
        }
        Some(builtin) => Reduction::Builtin(builtin),
        None => {
            let datatype = plan.datatype;
            let mut scalar = [0; 8];
            encode(datatype, FACTOR, 1, &mut scalar[..datatype.bytes()]);
            Reduction::PreMulSum { datatype, scalar: u64::from_le_bytes(scalar) }
        }
    }
}

/// Elements that `source` sends to `target` in a call whose counts differ.
pub(crate) fn ragged_count(plan: &CallPlan, source: usize, target: usize) -> usize {
    match (source * 7 + target * 3 + usize::from(plan.flavour)) % 4 {
        0 => 0,
        1 => plan.count,
        2 => 1,
        _ => plan.count / 2,
    }
}

/// How far a message goes around in a call of sends and receives.
pub(crate) fn shift(plan: &CallPlan, ranks: usize) -> usize {
    1 + usize::from(plan.flavour) % (ranks - 1).max(1)
}

impl Oracle<'_> {
    /// Elements of the input and of the output of a rank.
    pub(crate) fn elements(&self, rank: usize) -> (usize, usize) {
        let (count, all) = (self.plan.count, self.ranks * self.plan.count);
        let root = |elements| if rank == self.plan.root { elements } else { 0 };
        match self.plan.collective {
            Collective::AllReduce => (count, count),
            Collective::Broadcast => (root(count), count),
            Collective::Reduce => (count, root(count)),
            Collective::AllGather => (count, all),
            Collective::Gather => (count, root(all)),
            Collective::ReduceScatter => (all, count),
            Collective::Scatter => (root(all), count),
            Collective::AllToAll => (all, all),
            Collective::AllToAllV => {
                let sent = (0..self.ranks).map(|other| ragged_count(self.plan, rank, other));
                let received = (0..self.ranks).map(|other| ragged_count(self.plan, other, rank));
                (sent.sum(), received.sum())
            }
            Collective::Barrier => (0, 0),
            Collective::PointToPoint => (count, count),
        }
    }

    /// What a rank puts in.
    pub(crate) fn input(&self, rank: usize, into: &mut Vec<u8>) {
        let (elements, _) = self.elements(rank);
        let values = (0..elements).map(|index| (self.value(rank, index), 1));
        self.fill(values, into);
    }

    /// What a rank must get; nothing where its output must stay as it was.
    pub(crate) fn output(&self, rank: usize, into: &mut Vec<u8>) {
        let count = self.plan.count;
        let (_, elements) = self.elements(rank);
        let block = |index: usize| (index / count.max(1), index % count.max(1));
        let value = |index: usize| match self.plan.collective {
            Collective::AllReduce | Collective::Reduce => self.reduced(index),
            Collective::Broadcast => (self.value(self.plan.root, index), 1),
            Collective::AllGather | Collective::Gather => {
                let (source, index) = block(index);
                (self.value(source, index), 1)
            }
            Collective::ReduceScatter => self.reduced(rank * count + index),
            Collective::Scatter => (self.value(self.plan.root, rank * count + index), 1),
            Collective::AllToAll => {
                let (source, index) = block(index);
                (self.value(source, rank * count + index), 1)
            }
            Collective::AllToAllV => (self.ragged(rank, index), 1),
            Collective::Barrier => (0, 1),
            Collective::PointToPoint => {
                let from = (rank + self.ranks - shift(self.plan, self.ranks)) % self.ranks;
                (self.value(from, index), 1)
            }
        };
        self.fill((0..elements).map(value), into);
    }

    fn fill(&self, values: impl Iterator<Item = (i64, i64)>, into: &mut Vec<u8>) {
        into.clear();
        let size = self.plan.datatype.bytes();
        let mut bytes = [0; 8];
        for (numerator, denominator) in values {
            encode(self.plan.datatype, numerator, denominator, &mut bytes[..size]);
            into.extend_from_slice(&bytes[..size]);
        }
    }

    /// What a rank contributes at an index.
    fn value(&self, rank: usize, index: usize) -> i64 {
        let mixed = (index * 31 + rank * 17 + usize::from(self.plan.flavour) * 7) ^ (index >> 3);
        let mixed = i64::try_from(mixed).unwrap_or(0);
        let is_product = self.plan.collective.reduces() && self.plan.reduction == 1;
        let most = match self.plan.datatype {
            _ if is_product => return 1 + mixed % 2,
            DataType::Float8E4m3 | DataType::Float8E5m2 => 1,
            DataType::Int8 | DataType::Uint8 => 15,
            DataType::Bfloat16 => 31,
            DataType::Int32
            | DataType::Uint32
            | DataType::Int64
            | DataType::Uint64
            | DataType::Float16
            | DataType::Float32
            | DataType::Float64 => 99,
        };
        mixed % (most + 1)
    }

    /// The reduction of all contributions at an index, as a fraction.
    fn reduced(&self, index: usize) -> (i64, i64) {
        let mut values = (0..self.ranks).map(|rank| self.value(rank, index));
        let ranks = i64::try_from(self.ranks).unwrap_or(1);
        match reduction(self.plan, self.ranks) {
            Reduction::PreMulSum { .. } => (FACTOR * values.sum::<i64>(), 1),
            Reduction::Builtin(ReduceOp::Sum) => (values.sum(), 1),
            Reduction::Builtin(ReduceOp::Prod) => (values.product(), 1),
            Reduction::Builtin(ReduceOp::Max) => (values.max().unwrap_or(0), 1),
            Reduction::Builtin(ReduceOp::Min) => (values.min().unwrap_or(0), 1),
            Reduction::Builtin(ReduceOp::Avg) => self.mean(values.by_ref().sum(), ranks),
        }
    }

    /// Of integers the mean is that of the sum as it fits into the type, without the fraction.
    fn mean(&self, sum: i64, ranks: i64) -> (i64, i64) {
        match self.plan.datatype {
            #[allow(clippy::cast_possible_truncation, reason = "integers wrap")]
            DataType::Int8 => (i64::from(sum as i8) / ranks, 1),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "integers wrap"
            )]
            DataType::Uint8 => (i64::from(sum as u8) / ranks, 1),
            DataType::Int32 | DataType::Uint32 | DataType::Int64 | DataType::Uint64 => {
                (sum / ranks, 1)
            }
            DataType::Float16
            | DataType::Float32
            | DataType::Float64
            | DataType::Bfloat16
            | DataType::Float8E4m3
            | DataType::Float8E5m2 => (sum, ranks),
        }
    }

    /// The element of a rank's output in a call whose counts differ.
    fn ragged(&self, rank: usize, index: usize) -> i64 {
        let mut first = 0;
        for source in 0..self.ranks {
            let count = ragged_count(self.plan, source, rank);
            if index < first + count {
                let before = (0..rank).map(|other| ragged_count(self.plan, source, other));
                return self.value(source, before.sum::<usize>() + index - first);
            }
            first += count;
        }
        0
    }
}

/// The bits of a fraction that the type can hold; integers keep their low bits.
fn encode(datatype: DataType, numerator: i64, denominator: i64, into: &mut [u8]) {
    #[allow(clippy::cast_precision_loss, reason = "contributions are small")]
    let number = numerator as f64 / denominator as f64;
    #[allow(clippy::cast_possible_truncation, reason = "exact in the type, by construction")]
    let single = number as f32;
    let size = into.len();
    match datatype {
        DataType::Int8
        | DataType::Uint8
        | DataType::Int32
        | DataType::Uint32
        | DataType::Int64
        | DataType::Uint64 => into.copy_from_slice(&numerator.to_le_bytes()[..size]),
        DataType::Float16 => into.copy_from_slice(&f16::from_f64(number).to_le_bytes()),
        DataType::Float32 => into.copy_from_slice(&single.to_le_bytes()),
        DataType::Float64 => into.copy_from_slice(&number.to_le_bytes()),
        DataType::Bfloat16 => into.copy_from_slice(&bf16::from_f64(number).to_le_bytes()),
        DataType::Float8E4m3 => into[0] = F8E4M3::from_f32(single).to_bits(),
        DataType::Float8E5m2 => into[0] = F8E5M2::from_f32(single).to_bits(),
    }
}
