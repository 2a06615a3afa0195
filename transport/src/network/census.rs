//! What each NIC of a rank carries, on all its links together.
//!
//! A link that gets little of a rail cannot tell a slow NIC from one that other links use more than its
//! siblings, as they do where peers have lost different rails. The NIC is slow only if it takes longer for
//! its bytes on all links than a sibling for as many: one that has less to carry may pass it on in bursts.

use std::collections::VecDeque;

use super::RailTraffic;

/// A NIC that carries this part of what its siblings do, or more, is not slow. (With half of its lanes it is.)
const FULL: f64 = 0.55;

/// A NIC that has carried this part of what another has, or more, has carried as much.
const ALIKE: f64 = 0.9;

/// Over so many windows of a link NICs are compared: long enough that what passes a shaped port in bursts does
/// not matter.
const WINDOWS: usize = 8;

/// The traffic of all NICs, as it was when this link had sent each of the last windows.
#[derive(Clone, Debug)]
pub(super) struct Census {
    /// What this link has sent since.
    sent: u64,
    history: VecDeque<Vec<Carried>>,
}

/// What had arrived through a NIC, and for how long it had been busy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) bytes: u64,
    pub(super) busy_ns: u64,
}

impl Carried {
    fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes - before.bytes, busy_ns: self.busy_ns - before.busy_ns }
    }

    /// Bytes per second.
    fn rate(self) -> f64 {
        if self.busy_ns > 0 { self.bytes as f64 * 1e9 / self.busy_ns as f64 } else { 0.0 }
    }
}

impl Census {
    pub(super) fn new(rails: usize) -> Self {
        Self { sent: 0, history: VecDeque::from([vec![Carried::default(); rails]]) }
    }

    /// This link has sent something. A window has so many bytes.
    pub(super) fn count(&mut self, bytes: usize, window_bytes: u64, traffic: &[RailTraffic]) {
        self.sent += bytes as u64;
        if self.sent >= window_bytes {
            self.sent = 0;
            self.history.push_back(traffic.iter().map(RailTraffic::carried).collect());
            if self.history.len() > WINDOWS {
                self.history.pop_front();
            }
        }
    }

    /// What part of its capacity a NIC has carried lately while it was busy, over the best such part of any
    /// that has carried as much; 1 if it is not much less.
    pub(super) fn share(
        &self,
        rail: usize,
        traffic: &[RailTraffic],
        capacity: impl Fn(usize) -> f64,
    ) -> f64 {
        let before = &self.history[0];
        let lately = |rail: usize| traffic[rail].carried().since(before[rail]);
        let load = |rail: usize| lately(rail).bytes as f64 / capacity(rail);
        // More than was promised passes a shaped port in bursts.
        let part = |rail: usize| (lately(rail).rate() / capacity(rail)).min(1.0);
        let enough = load(rail) * ALIKE;
        let others = (0..traffic.len()).filter(|other| load(*other) >= enough);
        let share = part(rail) / others.map(part).fold(0.0, f64::max);
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
    fn a_nic_that_has_less_to_carry_makes_no_other_slow() {
        let (census, traffic) = (Census::new(3), traffic());
        carry(&traffic, 0, [(400, 400), (1000, 2000), (1000, 2000)]);
        assert_eq!([0, 1, 2].map(|rail| census.share(rail, &traffic, capacity)), [1.0; 3]);
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
        let healthy = [1000; 3];
        (0..2 * WINDOWS).for_each(|_| assert_eq!(window(healthy), 1.0));
        let slow: Vec<f64> = (0..2 * WINDOWS).map(|_| window([100, 1000, 1000])).collect();
        assert_eq!((slow[0], slow[WINDOWS], slow[2 * WINDOWS - 1]), (1.0, 0.1, 0.1));
    }
}
