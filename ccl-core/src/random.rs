//! Seeded random numbers that are the same on every machine and in every version.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        random.number();
        random
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `limit`; 0 if there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }

    /// An index into something of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// True in so many cases of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A number of `low..high` whose order of magnitude is what is drawn.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let doublings = u64::from((high / low.max(1)).max(1).ilog2()) + 1;
        let base = low << self.below(doublings);
        (base + self.below(base)).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let mut one = Random::new(7);
        let mut other = Random::new(7);
        let draw = |random: &mut Random| -> Vec<u64> { (0..5).map(|_| random.number()).collect() };
        assert_eq!(draw(&mut one), draw(&mut other));
        assert_ne!(draw(&mut Random::new(8)), draw(&mut Random::new(7)));
    }

    #[test]
    fn magnitudes_stay_in_their_range() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| random.magnitude(10, 1_000_000)).collect();
        assert!(drawn.iter().all(|number| (10..=1_000_000).contains(number)));
        assert!(drawn.iter().any(|number| *number < 100));
        assert!(drawn.iter().any(|number| *number > 100_000));
    }
}
