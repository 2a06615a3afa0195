//! What each NIC of a rank carries, on all its links together.
//!
//! A link that gets little of a rail cannot tell a slow NIC from one that other links use more than its
//! siblings, as they do where peers have lost different rails. The NIC is slow only if it carries less than
//! its siblings in the time in which anything was on the way on it.

use super::RailTraffic;

/// A NIC that carries this part of what its siblings do, or more, is not slow.
const FULL: f64 = 2.0 / 3.0;

/// The traffic of all NICs, as it was when this link had last sent a window, and the time before.
#[derive(Clone, Debug)]
pub(super) struct Census {
    /// What this link has sent since.
    sent: u64,
    last: Vec<Carried>,
    before: Vec<Carried>,
}

/// What had arrived through a NIC, and for how long it had been busy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) bytes: u64,
    pub(super) busy_ns: u64,
}

impl Carried {
    /// Bytes per second since then.
    fn rate_since(self, before: Self) -> f64 {
        let [bytes, ns] = [self.bytes - before.bytes, self.busy_ns - before.busy_ns];
        if ns > 0 { bytes as f64 * 1e9 / ns as f64 } else { 0.0 }
    }
}

impl Census {
    pub(super) fn new(rails: usize) -> Self {
        let none = vec![Carried::default(); rails];
        Self { sent: 0, last: none.clone(), before: none }
    }

    /// This link has sent something. A window has so many bytes.
    pub(super) fn count(&mut self, bytes: usize, window_bytes: u64, traffic: &[RailTraffic]) {
        self.sent += bytes as u64;
        if self.sent >= window_bytes {
            self.sent = 0;
            let now = traffic.iter().map(RailTraffic::carried).collect();
            self.before = std::mem::replace(&mut self.last, now);
        }
    }

    /// The part of its capacity that a NIC has carried lately while it was busy, over the best such part of
    /// any; 1 if it is not much less.
    pub(super) fn share(
        &self,
        rail: usize,
        traffic: &[RailTraffic],
        capacity: impl Fn(usize) -> f64,
    ) -> f64 {
        let part =
            |rail: usize| traffic[rail].carried().rate_since(self.before[rail]) / capacity(rail);
        // More than was promised passes a shaped port in bursts.
        let best = (0..traffic.len()).map(part).fold(0.0, f64::max).min(1.0);
        let share = part(rail) / best;
        if share < FULL { share } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Timestamp;

    use super::*;

    fn traffic() -> Vec<RailTraffic> {
        (0..3).map(|_| RailTraffic::default()).collect()
    }

    /// Rails that carry so many bytes in so many nanoseconds from `start` on.
    fn carry(traffic: &[RailTraffic], start: u64, what: [(usize, u64); 3]) {
        for ((bytes, ns), rail) in what.into_iter().zip(traffic) {
            rail.arrived(bytes, Timestamp(start), Timestamp(start + ns));
        }
    }

    /// A byte per nanosecond.
    fn capacity(_: usize) -> f64 {
        1e9
    }

    #[test]
    fn a_nic_that_others_use_is_not_slow() {
        let (census, traffic) = (Census::new(3), traffic());
        assert_eq!(census.share(0, &traffic, capacity), 1.0, "nothing was carried");
        // Of this link little goes over rail 1, and much of another link, at the same time.
        carry(&traffic, 0, [(500, 500), (250, 500), (100, 500)]);
        carry(&traffic, 0, [(0, 0), (250, 500), (0, 0)]);
        assert_eq!([0, 1, 2].map(|rail| census.share(rail, &traffic, capacity)), [1.0, 1.0, 0.2]);
        let slow = |rail: usize| if rail == 2 { 2e8 } else { 1e9 };
        assert_eq!(census.share(2, &traffic, slow), 1.0);
    }

    #[test]
    fn a_nic_for_which_all_wait_is_slow_though_it_carries_as_much() {
        let (census, traffic) = (Census::new(3), traffic());
        carry(&traffic, 0, [(500, 500), (500, 2500), (500, 550)]);
        assert_eq!([0, 1, 2].map(|rail| census.share(rail, &traffic, capacity)), [1.0, 0.2, 1.0]);
    }

    #[test]
    fn bursts_make_no_nic_slow() {
        let (census, traffic) = (Census::new(3), traffic());
        carry(&traffic, 0, [(500, 1), (500, 500), (500, 500)]);
        assert_eq!([0, 1, 2].map(|rail| census.share(rail, &traffic, capacity)), [1.0; 3]);
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let (mut census, traffic) = (Census::new(3), traffic());
        let mut start = 0;
        let mut window = |bytes: [usize; 3]| {
            carry(&traffic, start, bytes.map(|bytes| (bytes, 1000)));
            start += 1000;
            let share = census.share(0, &traffic, capacity);
            census.count(500, 1000, &traffic);
            census.count(500, 1000, &traffic);
            share
        };
        assert_eq!(window([1000, 1000, 1000]), 1.0);
        assert_eq!(window([100, 1000, 1000]), 0.55);
        assert_eq!(window([100, 1000, 1000]), 0.1);
    }
}
