//! Maxima and minima of narrow floats, without making them wider.
//!
//! A float is a sign and a magnitude, and its magnitudes are in the order of their codes. So is a signed integer of
//! two's complement if the magnitude of negative numbers is inverted: that is the key of a number. Keys of `-0` and
//! `+0` differ by one, in the order that [`Order`] wants. No number has the largest key, which is that of every NaN.
//!
//! These are integers: a thread that flushes subnormals compares them all the same, and compilers know instructions for
//! maxima of a whole vector.

use std::marker::PhantomData;

use crate::format::Format;
use crate::step::{Order, Step};

/// One element, in the integer `I` of its width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered<F, I>(PhantomData<(F, I)>);

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<I>(I);

macro_rules! keys {
    ($integer:ty) => {
        impl Order for Key<$integer> {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Self(Ord::max(self.0, other.0))
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // Makes the largest key the smallest one, and every other one greater by one.
                let [left, right] = [self, other].map(|key| key.0.wrapping_add(1));
                Self(Ord::min(left, right).wrapping_sub(1))
            }
        }

        impl<F: Format> Step for Ordered<F, $integer> {
            type Stored = [u8; size_of::<$integer>()];
            type Accumulator = Key<$integer>;

            #[inline(always)]
            fn widen(stored: Self::Stored) -> Key<$integer> {
                let code = <$integer>::from_ne_bytes(stored);
                let magnitude = code & <$integer>::MAX;
                let is_nan = magnitude > const { F::LAST_NUMBER as $integer };
                let saturated = Ord::min(magnitude, const { F::LARGEST as $integer });
                let key = saturated ^ (code >> (<$integer>::BITS - 1));
                Key(if is_nan { <$integer>::MAX } else { key })
            }

            #[inline(always)]
            fn narrow(accumulator: Key<$integer>) -> Self::Stored {
                let key = accumulator.0;
                let code = key ^ ((key >> (<$integer>::BITS - 1)) & <$integer>::MAX);
                let is_nan = key == <$integer>::MAX;
                let code = if is_nan { const { F::NAN as $integer } } else { code };
                code.to_ne_bytes()
            }
        }
    };
}

keys!(i8);
keys!(i16);
