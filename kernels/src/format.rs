//! Floating-point numbers narrower than 32 bits: their layouts, and branch-free conversions that a
//! compiler turns into vector code.
//!
//! A narrow number is exact in binary32. The way back rounds to the nearest, ties to even. Neither
//! way passes through a binary32 subnormal that matters, so a thread that flushes those (as
//! `torch.set_flush_denormal` does) converts f16 and the 8-bit types all the same.

/// Layout of a narrow float: a sign bit, exponent bits, mantissa bits, from the top.
pub(crate) trait Format {
    /// Width of the number.
    const BITS: u32;
    /// Width of the mantissa.
    const MANTISSA_BITS: u32;
    /// The smallest magnitude code (sign removed) that is an infinity or a NaN.
    const FIRST_SPECIAL: u32;
    /// The largest magnitude code that is no NaN.
    const LAST_NUMBER: u32;
    /// The magnitude code that everything larger becomes: infinity, or the largest finite number.
    const LARGEST: u32;
    /// The one NaN that arithmetic produces.
    const NAN: u32;

    /// Exponent of two by which the format's exponent field is offset.
    const BIAS: u32 = (1 << (Self::BITS - Self::MANTISSA_BITS - 2)) - 1;
}

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half;

impl Format for Half {
    const BITS: u32 = 16;
    const MANTISSA_BITS: u32 = 10;
    const FIRST_SPECIAL: u32 = 0x7c00;
    const LAST_NUMBER: u32 = 0x7c00;
    const LARGEST: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

/// The upper half of a binary32. Its conversions are [`widen_brain`] and [`narrow_brain`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brain;

impl Format for Brain {
    const BITS: u32 = 16;
    const MANTISSA_BITS: u32 = 7;
    const FIRST_SPECIAL: u32 = 0x7f80;
    const LAST_NUMBER: u32 = 0x7f80;
    const LARGEST: u32 = 0x7f80;
    const NAN: u32 = 0x7fc0;
}

/// The OCP 8-bit float with 4 exponent bits: no infinities, 448 is the largest number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct E4m3;

impl Format for E4m3 {
    const BITS: u32 = 8;
    const MANTISSA_BITS: u32 = 3;
    const FIRST_SPECIAL: u32 = 0x7f;
    const LAST_NUMBER: u32 = 0x7e;
    const LARGEST: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

/// The OCP 8-bit float with 5 exponent bits: it has infinities, but arithmetic saturates at the
/// largest finite number, 57344, as CUDA's `__NV_SATFINITE` does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct E5m2;

impl Format for E5m2 {
    const BITS: u32 = 8;
    const MANTISSA_BITS: u32 = 2;
    const FIRST_SPECIAL: u32 = 0x7c;
    const LAST_NUMBER: u32 = 0x7c;
    const LARGEST: u32 = 0x7b;
    const NAN: u32 = 0x7e;
}

/// The NaN of binary32 that arithmetic produces.
pub(crate) const NAN_32: u32 = 0x7fc0_0000;
/// The NaN of binary64 that arithmetic produces.
pub(crate) const NAN_64: u64 = 0x7ff8_0000_0000_0000;

const MANTISSA_BITS_32: u32 = 23;
const BIAS_32: u32 = 127;
const INFINITY_32: u32 = 0x7f80_0000;

/// The number with these bits.
#[inline(always)]
pub(crate) fn widen<F: Format>(code: u32) -> f32 {
    let shift = MANTISSA_BITS_32 - F::MANTISSA_BITS;
    let smallest_normal = (BIAS_32 - F::BIAS + 1) << MANTISSA_BITS_32;
    let sign = (code >> (F::BITS - 1)) << 31;
    let magnitude = code & ((1 << (F::BITS - 1)) - 1);
    let moved = magnitude << shift;
    let normal = moved + (smallest_normal - (1 << MANTISSA_BITS_32));
    // A subnormal is its mantissa in units of the smallest step: what a normal number with that
    // mantissa exceeds the smallest normal one by.
    let excess = f32::from_bits(moved + smallest_normal) - f32::from_bits(smallest_normal);
    let finite = if magnitude < 1 << F::MANTISSA_BITS { excess.to_bits() } else { normal };
    let bits = if magnitude >= F::FIRST_SPECIAL { finite | INFINITY_32 } else { finite };
    f32::from_bits(bits | sign)
}

/// The bits of the number of the format that is nearest to `value`.
#[inline(always)]
pub(crate) fn narrow<F: Format>(value: f32) -> u32 {
    let shift = MANTISSA_BITS_32 - F::MANTISSA_BITS;
    let smallest_normal = (BIAS_32 - F::BIAS + 1) << MANTISSA_BITS_32;
    let sign = (value.to_bits() >> 31) << (F::BITS - 1);
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let tie = (magnitude >> shift) & 1;
    let rebiased = magnitude.wrapping_sub(smallest_normal - (1 << MANTISSA_BITS_32));
    let normal = rebiased.wrapping_add((1 << (shift - 1)) - 1 + tie) >> shift;
    // Adding a power of two whose unit in the last place is the format's smallest step lets the
    // addition round; the mantissa of the sum is the code.
    let anchor = (BIAS_32 - F::BIAS + 1 + shift) << MANTISSA_BITS_32;
    let anchored = f32::from_bits(magnitude) + f32::from_bits(anchor);
    let subnormal = anchored.to_bits().wrapping_sub(anchor);
    let rounded = if magnitude < smallest_normal { subnormal } else { normal };
    let limited = if rounded > F::LARGEST { F::LARGEST } else { rounded };
    if magnitude > INFINITY_32 { F::NAN } else { limited | sign }
}

/// The number with these bits of bfloat16.
#[inline(always)]
pub(crate) fn widen_brain(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The bits of the bfloat16 nearest to `value`. Integer arithmetic, because the instruction for it
/// flushes subnormals.
#[inline(always)]
pub(crate) fn narrow_brain(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { Brain::NAN as u16 } else { rounded as u16 }
}

/// The same number, or the one NaN.
#[inline(always)]
pub(crate) fn canonical_32(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(NAN_32) } else { value }
}

/// The same number, or the one NaN.
#[inline(always)]
pub(crate) fn canonical_64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(NAN_64) } else { value }
}
