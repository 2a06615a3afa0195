//! How far the readers of a ring are from its writer.
//!
//! Where their cores share a cache, tiles are best stored there: a reader has them at once. Where they do not, every line
//! has to be fetched back from the reader before it is stored and fetched again to be read, and on some processors it is faster
//! to go past the caches with both. Which of the two it is, nobody says, and a hypervisor may move processors from one moment
//! to the next. So the writer measures now and then how long a line takes that a reader has just written: the one with what it
//! has released, which has to be fetched anyway.

use std::mem;
use std::sync::LazyLock;
use std::time::Duration;

use super::atomics::{AtomicU64, Ordering};
use crate::clock;

/// A line that takes longer comes from a core that does not share a cache with ours. Where they do it takes 10 to 40 ns, else
/// 110 to 150 (AMD Zen 4).
const FAR: Duration = Duration::from_nanos(75);
/// Looks that say something else than before make up for each other up to so many: some are interrupted, and readers differ.
const MOST_EVIDENCE: u8 = 4;
/// With so much evidence the readers are far, and near with as much for that.
const ENOUGH: u8 = 3;
/// Bytes from one look at the readers to the next, if all have said the same of late.
pub(super) const PAUSE_BYTES: usize = 256 << 10;
/// And if they have not. To be wrong takes ten times as long as to store what the readers get.
pub(super) const DOUBT_BYTES: usize = 32 << 10;

/// Whether this processor is one whose tiles for far readers had better go past the caches.
///
/// How long one line takes does not tell: it is 105 to 115 ns on an AMD Zen 5 and on an Intel with AMX. But the latter asks for
/// so many lines at a time that 512 KiB come from a far cache with 17 GB/s, and with 10 if they were stored past it; the former
/// takes 1.5 times as long through the caches, and a Zen 4 five to ten times. Others are taken for the latter.
static GAINS_PAST_THE_CACHES: LazyLock<bool> = LazyLock::new(is_by_amd);

/// Whether AMD has designed this processor.
#[cfg(target_arch = "x86_64")]
fn is_by_amd() -> bool {
    let vendor = raw_cpuid::CpuId::new().get_vendor_info();
    vendor.is_some_and(|vendor| ["AuthenticAMD", "HygonGenuine"].contains(&vendor.as_str()))
}

/// AMD makes no others.
#[cfg(not(target_arch = "x86_64"))]
fn is_by_amd() -> bool {
    false
}

/// What the writer of a ring thinks of its readers.
#[derive(Debug)]
pub(super) struct Distance {
    /// Whether it matters, see [`GAINS_PAST_THE_CACHES`].
    matters: bool,
    is_far: bool,
    /// For far readers, of [`MOST_EVIDENCE`].
    evidence: u8,
    looks: usize,
}

impl Distance {
    pub(super) fn new() -> Self {
        Self::that_matters(*GAINS_PAST_THE_CACHES)
    }

    fn that_matters(matters: bool) -> Self {
        Self { matters, is_far: false, evidence: 0, looks: 0 }
    }

    /// Whether tiles had better be stored past the caches.
    pub(super) fn is_far(&self) -> bool {
        self.matters && self.is_far
    }

    /// How many there were.
    pub(super) fn looks(&self) -> usize {
        self.looks
    }

    /// Bytes until the next look.
    pub(super) fn pause_bytes(&self) -> usize {
        match self.evidence {
            0 | MOST_EVIDENCE => PAUSE_BYTES,
            _ => DOUBT_BYTES,
        }
    }

    /// Fetches what a reader has written here, which is `known` then. If it was known already there is nothing to fetch, and
    /// nothing to learn: false.
    pub(super) fn look(&mut self, written: &AtomicU64, known: &mut u64) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let took = time(written, known);
        if let Some(took) = took {
            self.judge(took);
        }
        took.is_some()
    }

    fn judge(&mut self, took: Duration) {
        self.evidence = match took >= FAR {
            true => (self.evidence + 1).min(MOST_EVIDENCE),
            false => self.evidence.saturating_sub(1),
        };
        if self.evidence >= ENOUGH {
            self.is_far = true;
        } else if self.evidence <= MOST_EVIDENCE - ENOUGH {
            self.is_far = false;
        }
    }
}

/// How long it takes to fetch this word; `None` if nobody has written it since it was fetched, so that it need not be.
fn time(word: &AtomicU64, known: &mut u64) -> Option<Duration> {
    let began = clock::now();
    let value = word.load(Ordering::Acquire);
    let between = clock::now();
    let again = word.load(Ordering::Acquire);
    // What the clock takes, and a word that is here.
    let own = clock::now() - between;
    let is_new = value != mem::replace(known, again);
    (is_new && again == value).then(|| (between - began).saturating_sub(own))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_nanos(30);

    #[test]
    fn looks_decide_together() {
        let mut distance = Distance::that_matters(true);
        let mut after = |looks: &[Duration]| {
            looks.iter().for_each(|look| distance.judge(*look));
            distance.is_far()
        };
        assert!(!after(&[FAR, FAR]));
        assert!(!after(&[NEAR, FAR]));
        assert!(after(&[FAR]));
        assert!(after(&[FAR; 100]), "what was long ago does not count");
        assert!(after(&[NEAR, NEAR, FAR, FAR, NEAR, NEAR]));
        assert!(!after(&[NEAR]));
        assert!(!after(&[NEAR; 100]));
        assert!(!after(&[FAR, FAR]));
        assert!(after(&[FAR]));
    }

    #[test]
    fn nobody_is_far_where_it_does_not_matter() {
        let mut distance = Distance::that_matters(false);
        [FAR; 100].iter().for_each(|look| distance.judge(*look));
        assert!(!distance.is_far());
    }

    #[test]
    fn a_look_that_says_something_else_is_soon_followed_by_others() {
        let mut distance = Distance::that_matters(true);
        let pauses = [NEAR, FAR, FAR, FAR, FAR, FAR, NEAR, FAR].map(|look| {
            distance.judge(look);
            distance.pause_bytes()
        });
        let (long, short) = (PAUSE_BYTES, DOUBT_BYTES);
        assert_eq!(pauses, [long, short, short, short, long, long, short, long]);
    }

    #[test]
    fn only_what_a_reader_has_written_is_timed() {
        let (word, mut known) = (AtomicU64::new(7), 7);
        assert_eq!(time(&word, &mut known), None);
        word.store(8, Ordering::Release);
        assert!(time(&word, &mut known).is_some());
        assert_eq!(time(&word, &mut known), None, "it has been fetched");
    }
}
