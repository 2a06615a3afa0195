//! The types that PTX instructions carry in their names: `u32`, `pred`, `e4m3x2`.

/// What the bits of an element mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Predicate,
    Bits,
    Unsigned,
    Signed,
    /// IEEE 754, and the 8-bit floats of which `E5m2` is like it and `E4m3` is not.
    Float,
    Bfloat,
    E4m3,
    E5m2,
}

/// The type of an operand: `count` elements of `bits` bits, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bits: u32,
    pub(crate) count: u32,
}

impl Type {
    pub(crate) const PREDICATE: Self = Self { kind: Kind::Predicate, bits: 1, count: 1 };

    /// The type of that name, without its dot.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let one = |kind, bits| Some(Self { kind, bits, count: 1 });
        let two = |kind, bits| Some(Self { kind, bits, count: 2 });
        match name {
            "pred" => Some(Self::PREDICATE),
            "bf16" => one(Kind::Bfloat, 16),
            "bf16x2" => two(Kind::Bfloat, 16),
            "f16x2" => two(Kind::Float, 16),
            "e4m3x2" => two(Kind::E4m3, 8),
            "e5m2x2" => two(Kind::E5m2, 8),
            _ => {
                let kind = match name.get(..1)? {
                    "b" => Kind::Bits,
                    "u" => Kind::Unsigned,
                    "s" => Kind::Signed,
                    "f" => Kind::Float,
                    _ => return None,
                };
                let bits: u32 = name[1..].parse().ok()?;
                let known = matches!(bits, 8 | 16 | 32 | 64) && (kind != Kind::Float || bits > 8);
                known.then_some(Self { kind, bits, count: 1 })
            }
        }
    }

    /// Size of all its elements.
    pub(crate) fn bytes(self) -> usize {
        (self.bits * self.count).div_ceil(8) as usize
    }

    pub(crate) fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }

    /// Integers and plain bits.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self.kind, Kind::Bits | Kind::Unsigned | Kind::Signed) && self.count == 1
    }

    /// A single float of that many bits, of IEEE's formats.
    pub(crate) fn is_float(self, bits: u32) -> bool {
        self.kind == Kind::Float && self.bits == bits && self.count == 1
    }
}
