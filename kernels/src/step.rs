//! What a kernel loop does in one step: bytes in, arithmetic, bytes out.
//!
//! The loops of `fold` are written once over these traits. A [`Step`] is one element for most types,
//! so that the compiler vectorises the loop for the instruction set it is compiled for, and a whole
//! vector for 16-bit floats, whose conversions are instructions a compiler does not find by itself.

use std::marker::PhantomData;

use crate::format::{self, Brain, E4m3, E5m2, Format, Half};
use crate::region::Stored;

/// Two ways to combine two numbers. Each is commutative, up to which NaN a NaN is.
pub(crate) trait Arithmetic: Copy {
    /// `self + other`; integers wrap.
    fn sum(self, other: Self) -> Self;
    /// `self * other`; integers wrap.
    fn prod(self, other: Self) -> Self;
}

/// The other two, as [`Arithmetic`].
pub(crate) trait Order: Copy {
    /// The larger; `+0` is larger than `-0`; a NaN if either is.
    fn max(self, other: Self) -> Self;
    /// The smaller; `-0` is smaller than `+0`; a NaN if either is.
    fn min(self, other: Self) -> Self;
}

/// One of the methods of [`Arithmetic`] or [`Order`], as a type, so that loops are compiled for it.
pub(crate) trait Operation<A> {
    /// The result for one pair.
    fn apply(left: A, right: A) -> A;
}

macro_rules! operation {
    ($name:ident, $of:ident, $method:ident) => {
        #[doc = concat!("[`", stringify!($of), "::", stringify!($method), "`].")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl<A: $of> Operation<A> for $name {
            #[inline(always)]
            fn apply(left: A, right: A) -> A {
                left.$method(right)
            }
        }
    };
}

operation!(Sum, Arithmetic, sum);
operation!(Prod, Arithmetic, prod);
operation!(Max, Order, max);
operation!(Min, Order, min);

/// What one step of a loop loads, computes with, and stores.
pub(crate) trait Step {
    /// One or several elements as they are in memory.
    type Stored: Stored;
    /// The same elements, in the type in which they are combined.
    type Accumulator: Copy;

    /// From memory; exact.
    fn widen(stored: Self::Stored) -> Self::Accumulator;
    /// To memory: rounds once, and makes every NaN the one NaN of the type.
    fn narrow(accumulator: Self::Accumulator) -> Self::Stored;
}

/// One element that is combined in its own type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<T>(PhantomData<T>);

macro_rules! integer {
    ($integer:ty) => {
        impl Arithmetic for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }

        impl Order for $integer {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
        }

        impl Step for Element<$integer> {
            type Stored = [u8; size_of::<$integer>()];
            type Accumulator = $integer;

            #[inline(always)]
            fn widen(stored: Self::Stored) -> $integer {
                <$integer>::from_ne_bytes(stored)
            }
            #[inline(always)]
            fn narrow(accumulator: $integer) -> Self::Stored {
                accumulator.to_ne_bytes()
            }
        }
    };
}

integer!(i8);
integer!(u8);
integer!(i32);
integer!(u32);
integer!(i64);
integer!(u64);

macro_rules! float {
    ($float:ty, $canonical:path) => {
        impl Arithmetic for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
        }

        impl Order for $float {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // Equal numbers have equal bits, but for the zeros: there a common sign bit decides.
                let common = Self::from_bits(self.to_bits() & other.to_bits());
                let larger = if self > other { self } else { other };
                let number = if self == other { common } else { larger };
                if self.is_nan() { self } else { number }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let common = Self::from_bits(self.to_bits() | other.to_bits());
                let smaller = if self < other { self } else { other };
                let number = if self == other { common } else { smaller };
                if self.is_nan() { self } else { number }
            }
        }

        impl Step for Element<$float> {
            type Stored = [u8; size_of::<$float>()];
            type Accumulator = $float;

            #[inline(always)]
            fn widen(stored: Self::Stored) -> $float {
                <$float>::from_ne_bytes(stored)
            }
            #[inline(always)]
            fn narrow(accumulator: $float) -> Self::Stored {
                $canonical(accumulator).to_ne_bytes()
            }
        }
    };
}

float!(f32, format::canonical_32);
float!(f64, format::canonical_64);

/// Twice as many numbers: the elements with even index, and those with odd index.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaved<A> {
    /// Elements 0, 2, 4 and so on.
    pub(crate) even: A,
    /// Elements 1, 3, 5 and so on.
    pub(crate) odd: A,
}

#[cfg(target_arch = "x86_64")]
impl<A: Arithmetic> Arithmetic for Interleaved<A> {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Self { even: self.even.sum(other.even), odd: self.odd.sum(other.odd) }
    }
    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        Self { even: self.even.prod(other.even), odd: self.odd.prod(other.odd) }
    }
}

/// One element of a narrow format, combined in `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow<F>(PhantomData<F>);

impl Step for Narrow<Half> {
    type Stored = [u8; 2];
    type Accumulator = f32;

    #[inline(always)]
    fn widen(stored: [u8; 2]) -> f32 {
        format::widen::<Half>(u32::from(u16::from_ne_bytes(stored)))
    }
    #[inline(always)]
    fn narrow(accumulator: f32) -> [u8; 2] {
        (format::narrow::<Half>(accumulator) as u16).to_ne_bytes()
    }
}

impl Step for Narrow<Brain> {
    type Stored = [u8; 2];
    type Accumulator = f32;

    #[inline(always)]
    fn widen(stored: [u8; 2]) -> f32 {
        format::widen_brain(u16::from_ne_bytes(stored))
    }
    #[inline(always)]
    fn narrow(accumulator: f32) -> [u8; 2] {
        format::narrow_brain(accumulator).to_ne_bytes()
    }
}

/// Formats of one byte.
pub(crate) trait ByteFormat: Format {}
impl ByteFormat for E4m3 {}
impl ByteFormat for E5m2 {}

/// One element of a one-byte format, combined in `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Byte<F>(PhantomData<F>);

impl<F: ByteFormat> Step for Byte<F> {
    type Stored = [u8; 1];
    type Accumulator = f32;

    #[inline(always)]
    fn widen(stored: [u8; 1]) -> f32 {
        format::widen::<F>(u32::from(stored[0]))
    }
    #[inline(always)]
    fn narrow(accumulator: f32) -> [u8; 1] {
        [format::narrow::<F>(accumulator) as u8]
    }
}
