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
    let visible = if to.bits < from.bits { to } else { from };
    typed!(visible, extend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::random::Random;

    fn of(name: &str) -> Type {
        Type::parse(name).expect("a type")
    }

    /// All bits of a value.
    fn mask(of: Type) -> u64 {
        u64::MAX >> (64 - of.bits)
    }

    fn lanes(random: &mut Random) -> Lanes {
        std::array::from_fn(|_| match random.below(4) {
            0 => random.pick(&[0, 1, u64::MAX, 1 << 31, 1 << 63, 0x7fff_ffff, 1 << 15, 0x80]),
            1 => random.below(70),
            _ => random.number(),
        })
    }

    /// Sign- or zero-extended as the type says.
    fn value(of: Type, lane: u64) -> i128 {
        let shift = 128 - of.bits;
        let top = i128::from(lane) << shift;
        if of.is_signed() { top >> shift } else { (top as u128 >> shift) as i128 }
    }

    /// Every operation, for every type, against 128-bit arithmetic written another way.
    #[test]
    fn two_operands() {
        let mut random = Random::new(1);
        let expected = |parts: &[&str], of: Type, a: i128, b: i128| -> i128 {
            let bits = of.bits as i128;
            match parts.join(".").as_str() {
                "add" => a + b,
                "sub" => a - b,
                "mul.lo" | "mul.wide" => a.wrapping_mul(b),
                "mul.hi" => a.wrapping_mul(b) >> bits,
                "div" => a.checked_div(b).unwrap_or(-1),
                "rem" => a.checked_rem(b).unwrap_or(a),
                "min" => a.min(b),
                "max" => a.max(b),
                "and" => a & b,
                "or" => a | b,
                "xor" => a ^ b,
                other => panic!("{other}"),
            }
        };
        let names: [&[&str]; 12] = [
            &["add"],
            &["sub"],
            &["mul", "lo"],
            &["mul", "wide"],
            &["mul", "hi"],
            &["div"],
            &["rem"],
            &["min"],
            &["max"],
            &["and"],
            &["or"],
            &["xor"],
        ];
        for parts in names {
            for of in ["s16", "u16", "s32", "u32", "s64", "u64"].map(of) {
                let Some(apply) = binary(parts, of) else {
                    assert_eq!((parts, of.bits), (&["mul", "wide"][..], 64));
                    continue;
                };
                let wide = if parts.contains(&"wide") { of.bits * 2 } else { of.bits };
                for _ in 0..100 {
                    let (a, b) = (lanes(&mut random), lanes(&mut random));
                    let mut out = [0; 32];
                    apply(&mut out, &a, &b);
                    for lane in 0..32 {
                        let want = expected(parts, of, value(of, a[lane]), value(of, b[lane]));
                        let mask = u64::MAX >> (64 - wide);
                        assert_eq!(out[lane] & mask, want as u64 & mask, "{parts:?} {of:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn shifts_saturate() {
        let mut random = Random::new(2);
        for of in ["s16", "u16", "s32", "u32", "s64", "u64"].map(of) {
            for _ in 0..100 {
                let (a, count) = (lanes(&mut random), lanes(&mut random));
                let (mut left, mut right) = ([0; 32], [0; 32]);
                binary(&["shl"], of).expect("shl")(&mut left, &a, &count);
                binary(&["shr"], of).expect("shr")(&mut right, &a, &count);
                for lane in 0..32 {
                    let count = (count[lane] as u32).min(64);
                    let value = value(of, a[lane]);
                    let mask = mask(of);
                    assert_eq!(left[lane] & mask, (value << count) as u64 & mask);
                    assert_eq!(right[lane] & mask, (value >> count) as u64 & mask);
                }
            }
        }
    }

    #[test]
    fn comparisons() {
        let mut random = Random::new(3);
        for of in ["s16", "u16", "s32", "u32", "s64", "u64", "b32"].map(of) {
            for _ in 0..50 {
                let (a, b) = (lanes(&mut random), lanes(&mut random));
                for (name, holds) in [
                    ("eq", [false, true, false]),
                    ("ne", [true, false, true]),
                    ("lt", [true, false, false]),
                    ("le", [true, true, false]),
                    ("gt", [false, false, true]),
                    ("ge", [false, true, true]),
                ] {
                    let mut out = [0; 32];
                    compare(name, of).expect(name)(&mut out, &a, &b);
                    for lane in 0..32 {
                        let order = value(of, a[lane]).cmp(&value(of, b[lane])) as i8 + 1;
                        assert_eq!(out[lane] != 0, holds[order as usize], "{name} {of:?}");
                    }
                }
            }
        }
    }

    fn one(apply: Ternary, a: u64, b: u64, c: u64) -> u64 {
        let mut out = [0; 32];
        apply(&mut out, &[a; 32], &[b; 32], &[c; 32]);
        out[31]
    }

    #[test]
    fn fields_and_permutations() {
        let field = |name, a: u64, position, length| {
            one(ternary(&["bfe"], of(name)).expect("bfe"), a, position, length) & mask(of(name))
        };
        assert_eq!(field("u32", 0xabcd_1234, 8, 12), 0xd12);
        assert_eq!(field("s32", 0xabcd_1234, 8, 12), 0xffff_fd12);
        assert_eq!(field("s32", 0xabcd_1234, 8, 13), 0xd12);
        assert_eq!(field("s32", 0xabcd_1234, 28, 12), 0xffff_fffa);
        assert_eq!(field("u32", 0xabcd_1234, 28, 12), 0xa);
        assert_eq!(field("u32", 0xabcd_1234, 40, 4), 0);
        assert_eq!(field("s64", 1 << 63, 63, 1), u64::MAX);
        assert_eq!(field("s32", 0x8000_0000, 3, 0), 0);
        let insert = |name, a: u64, b: u64, position: u64, length: u64| {
            let mut out = [0; 32];
            let apply = quaternary(&["bfi"], of(name)).expect("bfi");
            apply(&mut out, &[a; 32], &[b; 32], &[position; 32], &[length; 32]);
            out[0]
        };
        assert_eq!(insert("b32", 0xff, 0, 4, 8), 0xff0);
        assert_eq!(insert("b32", 0xff, 0x1111_1111, 28, 8), 0xf111_1111);
        assert_eq!(insert("b64", 0xff, u64::MAX, 56, 4), 0xffff_ffff_ffff_ffff);
        assert_eq!(insert("b64", 0, u64::MAX, 0, 64), 0);
        assert_eq!(insert("b32", 0xff, 7, 32, 8), 7);
        let permute = ternary(&["prmt"], of("b32")).expect("prmt");
        assert_eq!(one(permute, 0x3322_1100, 0x7766_5544, 0x7410), 0x7744_1100);
        assert_eq!(one(permute, 0x8000_0080, 0, 0x0c8b), 0x8000_ffff & 0xff_ffff | 0x8000_0000);
        let shift = ternary(&["shf", "l", "wrap"], of("b32")).expect("shf");
        assert_eq!(one(shift, 0xaabb_ccdd, 0x1122_3344, 40) & 0xffff_ffff, 0x2233_44aa);
        let dot = ternary(&["dp4a", "s32"], of("s32")).expect("dp4a");
        assert_eq!(one(dot, 0x0102_03ff, 0x0101_0102, 10) as u32, 14);
        let mut out = [0; 32];
        let logic = quaternary(&["lop3"], of("b32")).expect("lop3");
        logic(&mut out, &[0b1100; 32], &[0b1010; 32], &[0b1001; 32], &[0x96; 32]);
        assert_eq!(out[0], 0b1111, "the parity of three bits");
    }

    #[test]
    fn counts_of_bits() {
        let one = |parts: &[&str], name, a: u64| {
            let mut out = [0; 32];
            unary(parts, of(name)).expect("known")(&mut out, &[a; 32]);
            out[5] & 0xffff_ffff
        };
        assert_eq!(one(&["popc"], "b32", 0xffff_ffff_0000_0101), 2);
        assert_eq!(one(&["clz"], "b32", 0x10), 27);
        assert_eq!(one(&["clz"], "b64", 0x10), 59);
        assert_eq!(one(&["brev"], "b32", 1), 0x8000_0000);
        assert_eq!(one(&["bfind"], "u32", 0x10), 4);
        assert_eq!(one(&["bfind"], "s32", 0xffff_ffff), 0xffff_ffff);
        assert_eq!(one(&["bfind", "shiftamt"], "u32", 0x10), 27);
        assert_eq!(one(&["abs"], "s32", 0xffff_ffff), 1);
        assert_eq!(one(&["neg"], "s32", 1), 0xffff_ffff);
        assert_eq!(one(&["not"], "b32", 1), 0xffff_fffe);
    }

    #[test]
    fn integer_conversions() {
        let mut random = Random::new(4);
        let types = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"].map(of);
        for to in types {
            for from in types {
                let a = lanes(&mut random);
                let mut out = [0; 32];
                convert(to, from).expect("integers")(&mut out, &a);
                for lane in 0..32 {
                    let want = value(from, a[lane]) as u64 & mask(to);
                    assert_eq!(out[lane] & mask(to), want, "{to:?} from {from:?}");
                }
            }
        }
    }
}
