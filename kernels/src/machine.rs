//! Compiles the loops of `fold` and `divide` for one instruction set, and picks the loop for a type.

use ccl_core::datatype::DataType;

use crate::divide::Divide;
use crate::fold::Reduce;
use crate::format::{E4m3, E5m2};
use crate::region::{Source, Target};
use crate::step::{Byte, Element, Max, Min, Operation, Prod, Step, Sum};
use crate::{Combine, Kernel};

/// Something to run inside a function that is compiled for an instruction set. Implementations are
/// `#[inline(always)]`, so that the loops become part of that function.
pub(crate) trait Task {
    /// Does it.
    fn run(self);
}

/// An instruction set.
pub(crate) trait Machine {
    /// The instruction set, this or a smaller one, for elements that are combined as they are.
    type Plain: Machine;
    /// How `f32` is combined to maxima and minima.
    type Single: Step;
    /// The same for `f64`.
    type Double: Step;
    /// How `i64` is multiplied.
    type Long: Step;
    /// The same for `u64`.
    type UnsignedLong: Step;
    /// How f16 is loaded and stored.
    type Half: Step;
    /// How bfloat16 is loaded and stored.
    type Brain: Step;

    /// Runs the task, compiled for this instruction set.
    ///
    /// # Safety
    ///
    /// The processor has the instruction set.
    unsafe fn run<T: Task>(task: T);
}

/// `target = reduce(operands)` on machine `M`.
///
/// # Safety
///
/// The processor has the instruction set `M`.
pub(crate) unsafe fn reduce<M: Machine>(
    kernel: Kernel,
    operands: &[Source<'_>],
    target: Target<'_>,
) {
    let is_order = matches!(kernel.combine, Combine::Max | Combine::Min);
    let is_product = kernel.combine == Combine::Prod;
    let pick = match kernel.datatype {
        // What takes several instructions without better ones.
        DataType::Float32 if is_order => combine::<M, M::Single>,
        DataType::Float64 if is_order => combine::<M, M::Double>,
        DataType::Int8 | DataType::Uint8 if is_product => combine::<M, Element<u8>>,
        DataType::Int64 if is_product => combine::<M, M::Long>,
        DataType::Uint64 if is_product => combine::<M, M::UnsignedLong>,
        DataType::Int8 => combine::<M::Plain, Element<i8>>,
        DataType::Uint8 => combine::<M::Plain, Element<u8>>,
        DataType::Int32 => combine::<M::Plain, Element<i32>>,
        DataType::Uint32 => combine::<M::Plain, Element<u32>>,
        DataType::Int64 => combine::<M::Plain, Element<i64>>,
        DataType::Uint64 => combine::<M::Plain, Element<u64>>,
        DataType::Float16 => combine::<M, M::Half>,
        DataType::Float32 => combine::<M::Plain, Element<f32>>,
        DataType::Float64 => combine::<M::Plain, Element<f64>>,
        DataType::Bfloat16 => combine::<M, M::Brain>,
        DataType::Float8E4m3 => combine::<M, Byte<E4m3>>,
        DataType::Float8E5m2 => combine::<M, Byte<E5m2>>,
    };
    // SAFETY: the caller answers for the instruction set.
    unsafe { pick(kernel.combine, operands, target) }
}

unsafe fn combine<M: Machine, S: Step>(
    combine: Combine,
    operands: &[Source<'_>],
    target: Target<'_>,
) {
    let run = match combine {
        Combine::Sum => fold::<M, S, Sum>,
        Combine::Prod => fold::<M, S, Prod>,
        Combine::Max => fold::<M, S, Max>,
        Combine::Min => fold::<M, S, Min>,
    };
    // SAFETY: the caller answers for the instruction set.
    unsafe { run(operands, target) }
}

unsafe fn fold<M: Machine, S: Step, O: Operation>(operands: &[Source<'_>], target: Target<'_>) {
    // SAFETY: the caller answers for the instruction set.
    unsafe { M::run(Reduce::<S, O>::new(operands, target)) }
}

/// `target = target / divisor` on machine `M`; integers only.
///
/// # Safety
///
/// The processor has the instruction set `M`.
pub(crate) unsafe fn divide<M: Machine>(datatype: DataType, divisor: u64, target: Target<'_>) {
    let run = match datatype {
        DataType::Int8 => quotient::<M::Plain, i8>,
        DataType::Uint8 => quotient::<M::Plain, u8>,
        DataType::Int32 => quotient::<M::Plain, i32>,
        DataType::Uint32 => quotient::<M::Plain, u32>,
        DataType::Int64 => quotient::<M::Plain, i64>,
        DataType::Uint64 => quotient::<M::Plain, u64>,
        DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Bfloat16
        | DataType::Float8E4m3
        | DataType::Float8E5m2 => panic!("{} is not an integer type", datatype.name()),
    };
    // SAFETY: the caller answers for the instruction set.
    unsafe { run(divisor, target) }
}

unsafe fn quotient<M: Machine, T>(divisor: u64, target: Target<'_>)
where
    for<'a> Divide<'a, T>: Task,
{
    // SAFETY: the caller answers for the instruction set.
    unsafe { M::run(Divide::<T>::new(divisor, target)) }
}
