//! What each NIC of a rank carries, on all its links together.
//!
//! A link that gets little of a rail cannot tell a slow NIC from one that other links use more than its
//! siblings, as they do where peers have lost different rails. The NIC is slow only if it carries less than
//! its siblings in all.

use super::RailTraffic;

/// The traffic of all NICs, as it was when this link had last sent a window, and the time before.
#[derive(Clone, Debug)]
pub(super) struct Census {
    window_bytes: u64,
    /// What this link has sent since.
    sent: u64,
    last: Vec<u64>,
    before: Vec<u64>,
}

impl Census {
    pub(super) fn new(rails: usize, window_bytes: u64) -> Self {
        Self { window_bytes, sent: 0, last: vec![0; rails], before: vec![0; rails] }
    }

    /// This link has sent something.
    pub(super) fn count(&mut self, bytes: usize, traffic: &[RailTraffic]) {
        self.sent += bytes as u64;
        if self.sent >= self.window_bytes {
            self.sent = 0;
            let now = traffic.iter().map(RailTraffic::bytes).collect();
            self.before = std::mem::replace(&mut self.last, now);
        }
    }

    /// The part of its capacity that a NIC has carried lately, over the best such part of any.
    pub(super) fn share(
        &self,
        rail: usize,
        traffic: &[RailTraffic],
        capacity: impl Fn(usize) -> f64,
    ) -> f64 {
        let part = |rail: usize| {
            let bytes = traffic[rail].bytes().saturating_sub(self.before[rail]);
            bytes as f64 / capacity(rail)
        };
        let best = (0..traffic.len()).map(part).fold(0.0, f64::max);
        if best > 0.0 { part(rail) / best } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1000;

    fn traffic() -> Vec<RailTraffic> {
        (0..3).map(|_| RailTraffic::default()).collect()
    }

    #[test]
    fn a_nic_that_others_use_is_not_slow() {
        let (mut census, traffic) = (Census::new(3, WINDOW), traffic());
        assert_eq!(census.share(0, &traffic, |_| 1.0), 1.0, "nothing was carried");
        // Of this link little goes over rail 1, and much of another link.
        for (rail, bytes) in [(0, 500), (1, 250), (1, 250), (2, 100)] {
            traffic[rail].count(bytes);
        }
        assert_eq!([0, 1, 2].map(|rail| census.share(rail, &traffic, |_| 1.0)), [1.0, 1.0, 0.2]);
        let capacity = |rail: usize| if rail == 2 { 0.2 } else { 1.0 };
        assert_eq!(census.share(2, &traffic, capacity), 1.0);
        census.count(1000, &traffic);
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let (mut census, traffic) = (Census::new(3, WINDOW), traffic());
        let mut window = |bytes: [usize; 3]| {
            bytes.iter().zip(&traffic).for_each(|(bytes, rail)| rail.count(*bytes));
            let share = census.share(0, &traffic, |_| 1.0);
            census.count(WINDOW as usize, &traffic);
            share
        };
        assert_eq!(window([9000, 9000, 9000]), 1.0);
        assert_eq!(window([100, 1000, 1000]), 0.91);
        assert_eq!(window([100, 1000, 1000]), 0.1);
    }
}
