//! Whole pages of ordinary memory, and what is in them.

use std::ops::Range;

const PAGE_BYTES: usize = 4096;
const ELEMENT_BYTES: usize = size_of::<f32>();

/// Inputs repeat after so many elements; it is prime so that shifted blocks are noticed.
const PERIOD: usize = 251;

/// Whole pages of ordinary memory.
pub(crate) struct Memory {
    store: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Memory {
    /// `f32`s of this value.
    #[allow(clippy::cast_precision_loss, reason = "values are small")]
    pub(crate) fn new(bytes: usize, value: usize) -> Self {
        Self::repeating(bytes, &(value as f32).to_le_bytes().repeat(PAGE_BYTES / ELEMENT_BYTES))
    }

    /// The [input](input_values) of a rank.
    pub(crate) fn input(bytes: usize, rank: usize) -> Self {
        Self::repeating(bytes, &input_values(rank..rank + 1, 0))
    }

    fn repeating(bytes: usize, pattern: &[u8]) -> Self {
        let store = vec![0; bytes + PAGE_BYTES];
        let start = store.as_ptr().align_offset(PAGE_BYTES);
        let mut memory = Self { store, start, bytes };
        let whole = bytes / ELEMENT_BYTES * ELEMENT_BYTES;
        let filled = &mut memory.bytes_mut()[..whole];
        filled
            .chunks_mut(pattern.len())
            .for_each(|part| part.copy_from_slice(&pattern[..part.len()]));
        memory
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.store[self.start..][..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.start..][..self.bytes]
    }
}

/// A period of the sum of what these ranks have as inputs, from a byte on: whole numbers, of which none is zero.
#[allow(clippy::cast_precision_loss, reason = "values are small")]
pub(crate) fn input_values(ranks: Range<usize>, first: usize) -> Vec<u8> {
    let value = |element: usize, rank: usize| ((element + 17 * rank) % PERIOD + 1) as f32;
    let elements = first / ELEMENT_BYTES..first / ELEMENT_BYTES + PERIOD;
    let sum = |element| ranks.clone().map(|rank| value(element, rank)).sum::<f32>();
    elements.flat_map(|element| sum(element).to_le_bytes()).collect()
}

/// How many bytes differ.
pub(crate) fn different(left: &[u8], right: &[u8]) -> usize {
    // Where nothing does, comparing whole vectors is fastest.
    if left == right {
        return 0;
    }
    left.iter().zip(right).filter(|(left, right)| left != right).count()
}
