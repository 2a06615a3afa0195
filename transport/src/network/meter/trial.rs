//! When a rail that is slow is tried again.

/// After so many looks; after twice as many the next time.
pub(super) const FIRST: u32 = 256;
const LAST: u32 = 1 << 16;
/// What could not be measured in so many comparisons of full rails will not be.
const UNMEASURED: u32 = 2;
/// So many tiles in a row must be fast enough before it is given more: a shaped port lets a burst pass at any rate.
pub(super) const TILES: usize = 8;

/// When a rail is tried again, and how that goes.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// So many looks ago it was last measured, or found to be slow; after how many it is tried.
    ago: u32,
    pub(super) wait: u32,
    /// Tiles that have to be fast enough yet, one after the other; none where it is not tried by tiles.
    left: usize,
    /// Comparisons since it was last measured.
    missed: u32,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self { ago: 0, wait: FIRST, left: 0, missed: 0 }
    }

    /// Another look, of a rail that is slow. Whether it is tried now.
    pub(super) fn is_due(&mut self) -> bool {
        self.ago += 1;
        let is_due = self.ago >= self.wait;
        if is_due {
            (self.ago, self.wait) = (0, (2 * self.wait).min(LAST));
        }
        is_due
    }

    /// From now on single tiles try it.
    pub(super) fn begin(&mut self) {
        self.left = TILES;
    }

    /// Whether single tiles try it.
    pub(super) fn is_on(&self) -> bool {
        self.left > 0
    }

    /// Whether it gets so little that it is not measured.
    pub(super) fn is_unmeasured(&self) -> bool {
        self.missed >= UNMEASURED
    }

    /// Full rails are compared, whether it can be or not.
    pub(super) fn compared(&mut self) {
        self.missed += 1;
    }

    /// A tile has arrived: one that is not fast enough ends the trial. Whether it was the last that had to be.
    pub(super) fn arrived(&mut self, is_good: bool) -> bool {
        let was_on = self.is_on();
        self.left = if is_good { self.left.saturating_sub(1) } else { 0 };
        was_on && is_good && !self.is_on()
    }

    pub(super) fn measured(&mut self) {
        (self.ago, self.missed) = (0, 0);
    }

    /// The rail is taken to be good, so there is nothing to try.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    pub(super) fn found_good(&mut self) {
        self.wait = FIRST;
        self.end();
    }
}
