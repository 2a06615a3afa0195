//! Vectors of 512 bits, for narrow floats: they compute for long between a load and a store. The
//! 8-bit ones are left to the compiler, the 16-bit ones are written out here.
//!
//! Types that are combined as they are keep to vectors of 256 bits. They wait for memory anyway, and
//! a 512-bit access that is not aligned to 64 bytes always splits a cache line: measured, sums of
//! unaligned `f32` in the second-level cache run at half the rate of 256-bit ones, aligned ones at
//! 85 %.

mod plain;

use std::arch::x86_64::*;

use crate::avx2::Avx2;
use crate::format::NAN_32;
use crate::machine::{Machine, Task};
use crate::step::{Arithmetic, Interleaved, Step};

/// AVX-512 as every processor has it that has any of BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

impl Avx512 {
    /// Whether this processor has it.
    pub(crate) fn is_available() -> bool {
        Avx2::is_available()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }
}

impl Machine for Avx512 {
    type Plain = Avx2;
    type Single = plain::Singles;
    type Double = plain::Doubles;
    type Long = plain::Longs;
    type Half = Halves;
    type Brain = Brains;

    unsafe fn run<T: Task>(task: T) {
        // SAFETY: the caller answers for the instruction set.
        unsafe { run(task) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn run<T: Task>(task: T) {
    task.run();
}

/// Sixteen `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floats(__m512);

/// Defines a method of [`Arithmetic`] by a function of two vectors.
macro_rules! method {
    ($name:ident, $function:path) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: only code that runs on `Avx512` computes with `Floats`.
            Self(unsafe { $function(self.0, other.0) })
        }
    };
}

impl Arithmetic for Floats {
    method!(sum, _mm512_add_ps);
    method!(prod, _mm512_mul_ps);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nan() -> __m512 {
    _mm512_castsi512_ps(_mm512_set1_epi32(NAN_32 as i32))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nans(values: __m512) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values)
}

/// Sixteen f16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves;

impl Step for Halves {
    type Stored = [u8; 32];
    type Accumulator = Floats;

    #[inline(always)]
    fn widen(stored: [u8; 32]) -> Floats {
        // SAFETY: only code that runs on `Avx512` is instantiated with this step.
        Floats(unsafe { widen_halves(stored) })
    }

    #[inline(always)]
    fn narrow(accumulator: Floats) -> [u8; 32] {
        // SAFETY: as in `widen`.
        unsafe { narrow_halves(accumulator.0) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_halves(stored: [u8; 32]) -> __m512 {
    // SAFETY: the argument is 32 bytes long; the load needs no alignment.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(stored.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn narrow_halves(values: __m512) -> [u8; 32] {
    let canonical = _mm512_mask_mov_ps(values, nans(values), nan());
    let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(canonical);
    let mut stored = [0; 32];
    // SAFETY: `stored` is 32 bytes long; the store needs no alignment.
    unsafe { _mm256_storeu_si256(stored.as_mut_ptr().cast(), halves) };
    stored
}

/// Thirty-two bfloat16. Each 32-bit lane holds two: the upper half of a binary32 as it stands, and
/// one that a shift makes so. Nothing crosses a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brains;

impl Step for Brains {
    type Stored = [u8; 64];
    type Accumulator = Interleaved<Floats>;

    #[inline(always)]
    fn widen(stored: [u8; 64]) -> Interleaved<Floats> {
        // SAFETY: only code that runs on `Avx512` is instantiated with this step.
        unsafe { widen_brains(stored) }
    }

    #[inline(always)]
    fn narrow(accumulator: Interleaved<Floats>) -> [u8; 64] {
        // SAFETY: as in `widen`.
        unsafe { narrow_brains(accumulator) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_brains(stored: [u8; 64]) -> Interleaved<Floats> {
    // SAFETY: the argument is 64 bytes long; the load needs no alignment.
    let words = unsafe { _mm512_loadu_si512(stored.as_ptr().cast()) };
    let even = _mm512_slli_epi32::<16>(words);
    let odd = _mm512_and_si512(words, upper_halves());
    Interleaved { even: Floats(_mm512_castsi512_ps(even)), odd: Floats(_mm512_castsi512_ps(odd)) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn narrow_brains(values: Interleaved<Floats>) -> [u8; 64] {
    let even = _mm512_srli_epi32::<16>(rounded(values.even.0));
    let odd = rounded(values.odd.0);
    const SELECT: i32 = 0b1111_1000; // even | (odd & upper_halves)
    let words = _mm512_ternarylogic_epi32::<SELECT>(even, odd, upper_halves());
    let mut stored = [0; 64];
    // SAFETY: `stored` is 64 bytes long; the store needs no alignment.
    unsafe { _mm512_storeu_si512(stored.as_mut_ptr().cast(), words) };
    stored
}

#[inline]
#[target_feature(enable = "avx512f")]
fn upper_halves() -> __m512i {
    _mm512_set1_epi32(0xffff_0000_u32 as i32)
}

/// Words whose upper halves are the bfloat16 nearest to `values`: ties go to the even one, because
/// what is added reaches the next number exactly when the lower half exceeds one half, or is one
/// half and the number is odd.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
    let almost_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    let sum = _mm512_mask_add_epi32(almost_half, odd, bits, _mm512_set1_epi32(0x8000));
    _mm512_mask_mov_epi32(sum, nans(values), _mm512_set1_epi32(NAN_32 as i32))
}
