//! What the NICs of a host were idle for.

use super::{Idle, Picos, seconds};

/// What the lanes on which a rank still has to send are waiting for, after it has looked at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Lanes with data and without a free slot.
    pub(super) by_credit: u32,
    /// Lanes without data.
    pub(super) by_data: u32,
}

/// The sending side of a host.
#[derive(Debug)]
pub(super) struct Gauge {
    /// Bytes per second of all its NICs, and of those that are sending.
    all: f64,
    sending: f64,
    /// By place of the rank on the host.
    held: Vec<Held>,
    since: Picos,
    idle: Idle,
}

impl Gauge {
    pub(super) fn new(all: f64, ranks: usize) -> Self {
        let held = vec![Held::default(); ranks];
        Self { all, sending: 0.0, held, since: 0, idle: Idle::default() }
    }

    /// A rank has looked at its links.
    pub(super) fn hold(&mut self, now: Picos, place: usize, held: Held) {
        self.advance(now);
        self.held[place] = held;
    }

    /// A NIC of so many bytes per second begins to send.
    pub(super) fn begin(&mut self, now: Picos, bytes_per_second: f64) {
        self.advance(now);
        self.sending += bytes_per_second;
    }

    /// It has ended.
    pub(super) fn end(&mut self, now: Picos, bytes_per_second: f64) {
        self.advance(now);
        self.sending -= bytes_per_second;
    }

    /// What was idle until `now`.
    pub(super) fn read(&mut self, now: Picos) -> Idle {
        self.advance(now);
        self.idle
    }

    fn advance(&mut self, now: Picos) {
        let passed = seconds(now - self.since);
        self.since = now;
        if self.all <= 0.0 || passed <= 0.0 {
            return;
        }
        let idle = passed * (1.0 - self.sending / self.all).max(0.0);
        let credit: u32 = self.held.iter().map(|held| held.by_credit).sum();
        let data: u32 = self.held.iter().map(|held| held.by_data).sum();
        if credit + data == 0 {
            self.idle.nothing_left += idle;
        } else {
            let by_credit = idle * f64::from(credit) / f64::from(credit + data);
            self.idle.for_credit += by_credit;
            self.idle.for_data += idle - by_credit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_weighted_by_capacity_and_by_lanes() {
        let mut gauge = Gauge::new(4e9, 2);
        gauge.hold(0, 1, Held { by_credit: 1, by_data: 3 });
        gauge.begin(0, 1e9);
        gauge.end(4_000_000_000_000, 1e9);
        gauge.hold(4_000_000_000_000, 1, Held::default());
        let idle = gauge.read(5_000_000_000_000);
        assert_eq!(idle, Idle { for_credit: 0.75, for_data: 2.25, nothing_left: 1.0 });
    }
}
