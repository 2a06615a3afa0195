//! What instructions compute, for all 32 lanes of a warp at once.
//!
//! A lane is 64 bits. Bits above the type of a value are unspecified: whoever reads a value looks at
//! the bits of his type only. Every function is defined for all inputs, because it is computed for
//! lanes that do not take part too.

pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod format;
pub(crate) mod integer;

/// Threads of a warp.
pub(crate) const WIDTH: usize = 32;

/// A register of all threads of a warp.
pub(crate) type Lanes = [u64; WIDTH];

pub(crate) type Unary = fn(&mut Lanes, &Lanes);
pub(crate) type Binary = fn(&mut Lanes, &Lanes, &Lanes);
pub(crate) type Ternary = fn(&mut Lanes, &Lanes, &Lanes, &Lanes);
pub(crate) type Quaternary = fn(&mut Lanes, &Lanes, &Lanes, &Lanes, &Lanes);

/// A function of lanes from an expression of one lane.
macro_rules! lanewise {
    (|$($name:ident),+| $result:expr) => {
        |out, $($name),+| {
            for lane in 0..$crate::arithmetic::WIDTH {
                $(let $name = $name[lane];)+
                out[lane] = $result;
            }
        }
    };
}
pub(crate) use lanewise;

/// Moves of a value of so many bits.
pub(crate) fn mov() -> Unary {
    lanewise!(|a| a)
}

/// `predicate ? a : b`
pub(crate) fn select() -> Ternary {
    lanewise!(|a, b, predicate| if predicate & 1 != 0 { a } else { b })
}

/// A logical operation on predicates.
pub(crate) fn logical(name: &str) -> Option<Binary> {
    Some(match name {
        "and" => lanewise!(|a, b| a & b),
        "or" => lanewise!(|a, b| a | b),
        "xor" => lanewise!(|a, b| a ^ b),
        _ => return None,
    })
}

/// The opposite of a predicate.
pub(crate) fn negate() -> Unary {
    lanewise!(|a| !a & 1)
}
