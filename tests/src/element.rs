//! Elements of every type as numbers, with conversions that are not the library's.

use ccl::DataType;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// How elements of one type are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two's complement of so many bits.
    Signed(u32),
    /// Unsigned, of so many bits.
    Unsigned(u32),
    /// A float whose significands have so many bits, the implied one counted.
    Float(u32),
}

/// How elements of `datatype` are stored.
#[must_use]
pub fn kind(datatype: DataType) -> Kind {
    match datatype {
        DataType::Int8 => Kind::Signed(8),
        DataType::Int32 => Kind::Signed(32),
        DataType::Int64 => Kind::Signed(64),
        DataType::Uint8 => Kind::Unsigned(8),
        DataType::Uint32 => Kind::Unsigned(32),
        DataType::Uint64 => Kind::Unsigned(64),
        DataType::Float16 => Kind::Float(11),
        DataType::Float32 => Kind::Float(24),
        DataType::Float64 => Kind::Float(53),
        DataType::Bfloat16 => Kind::Float(8),
        DataType::Float8E4m3 => Kind::Float(4),
        DataType::Float8E5m2 => Kind::Float(3),
    }
}

/// The bits of the float of type `datatype` nearest to `value`.
///
/// # Panics
/// `datatype` is an integer type.
#[must_use]
pub fn encode(datatype: DataType, value: f64) -> u64 {
    match datatype {
        DataType::Float16 => f16::from_f64(value).to_bits().into(),
        DataType::Bfloat16 => bf16::from_f64(value).to_bits().into(),
        #[allow(clippy::cast_possible_truncation, reason = "rounding to binary32 is the point")]
        DataType::Float32 => (value as f32).to_bits().into(),
        DataType::Float64 => value.to_bits(),
        DataType::Float8E4m3 => F8E4M3::from_f64(value).to_bits().into(),
        DataType::Float8E5m2 => F8E5M2::from_f64(value).to_bits().into(),
        DataType::Int8
        | DataType::Uint8
        | DataType::Int32
        | DataType::Uint32
        | DataType::Int64
        | DataType::Uint64 => panic!("{} is no float", datatype.name()),
    }
}

/// The float of type `datatype` with these bits, exactly.
///
/// # Panics
/// `datatype` is an integer type.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "an element of one byte is in the low byte")]
pub fn decode(datatype: DataType, bits: u64) -> f64 {
    match datatype {
        DataType::Float16 => f16::from_bits(bits as u16).to_f64(),
        DataType::Bfloat16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::Float32 => f32::from_bits(bits as u32).into(),
        DataType::Float64 => f64::from_bits(bits),
        DataType::Float8E4m3 => F8E4M3::from_bits(bits as u8).to_f64(),
        DataType::Float8E5m2 => F8E5M2::from_bits(bits as u8).to_f64(),
        DataType::Int8
        | DataType::Uint8
        | DataType::Int32
        | DataType::Uint32
        | DataType::Int64
        | DataType::Uint64 => panic!("{} is no float", datatype.name()),
    }
}

/// `bits` as a signed number, its width taken from the type.
#[must_use]
pub fn signed(bits: u64, width: u32) -> i64 {
    let unused = 64 - width;
    (bits << unused).cast_signed() >> unused
}

/// The low `width` bits.
#[must_use]
pub fn truncated(bits: u64, width: u32) -> u64 {
    bits & (u64::MAX >> (64 - width))
}

/// Steps between two floats of the same type; `None` if they differ in sign or one is no number.
#[must_use]
pub fn distance(datatype: DataType, left: u64, right: u64) -> Option<u64> {
    let sign = 1 << (datatype.bytes() * 8 - 1);
    let numbers = [left, right].iter().all(|bits| decode(datatype, *bits).is_finite());
    (numbers && left & sign == right & sign).then(|| left.abs_diff(right))
}

/// Stores element `index` of a slice of elements of `bytes` bytes.
#[inline]
pub fn store(slice: &mut [u8], bytes: usize, index: usize, bits: u64) {
    slice[index * bytes..][..bytes].copy_from_slice(&bits.to_le_bytes()[..bytes]);
}

/// Loads element `index` of a slice of elements of `bytes` bytes.
#[inline]
#[must_use]
pub fn load(slice: &[u8], bytes: usize, index: usize) -> u64 {
    let mut bits = [0; 8];
    bits[..bytes].copy_from_slice(&slice[index * bytes..][..bytes]);
    u64::from_le_bytes(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_survive_the_way_to_a_number_and_back() {
        for datatype in DataType::ALL.into_iter().filter(|d| d.is_float() && d.bytes() <= 2) {
            for bits in 0..1 << (datatype.bytes() * 8) {
                let value = decode(datatype, bits);
                if value.is_finite() {
                    assert_eq!(encode(datatype, value), bits, "{} {value}", datatype.name());
                }
            }
        }
    }

    #[test]
    fn known_bits() {
        assert_eq!(decode(DataType::Float8E4m3, 0x7e), 448.0);
        assert_eq!(decode(DataType::Float8E4m3, 0x01), 2f64.powi(-9));
        assert!(decode(DataType::Float8E4m3, 0x7f).is_nan());
        assert_eq!(decode(DataType::Float8E5m2, 0x7b), 57344.0);
        assert!(decode(DataType::Float8E5m2, 0x7c).is_infinite());
        assert_eq!(decode(DataType::Bfloat16, 0x3f80), 1.0);
        assert_eq!(encode(DataType::Float16, 1.5), 0x3e00);
    }

    #[test]
    fn distance_counts_steps() {
        let f = DataType::Float32;
        let one = encode(f, 1.0);
        assert_eq!(distance(f, one, one + 2), Some(2));
        assert_eq!(distance(f, one, encode(f, -1.0)), None);
        assert_eq!(distance(f, one, encode(f, f64::NAN)), None);
    }

    #[test]
    fn integers_wrap_at_their_width() {
        assert_eq!(signed(0xff, 8), -1);
        assert_eq!(signed(0x7f, 8), 127);
        assert_eq!(truncated(0x1ff, 8), 0xff);
        assert_eq!(truncated(u64::MAX, 64), u64::MAX);
    }
}
