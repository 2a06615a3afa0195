//! How fast the rails of a link are beside each other.
//!
//! While bytes are on the way on a rail, it is busy; bytes over busy time is its rate. A processor that
//! is busy with something else, or a peer that is, slows all rails alike. So a rail is measured against
//! its siblings: its *share* is the part of its nominal capacity that it carries, over the best such part
//! of any. Short exchanges say nothing about rates, and are left out. Of the last two measurements the
//! better one counts: a packet that is lost now and then makes no rail slow.

use ccl_core::ids::Timestamp;

/// A share that differs by less than this factor from the one last told is no news.
const STEP: f64 = 1.5;
/// From here on a rail that was slow is as good as the others.
const FULL: f64 = 0.9;
/// No rail is so slow that it counts for nothing while it works.
const LEAST: f64 = 0.01;
/// Bytes in one go that say something about a rate.
const LEAST_BUSY_BYTES: u64 = 64 << 10;

/// Measures the rails of one link.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    gauges: Vec<Gauge>,
    /// Bytes that have arrived since the rails were compared, and when to compare them again.
    arrived: u64,
    window_bytes: u64,
    /// Whether they were compared since the last question for news.
    is_fresh: bool,
}

#[derive(Clone, Debug)]
struct Gauge {
    /// Since when bytes are on the way without a pause, and how many of them have arrived.
    busy: Option<(Timestamp, u64)>,
    bytes: u64,
    busy_ns: u64,
    /// The last measurement, and the better one of the last two.
    latest: f64,
    share: f64,
    told: f64,
}

impl Gauge {
    fn new() -> Self {
        Self { busy: None, bytes: 0, busy_ns: 0, latest: 1.0, share: 1.0, told: 1.0 }
    }

    /// Ends a stretch of time in which the rail was busy.
    fn pause(&mut self, now: Timestamp) {
        if let Some((since, bytes)) = self.busy.take()
            && bytes >= LEAST_BUSY_BYTES
        {
            self.bytes += bytes;
            self.busy_ns += now.0.saturating_sub(since.0);
        }
    }

    /// Bytes per second.
    fn rate(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        (self.busy_ns > 0).then(|| self.bytes as f64 * 1e9 / self.busy_ns as f64)
    }
}

impl Meter {
    /// So many rails, compared whenever `window_bytes` have arrived on all of them together.
    pub(super) fn new(rails: usize, window_bytes: u64) -> Self {
        Self { gauges: vec![Gauge::new(); rails], arrived: 0, window_bytes, is_fresh: false }
    }

    /// A rail takes part from now on, or no longer. It is presumed to be as fast as it says.
    pub(super) fn reset(&mut self, rail: usize) {
        self.gauges[rail] = Gauge::new();
    }

    /// Something was given to a rail.
    pub(super) fn given(&mut self, rail: usize, now: Timestamp) {
        self.gauges[rail].busy.get_or_insert((now, 0));
    }

    /// `bytes` have arrived on a rail, and nothing is on the way on it any more, or something still is.
    /// `capacity` is nominal.
    pub(super) fn arrived(
        &mut self,
        (rail, bytes): (usize, usize),
        is_idle: bool,
        now: Timestamp,
        capacity: impl Fn(usize) -> f64,
    ) {
        let gauge = &mut self.gauges[rail];
        if let Some((_, total)) = &mut gauge.busy {
            *total += bytes as u64;
        }
        if is_idle {
            gauge.pause(now);
        }
        self.arrived += bytes as u64;
        if self.arrived >= self.window_bytes {
            self.arrived = 0;
            self.compare(now, capacity);
        }
    }

    /// The share of a rail that was told last.
    pub(super) fn share(&self, rail: usize) -> f64 {
        self.gauges[rail].told
    }

    /// A rail whose share is no longer what was told last, and its share, between 0 and 1.
    pub(super) fn news(&mut self) -> Option<(usize, f64)> {
        if !self.is_fresh {
            return None;
        }
        let is_news = |gauge: &Gauge| {
            let ratio = gauge.share / gauge.told;
            !(1.0 / STEP..=STEP).contains(&ratio) || (gauge.share >= FULL && gauge.told < 1.0)
        };
        let found = self.gauges.iter().position(is_news);
        self.is_fresh = found.is_some();
        let rail = found?;
        let gauge = &mut self.gauges[rail];
        gauge.told = if gauge.share >= FULL { 1.0 } else { gauge.share };
        Some((rail, gauge.told))
    }

    fn compare(&mut self, now: Timestamp, capacity: impl Fn(usize) -> f64) {
        self.is_fresh = true;
        for gauge in &mut self.gauges {
            let is_busy = gauge.busy.is_some();
            gauge.pause(now);
            gauge.busy = is_busy.then_some((now, 0));
        }
        let part = |(rail, gauge): (usize, &Gauge)| Some(gauge.rate()? / capacity(rail));
        let best = self.gauges.iter().enumerate().filter_map(part).fold(0.0, f64::max);
        for (rail, gauge) in self.gauges.iter_mut().enumerate() {
            if let Some(part) = part((rail, gauge)).filter(|_| best > 0.0) {
                let latest = (part / best).max(LEAST);
                gauge.share = latest.max(gauge.latest);
                gauge.latest = latest;
            }
            (gauge.bytes, gauge.busy_ns) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 10 << 20;
    const TILE: usize = 128 << 10;

    /// Sends tiles on all rails at once, again and again; a tile takes so many nanoseconds on each. All
    /// rails say that they are equally fast. Returns what is told.
    fn told(meter: &mut Meter, tile_ns: &[u64], bytes: usize, rounds: u64) -> Vec<(usize, f64)> {
        let mut told = Vec::new();
        for round in 0..rounds {
            let start = Timestamp(round * 1_000_000);
            for (rail, tile_ns) in tile_ns.iter().enumerate() {
                meter.given(rail, start);
                meter.arrived((rail, bytes), true, start.after(*tile_ns), |_| 1.0);
            }
            told.extend(meter.news());
        }
        told
    }

    #[test]
    fn a_slow_rail_is_noticed_and_so_is_its_recovery() {
        let mut meter = Meter::new(3, WINDOW);
        assert_eq!(told(&mut meter, &[100, 100, 100], TILE, 1000), []);
        let slow = told(&mut meter, &[100, 400, 110], TILE, 1000);
        let last = slow.last().expect("the rail is slow");
        assert!(slow.iter().all(|(rail, _)| *rail == 1), "{slow:?}");
        assert!((0.24..0.26).contains(&last.1), "{slow:?}");
        let healed = told(&mut meter, &[100, 100, 100], TILE, 1000);
        assert_eq!(healed.last(), Some(&(1, 1.0)), "{healed:?}");
        assert_eq!(told(&mut meter, &[100, 100, 100], TILE, 1000), [], "told once");
    }

    #[test]
    fn noise_and_short_exchanges_are_no_news() {
        let mut meter = Meter::new(2, WINDOW);
        for _ in 0..30 {
            assert_eq!(told(&mut meter, &[110, 100], TILE, 100), []);
            assert_eq!(told(&mut meter, &[100, 110], TILE, 100), []);
            assert_eq!(told(&mut meter, &[100, 900], 1000, 10_000), []);
        }
    }

    #[test]
    fn one_hiccup_is_no_news() {
        let mut meter = Meter::new(2, WINDOW);
        for _ in 0..10 {
            assert_eq!(told(&mut meter, &[100, 100], TILE, 100), []);
            assert_eq!(told(&mut meter, &[100, 100_000], TILE, 1), []);
        }
    }

    #[test]
    fn a_rail_that_returns_is_presumed_fast() {
        let mut meter = Meter::new(2, WINDOW);
        assert!(!told(&mut meter, &[100, 500], TILE, 1000).is_empty());
        meter.reset(1);
        assert_eq!(told(&mut meter, &[100, 100], TILE, 1000), []);
    }
}
