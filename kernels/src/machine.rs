//! Compiles the loops of `fold` and `divide` for one instruction set, and picks the loop for a type.

use ccl_core::datatype::DataType;

use crate::divide::Divide;
use crate::fold::Reduce;
use crate::format::{Brain, E4m3, E5m2, Half};
use crate::order::Ordered;
use crate::region::{Source, Target};
use crate::step::{Arithmetic, Byte, Element, Max, Min, Operation, Order, Prod, Step, Sum};
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
    /// How maxima and minima of `f32` are found.
    type Single: Step<Accumulator: Order>;
    /// The same for `f64`.
    type Double: Step<Accumulator: Order>;
    /// How `i64` and `u64` are multiplied.
    type Long: Step<Accumulator: Arithmetic>;
    /// How f16 is loaded and stored.
    type Half: Step<Accumulator: Arithmetic>;
    /// How bfloat16 is loaded and stored.
    type Brain: Step<Accumulator: Arithmetic>;

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
    let run = match kernel.combine {
        Combine::Sum => sum::<M>(kernel.datatype),
        Combine::Prod => prod::<M>(kernel.datatype),
        Combine::Max => order::<M>(kernel.datatype).max,
        Combine::Min => order::<M>(kernel.datatype).min,
    };
    // SAFETY: the caller answers for the instruction set.
    unsafe { run(operands, target) }
}

/// A loop; the processor must have the instruction set for which it is compiled.
type Loop = unsafe fn(&[Source<'_>], Target<'_>);

/// The loops for both ends of an order.
struct Loops {
    max: Loop,
    min: Loop,
}

fn sum<M: Machine>(datatype: DataType) -> Loop {
    match datatype {
        DataType::Int8 | DataType::Uint8 => fold::<M::Plain, Element<u8>, Sum>,
        DataType::Int32 | DataType::Uint32 => fold::<M::Plain, Element<u32>, Sum>,
        DataType::Int64 | DataType::Uint64 => fold::<M::Plain, Element<u64>, Sum>,
        DataType::Float16 => fold::<M, M::Half, Sum>,
        DataType::Float32 => fold::<M::Plain, Element<f32>, Sum>,
        DataType::Float64 => fold::<M::Plain, Element<f64>, Sum>,
        DataType::Bfloat16 => fold::<M, M::Brain, Sum>,
        DataType::Float8E4m3 => fold::<M, Byte<E4m3>, Sum>,
        DataType::Float8E5m2 => fold::<M, Byte<E5m2>, Sum>,
    }
}

fn prod<M: Machine>(datatype: DataType) -> Loop {
    match datatype {
        // What takes several instructions without better ones.
        DataType::Int8 | DataType::Uint8 => fold::<M, Element<u8>, Prod>,
        DataType::Int64 | DataType::Uint64 => fold::<M, M::Long, Prod>,
        DataType::Int32 | DataType::Uint32 => fold::<M::Plain, Element<u32>, Prod>,
        DataType::Float16 => fold::<M, M::Half, Prod>,
        DataType::Float32 => fold::<M::Plain, Element<f32>, Prod>,
        DataType::Float64 => fold::<M::Plain, Element<f64>, Prod>,
        DataType::Bfloat16 => fold::<M, M::Brain, Prod>,
        DataType::Float8E4m3 => fold::<M, Byte<E4m3>, Prod>,
        DataType::Float8E5m2 => fold::<M, Byte<E5m2>, Prod>,
    }
}

fn order<M: Machine>(datatype: DataType) -> Loops {
    match datatype {
        DataType::Int8 => ends::<M::Plain, Element<i8>>(),
        DataType::Uint8 => ends::<M::Plain, Element<u8>>(),
        DataType::Int32 => ends::<M::Plain, Element<i32>>(),
        DataType::Uint32 => ends::<M::Plain, Element<u32>>(),
        DataType::Int64 => ends::<M::Plain, Element<i64>>(),
        DataType::Uint64 => ends::<M::Plain, Element<u64>>(),
        DataType::Float16 => ends::<M, Ordered<Half, i16>>(),
        DataType::Float32 => ends::<M, M::Single>(),
        DataType::Float64 => ends::<M, M::Double>(),
        DataType::Bfloat16 => ends::<M, Ordered<Brain, i16>>(),
        DataType::Float8E4m3 => ends::<M, Ordered<E4m3, i8>>(),
        DataType::Float8E5m2 => ends::<M, Ordered<E5m2, i8>>(),
    }
}

fn ends<M: Machine, S: Step<Accumulator: Order>>() -> Loops {
    Loops { max: fold::<M, S, Max>, min: fold::<M, S, Min> }
}

unsafe fn fold<M: Machine, S: Step, O: Operation<S::Accumulator>>(
    operands: &[Source<'_>],
    target: Target<'_>,
) {
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
