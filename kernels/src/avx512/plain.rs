//! Types that are combined as they are, in vectors of 256 bits: wider accesses that are not aligned always split a cache
//! line. What AVX-512 adds are instructions that AVX2 needs several for: maxima that know NaNs and signs of zeros, and
//! products of 64-bit integers. [`crate::machine`] takes these steps for those operations, and the plain loops for others.
//!
//! Maxima and minima make the one NaN themselves, at least once before anything is stored. So storing leaves floats as
//! they are.

use std::arch::x86_64::*;

use crate::format::{NAN_32, NAN_64};
use crate::step::{Arithmetic, Order, Step};

/// Of `vrange`: which of two, with the sign of the result.
const MAX: i32 = 0b0101;
const MIN: i32 = 0b0100;

/// Defines a vector, with a method of a trait for each of the functions, and its step.
macro_rules! vector {
    ($(#[$document:meta])* $name:ident, $vector:ty, $of:ident: $($method:ident, $function:path);+) => {
        $(#[$document])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name($vector);

        impl $of for $name {
            $(vector!(method $method, $function);)+
        }

        impl Step for $name {
            type Stored = [u8; 32];
            type Accumulator = Self;

            #[inline(always)]
            fn widen(stored: [u8; 32]) -> Self {
                // SAFETY: any bits are a vector, and both have 32 bytes.
                Self(unsafe { std::mem::transmute::<[u8; 32], $vector>(stored) })
            }

            #[inline(always)]
            fn narrow(accumulator: Self) -> [u8; 32] {
                // SAFETY: as in `widen`.
                unsafe { std::mem::transmute::<$vector, [u8; 32]>(accumulator.0) }
            }
        }
    };
    (method $name:ident, $function:path) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: only code that runs on `Avx512` computes with these vectors.
            Self(unsafe { $function(self.0, other.0) })
        }
    };
}

vector!(
    /// Eight `f32`.
    Singles, __m256, Order: max, max_singles; min, min_singles
);
vector!(
    /// Four `f64`.
    Doubles, __m256d, Order: max, max_doubles; min, min_doubles
);
vector!(
    /// Four `i64`, or `u64`.
    Longs, __m256i, Arithmetic: sum, _mm256_add_epi64; prod, _mm256_mullo_epi64
);

/// Defines maximum, minimum and the one NaN of a float type. `vrange` orders zeros as wanted, but prefers a number to a
/// NaN.
macro_rules! float {
    ($vector:ty, $max:ident, $min:ident, $range:ident, $unordered:ident, $replace:ident, $nan:expr) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512dq,avx512vl")]
        fn $max(a: $vector, b: $vector) -> $vector {
            $replace($range::<MAX>(a, b), $unordered::<_CMP_UNORD_Q>(a, b), $nan)
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512dq,avx512vl")]
        fn $min(a: $vector, b: $vector) -> $vector {
            $replace($range::<MIN>(a, b), $unordered::<_CMP_UNORD_Q>(a, b), $nan)
        }
    };
}

float!(
    __m256,
    max_singles,
    min_singles,
    _mm256_range_ps,
    _mm256_cmp_ps_mask,
    _mm256_mask_mov_ps,
    _mm256_castsi256_ps(_mm256_set1_epi32(NAN_32 as i32))
);
float!(
    __m256d,
    max_doubles,
    min_doubles,
    _mm256_range_pd,
    _mm256_cmp_pd_mask,
    _mm256_mask_mov_pd,
    _mm256_castsi256_pd(_mm256_set1_epi64x(NAN_64 as i64))
);
