//! Arithmetic on `f32` and `f64`.
//!
//! A NaN of 32 bits is always `0x7fffffff`, as the instructions of GPUs give it. Subnormal numbers
//! are numbers: kernels that flush them are refused.

use num_traits::Float;

use super::format::{Format, Rounding};
use super::{Binary, Lanes, Ternary, Unary, lanewise};
use crate::types::Type;

/// A float type of an instruction.
trait Real: Float {
    fn of(lane: u64) -> Self;
    fn lane(self) -> u64;
}

impl Real for f32 {
    fn of(lane: u64) -> Self {
        Self::from_bits(lane as u32)
    }

    fn lane(self) -> u64 {
        if self.is_nan() { 0x7fff_ffff } else { u64::from(self.to_bits()) }
    }
}

impl Real for f64 {
    fn of(lane: u64) -> Self {
        Self::from_bits(lane)
    }

    fn lane(self) -> u64 {
        self.to_bits()
    }
}

/// The instance of a generic function for a type.
macro_rules! typed {
    ($type:expr, $function:ident) => {
        match () {
            () if $type.is_float(32) => Some($function::<f32>),
            () if $type.is_float(64) => Some($function::<f64>),
            () => None,
        }
    };
}

/// Defines functions of lanes that are generic in their type.
macro_rules! generic {
    ($($name:ident = |$($input:ident),+| $result:expr;)*) => {
        $(fn $name<T: Real>(out: &mut Lanes, $($input: &Lanes),+) {
            for lane in 0..super::WIDTH {
                $(let $input = T::of($input[lane]);)+
                out[lane] = $result.lane();
            }
        })*
    };
}

generic! {
    add = |a, b| a + b;
    sub = |a, b| a - b;
    mul = |a, b| a * b;
    div = |a, b| a / b;
    min = |a, b| lower(a, b);
    max = |a, b| -lower(-a, -b);
    min_nan = |a, b| if a.is_nan() || b.is_nan() { T::nan() } else { lower(a, b) };
    max_nan = |a, b| if a.is_nan() || b.is_nan() { T::nan() } else { -lower(-a, -b) };
    fma = |a, b, c| a.mul_add(b, c);
    sqrt = |a| a.sqrt();
    reciprocal = |a| a.recip();
    neg = |a| -a;
    abs = |a| a.abs();
    copysign = |sign, a| a.copysign(sign);
}

/// Defines comparisons that are generic in their type.
macro_rules! comparisons {
    ($($name:ident = |$a:ident, $b:ident| $result:expr;)*) => {
        $(fn $name<T: Real>(out: &mut Lanes, a: &Lanes, b: &Lanes) {
            for lane in 0..super::WIDTH {
                let ($a, $b) = (T::of(a[lane]), T::of(b[lane]));
                out[lane] = u64::from($result);
            }
        })*
    };
}

comparisons! {
    eq = |a, b| a == b;
    ne = |a, b| a != b && !unordered(a, b);
    lt = |a, b| a < b;
    le = |a, b| a <= b;
    gt = |a, b| a > b;
    ge = |a, b| a >= b;
    equ = |a, b| a == b || unordered(a, b);
    neu = |a, b| a != b;
    ltu = |a, b| a < b || unordered(a, b);
    leu = |a, b| a <= b || unordered(a, b);
    gtu = |a, b| a > b || unordered(a, b);
    geu = |a, b| a >= b || unordered(a, b);
    num = |a, b| !unordered(a, b);
    nan = |a, b| unordered(a, b);
}

fn unordered<T: Real>(a: T, b: T) -> bool {
    a.is_nan() || b.is_nan()
}

/// The smaller of two; of a number and a NaN the number, of two zeros the negative one.
fn lower<T: Real>(a: T, b: T) -> T {
    match () {
        () if a.is_nan() => b,
        () if b.is_nan() || a < b => a,
        () if a == b && a.is_sign_negative() => a,
        () => b,
    }
}

/// A function with a rounding other than to the nearest, from its value rounded to odd in 64 bits.
macro_rules! directed {
    ($rounding:expr, |$($input:ident),+| $value:expr) => {
        Some(match $rounding {
            Rounding::Zero => lanewise!(|$($input),+| narrow({
                $(let $input = f64::from(f32::of($input));)+ $value
            }, Rounding::Zero)),
            Rounding::Down => lanewise!(|$($input),+| narrow({
                $(let $input = f64::from(f32::of($input));)+ $value
            }, Rounding::Down)),
            Rounding::Up => lanewise!(|$($input),+| narrow({
                $(let $input = f64::from(f32::of($input));)+ $value
            }, Rounding::Up)),
            Rounding::NearestEven | Rounding::NearestAway => return None,
        })
    };
}

fn narrow(value: f64, rounding: Rounding) -> u64 {
    Format::BINARY32.round(value, rounding, false)
}

/// The sum, rounded to odd: inexact sums end with a one, so that rounding again sees them.
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let of_b = sum - a;
    let error = (a - (sum - of_b)) + (b - of_b);
    to_odd(sum, error)
}

/// The same where it is rounded down afterwards: a zero that comes of anything but positive zeros is negative.
fn sum_to_odd_for_down(a: f64, b: f64) -> f64 {
    let is_negative = a.is_sign_negative() || b.is_sign_negative();
    let sum = sum_to_odd(a, b);
    if sum == 0.0 && is_negative { -0.0 } else { sum }
}

/// `value + error`, rounded to odd, for an error below half a unit of the value.
fn to_odd(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    match () {
        () if error == 0.0 || !error.is_finite() || bits & 1 != 0 => value,
        () if (error > 0.0) == (value > 0.0) => f64::from_bits(bits + 1),
        () => f64::from_bits(bits - 1),
    }
}

fn quotient_to_odd(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a);
    to_odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// Splits `["add", "rz"]` into a name and a rounding; the nearest if none is given.
fn rounded<'a>(parts: &[&'a str]) -> Option<(&'a str, Rounding)> {
    match parts {
        [name] => Some((name, Rounding::NearestEven)),
        [name, rounding] => Some((name, Rounding::parse(rounding)?)),
        _ => None,
    }
}

/// `add.rn.f32` and its like: `parts` is the opcode without its type.
pub(crate) fn binary(parts: &[&str], of: Type) -> Option<Binary> {
    match parts {
        ["min"] => return typed!(of, min),
        ["max"] => return typed!(of, max),
        ["min", "NaN"] => return typed!(of, min_nan),
        ["max", "NaN"] => return typed!(of, max_nan),
        ["copysign"] => return typed!(of, copysign),
        _ => {}
    }
    let (name, rounding) = rounded(parts)?;
    match (name, rounding) {
        ("add", Rounding::NearestEven) => typed!(of, add),
        ("sub", Rounding::NearestEven) => typed!(of, sub),
        ("mul", Rounding::NearestEven) => typed!(of, mul),
        ("div", Rounding::NearestEven) => typed!(of, div),
        _ if !of.is_float(32) => None,
        ("add", Rounding::Down) => directed!(rounding, |a, b| sum_to_odd_for_down(a, b)),
        ("sub", Rounding::Down) => directed!(rounding, |a, b| sum_to_odd_for_down(a, -b)),
        ("add", _) => directed!(rounding, |a, b| sum_to_odd(a, b)),
        ("sub", _) => directed!(rounding, |a, b| sum_to_odd(a, -b)),
        ("mul", _) => directed!(rounding, |a, b| a * b),
        ("div", _) => directed!(rounding, |a, b| quotient_to_odd(a, b)),
        _ => None,
    }
}

/// Instructions of one operand.
pub(crate) fn unary(parts: &[&str], of: Type) -> Option<Unary> {
    match parts {
        ["neg"] => typed!(of, neg),
        ["abs"] => typed!(of, abs),
        ["sqrt", "rn"] => typed!(of, sqrt),
        ["rcp", "rn"] => typed!(of, reciprocal),
        _ => None,
    }
}

/// Instructions of three operands.
pub(crate) fn ternary(parts: &[&str], of: Type) -> Option<Ternary> {
    match rounded(parts)? {
        ("fma", Rounding::NearestEven) => typed!(of, fma),
        ("fma", Rounding::Down) if of.is_float(32) => {
            directed!(Rounding::Down, |a, b, c| sum_to_odd_for_down(a * b, c))
        }
        ("fma", rounding) if of.is_float(32) => {
            directed!(rounding, |a, b, c| sum_to_odd(a * b, c))
        }
        _ => None,
    }
}

/// `setp.lt.f32` and its like.
pub(crate) fn compare(name: &str, of: Type) -> Option<Binary> {
    match name {
        "eq" => typed!(of, eq),
        "ne" => typed!(of, ne),
        "lt" => typed!(of, lt),
        "le" => typed!(of, le),
        "gt" => typed!(of, gt),
        "ge" => typed!(of, ge),
        "equ" => typed!(of, equ),
        "neu" => typed!(of, neu),
        "ltu" => typed!(of, ltu),
        "leu" => typed!(of, leu),
        "gtu" => typed!(of, gtu),
        "geu" => typed!(of, geu),
        "num" => typed!(of, num),
        "nan" => typed!(of, nan),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::random::Random;

    fn of(name: &str) -> Type {
        Type::parse(name).expect("a type")
    }

    fn two(parts: &[&str], name: &str, a: u64, b: u64) -> u64 {
        let mut out = [0; 32];
        binary(parts, of(name)).expect("known")(&mut out, &[a; 32], &[b; 32]);
        out[17]
    }

    const NAN: u32 = 0x7fff_ffff;

    #[test]
    fn nans_and_zeros() {
        let single = |parts: &[&str], a: f32, b: f32| {
            two(parts, "f32", a.to_bits().into(), b.to_bits().into()) as u32
        };
        assert_eq!(single(&["add", "rn"], f32::INFINITY, f32::NEG_INFINITY), NAN);
        assert_eq!(single(&["min"], f32::NAN, 1.0), 1.0f32.to_bits());
        assert_eq!(single(&["max"], 1.0, f32::NAN), 1.0f32.to_bits());
        assert_eq!(single(&["min"], f32::NAN, f32::NAN), NAN);
        assert_eq!(single(&["min", "NaN"], 1.0, f32::NAN), NAN);
        assert_eq!(single(&["max", "NaN"], f32::NAN, 1.0), NAN);
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            assert_eq!(single(&["min"], a, b), (-0.0f32).to_bits());
            assert_eq!(single(&["max"], a, b), 0.0f32.to_bits());
        }
        let subnormal = f32::from_bits(3);
        assert_eq!(single(&["add"], subnormal, subnormal), 6, "nothing is flushed");
    }

    #[test]
    fn comparisons_know_nans() {
        for (name, ordered, with_nan) in [
            ("eq", [false, true, false], false),
            ("ne", [true, false, true], false),
            ("lt", [true, false, false], false),
            ("le", [true, true, false], false),
            ("gt", [false, false, true], false),
            ("ge", [false, true, true], false),
            ("equ", [false, true, false], true),
            ("neu", [true, false, true], true),
            ("ltu", [true, false, false], true),
            ("leu", [true, true, false], true),
            ("gtu", [false, false, true], true),
            ("geu", [false, true, true], true),
            ("num", [true, true, true], false),
            ("nan", [false, false, false], true),
        ] {
            let holds = |a: f64, b: f64| {
                let mut out = [0; 32];
                let apply = compare(name, of("f64")).expect(name);
                apply(&mut out, &[a.to_bits(); 32], &[b.to_bits(); 32]);
                out[0] != 0
            };
            assert_eq!([holds(1.0, 2.0), holds(2.0, 2.0), holds(3.0, 2.0)], ordered, "{name}");
            assert_eq!(holds(f64::NAN, 1.0), with_nan, "{name}");
            assert_eq!(holds(1.0, f64::NAN), with_nan, "{name}");
        }
    }

    /// Rounded down is below, rounded up is above, and both are the nearest or its neighbour.
    #[test]
    fn directed_roundings_enclose() {
        let mut random = Random::new(8);
        let value = |bits: u64| f64::from(f32::from_bits(bits as u32));
        for _ in 0..200_000 {
            let (a, b) = (random.number() & 0xffff_ffff, random.number() & 0xffff_ffff);
            let b = if random.percent(50) { b & !0x7f80_0000 | a & 0x7f80_0000 } else { b };
            for name in ["add", "sub", "mul", "div"] {
                let of = |rounding| two(&[name, rounding], "f32", a, b);
                let near = value(of("rn"));
                if !near.is_finite() {
                    continue;
                }
                let (down, up, zero) = (value(of("rm")), value(of("rp")), value(of("rz")));
                assert!(down <= near && near <= up && (near == down || near == up), "{name}");
                assert_eq!(zero.abs(), down.abs().min(up.abs()), "{name} {a:x} {b:x}");
                let neighbours = of("rm") == of("rp")
                    || of("rm").abs_diff(of("rp")) == 1
                    || down == 0.0 && up.abs() == value(1)
                    || up == 0.0 && down.abs() == value(1);
                assert!(neighbours, "{name} {a:x} {b:x}");
            }
        }
    }

    #[test]
    fn zeros_that_are_rounded_down_are_negative() {
        let [one, zero, negative] = [1.0f32, 0.0, -0.0].map(|value| u64::from(value.to_bits()));
        assert_eq!(two(&["sub", "rm"], "f32", one, one), negative);
        assert_eq!(two(&["add", "rm"], "f32", zero, negative), negative);
        assert_eq!(two(&["add", "rm"], "f32", zero, zero), zero);
        assert_eq!(two(&["sub", "rz"], "f32", one, one), zero);
        assert_eq!(two(&["sub", "rp"], "f32", one, one), zero);
        let mut out = [0; 32];
        let fma = ternary(&["fma", "rm"], of("f32")).expect("fma");
        let minus = u64::from((-1.0f32).to_bits());
        fma(&mut out, &[one; 32], &[one; 32], &[minus; 32]);
        assert_eq!(out[0], negative);
    }

    #[test]
    fn a_tiny_part_is_not_lost() {
        let one = u64::from(1.0f32.to_bits());
        let tiny = u64::from(1e-38f32.to_bits());
        assert_eq!(two(&["add", "rp"], "f32", one, tiny), one + 1);
        assert_eq!(two(&["sub", "rz"], "f32", one, tiny), one - 1);
        assert_eq!(two(&["sub", "rn"], "f32", one, tiny), one);
        let mut out = [0; 32];
        let fma = ternary(&["fma", "rn"], of("f32")).expect("fma");
        let third = 1.0f32 / 3.0;
        let bits = |value: f32| [u64::from(value.to_bits()); 32];
        fma(&mut out, &bits(third), &bits(3.0), &bits(-1.0));
        assert_ne!(out[0], 0, "rounded once");
    }
}
