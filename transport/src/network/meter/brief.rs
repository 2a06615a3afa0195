//! What messages that fill no rail say of one.

use smallvec::SmallVec;

use super::super::MAX_RAILS;
use super::{CROWDED, FULL, LEAST, Span};

/// So many looks in a row must agree.
pub(super) const AGREEING: usize = 4;
/// A rail that carries less than this part of what the others do is slow for them.
const SLOW: f64 = 1.0 / 3.0;

/// What looks find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finding {
    Slow,
    Good,
}

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
}

impl Brief {
    pub(super) fn new() -> Self {
        Self { busy: Span::default(), found: None, slow: 0, good: 0 }
    }

    /// The rail is not known to be slow, and has this share by a look at it, if it has carried enough. What is found.
    pub(super) fn looked_at(&mut self, share: Option<f64>) -> Option<Finding> {
        (self.slow, self.good) = match share {
            Some(share) if share < SLOW => (self.slow + 1, 0),
            Some(_) => (0, self.good + 1),
            None => (self.slow, self.good),
        };
        if let Some(share) = share.filter(|_| self.slow >= AGREEING) {
            self.slow = 0;
            self.found = Some(share.max(LEAST));
            return Some(Finding::Slow);
        }
        (self.good >= AGREEING).then_some(Finding::Good)
    }

    /// The rail is taken to be good until it is found to be slow again.
    pub(super) fn try_again(&mut self) {
        (self.slow, self.good, self.found) = (0, 0, Some(1.0));
    }

    /// The rail has this share while it is full, which counts for more, unless it is so small that other links are not why. How
    /// slow a slow one is, is not known well before several measurements have agreed.
    pub(super) fn measured(&mut self, share: f64) {
        let is_slow = share < CROWDED;
        self.found = self.found.filter(|found| (*found < FULL) == is_slow);
    }

    /// What was measured while the rail was full is told to all.
    pub(super) fn told(&mut self) {
        self.found = None;
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
