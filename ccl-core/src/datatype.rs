//! Element types and reductions, with NCCL's numbers and nccl-tests' names.

/// Type of one element. The numbers are those of `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    Int8 = 0,
    /// Unsigned 8-bit integer.
    Uint8 = 1,
    /// Signed 32-bit integer.
    Int32 = 2,
    /// Unsigned 32-bit integer.
    Uint32 = 3,
    /// Signed 64-bit integer.
    Int64 = 4,
    /// Unsigned 64-bit integer.
    Uint64 = 5,
    /// IEEE 754 binary16.
    Float16 = 6,
    /// IEEE 754 binary32.
    Float32 = 7,
    /// IEEE 754 binary64.
    Float64 = 8,
    /// bfloat16: the upper half of a binary32.
    Bfloat16 = 9,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits, no infinities ("e4m3fn").
    Float8E4m3 = 10,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits.
    Float8E5m2 = 11,
}

impl DataType {
    /// Every type, in the order of its number.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8E4m3,
        Self::Float8E5m2,
    ];

    /// The type with NCCL's `number`, if there is one.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// Size of one element in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8E4m3 | Self::Float8E5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    #[must_use]
    pub fn is_float(self) -> bool {
        match self {
            Self::Float16
            | Self::Float32
            | Self::Float64
            | Self::Bfloat16
            | Self::Float8E4m3
            | Self::Float8E5m2 => true,
            Self::Int8 | Self::Uint8 | Self::Int32 | Self::Uint32 | Self::Int64 | Self::Uint64 => {
                false
            }
        }
    }

    /// The name nccl-tests prints and accepts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4m3 => "f8e4m3",
            Self::Float8E5m2 => "f8e5m2",
        }
    }
}

/// How contributions are combined. The numbers are those of `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum = 0,
    /// Product; integers wrap.
    Prod = 1,
    /// Largest; a NaN among the inputs gives NaN.
    Max = 2,
    /// Smallest; a NaN among the inputs gives NaN.
    Min = 3,
    /// Mean: floats are scaled by `1/n` before the sum, integers are divided after it (as NCCL does).
    Avg = 4,
}

impl ReduceOp {
    /// Every operation, in the order of its number.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// The operation with NCCL's `number`, if it is a built-in one.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// The name nccl-tests prints and accepts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        }
    }
}

/// The reduction of one call: a built-in operation, or a sum of scaled contributions.
///
/// `scale` holds the bits of the scalar in the element type of the operation, so that equality and
/// the digest are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// A built-in operation.
    Builtin(ReduceOp),
    /// `ncclRedOpCreatePreMulSum`: this rank's contribution is multiplied by a scalar, then summed.
    PreMulSum {
        /// Type of the scalar; the call must use the same one.
        datatype: DataType,
        /// Little-endian bits of the scalar, in the low `datatype.bytes()` bytes.
        scalar: u64,
    },
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self::Builtin(op)
    }
}

impl Reduction {
    /// The number that identifies the operation on the wire and in the digest. Scalars of
    /// `PreMulSum` may differ between ranks, so they are not part of it.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Builtin(op) => op as u8,
            Self::PreMulSum { .. } => 5,
        }
    }

    /// The name nccl-tests prints and accepts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Builtin(op) => op.name(),
            Self::PreMulSum { .. } => "mulsum",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_nccls() {
        for (index, datatype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(datatype as usize, index);
            assert_eq!(DataType::from_number(datatype as i32), Some(datatype));
        }
        assert_eq!(DataType::from_number(12), None);
        assert_eq!(DataType::from_number(-1), None);
        assert_eq!(ReduceOp::ALL.map(|op| op as u8), [0, 1, 2, 3, 4]);
        assert_eq!(ReduceOp::from_number(5), None);
    }
}
