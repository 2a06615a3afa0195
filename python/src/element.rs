//! Types of elements, as buffers and people name them.

use std::fmt;

use ccl::{DataType, ReduceOp, Reduction};

/// Type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// What the library moves and reduces.
    pub(crate) datatype: DataType,
    /// Truth values: bytes that are 0 or 1 and have to remain so.
    truth: bool,
}

/// Why elements of some type cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsupported(pub(crate) String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = DataType::ALL.into_iter().map(name).collect();
        write!(f, "elements are {}; these can be moved: bool, {}", self.0, names.join(", "))
    }
}

impl Element {
    /// Truth values.
    pub(crate) const BOOL: Self = Self { datatype: DataType::Uint8, truth: true };

    /// Numbers of this type.
    pub(crate) const fn of(datatype: DataType) -> Self {
        Self { datatype, truth: false }
    }

    /// By the name that NumPy and PyTorch use.
    pub(crate) fn from_name(text: &str) -> Result<Self, Unsupported> {
        if text == "bool" {
            return Ok(Self::BOOL);
        }
        let found = DataType::ALL.into_iter().find(|datatype| name(*datatype) == text);
        found.map(Self::of).ok_or_else(|| Unsupported(text.to_owned()))
    }

    /// By the format of the buffer protocol: a character of the module `struct`, and its size.
    pub(crate) fn from_format(format: &str, bytes: usize) -> Result<Self, Unsupported> {
        let unsupported = || Unsupported(format!("of format \"{format}\""));
        let native = if cfg!(target_endian = "little") { '<' } else { '>' };
        let character = format.trim_start_matches(['@', '=', native]);
        let datatype = match (character, bytes) {
            ("?", 1) => return Ok(Self::BOOL),
            ("b", 1) => DataType::Int8,
            ("B" | "c", 1) => DataType::Uint8,
            ("i" | "l" | "q" | "n", 4) => DataType::Int32,
            ("i" | "l" | "q" | "n", 8) => DataType::Int64,
            ("I" | "L" | "Q" | "N", 4) => DataType::Uint32,
            ("I" | "L" | "Q" | "N", 8) => DataType::Uint64,
            ("e", 2) => DataType::Float16,
            ("f", 4) => DataType::Float32,
            ("d", 8) => DataType::Float64,
            _ => return Err(unsupported()),
        };
        Ok(Self::of(datatype))
    }

    /// By the `typestr` of NumPy's interfaces: byte order, kind and size.
    pub(crate) fn from_typestr(text: &str) -> Result<Self, Unsupported> {
        let native = if cfg!(target_endian = "little") { '<' } else { '>' };
        let datatype = match text.trim_start_matches(['|', '=', native]) {
            "b1" => return Ok(Self::BOOL),
            "i1" => DataType::Int8,
            "i4" => DataType::Int32,
            "i8" => DataType::Int64,
            "u1" => DataType::Uint8,
            "u4" => DataType::Uint32,
            "u8" => DataType::Uint64,
            "f2" => DataType::Float16,
            "f4" => DataType::Float32,
            "f8" => DataType::Float64,
            _ => return Err(Unsupported(format!("of type \"{text}\""))),
        };
        Ok(Self::of(datatype))
    }

    /// By the numbers of DLPack: `DLDataTypeCode`, bits and lanes.
    pub(crate) fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Result<Self, Unsupported> {
        let datatype = match (code, bits, lanes) {
            (6, 8, 1) => return Ok(Self::BOOL),
            (0, 8, 1) => DataType::Int8,
            (0, 32, 1) => DataType::Int32,
            (0, 64, 1) => DataType::Int64,
            (1, 8, 1) => DataType::Uint8,
            (1, 32, 1) => DataType::Uint32,
            (1, 64, 1) => DataType::Uint64,
            (2, 16, 1) => DataType::Float16,
            (2, 32, 1) => DataType::Float32,
            (2, 64, 1) => DataType::Float64,
            (4, 16, 1) => DataType::Bfloat16,
            (10, 8, 1) => DataType::Float8E4m3,
            (12, 8, 1) => DataType::Float8E5m2,
            _ => {
                let text = format!("of DLPack type {code} with {bits} bits and {lanes} lanes");
                return Err(Unsupported(text));
            }
        };
        Ok(Self::of(datatype))
    }

    /// The name that NumPy and PyTorch use.
    pub(crate) fn name(self) -> &'static str {
        if self.truth { "bool" } else { name(self.datatype) }
    }

    /// Size of one element.
    pub(crate) fn bytes(self) -> usize {
        self.datatype.bytes()
    }

    /// Whether a reduction of elements gives elements of the type: truth values have a largest and a
    /// smallest, but no sum.
    pub(crate) fn has(self, reduction: Reduction) -> bool {
        match reduction {
            Reduction::Builtin(ReduceOp::Max | ReduceOp::Min) => true,
            Reduction::Builtin(ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg)
            | Reduction::PreMulSum { .. } => !self.truth,
        }
    }
}

fn name(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Int8 => "int8",
        DataType::Uint8 => "uint8",
        DataType::Int32 => "int32",
        DataType::Uint32 => "uint32",
        DataType::Int64 => "int64",
        DataType::Uint64 => "uint64",
        DataType::Float16 => "float16",
        DataType::Float32 => "float32",
        DataType::Float64 => "float64",
        DataType::Bfloat16 => "bfloat16",
        DataType::Float8E4m3 => "float8_e4m3fn",
        DataType::Float8E5m2 => "float8_e5m2",
    }
}
