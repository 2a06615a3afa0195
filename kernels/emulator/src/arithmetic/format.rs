//! Floats of any format, rounded from exact values.

/// How a value between two floats is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    NearestEven,
    Zero,
    Down,
    Up,
    /// To the nearest, ties away from zero.
    NearestAway,
}

impl Rounding {
    /// `rn` and its like.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "rn" => Self::NearestEven,
            "rz" => Self::Zero,
            "rm" => Self::Down,
            "rp" => Self::Up,
            "rna" => Self::NearestAway,
            _ => return None,
        })
    }

    /// Whether a magnitude grows to the next float, given how `rest` compares with half of the gap.
    fn grows(self, negative: bool, odd: bool, rest: u128, half: u128) -> bool {
        match self {
            Self::NearestEven => rest > half || rest == half && odd,
            Self::NearestAway => rest >= half,
            Self::Zero => false,
            Self::Down => negative && rest > 0,
            Self::Up => !negative && rest > 0,
        }
    }

    /// Whether what is too large becomes infinite.
    fn overflows(self, negative: bool) -> bool {
        match self {
            Self::NearestEven | Self::NearestAway => true,
            Self::Zero => false,
            Self::Down => negative,
            Self::Up => !negative,
        }
    }
}

/// A binary format: sign, exponent, mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The bits of the largest finite number; what is above are infinities and NaNs.
    largest: u64,
    /// What an instruction gives for a NaN.
    nan: u64,
}

impl Format {
    pub(crate) const BINARY64: Self = Self::ieee(11, 52, 0x7fff_ffff_ffff_ffff);
    pub(crate) const BINARY32: Self = Self::ieee(8, 23, 0x7fff_ffff);
    pub(crate) const BINARY16: Self = Self::ieee(5, 10, 0x7fff);
    pub(crate) const BFLOAT16: Self = Self::ieee(8, 7, 0x7fff);
    pub(crate) const E5M2: Self = Self::ieee(5, 2, 0x7f);
    /// No infinities, and a single NaN.
    pub(crate) const E4M3: Self =
        Self { exponent_bits: 4, mantissa_bits: 3, largest: 0x7e, nan: 0x7f };

    const fn ieee(exponent_bits: u32, mantissa_bits: u32, nan: u64) -> Self {
        let largest = (((1 << exponent_bits) - 1) << mantissa_bits) - 1;
        Self { exponent_bits, mantissa_bits, largest, nan }
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The value of these bits, which every format but `BINARY64` has exactly in 64 bits.
    pub(crate) fn decode(self, bits: u64) -> f64 {
        if self == Self::BINARY64 {
            return f64::from_bits(bits);
        }
        if self == Self::BINARY32 {
            return f64::from(f32::from_bits(bits as u32));
        }
        let magnitude = bits & (self.sign() - 1);
        let negative = bits & self.sign() != 0;
        let value = if magnitude > self.largest {
            let infinite = self != Self::E4M3 && magnitude == self.largest + 1;
            if infinite { f64::INFINITY } else { f64::NAN }
        } else {
            self.finite(magnitude)
        };
        if negative { -value } else { value }
    }

    fn finite(self, magnitude: u64) -> f64 {
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let hidden = u64::from(exponent > 0) << self.mantissa_bits;
        let scale = exponent.max(1) - self.bias() - self.mantissa_bits as i32;
        // A power of two that a binary64 has: its exponent field can be written down.
        let power = f64::from_bits(((scale + 1023) as u64) << 52);
        (mantissa | hidden) as f64 * power
    }

    /// The bits nearest to an exact value. `finite`: the largest number instead of infinities.
    pub(crate) fn encode(self, value: Exact, rounding: Rounding, finite: bool) -> u64 {
        let Exact { negative, magnitude, exponent } = value;
        let sign = if negative { self.sign() } else { 0 };
        if magnitude == 0 {
            return sign;
        }
        // Exponents of the value and of the least significant bit that the format has there.
        let top = 127 - magnitude.leading_zeros() as i32 + exponent;
        let smallest = 1 - self.bias();
        let unit = top.max(smallest) - self.mantissa_bits as i32;
        let shift = unit - exponent;
        let (kept, rest, half) = match shift {
            ..=0 => (magnitude << -shift, 0, 1),
            1..=126 => (magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << (shift - 1)),
            _ => (0, 1, 2),
        };
        let steps = u64::from(rounding.grows(negative, kept & 1 != 0, rest, half));
        let field = ((top.max(smallest) - smallest) as u64) << self.mantissa_bits;
        // The hidden bit and a carry go to the exponent.
        let code = field + kept as u64 + steps;
        sign | if code <= self.largest { code } else { self.beyond(negative, rounding, finite) }
    }

    /// What a number too large becomes, without its sign.
    fn beyond(self, negative: bool, rounding: Rounding, finite: bool) -> u64 {
        let infinite = rounding.overflows(negative) && !finite;
        self.largest + u64::from(infinite)
    }

    /// The bits nearest to a value that may be infinite or NaN.
    pub(crate) fn round(self, value: f64, rounding: Rounding, finite: bool) -> u64 {
        if value.is_nan() {
            return self.nan;
        }
        if value.is_infinite() {
            let sign = if value < 0.0 { self.sign() } else { 0 };
            return sign | (self.largest + u64::from(!finite));
        }
        self.encode(Exact::from(value), rounding, finite)
    }
}

/// `magnitude * 2^exponent`, with a magnitude below 2^127 or so, so that shifts have room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    pub(crate) magnitude: u128,
    pub(crate) exponent: i32,
}

impl From<f64> for Exact {
    /// The value must be finite.
    fn from(value: f64) -> Self {
        let bits = value.to_bits();
        let field = (bits >> 52 & 0x7ff) as i32;
        let mantissa = bits & ((1 << 52) - 1);
        let magnitude = u128::from(mantissa | u64::from(field > 0) << 52);
        Self { negative: bits >> 63 != 0, magnitude, exponent: field.max(1) - 1075 }
    }
}

impl From<i128> for Exact {
    fn from(value: i128) -> Self {
        Self { negative: value < 0, magnitude: value.unsigned_abs(), exponent: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::random::Random;

    const ALL: [Format; 6] = [
        Format::BINARY64,
        Format::BINARY32,
        Format::BINARY16,
        Format::BFLOAT16,
        Format::E5M2,
        Format::E4M3,
    ];

    #[test]
    fn every_code_comes_back() {
        for format in ALL {
            let bits = format.exponent_bits + format.mantissa_bits + 1;
            for code in 0..1u64 << bits.min(16) {
                let code = code << (bits - bits.min(16));
                let value = format.decode(code);
                let back = format.round(value, Rounding::NearestEven, false);
                assert!(
                    value.is_nan() && back == format.nan || back == code,
                    "{format:?} {code:x}"
                );
            }
        }
    }

    #[test]
    fn binary32_as_the_processor_rounds() {
        let mut random = Random::new(5);
        for _ in 0..1_000_000 {
            let value = f64::from_bits(random.number() >> random.below(4));
            let value =
                if random.percent(70) { f64::from(value as f32) * 1.000_000_1 } else { value };
            if value.is_nan() {
                continue;
            }
            let got = Format::BINARY32.round(value, Rounding::NearestEven, false);
            assert_eq!(got as u32, (value as f32).to_bits(), "{value:e}");
        }
    }

    #[test]
    fn integers_as_the_processor_rounds() {
        let mut random = Random::new(6);
        for _ in 0..100_000 {
            let value = random.number() >> random.below(64);
            let exact = Exact::from(i128::from(value));
            let nearest = |format: Format| format.encode(exact, Rounding::NearestEven, false);
            assert_eq!(nearest(Format::BINARY32), u64::from((value as f32).to_bits()));
            assert_eq!(nearest(Format::BINARY64), (value as f64).to_bits());
        }
    }

    /// Between two neighbours, each rounding goes where its name says.
    #[test]
    fn directed_rounding() {
        let mut random = Random::new(7);
        for format in [Format::BINARY32, Format::BINARY16, Format::BFLOAT16, Format::E4M3] {
            for _ in 0..20_000 {
                let low = random.below(format.largest);
                let (a, b) = (format.decode(low), format.decode(low + 1));
                let part = random.below(17) as f64 / 16.0;
                let value = a + (b - a) * part;
                let sign = random.percent(50);
                let signed = if sign { -value } else { value };
                let code = |rounding| format.round(signed, rounding, false) & !format.sign();
                let (toward, away) =
                    if value == b { (low + 1, low + 1) } else { (low, low + u64::from(value > a)) };
                assert_eq!(code(Rounding::Zero), toward);
                assert_eq!(code(Rounding::Down), if sign { away } else { toward });
                assert_eq!(code(Rounding::Up), if sign { toward } else { away });
                let tie = part == 0.5;
                let nearest = low + u64::from(part > 0.5 || tie && low & 1 != 0);
                assert_eq!(code(Rounding::NearestEven), nearest, "{format:?} {low:x} {part}");
                assert_eq!(code(Rounding::NearestAway), low + u64::from(part >= 0.5));
            }
        }
    }

    #[test]
    fn what_is_too_large() {
        let huge = |format: Format, rounding, finite| format.round(1e300, rounding, finite);
        assert_eq!(huge(Format::BINARY16, Rounding::NearestEven, false), 0x7c00);
        assert_eq!(huge(Format::BINARY16, Rounding::NearestEven, true), 0x7bff);
        assert_eq!(huge(Format::BINARY16, Rounding::Zero, false), 0x7bff);
        assert_eq!(huge(Format::E4M3, Rounding::NearestEven, true), 0x7e);
        assert_eq!(Format::E5M2.round(f64::NEG_INFINITY, Rounding::NearestEven, true), 0xfb);
        assert_eq!(Format::E5M2.round(f64::NEG_INFINITY, Rounding::Zero, false), 0xfc);
    }
}
