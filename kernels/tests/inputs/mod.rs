//! Inputs for all kernels, of processors and of GPUs, and what the oracle makes of them.
#![allow(dead_code, reason = "every battery uses a part of it")]

use std::io::Write as _;

use ccl_core::datatype::DataType;
use ccl_kernels::{Implementation, Kernel, Source};

/// Numbers of elements around the sizes of vectors.
pub(crate) const SIZES: [usize; 16] =
    [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4097];
/// Bytes around memory that a kernel writes, to see that it does not write there.
pub(crate) const GUARD_BYTES: usize = 64;

/// Splitmix64: the same inputs on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Exponent and mantissa bits of the float types.
pub(crate) fn fields(datatype: DataType) -> Option<(u32, u32)> {
    match datatype {
        DataType::Float16 => Some((5, 10)),
        DataType::Float32 => Some((8, 23)),
        DataType::Float64 => Some((11, 52)),
        DataType::Bfloat16 => Some((8, 7)),
        DataType::Float8E4m3 => Some((4, 3)),
        DataType::Float8E5m2 => Some((5, 2)),
        DataType::Int8
        | DataType::Uint8
        | DataType::Int32
        | DataType::Uint32
        | DataType::Int64
        | DataType::Uint64 => None,
    }
}

/// The bits where arithmetic is delicate: zeros, subnormals, infinities, NaNs, extremes of integers.
pub(crate) fn delicate(datatype: DataType) -> Vec<u64> {
    let sign = 1 << (8 * datatype.bytes() - 1);
    let magnitudes = match fields(datatype) {
        Some((exponent, mantissa)) => {
            let infinity = ((1 << exponent) - 1) << mantissa;
            let one = ((1 << (exponent - 1)) - 1) << mantissa;
            let (step, quiet) = (1 << mantissa, 1 << (mantissa - 1));
            let specials = [infinity - 1, infinity, infinity + 1, infinity | quiet, sign - 1];
            [&[0, 1, 2, step - 1, step, step + 1, one, one + 1], specials.as_slice()].concat()
        }
        None => vec![0, 1, 2, sign - 1],
    };
    magnitudes.iter().flat_map(|&bits| [bits, bits | sign]).collect()
}

/// Elements of which a third are delicate, a third have similar magnitudes, and a third are anything.
pub(crate) fn elements(random: &mut Random, datatype: DataType, count: usize) -> Vec<u8> {
    let delicate = delicate(datatype);
    let mut bytes = Vec::new();
    for _ in 0..count {
        let anything = random.next();
        let element = match (random.below(3), fields(datatype)) {
            (0, _) => random.pick(&delicate),
            (1, Some((exponent, mantissa))) => {
                let near_one = ((1 << (exponent - 1)) - 3 + anything % 5) << mantissa;
                let keep = ((1 << mantissa) - 1) | (1 << (exponent + mantissa));
                near_one | ((anything >> 3) & keep)
            }
            _ => anything,
        };
        bytes.extend_from_slice(&element.to_le_bytes()[..datatype.bytes()]);
    }
    bytes
}

/// The bits of each element.
pub(crate) fn bits(datatype: DataType, bytes: &[u8]) -> Vec<u64> {
    let element =
        |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks_exact(datatype.bytes()).map(element).collect()
}

/// The bytes of elements given as bits.
pub(crate) fn bytes(datatype: DataType, bits: &[u64]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()[..datatype.bytes()].to_vec()).collect()
}

/// The implementation that says what is right.
pub(crate) fn oracle() -> Implementation {
    Implementation::available()[0]
}

/// The reduction of vectors of elements.
pub(crate) fn reduced(by: Implementation, kernel: Kernel, operands: &[Vec<u8>]) -> Vec<u8> {
    let mut target = vec![0; operands[0].len()];
    let operands: Vec<Source<'_>> =
        operands.iter().map(|operand| operand.as_slice().into()).collect();
    by.reduce(kernel, &operands, target.as_mut_slice().into());
    target
}

/// Reports what is not tested, past the harness, which hides what tests that pass print. See
/// docs/testing.md.
pub(crate) fn skip(what: &str) {
    let line = format!("skip: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("somebody listens");
}
