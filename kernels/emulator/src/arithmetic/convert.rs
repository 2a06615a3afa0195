//! The instruction `cvt`.
//!
//! Conversions between integers are simple functions. All others go through the exact value and
//! round once, so one piece of code says what every format and rounding does.

use super::format::{Exact, Format, Rounding};
use super::{Lanes, Unary, WIDTH, integer};
use crate::types::{Kind, Type};

/// A `cvt` that is more than a cut or an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    to: Type,
    from: Type,
    rounding: Rounding,
    /// `rni`, `rzi`, `rmi` or `rpi`: to an integral value.
    integral: Option<Rounding>,
    /// `sat`: to 0 to 1 for floats, to the range of the type for integers.
    saturate: bool,
    /// `satfinite`: the largest number instead of an infinity.
    finite: bool,
    /// `relu`: nothing below zero.
    relu: bool,
}

/// What a `cvt` is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decoded {
    Simple(Unary),
    Rounding(Conversion),
}

/// `cvt` with these parts after its name. `sources` are its operands, two where a pair is packed.
pub(crate) fn decode(parts: &[&str], sources: usize) -> Option<Decoded> {
    let (modifiers, types) = parts.split_at_checked(parts.len().checked_sub(2)?)?;
    let (to, from) = (Type::parse(types[0])?, Type::parse(types[1])?);
    let mut conversion = Conversion {
        to,
        from,
        rounding: Rounding::NearestEven,
        integral: None,
        saturate: false,
        finite: false,
        relu: false,
    };
    for modifier in modifiers {
        match *modifier {
            "sat" => conversion.saturate = true,
            "satfinite" => conversion.finite = true,
            "relu" => conversion.relu = true,
            _ => match modifier.strip_suffix('i').and_then(Rounding::parse) {
                Some(rounding) => conversion.integral = Some(rounding),
                None => conversion.rounding = Rounding::parse(modifier)?,
            },
        }
    }
    let between_integers = to.is_integer() && from.is_integer();
    if between_integers && modifiers.is_empty() {
        return integer::convert(to, from).map(Decoded::Simple);
    }
    conversion.is_known(sources).then_some(Decoded::Rounding(conversion))
}

/// The format of a float type.
fn format(of: Type) -> Option<Format> {
    match (of.kind, of.bits) {
        (Kind::Float, 16) => Some(Format::BINARY16),
        (Kind::Float, 32) => Some(Format::BINARY32),
        (Kind::Float, 64) => Some(Format::BINARY64),
        (Kind::Bfloat, 16) => Some(Format::BFLOAT16),
        (Kind::E4m3, 8) => Some(Format::E4M3),
        (Kind::E5m2, 8) => Some(Format::E5M2),
        _ => None,
    }
}

impl Conversion {
    /// Whether GPUs have it: pairs come from two words, or from a pair; 8-bit floats need `satfinite`.
    fn is_known(self, sources: usize) -> bool {
        let typed = |of: Type| of.is_integer() || format(of).is_some();
        let eight = |of: Type| matches!(of.kind, Kind::E4m3 | Kind::E5m2);
        let pairs = match (self.to.count, self.from.count, sources) {
            (1, 1, 1) => true,
            (2, 1, 2) => self.from.is_float(32),
            (2, 2, 1) => eight(self.to) != eight(self.from),
            _ => false,
        };
        let extremes = !eight(self.to) || self.finite;
        typed(self.to) && typed(self.from) && pairs && extremes
    }

    /// Converts all lanes. Of a pair of sources the first becomes the upper half.
    pub(crate) fn apply(&self, out: &mut Lanes, first: &Lanes, second: &Lanes) {
        let (half, source_half) = (self.to.bits, self.from.bits);
        for lane in 0..WIDTH {
            out[lane] = match (self.to.count, self.from.count) {
                (2, 1) => self.one(second[lane]) | self.one(first[lane]) << half,
                (2, _) => self.one(first[lane]) | self.one(first[lane] >> source_half) << half,
                _ => self.one(first[lane]),
            };
        }
    }

    fn one(&self, bits: u64) -> u64 {
        match (format(self.from), format(self.to)) {
            (Some(from), Some(to)) => self.float(to, from.decode(bits & self.element_mask())),
            (Some(from), None) => self.integer_of(from.decode(bits & self.element_mask())),
            (None, Some(to)) => {
                let value = self.integer(bits);
                let value = if self.saturate { value.clamp(0, 1) } else { value };
                to.encode(Exact::from(value), self.rounding, self.finite)
            }
            (None, None) => self.saturated(self.integer(bits)),
        }
    }

    fn element_mask(&self) -> u64 {
        u64::MAX >> (64 - self.from.bits)
    }

    fn float(&self, to: Format, value: f64) -> u64 {
        let mut value = self.integral.map_or(value, |rounding| integral(value, rounding));
        if self.saturate {
            value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
        }
        if self.relu && value <= 0.0 {
            value = 0.0;
        }
        // The NaN of 64 bits keeps its payload elsewhere; here it comes from another format.
        to.round(value, self.rounding, self.finite)
    }

    fn integer(&self, bits: u64) -> i128 {
        let shift = 128 - self.from.bits;
        let top = i128::from(bits) << shift;
        if self.from.is_signed() { top >> shift } else { (top as u128 >> shift) as i128 }
    }

    /// Numbers beyond the range become its ends. A NaN becomes 0, or the highest bit where 64 bits
    /// are involved.
    fn integer_of(&self, value: f64) -> u64 {
        if value.is_nan() {
            let zero = self.from.bits < 64 && self.to.bits < 64;
            return if zero { 0 } else { 1 << (self.to.bits - 1) };
        }
        let value = integral(value, self.integral.unwrap_or(self.rounding));
        self.saturated(value as i128)
    }

    fn saturated(&self, value: i128) -> u64 {
        let (lowest, highest) = if self.to.is_signed() {
            (-1i128 << (self.to.bits - 1), (1i128 << (self.to.bits - 1)) - 1)
        } else {
            (0, (1i128 << self.to.bits) - 1)
        };
        value.clamp(lowest, highest) as u64
    }
}

/// The integral value that a rounding gives.
fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::random::Random;
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};

    fn apply(name: &str, first: u64, second: u64) -> u64 {
        let parts: Vec<&str> = name.split('.').collect();
        let pair = (name.contains("x2.f32") && !name.ends_with("x2")) as usize;
        let mut out = [0; 32];
        match decode(&parts, 1 + pair).unwrap_or_else(|| panic!("{name}")) {
            Decoded::Simple(simple) => simple(&mut out, &[first; 32]),
            Decoded::Rounding(rounding) => rounding.apply(&mut out, &[first; 32], &[second; 32]),
        }
        out[9]
    }

    /// Random bits, and values near those where a narrow format rounds, overflows or is subnormal.
    fn inputs(count: usize) -> Vec<u32> {
        let mut random = Random::new(9);
        let mut input = || {
            let bits = random.number() as u32;
            match random.below(4) {
                // Few bits set below those that a narrow format keeps: ties.
                0 => bits & (0xffff_ffff << random.below(24)) | u32::from(random.percent(30)),
                1 => (bits & 0x80ff_ffff) | (0x3000_0000 + ((bits >> 24 & 0x1f) << 23)),
                _ => bits,
            }
        };
        (0..count).map(|_| input()).collect()
    }

    /// The largest number instead of what is above it.
    fn narrow8(bits: u8, value: f32, largest: u8) -> u8 {
        match () {
            () if value.is_nan() => 0x7f,
            () if bits & 0x7f > largest => largest | (bits & 0x80),
            () => bits,
        }
    }

    fn check_narrowing(bits: u32) {
        let value = f32::from_bits(bits);
        let nan16 = |code: u16| if value.is_nan() { 0x7fff } else { u64::from(code) };
        let input = u64::from(bits);
        let half = nan16(f16::from_f32(value).to_bits());
        assert_eq!(apply("rn.f16.f32", input, 0), half, "f16 from {bits:#x}");
        let brain = nan16(bf16::from_f32(value).to_bits());
        assert_eq!(apply("rn.bf16.f32", input, 0), brain, "bf16 from {bits:#x}");
        let e4m3 = narrow8(F8E4M3::from_f32(value).to_bits(), value, 0x7e);
        let pair = apply("rn.satfinite.e4m3x2.f32", 0, input);
        assert_eq!(pair, u64::from(e4m3), "e4m3 from {bits:#x}");
        let e5m2 = narrow8(F8E5M2::from_f32(value).to_bits(), value, 0x7b);
        let pair = apply("rn.satfinite.e5m2x2.f32", input, 0);
        assert_eq!(pair, u64::from(e5m2) << 8, "e5m2 from {bits:#x}");
    }

    #[test]
    fn narrowing_as_other_crates_do() {
        inputs(300_000).into_iter().for_each(check_narrowing);
    }

    #[test]
    fn every_narrow_code_widens() {
        for code in 0..=u16::MAX {
            let bits = u64::from(code);
            let single = |value: f32| {
                if value.is_nan() { 0x7fff_ffff } else { u64::from(value.to_bits()) }
            };
            let half = |value: f32| {
                if value.is_nan() { 0x7fff } else { u64::from(f16::from_f32(value).to_bits()) }
            };
            assert_eq!(apply("f32.f16", bits, 0), single(f16::from_bits(code).to_f32()));
            assert_eq!(apply("f32.bf16", bits, 0), single(bf16::from_bits(code).to_f32()));
            let [low, high] = code.to_le_bytes();
            let e4m3 = |byte| half(F8E4M3::from_bits(byte).to_f32());
            assert_eq!(apply("rn.f16x2.e4m3x2", bits, 0), e4m3(low) | e4m3(high) << 16);
            let e5m2 = |byte| half(F8E5M2::from_bits(byte).to_f32());
            assert_eq!(apply("rn.f16x2.e5m2x2", bits, 0), e5m2(low) | e5m2(high) << 16);
            let number = |code: u16| f16::from_bits(code).to_f32();
            let narrow = narrow8(F8E4M3::from_f32(number(code)).to_bits(), number(code), 0x7e);
            let got = apply("rn.satfinite.e4m3x2.f16x2", bits << 16, 0);
            assert_eq!(got & 0xff00, u64::from(narrow) << 8, "{code:#x}");
        }
    }

    #[test]
    fn pairs_have_the_first_source_above() {
        let (one, two) = (u64::from(1.0f32.to_bits()), u64::from(2.0f32.to_bits()));
        assert_eq!(apply("rn.f16x2.f32", one, two), 0x3c00_4000);
        assert_eq!(apply("rn.bf16x2.f32", one, two), 0x3f80_4000);
        assert_eq!(apply("rn.satfinite.e4m3x2.f32", one, two), 0x3840);
        assert_eq!(apply("rn.relu.f16x2.f32", one | 0x8000_0000, two), 0x4000);
    }

    #[test]
    fn rounded_to_zero() {
        for bits in inputs(50_000) {
            let value = f32::from_bits(bits);
            if value.is_finite() && value.abs() < 60000.0 {
                let got = f16::from_bits(apply("rz.f16.f32", bits.into(), 0) as u16).to_f32();
                assert!(got.abs() <= value.abs(), "{value:e}");
                let next = f16::from_bits(f16::from_f32(got.abs()).to_bits() + 1).to_f32();
                assert!(next > value.abs(), "{value:e}");
                let brain = apply("rz.bf16.f32", bits.into(), 0);
                assert_eq!(brain, u64::from(bits >> 16));
            }
        }
    }

    #[test]
    fn to_and_from_integers() {
        let mut random = Random::new(10);
        for _ in 0..100_000 {
            let bits = random.number() >> random.below(64);
            let single = |value: f32| u64::from(value.to_bits());
            assert_eq!(apply("rn.f32.s32", bits, 0), single(bits as i32 as f32));
            assert_eq!(apply("rn.f32.u64", bits, 0), single(bits as f32));
            assert_eq!(apply("rn.f64.s64", bits, 0), (bits as i64 as f64).to_bits());
            assert_eq!(apply("rn.f32.u8", bits, 0), single(bits as u8 as f32));
            let float = f32::from_bits(bits as u32);
            let integer = |name| apply(name, bits, 0);
            if !float.is_nan() {
                assert_eq!(integer("rzi.s32.f32") as u32, float as i32 as u32);
                assert_eq!(integer("rzi.u64.f32"), float as u64);
                assert_eq!(integer("rmi.s64.f32"), float.floor() as i64 as u64);
                assert_eq!(integer("rni.f32.f32"), single(float.round_ties_even()));
                assert_eq!(integer("rpi.u8.f32") & 0xff, u64::from(float.ceil() as u8));
            }
        }
        let nan = u64::from(f32::NAN.to_bits());
        assert_eq!(apply("rni.s32.f32", nan, 0), 0);
        assert_eq!(apply("rni.s64.f32", nan, 0), 1 << 63);
        assert_eq!(apply("sat.s8.s32", 300, 0) & 0xff, 127);
        assert_eq!(apply("sat.u8.s32", u64::MAX, 0) & 0xff, 0);
        assert_eq!(apply("s8.u8", 200, 0) as i64, -56, "extended as the new type");
        for (value, expected) in [(7, 1.0f32), (-7, 0.0), (1, 1.0)] {
            let got = apply("rn.sat.f32.s32", i64::from(value) as u64, 0);
            assert_eq!(got, u64::from(expected.to_bits()));
        }
        assert_eq!(
            apply("sat.f32.f32", u64::from(7.0f32.to_bits()), 0),
            u64::from(1.0f32.to_bits())
        );
    }

    #[test]
    fn doubles() {
        let mut random = Random::new(11);
        for _ in 0..100_000 {
            let bits = random.number();
            let value = f64::from_bits(bits);
            if !value.is_nan() {
                assert_eq!(apply("rn.f32.f64", bits, 0) as u32, (value as f32).to_bits());
                assert_eq!(apply("rn.f16.f64", bits, 0) as u16, f16::from_f64(value).to_bits());
            }
        }
        assert_eq!(apply("f64.f32", u64::from(1.5f32.to_bits()), 0), 1.5f64.to_bits());
    }

    #[test]
    fn what_no_gpu_has_is_refused() {
        for name in ["rn.e4m3x2.f32", "ftz.f32.f16", "rn.f16x2.f16x2", "f32", "rn.f32.x5"] {
            let parts: Vec<&str> = name.split('.').collect();
            assert!(decode(&parts, 1).is_none() && decode(&parts, 2).is_none(), "{name}");
        }
    }
}
