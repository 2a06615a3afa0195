//! How long a path that keeps dying stays out of use.
//!
//! Every return costs a moment of lower bandwidth when the path dies again, so a flapping one costs
//! more than it brings. A path that died again soon after its return waits before the next one, twice
//! as long each time; one that held is trusted again.

use crate::ids::Timestamp;

/// A path that holds so long is trusted again.
pub const TRUST_NS: u64 = 10_000_000_000;
/// How long the second of two quick faults keeps a path out, unless somebody wants it otherwise.
pub const FIRST_HOLD_NS: u64 = 1_000_000_000;
/// How long any fault keeps a path out at most.
pub const LONGEST_HOLD_NS: u64 = 64_000_000_000;

/// The record of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    first_hold_ns: u64,
    returned: Option<Timestamp>,
    /// What the next quick fault costs.
    hold_ns: u64,
}

impl Quarantine {
    /// A path without faults. The second of two quick ones keeps it out for `first_hold_ns`; with
    /// zero it never waits.
    #[must_use]
    pub fn new(first_hold_ns: u64) -> Self {
        Self { first_hold_ns, returned: None, hold_ns: first_hold_ns }
    }

    /// The path died; returns how long it must stay out, in nanoseconds.
    #[must_use]
    pub fn fault(&mut self, now: Timestamp) -> u64 {
        let held = self.returned.is_none_or(|returned| now.since(returned) >= TRUST_NS);
        if held {
            self.hold_ns = self.first_hold_ns;
            return 0;
        }
        let hold = self.hold_ns;
        self.hold_ns = (hold * 2).min(LONGEST_HOLD_NS);
        hold
    }

    /// The path is in use again.
    pub fn returned(&mut self, now: Timestamp) {
        self.returned = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Faults one second after each return.
    fn holds(faults: usize) -> Vec<u64> {
        let (mut quarantine, mut now) = (Quarantine::new(FIRST_HOLD_NS), Timestamp(0));
        let fault = |_| {
            now = now.after(SECOND);
            let hold = quarantine.fault(now);
            now = now.after(hold);
            quarantine.returned(now);
            hold / SECOND
        };
        (0..faults).map(fault).collect()
    }

    #[test]
    fn a_flapping_path_waits_twice_as_long_each_time() {
        assert_eq!(holds(10), [0, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_path_that_held_is_trusted_again() {
        let mut quarantine = Quarantine::new(FIRST_HOLD_NS);
        assert_eq!(quarantine.fault(Timestamp(0)), 0);
        quarantine.returned(Timestamp(1));
        assert_eq!(quarantine.fault(Timestamp(2)), FIRST_HOLD_NS);
        quarantine.returned(Timestamp(3));
        assert_eq!(quarantine.fault(Timestamp(3 + TRUST_NS)), 0);
    }
}
