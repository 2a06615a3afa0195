//! How far away the readers of a link are, as its writer feels it.
//!
//! A slot that is filled again lies in the cache of the core that has read it. Where the two cores share a cache, the
//! next tile is best stored there: the reader has it at once. Where they do not, every line has to be fetched back
//! before it is stored and fetched again to be read, and it is more than twice as fast to go past the caches with
//! both. Which of the two it is, nobody says: a hypervisor may move processors from one moment to the next. So now and
//! then samples of a tile are stored each way, and what they take decides about the following ones.

use std::ops::RangeInclusive;
use std::time::Duration;

use ccl_kernels::{Source, Target, copy, copy_streaming};
use ccl_transport::clock;

/// Bytes that are stored each way to find out: half a tile, at most the larger number. Of fewer than the smaller one
/// the writer does not feel how far they go.
const SAMPLE_BYTES: RangeInclusive<usize> = 4 << 10..=8 << 10;
/// Bytes before the first look: memory that nobody has used yet is far for everybody.
const FIRST_BYTES: usize = 1 << 20;
/// Bytes from one look to the next, of which it then costs a hundredth.
const LOOK_BYTES: usize = 2 << 20;
/// Shorter tiles are always stored through the caches: hardly more than their headers.
const LEAST_BYTES: usize = 1 << 10;
/// Readers are far if a byte takes so long through the caches: 8 GB/s. Measured on processors of Zen 3 it is 40 to 75 ps
/// where the cores share a cache, and 130 to 270 ps where they do not.
const FAR_PICOSECONDS: u128 = 125;
/// And it has to take so many times as long as past them: what comes from memory takes long on either way. Measured as
/// above it is 1.5 at least where cores do not share a cache, if both write to each other at once, and 3 to 6 if one does.
const TIMES: (u32, u32) = (7, 5);

/// The distance to the readers of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    is_far: bool,
    /// Whether the last look said otherwise. Two have to: one may have been interrupted.
    is_doubted: bool,
    /// Bytes until the next look.
    unseen: usize,
}

impl Default for Distance {
    fn default() -> Self {
        Self { is_far: false, is_doubted: false, unseen: FIRST_BYTES }
    }
}

impl Distance {
    /// Copies a tile into a slot, on the way that suits the distance.
    pub(super) fn put(&mut self, source: Source<'_>, mut slot: Target<'_>) {
        let bytes = source.bytes();
        let mut done = 0;
        let sample_bytes = (bytes / 2).min(*SAMPLE_BYTES.end());
        if self.unseen < bytes && sample_bytes >= *SAMPLE_BYTES.start() {
            let sample = Sample::take(sample_bytes, &source, &mut slot);
            self.judge(&sample);
            done = 2 * sample_bytes;
        }
        self.unseen = self.unseen.saturating_sub(bytes);
        let rest = bytes - done;
        let (source, slot) = (source.part(done, rest), slot.part(done, rest));
        if self.is_far && rest >= LEAST_BYTES {
            copy_streaming(source, slot);
        } else {
            copy(source, slot);
        }
    }

    /// Makes of a look what there is to make of it.
    fn judge(&mut self, sample: &Sample) {
        let differs = sample.is_far() != self.is_far;
        if differs && self.is_doubted {
            self.is_far = !self.is_far;
        }
        self.is_doubted = differs && !self.is_doubted;
        self.unseen = if self.is_doubted { 0 } else { LOOK_BYTES };
    }
}

/// How long it took to store so many bytes.
#[derive(Debug)]
struct Sample {
    bytes: usize,
    through_caches: Duration,
    past_caches: Duration,
}

impl Sample {
    /// Copies the first bytes of a tile, as many through the caches as past them.
    #[cold]
    fn take(bytes: usize, source: &Source<'_>, slot: &mut Target<'_>) -> Self {
        let began = clock::now();
        copy(source.part(0, bytes), slot.part(0, bytes));
        let between = clock::now();
        copy_streaming(source.part(bytes, bytes), slot.part(bytes, bytes));
        let past_caches = clock::now() - between;
        Self { bytes, through_caches: between - began, past_caches }
    }

    fn is_far(&self) -> bool {
        let least = self.bytes as u128 * FAR_PICOSECONDS;
        self.through_caches.as_nanos() * 1000 >= least
            && self.through_caches * TIMES.1 >= self.past_caches * TIMES.0
    }
}

#[cfg(test)]
mod tests {
    use ccl_kernels::Region;

    use super::*;

    #[test]
    fn two_looks_in_a_row_decide() {
        let mut distance = Distance::default();
        let mut after = |through: u64, past| {
            let [through_caches, past_caches] = [through, past].map(Duration::from_nanos);
            distance.judge(&Sample { bytes: 8 << 10, through_caches, past_caches });
            (distance.is_far, distance.unseen > 0)
        };
        assert_eq!(after(400, 800), (false, true), "near");
        assert_eq!(after(1900, 700), (false, false), "far: to be confirmed at once");
        assert_eq!(after(400, 800), (false, true), "it was an interruption");
        assert_eq!(after(1900, 700), (false, false));
        assert_eq!(after(1900, 700), (true, true));
        assert_eq!(after(1900, 700), (true, true));
        assert_eq!(after(1900, 1800), (true, false), "slow both ways");
        assert_eq!(after(600, 300), (false, true), "faster than what is far");
    }

    /// Whatever the distance, and with and without a look, all bytes come through.
    #[test]
    fn every_byte_comes_through() {
        for bytes in [0, 1, 1000, (8 << 10) - 1, 8 << 10, 9001, 100_003] {
            for (is_far, unseen) in [(false, 0), (false, LOOK_BYTES), (true, 0), (true, LOOK_BYTES)]
            {
                let source: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
                let mut slot = vec![0_u8; bytes + 2];
                let mut distance = Distance { is_far, is_doubted: false, unseen };
                distance.put(Region::of(&source).source(0, bytes), (&mut slot[1..=bytes]).into());
                assert_eq!(slot[1..=bytes], source);
                assert_eq!((slot[0], slot[bytes + 1]), (0, 0));
            }
        }
    }
}
