//! Integers and bits.

use num_traits::{AsPrimitive, PrimInt, WrappingAdd, WrappingMul, WrappingSub};

use super::{Binary, Lanes, Quaternary, Ternary, Unary, lanewise};
use crate::types::{Kind, Type};

/// An integer type of an instruction.
trait Word:
    PrimInt + WrappingAdd + WrappingSub + WrappingMul + AsPrimitive<u64> + AsPrimitive<i128>
{
    const BITS: u32;
    const SIGNED: bool;

    /// The value of a lane.
    fn of(lane: u64) -> Self;
}

macro_rules! words {
    ($($type:ty)*) => {
        $(impl Word for $type {
            const BITS: u32 = Self::BITS;
            const SIGNED: bool = Self::MIN != 0;

            fn of(lane: u64) -> Self {
                lane as Self
            }
        })*
    };
}
words!(i8 u8 i16 u16 i32 u32 i64 u64);

/// The instance of a generic function for a type; plain bits count as unsigned.
macro_rules! typed {
    ($type:expr, $function:ident) => {
        Some(match ($type.kind == Kind::Signed, $type.bits) {
            (true, 8) => $function::<i8>,
            (true, 16) => $function::<i16>,
            (true, 32) => $function::<i32>,
            (true, 64) => $function::<i64>,
            (false, 8) => $function::<u8>,
            (false, 16) => $function::<u16>,
            (false, 32) => $function::<u32>,
            (false, 64) => $function::<u64>,
            _ => return None,
        })
    };
}

/// Defines functions of lanes that are generic in their type.
macro_rules! generic {
    ($($name:ident = |$($input:ident),+| $result:expr;)*) => {
        $(fn $name<T: Word>(out: &mut Lanes, $($input: &Lanes),+) {
            for lane in 0..super::WIDTH {
                $(let $input = T::of($input[lane]);)+
                let result = $result;
                out[lane] = result.as_();
            }
        })*
    };
}

generic! {
    add = |a, b| a.wrapping_add(&b);
    sub = |a, b| a.wrapping_sub(&b);
    mul = |a, b| a.wrapping_mul(&b);
    div = |a, b| quotient(a, b);
    rem = |a, b| remainder(a, b);
    min = |a, b| a.min(b);
    max = |a, b| a.max(b);
    and = |a, b| a & b;
    or = |a, b| a | b;
    xor = |a, b| a ^ b;
    not = |a| !a;
    neg = |a| T::zero().wrapping_sub(&a);
    abs = |a| if a < T::zero() { T::zero().wrapping_sub(&a) } else { a };
    mad = |a, b, c| a.wrapping_mul(&b).wrapping_add(&c);
    mul_wide = |a, b| wide(a, b);
    mul_high = |a, b| wide(a, b) >> T::BITS;
    eq = |a, b| u64::from(a == b);
    ne = |a, b| u64::from(a != b);
    lt = |a, b| u64::from(a < b);
    le = |a, b| u64::from(a <= b);
    gt = |a, b| u64::from(a > b);
    ge = |a, b| u64::from(a >= b);
    population = |a| u64::from(a.count_ones());
    leading_zeros = |a| u64::from(a.leading_zeros());
}

/// The addend of a widening multiplication has twice the bits of the factors.
fn mul_wide_add<T: Word>(out: &mut Lanes, a: &Lanes, b: &Lanes, c: &Lanes) {
    mul_wide::<T>(out, a, b);
    for lane in 0..super::WIDTH {
        out[lane] = out[lane].wrapping_add(c[lane]);
    }
}

fn mul_high_add<T: Word>(out: &mut Lanes, a: &Lanes, b: &Lanes, c: &Lanes) {
    mul_high::<T>(out, a, b);
    for lane in 0..super::WIDTH {
        out[lane] = out[lane].wrapping_add(c[lane]);
    }
}

/// The product modulo 2^128, of which the low 64 bits are read.
fn wide<T: Word>(a: T, b: T) -> i128 {
    let (a, b): (i128, i128) = (a.as_(), b.as_());
    a.wrapping_mul(b)
}

/// Division by zero gives all ones; the smallest number divided by -1 is itself.
fn quotient<T: Word>(a: T, b: T) -> T {
    if b == T::zero() {
        return !T::zero();
    }
    let minus_one = T::zero().wrapping_sub(&T::one());
    if T::SIGNED && b == minus_one { T::zero().wrapping_sub(&a) } else { a / b }
}

fn remainder<T: Word>(a: T, b: T) -> T {
    let minus_one = T::zero().wrapping_sub(&T::one());
    match () {
        () if b == T::zero() => a,
        () if T::SIGNED && b == minus_one => T::zero(),
        () => a % b,
    }
}

/// Shift counts are 32 bits and saturate.
fn shl<T: Word>(out: &mut Lanes, a: &Lanes, count: &Lanes) {
    for lane in 0..super::WIDTH {
        let count = count[lane] as u32;
        let shifted = T::of(a[lane] << (count & 63));
        out[lane] = if count >= T::BITS { 0 } else { shifted.as_() };
    }
}

fn shr<T: Word>(out: &mut Lanes, a: &Lanes, count: &Lanes) {
    for lane in 0..super::WIDTH {
        let count = count[lane] as u32;
        let shifted = T::of(a[lane]) >> (count.min(T::BITS - 1) as usize);
        out[lane] = if count >= T::BITS && !T::SIGNED { 0 } else { shifted.as_() };
    }
}

/// A bit field, sign-extended where the type is signed. Position and length are a byte each.
fn bfe<T: Word>(out: &mut Lanes, a: &Lanes, position: &Lanes, length: &Lanes) {
    for lane in 0..super::WIDTH {
        let (position, length) = (position[lane] as u8, length[lane] as u8);
        let value: i128 = T::of(a[lane]).as_();
        let above = value >> position.min(127);
        let field = above & ((1i128 << length.min(100)) - 1);
        // Above the highest bit of the source the field has its sign.
        let top = (u32::from(position) + u32::from(length)).saturating_sub(1).min(T::BITS - 1);
        let negative = T::SIGNED && length > 0 && (value >> top) & 1 != 0;
        let fill = if negative { -1i128 << length.min(100) } else { 0 };
        out[lane] = if length == 0 { 0 } else { (field | fill) as u64 };
    }
}

fn bfi<T: Word>(out: &mut Lanes, a: &Lanes, b: &Lanes, position: &Lanes, length: &Lanes) {
    for lane in 0..super::WIDTH {
        let (position, length) = (u32::from(position[lane] as u8), u32::from(length[lane] as u8));
        let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
        let inserted = position < T::BITS && length > 0;
        let mask = if inserted { ones << (position & 63) } else { 0 };
        let value = (b[lane] & !mask) | (a[lane] << (position & 63) & mask);
        out[lane] = T::of(value).as_();
    }
}

/// The position of the highest bit that differs from the sign, or all ones if there is none.
fn bfind<T: Word>(out: &mut Lanes, a: &Lanes) {
    for lane in 0..super::WIDTH {
        let value = T::of(a[lane]);
        let value = if value < T::zero() { !value } else { value };
        let zeros = value.leading_zeros();
        out[lane] = if zeros == T::BITS { 0xffff_ffff } else { u64::from(T::BITS - 1 - zeros) };
    }
}

/// How far to shift that bit to the top.
fn bfind_shift<T: Word>(out: &mut Lanes, a: &Lanes) {
    bfind::<T>(out, a);
    for lane in out {
        if *lane != 0xffff_ffff {
            *lane = u64::from(T::BITS - 1) - *lane;
        }
    }
}

fn reverse<T: Word>(out: &mut Lanes, a: &Lanes) {
    for lane in 0..super::WIDTH {
        out[lane] = a[lane].reverse_bits() >> (64 - T::BITS);
    }
}

/// Bytes chosen from eight; the highest bit of a selector replicates the byte's sign.
fn permute(a: u64, b: u64, selectors: u64) -> u64 {
    let bytes = (a & 0xffff_ffff) | b << 32;
    (0..4).fold(0, |result, index| {
        let selector = selectors >> (4 * index);
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result | u64::from(byte) << (8 * index)
    })
}

/// One of the 256 functions of three bits.
fn any_logic(a: u64, b: u64, c: u64, table: u64) -> u64 {
    (0..8u32).filter(|index| table >> index & 1 != 0).fold(0, |result, index| {
        let choose = |value: u64, bit: u32| if index >> bit & 1 != 0 { value } else { !value };
        result | (choose(a, 2) & choose(b, 1) & choose(c, 0))
    })
}

fn dot_product(signed: bool, a: u64, b: u64, c: u64) -> u64 {
    (0..4).fold(c, |sum, index| {
        let byte = |word: u64| {
            let byte = (word >> (8 * index)) as u8;
            if signed { i64::from(byte as i8) } else { i64::from(byte) }
        };
        sum.wrapping_add((byte(a) * byte(b)) as u64)
    })
}

/// `add.s32` and its like: `parts` is the opcode without its type.
pub(crate) fn binary(parts: &[&str], of: Type) -> Option<Binary> {
    if !of.is_integer() {
        return None;
    }
    let narrow = of.bits <= 32;
    match parts {
        ["add"] => typed!(of, add),
        ["sub"] => typed!(of, sub),
        ["mul", "lo"] => typed!(of, mul),
        ["mul", "hi"] => typed!(of, mul_high),
        ["mul", "wide"] if narrow => typed!(of, mul_wide),
        ["div"] => typed!(of, div),
        ["rem"] => typed!(of, rem),
        ["min"] => typed!(of, min),
        ["max"] => typed!(of, max),
        ["and"] => typed!(of, and),
        ["or"] => typed!(of, or),
        ["xor"] => typed!(of, xor),
        ["shl"] => typed!(of, shl),
        ["shr"] => typed!(of, shr),
        _ => None,
    }
}

/// `setp.lt.s32` and its like.
pub(crate) fn compare(name: &str, of: Type) -> Option<Binary> {
    if !of.is_integer() {
        return None;
    }
    match name {
        "eq" => typed!(of, eq),
        "ne" => typed!(of, ne),
        "lt" | "lo" => typed!(of, lt),
        "le" | "ls" => typed!(of, le),
        "gt" | "hi" => typed!(of, gt),
        "ge" | "hs" => typed!(of, ge),
        _ => None,
    }
}

/// Instructions of one operand.
pub(crate) fn unary(parts: &[&str], of: Type) -> Option<Unary> {
    if !of.is_integer() {
        return None;
    }
    match parts {
        ["not"] => typed!(of, not),
        ["neg"] => typed!(of, neg),
        ["abs"] => typed!(of, abs),
        ["popc"] => typed!(of, population),
        ["clz"] => typed!(of, leading_zeros),
        ["brev"] => typed!(of, reverse),
        ["bfind"] => typed!(of, bfind),
        ["bfind", "shiftamt"] => typed!(of, bfind_shift),
        _ => None,
    }
}

/// Instructions of three operands.
pub(crate) fn ternary(parts: &[&str], of: Type) -> Option<Ternary> {
    if !of.is_integer() {
        return None;
    }
    match parts {
        ["mad", "lo"] => typed!(of, mad),
        ["mad", "wide"] if of.bits <= 32 => typed!(of, mul_wide_add),
        ["mad", "hi"] => typed!(of, mul_high_add),
        ["bfe"] => typed!(of, bfe),
        ["prmt"] if of.bits == 32 => Some(lanewise!(|a, b, c| permute(a, b, c))),
        ["shf", "l", "wrap"] if of.bits == 32 => {
            Some(lanewise!(|a, b, c| ((b << 32 | a & 0xffff_ffff) << (c & 31)) >> 32))
        }
        ["shf", "r", "wrap"] if of.bits == 32 => {
            Some(lanewise!(|a, b, c| (b << 32 | a & 0xffff_ffff) >> (c & 31)))
        }
        ["dp4a", "s32"] if of.is_signed() => Some(lanewise!(|a, b, c| dot_product(true, a, b, c))),
        ["dp4a", "u32"] if !of.is_signed() => {
            Some(lanewise!(|a, b, c| dot_product(false, a, b, c)))
        }
        _ => None,
    }
}

/// Instructions of four operands.
pub(crate) fn quaternary(parts: &[&str], of: Type) -> Option<Quaternary> {
    match parts {
        ["bfi"] => typed!(of, bfi),
        ["lop3"] if of.bits == 32 => Some(lanewise!(|a, b, c, table| any_logic(a, b, c, table))),
        _ => None,
    }
}

/// The conversion between two integer types: extended as the source, cut as the target.
pub(crate) fn convert(to: Type, from: Type) -> Option<Unary> {
    fn extend<T: Word>(out: &mut Lanes, a: &Lanes) {
        for lane in 0..super::WIDTH {
            out[lane] = T::of(a[lane]).as_();
        }
    }
    if !to.is_integer() || !from.is_integer() {
        return None;
    }
    // A cut value is extended as its new type says, because its register may be wider.
    let visible = if to.bits <= from.bits { to } else { from };
    typed!(visible, extend)
}

#[cfg(test)]
mod tests;
