//! What the kernels compute, one element at a time, as plainly as it can be said.
//!
//! Every implementation must give these results bit for bit. The oracle shares no arithmetic with
//! them: it decodes and encodes narrow floats through binary64 and integers through 128 bits.

use ccl_core::datatype::DataType;

use crate::region::{Source, Target};
use crate::{Combine, Kernel};

/// `target = reduce(operands)`, element by element, in the order of the operands.
pub(crate) fn reduce(kernel: Kernel, operands: &[Source<'_>], mut target: Target<'_>) {
    let size = kernel.datatype.bytes();
    for offset in (0..target.bytes()).step_by(size) {
        let elements: Vec<u64> =
            operands.iter().map(|operand| read(operand.part(offset, size))).collect();
        let result = element(kernel, &elements);
        target.write(offset, Source::from(&result.to_le_bytes()[..size]));
    }
}

/// `target = target / divisor`, element by element.
pub(crate) fn divide(datatype: DataType, divisor: u64, mut target: Target<'_>) {
    assert!(!datatype.is_float(), "{} is not an integer type", datatype.name());
    let size = datatype.bytes();
    for offset in (0..target.bytes()).step_by(size) {
        let value = integer(datatype, read(target.as_source().part(offset, size)));
        let result = (value / i128::from(divisor)) as u64;
        target.write(offset, Source::from(&result.to_le_bytes()[..size]));
    }
}

/// The bits of one element, little-endian, in the low bytes.
fn read(source: Source<'_>) -> u64 {
    let mut bytes = [0; 8];
    source.read(&mut bytes[..source.bytes()]);
    u64::from_le_bytes(bytes)
}

/// The bits of the reduction of elements given as bits.
fn element(kernel: Kernel, elements: &[u64]) -> u64 {
    let Kernel { datatype, combine } = kernel;
    match datatype {
        DataType::Int8
        | DataType::Uint8
        | DataType::Int32
        | DataType::Uint32
        | DataType::Int64
        | DataType::Uint64 => {
            let first = elements[0];
            elements[1..].iter().fold(first, |a, &b| combine_integers(datatype, combine, a, b))
        }
        DataType::Float64 => {
            let mut numbers = elements.iter().map(|&bits| f64::from_bits(bits));
            let first = numbers.next().unwrap_or(0.0);
            let result = numbers.fold(first, |a, b| combine_doubles(combine, a, b));
            if result.is_nan() { 0x7ff8_0000_0000_0000 } else { result.to_bits() }
        }
        DataType::Float16
        | DataType::Float32
        | DataType::Bfloat16
        | DataType::Float8E4m3
        | DataType::Float8E5m2 => {
            let mut numbers = elements.iter().map(|&bits| decode(datatype, bits as u32));
            let first = numbers.next().unwrap_or(0.0);
            u64::from(encode(datatype, numbers.fold(first, |a, b| combine_floats(combine, a, b))))
        }
    }
}

fn integer(datatype: DataType, bits: u64) -> i128 {
    match datatype {
        DataType::Int8 => i128::from(bits as i8),
        DataType::Int32 => i128::from(bits as i32),
        DataType::Int64 => i128::from(bits as i64),
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => i128::from(bits),
        DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Bfloat16
        | DataType::Float8E4m3
        | DataType::Float8E5m2 => panic!("{} is not an integer type", datatype.name()),
    }
}

fn combine_integers(datatype: DataType, combine: Combine, a: u64, b: u64) -> u64 {
    match combine {
        Combine::Sum => a.wrapping_add(b),
        Combine::Prod => a.wrapping_mul(b),
        Combine::Max => integer(datatype, a).max(integer(datatype, b)) as u64,
        Combine::Min => integer(datatype, a).min(integer(datatype, b)) as u64,
    }
}

fn combine_doubles(combine: Combine, a: f64, b: f64) -> f64 {
    let ordered = |larger: bool| match () {
        () if a.is_nan() || b.is_nan() => f64::NAN,
        () if a == b => {
            if a.is_sign_negative() == larger {
                b
            } else {
                a
            }
        }
        () if (a > b) == larger => a,
        () => b,
    };
    match combine {
        Combine::Sum => a + b,
        Combine::Prod => a * b,
        Combine::Max => ordered(true),
        Combine::Min => ordered(false),
    }
}

/// Sums and products round to binary32; the extremes of two `f32` are the same as of two `f64`.
fn combine_floats(combine: Combine, a: f32, b: f32) -> f32 {
    match combine {
        Combine::Sum => a + b,
        Combine::Prod => a * b,
        Combine::Max | Combine::Min => combine_doubles(combine, a.into(), b.into()) as f32,
    }
}

/// A float of at most 32 bits, described by its fields.
struct Layout {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The magnitude code of the largest finite number.
    largest: u32,
    /// The magnitude code of what is larger than that after rounding.
    overflow: u32,
    /// The magnitude codes from here on are NaN.
    nans: u32,
    /// The NaN that arithmetic gives.
    nan: u32,
}

#[rustfmt::skip]
fn layout(datatype: DataType) -> Layout {
    match datatype {
        DataType::Float16 => Layout {
            exponent_bits: 5, mantissa_bits: 10,
            largest: 0x7bff, overflow: 0x7c00, nans: 0x7c01, nan: 0x7e00,
        },
        DataType::Bfloat16 => Layout {
            exponent_bits: 8, mantissa_bits: 7,
            largest: 0x7f7f, overflow: 0x7f80, nans: 0x7f81, nan: 0x7fc0,
        },
        DataType::Float8E4m3 => Layout {
            exponent_bits: 4, mantissa_bits: 3,
            largest: 0x7e, overflow: 0x7e, nans: 0x7f, nan: 0x7f,
        },
        DataType::Float8E5m2 => Layout {
            exponent_bits: 5, mantissa_bits: 2,
            largest: 0x7b, overflow: 0x7b, nans: 0x7d, nan: 0x7e,
        },
        DataType::Float32 => Layout {
            exponent_bits: 8, mantissa_bits: 23,
            largest: 0x7f7f_ffff, overflow: 0x7f80_0000, nans: 0x7f80_0001, nan: 0x7fc0_0000,
        },
        DataType::Int8 | DataType::Uint8 | DataType::Int32 | DataType::Uint32 | DataType::Int64
        | DataType::Uint64 | DataType::Float64 => panic!("{} has no such layout", datatype.name()),
    }
}

/// The number with these bits; exact.
pub(crate) fn decode(datatype: DataType, bits: u32) -> f32 {
    let Layout { exponent_bits, mantissa_bits, largest, nans, .. } = layout(datatype);
    let sign_bit = 1 << (exponent_bits + mantissa_bits);
    let magnitude = bits & (sign_bit - 1);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let field = (magnitude >> mantissa_bits) as i32;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let leading = if field == 0 { 0 } else { 1 << mantissa_bits };
    let exponent = field.max(1) - bias - mantissa_bits as i32;
    let number = match () {
        () if magnitude >= nans => f64::NAN,
        () if magnitude > largest => f64::INFINITY,
        () => f64::from(leading | mantissa) * f64::from(exponent).exp2(),
    };
    (if bits & sign_bit == 0 { number } else { -number }) as f32
}

/// The bits of the number of the type that is nearest to `value`; of two, the even one.
pub(crate) fn encode(datatype: DataType, value: f32) -> u32 {
    let Layout { exponent_bits, mantissa_bits, largest, overflow, nan, .. } = layout(datatype);
    if value.is_nan() {
        return nan;
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let smallest_exponent = 1 - bias;
    let sign_bit = if value.is_sign_negative() { 1 << (exponent_bits + mantissa_bits) } else { 0 };
    if value.is_infinite() {
        return sign_bit | overflow;
    }
    let magnitude = f64::from(value.abs());
    let own_exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let exponent = own_exponent.max(smallest_exponent);
    let unit = f64::from(exponent - mantissa_bits as i32).exp2();
    // In units of the last place; a normal number has its leading one in here, which counts as one
    // step of the exponent field, and so does a carry.
    let units = (magnitude / unit).round_ties_even() as u32;
    let code = (((exponent - smallest_exponent) as u32) << mantissa_bits) + units;
    sign_bit | if code > largest { overflow } else { code }
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};

    use super::*;
    use crate::format::{self, E4m3, E5m2, Half};

    /// Numbers on, beside and between the representable ones of every narrow type, and others.
    fn probes() -> impl Iterator<Item = f32> {
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
        let near = (0..=u16::MAX)
            .flat_map(move |high| lows.map(|low| f32::from_bits(u32::from(high) << 16 | low)));
        let mut state = 1u32;
        let scattered = (0..200_000).map(move |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state)
        });
        near.chain(scattered)
    }

    fn same(left: f32, right: f32) -> bool {
        left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
    }

    #[test]
    fn decodes_every_half_as_the_crate_half() {
        for bits in 0..=u16::MAX {
            let code = u32::from(bits);
            assert!(
                same(decode(DataType::Float16, code), f16::from_bits(bits).to_f32()),
                "{bits:#x}"
            );
            assert!(
                same(decode(DataType::Bfloat16, code), bf16::from_bits(bits).to_f32()),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn decodes_every_byte_as_the_crate_float8() {
        for bits in 0..=u8::MAX {
            let code = u32::from(bits);
            let e4m3 = F8E4M3::from_bits(bits).to_f32();
            let e5m2 = F8E5M2::from_bits(bits).to_f32();
            assert!(same(decode(DataType::Float8E4m3, code), e4m3), "{bits:#x}");
            assert!(same(decode(DataType::Float8E5m2, code), e5m2), "{bits:#x}");
        }
    }

    #[test]
    fn encodes_numbers_as_the_crates_do() {
        for value in probes().filter(|value| !value.is_nan()) {
            let halves = [f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()];
            assert_eq!(encode(DataType::Float16, value), halves[0].into(), "{value:e}");
            assert_eq!(encode(DataType::Bfloat16, value), halves[1].into(), "{value:e}");
            let bytes = [F8E4M3::from_f32(value).to_bits(), F8E5M2::from_f32(value).to_bits()];
            assert_eq!(encode(DataType::Float8E4m3, value), bytes[0].into(), "{value:e}");
            assert_eq!(encode(DataType::Float8E5m2, value), bytes[1].into(), "{value:e}");
            assert_eq!(encode(DataType::Float32, value), value.to_bits());
        }
    }

    #[test]
    fn the_branch_free_conversions_agree() {
        for value in probes() {
            assert_eq!(
                encode(DataType::Float16, value),
                format::narrow::<Half>(value),
                "{value:e}"
            );
            assert_eq!(
                encode(DataType::Float8E4m3, value),
                format::narrow::<E4m3>(value),
                "{value:e}"
            );
            assert_eq!(
                encode(DataType::Float8E5m2, value),
                format::narrow::<E5m2>(value),
                "{value:e}"
            );
            assert_eq!(
                encode(DataType::Bfloat16, value),
                format::narrow_brain(value).into(),
                "{value:e}"
            );
        }
        for bits in 0..=u16::MAX {
            let code = u32::from(bits);
            let byte = code & 0xff;
            assert!(
                same(decode(DataType::Float16, code), format::widen::<Half>(code)),
                "{bits:#x}"
            );
            assert!(same(decode(DataType::Bfloat16, code), format::widen_brain(bits)), "{bits:#x}");
            assert!(
                same(decode(DataType::Float8E4m3, byte), format::widen::<E4m3>(byte)),
                "{byte:#x}"
            );
            assert!(
                same(decode(DataType::Float8E5m2, byte), format::widen::<E5m2>(byte)),
                "{byte:#x}"
            );
        }
    }
}
