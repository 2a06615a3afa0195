//! Reduces and copies bytes.
//!
//! Every data type has one definition of its arithmetic, the scalar oracle, and several
//! implementations that are chosen at run time by what the processor can do. All give the same bits:
//!
//! - Integers wrap.
//! - `f16`, `bf16` and the 8-bit floats are converted to `f32`, all operands are combined there, in
//!   the order given, and the result is rounded once, to the nearest, ties to even.
//! - An 8-bit float result beyond the largest finite number becomes that number (448 for e4m3, 57344
//!   for e5m2), infinite operands included: infinities of e5m2 survive copies only. Wider floats
//!   overflow to infinity.
//! - If the result is a NaN, it is the positive quiet NaN with an otherwise empty payload: `0x7fc00000`
//!   for `f32`, `0x7ff8000000000000` for `f64`, `0x7e00` for `f16`, `0x7fc0` for `bf16`, `0x7f` for
//!   e4m3, `0x7e` for e5m2. So NaNs are equal on all machines and for all orders of operands too.
//! - The maximum or minimum with a NaN is a NaN; `+0` is larger than `-0`.
//!
//! The functions here pick the best implementation. Sources and target of one call may overlap only if
//! they are the same bytes; otherwise the result is unspecified, though nothing outside the target
//! is written. No alignment is needed. How the thread that calls rounds, and what it makes of subnormals (MXCSR on
//! x86-64), does not matter.

mod copies;
pub mod cuda;
mod divide;
mod fold;
mod format;
mod implementation;
mod machine;
mod modes;
mod oracle;
mod order;
mod portable;
mod region;
mod scratch;
mod slices;
mod step;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

pub use copies::{copy, copy_streaming, fill};
pub use implementation::Implementation;
pub use region::{Region, Source, Target};
pub use scratch::Scratch;
pub use slices::Element;

use std::hint::black_box;

use ccl_core::datatype::DataType;

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The larger.
    Max,
    /// The smaller.
    Min,
}

impl Combine {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Prod, Self::Max, Self::Min];
}

/// Which reduction, of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Type of the elements.
    pub datatype: DataType,
    /// How they are combined.
    pub combine: Combine,
}

/// `target = reduce(operands)`, element by element, in the order of the operands. One operand is
/// copied. The target may be the same bytes as any one operand.
///
/// # Panics
///
/// If there is no operand, the lengths differ, or they are not whole elements.
pub fn reduce(kernel: Kernel, operands: &[Source<'_>], target: Target<'_>) {
    Implementation::best().reduce(kernel, operands, target);
}

/// `target = source * scalar`. The scalar is the little-endian bits of an element in the low bytes
/// of `scalar`. The target may be the same bytes as the source.
///
/// # Panics
///
/// If the lengths differ or are not whole elements.
pub fn scale(datatype: DataType, scalar: u64, source: Source<'_>, target: Target<'_>) {
    Implementation::best().scale(datatype, scalar, source, target);
}

/// `target = target / divisor`, truncating toward zero: the last step of an integer mean.
///
/// # Panics
///
/// If the type is not an integer type, the divisor is zero, or the length is not whole elements.
pub fn divide(datatype: DataType, divisor: u64, target: Target<'_>) {
    Implementation::best().divide(datatype, divisor, target);
}

/// The bits of `1 / n` in a float type, for the mean of `n` contributions. Narrow types get the
/// rounded `f32` rounded again, as NCCL does it.
///
/// # Panics
///
/// If the type is not a float type.
#[must_use]
pub fn reciprocal(datatype: DataType, n: u32) -> u64 {
    assert!(datatype.is_float(), "{} has no reciprocals", datatype.name());
    let _modes = modes::DefaultModes::set();
    // The compiler knows no modes: it must not compute before they are set.
    let exact = 1.0 / f64::from(black_box(n));
    black_box(if datatype == DataType::Float64 {
        exact.to_bits()
    } else {
        u64::from(oracle::encode(datatype, exact as f32))
    })
}
