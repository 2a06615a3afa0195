//! Vectors of 256 bits. The compiler makes them of the plain loops; written out here are only the
//! 16-bit floats.

use std::arch::x86_64::*;

use crate::format::NAN_32;
use crate::machine::{Machine, Task};
use crate::step::{Arithmetic, Element, Interleaved, Step};

/// AVX2, with the conversions of F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2;

impl Avx2 {
    /// Whether this processor has it.
    pub(crate) fn is_available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }
}

impl Machine for Avx2 {
    type Plain = Self;
    type Single = Element<f32>;
    type Double = Element<f64>;
    type Long = Element<u64>;
    type Half = Halves;
    type Brain = Brains;

    unsafe fn run<T: Task>(task: T) {
        // SAFETY: the caller answers for the instruction set.
        unsafe { run(task) }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn run<T: Task>(task: T) {
    task.run();
}

/// Eight `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floats(__m256);

/// Defines a method of [`Arithmetic`] by a function of two vectors.
macro_rules! method {
    ($name:ident, $function:path) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: only code that runs on `Avx2` computes with `Floats`.
            Self(unsafe { $function(self.0, other.0) })
        }
    };
}

impl Arithmetic for Floats {
    method!(sum, _mm256_add_ps);
    method!(prod, _mm256_mul_ps);
}

#[inline]
#[target_feature(enable = "avx2")]
fn nans(values: __m256) -> __m256 {
    _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values)
}

/// The same numbers, and the one NaN for every NaN.
#[inline]
#[target_feature(enable = "avx2")]
fn canonical(values: __m256) -> __m256 {
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN_32 as i32));
    _mm256_blendv_ps(values, nan, nans(values))
}

/// Eight f16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves;

impl Step for Halves {
    type Stored = [u8; 16];
    type Accumulator = Floats;

    #[inline(always)]
    fn widen(stored: [u8; 16]) -> Floats {
        // SAFETY: only code that runs on `Avx2` is instantiated with this step.
        Floats(unsafe { widen_halves(stored) })
    }

    #[inline(always)]
    fn narrow(accumulator: Floats) -> [u8; 16] {
        // SAFETY: as in `widen`.
        unsafe { narrow_halves(accumulator.0) }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_halves(stored: [u8; 16]) -> __m256 {
    // SAFETY: the argument is 16 bytes long; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(stored.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_halves(values: __m256) -> [u8; 16] {
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(values));
    let mut stored = [0; 16];
    // SAFETY: `stored` is 16 bytes long; the store needs no alignment.
    unsafe { _mm_storeu_si128(stored.as_mut_ptr().cast(), halves) };
    stored
}

/// Sixteen bfloat16. Each 32-bit lane holds two: the upper half of a binary32 as it stands, and one
/// that a shift makes so. Nothing crosses a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brains;

impl Step for Brains {
    type Stored = [u8; 32];
    type Accumulator = Interleaved<Floats>;

    #[inline(always)]
    fn widen(stored: [u8; 32]) -> Interleaved<Floats> {
        // SAFETY: only code that runs on `Avx2` is instantiated with this step.
        unsafe { widen_brains(stored) }
    }

    #[inline(always)]
    fn narrow(accumulator: Interleaved<Floats>) -> [u8; 32] {
        // SAFETY: as in `widen`.
        unsafe { narrow_brains(accumulator) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_brains(stored: [u8; 32]) -> Interleaved<Floats> {
    // SAFETY: the argument is 32 bytes long; the load needs no alignment.
    let words = unsafe { _mm256_loadu_si256(stored.as_ptr().cast()) };
    let even = _mm256_slli_epi32::<16>(words);
    let odd = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32));
    Interleaved { even: Floats(_mm256_castsi256_ps(even)), odd: Floats(_mm256_castsi256_ps(odd)) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_brains(values: Interleaved<Floats>) -> [u8; 32] {
    const ODD_HALVES: i32 = 0b1010_1010;
    let even = _mm256_srli_epi32::<16>(rounded(values.even.0));
    let words = _mm256_blend_epi16::<ODD_HALVES>(even, rounded(values.odd.0));
    let mut stored = [0; 32];
    // SAFETY: `stored` is 32 bytes long; the store needs no alignment.
    unsafe { _mm256_storeu_si256(stored.as_mut_ptr().cast(), words) };
    stored
}

/// Words whose upper halves are the bfloat16 nearest to `values`, as in `format::narrow_brain`. A
/// rounding increment cannot disturb the one NaN, whose lower half is zero.
#[inline]
#[target_feature(enable = "avx2")]
fn rounded(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(canonical(values));
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let almost_half = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
    _mm256_add_epi32(almost_half, odd)
}
