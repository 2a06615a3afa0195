//! Compares what is in memory with what must be there.

use crate::benchmark::{Origin, Segment};
use crate::data::{Expected, PERIOD, Pattern};
use crate::element;

/// Bytes behind a receive buffer that nobody may touch.
pub const GUARD_BYTES: usize = 64;

/// What an untouched guard consists of.
const GUARD: u8 = 0x5c;

/// What receive buffers are filled with before a checked call, so that data of an earlier call does
/// not pass for the result.
const STALE: u8 = 0xb7;

/// Writes the contribution of `rank` into its input.
pub fn fill_input(input: &mut [u8], pattern: &Pattern, rank: usize) {
    let bytes = pattern.datatype().bytes();
    let count = input.len() / bytes;
    for index in 0..count.min(PERIOD) {
        element::store(input, bytes, index, pattern.input(rank, index));
    }
    let mut filled = PERIOD;
    while filled < count {
        let more = filled.min(count - filled);
        input.copy_within(..more * bytes, filled * bytes);
        filled += more;
    }
}

/// Makes a receive buffer different from every expected result, and its guard intact.
pub fn fill_output(output: &mut [u8], guard: &mut [u8]) {
    output.fill(STALE);
    guard.fill(GUARD);
}

/// Number of elements of `output` that are not what `segments` say.
#[must_use]
pub fn wrong_elements(output: &[u8], pattern: &Pattern, segments: &[Segment]) -> u64 {
    let bytes = pattern.datatype().bytes();
    let wrong = |segment: &Segment| {
        let part = &output[segment.offset * bytes..][..segment.count * bytes];
        let period: Vec<Expected> = (0..segment.count.min(PERIOD))
            .map(|index| expected(pattern, segment.origin, index))
            .collect();
        let mut image = vec![0; period.len() * bytes];
        for (index, expected) in period.iter().enumerate() {
            element::store(&mut image, bytes, index, expected.bits);
        }
        // Most results are right to the last bit, and the comparison of whole periods is quick.
        let doubtful = part
            .chunks(image.len().max(1))
            .filter(|chunk| **chunk != image[..chunk.len()])
            .map(|chunk| wrong_in_period(chunk, pattern, &period));
        doubtful.sum::<u64>()
    };
    segments.iter().map(wrong).sum()
}

/// Number of elements at the beginning of a period that are not what they must be.
fn wrong_in_period(part: &[u8], pattern: &Pattern, period: &[Expected]) -> u64 {
    let bytes = pattern.datatype().bytes();
    let differs = |(index, expected): &(usize, &Expected)| {
        !matches(pattern, element::load(part, bytes, *index), **expected)
    };
    period.iter().enumerate().take(part.len() / bytes).filter(differs).count() as u64
}

/// Number of bytes of a guard that were overwritten.
#[must_use]
pub fn overwritten(guard: &[u8]) -> u64 {
    guard.iter().filter(|byte| **byte != GUARD).count() as u64
}

fn expected(pattern: &Pattern, origin: Origin, index: usize) -> Expected {
    match origin {
        Origin::Reduced { first } => pattern.reduced(first + index),
        Origin::Rank { rank, first } => {
            Expected { bits: pattern.input(rank, first + index), tolerance: 0 }
        }
    }
}

fn matches(pattern: &Pattern, got: u64, expected: Expected) -> bool {
    got == expected.bits
        || expected.tolerance > 0
            && element::distance(pattern.datatype(), got, expected.bits)
                .is_some_and(|steps| steps <= expected.tolerance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Operation;
    use ccl::DataType;

    const COUNT: usize = 100;

    fn segment() -> Segment {
        Segment { offset: 3, count: COUNT, origin: Origin::Reduced { first: 0 } }
    }

    /// An output with the right result at the place of [`segment`].
    fn right(pattern: &Pattern) -> Vec<u8> {
        let bytes = pattern.datatype().bytes();
        let mut output = vec![0; (3 + COUNT) * bytes];
        for index in 0..COUNT {
            element::store(&mut output, bytes, 3 + index, pattern.reduced(index).bits);
        }
        output
    }

    #[test]
    fn every_flipped_element_is_counted() {
        for datatype in DataType::ALL {
            for operation in Operation::ALL {
                let pattern = Pattern::new(datatype, Some(operation), 4, 11);
                let mut output = right(&pattern);
                assert_eq!(wrong_elements(&output, &pattern, &[segment()]), 0);
                for (flipped, index) in [3, 50, 3 + COUNT - 1].into_iter().enumerate() {
                    output[index * datatype.bytes()] ^= 1;
                    let wrong = wrong_elements(&output, &pattern, &[segment()]);
                    assert_eq!(wrong, flipped as u64 + 1, "{datatype:?} {operation:?}");
                }
            }
        }
    }

    #[test]
    fn averages_may_be_off_by_two_steps_and_no_more() {
        let pattern = Pattern::new(DataType::Float32, Some(Operation::Avg), 3, 11);
        for (steps, wrong) in [(2, 0), (3, 1)] {
            let mut output = right(&pattern);
            let bits = pattern.reduced(7).bits + steps;
            element::store(&mut output, 4, 3 + 7, bits);
            assert_eq!(wrong_elements(&output, &pattern, &[segment()]), wrong);
        }
    }

    #[test]
    fn moved_data_is_compared_bit_by_bit() {
        let pattern = Pattern::new(DataType::Float32, None, 2, 5);
        let mut output = vec![0; COUNT * 4];
        fill_input(&mut output, &pattern, 1);
        let of_rank =
            |rank| [Segment { offset: 0, count: COUNT, origin: Origin::Rank { rank, first: 0 } }];
        assert_eq!(wrong_elements(&output, &pattern, &of_rank(1)), 0);
        assert!(wrong_elements(&output, &pattern, &of_rank(0)) >= COUNT as u64 - 1);
    }

    #[test]
    fn data_that_was_never_written_is_wrong() {
        let pattern = Pattern::new(DataType::Float64, Some(Operation::Sum), 2, 5);
        let mut output = right(&pattern);
        let mut guard = [0; GUARD_BYTES];
        fill_output(&mut output, &mut guard);
        assert_eq!(wrong_elements(&output, &pattern, &[segment()]), COUNT as u64);
        assert_eq!(overwritten(&guard), 0);
        guard[9] = 0;
        assert_eq!(overwritten(&guard), 1);
    }
}
