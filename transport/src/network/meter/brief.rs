//! What messages that fill no rail say of one.

use smallvec::SmallVec;

use super::super::MAX_RAILS;
use super::{FULL, LEAST, STEP, Span};

/// So many looks in a row must agree.
pub(super) const AGREEING: usize = 4;
/// A rail that carries less than this part of what the others do is slow for them.
const SLOW: f64 = 1.0 / 3.0;
/// A rail that is slow for them is tried again after so many looks; after twice as many the next time.
pub(super) const FIRST_TRIAL: u32 = 256;
const LAST_TRIAL: u32 = 1 << 16;

/// What looks at such messages say of a rail.
#[derive(Clone, Debug)]
pub(super) struct Brief {
    /// While anything is on the way on it, since the last look.
    pub(super) busy: Span,
    /// What they say its share is, until it is measured while it is full.
    pub(super) found: Option<f64>,
    /// So many in a row, that it is slow, or that it is not.
    slow: usize,
    good: usize,
    /// So many looks ago it was last found to be slow; after how many it is tried again.
    ago: u32,
    pub(super) trial: u32,
}

impl Brief {
    pub(super) fn new() -> Self {
        let busy = Span::default();
        Self { busy, found: None, slow: 0, good: 0, ago: 0, trial: FIRST_TRIAL }
    }

    /// The share of the rail is taken to be `worth`, and is this by a look at it, if it has carried enough. Whether it is taken
    /// to be another from now on.
    pub(super) fn looked_at(&mut self, share: Option<f64>, worth: f64) -> bool {
        (self.slow, self.good) = match share {
            Some(share) if share < SLOW => (self.slow + 1, 0),
            Some(_) => (0, self.good + 1),
            None => (self.slow, self.good),
        };
        self.ago += 1;
        if worth < FULL {
            let is_tried = self.ago >= self.trial;
            if is_tried {
                (self.slow, self.good) = (0, 0);
                self.trial = (2 * self.trial).min(LAST_TRIAL);
                self.found = Some(1.0);
            }
            return is_tried;
        }
        if self.good >= AGREEING {
            self.trial = FIRST_TRIAL;
        }
        let found = share.filter(|_| self.slow >= AGREEING);
        if let Some(share) = found {
            (self.slow, self.ago) = (0, 0);
            self.found = Some(share.max(LEAST));
        }
        found.is_some()
    }

    /// The rail has this share while it is full, which counts for more. How slow a slow one is, is not known well before
    /// several measurements have agreed.
    pub(super) fn measured(&mut self, share: f64) {
        let is_slow = share < 1.0 / STEP;
        self.found = self.found.filter(|found| (*found < FULL) == is_slow);
    }

    /// What was measured while the rail was full is told to all.
    pub(super) fn told(&mut self) {
        (self.found, self.ago) = (None, 0);
    }
}

/// The share of each of some rails with these capacities, of which it is known how long a byte keeps them busy. A rail of
/// less capacity may take as much longer; one of more need not be faster, because such messages wait for their
/// way and not for bandwidth.
pub(super) fn shares(rails: &[(f64, Option<f64>)]) -> SmallVec<[Option<f64>; MAX_RAILS]> {
    let share = |&(capacity, time): &(f64, Option<f64>)| {
        let beside =
            |&(other, its): &(f64, Option<f64>)| Some(its? / time? * (other / capacity).max(1.0));
        time.map(|_| rails.iter().filter_map(beside).fold(1.0, f64::min))
    };
    rails.iter().map(share).collect()
}
