//! How fast the rails of a link are beside each other.
//!
//! Nothing is timed: a processor that is busy, or a peer that is slow, slows all rails alike. But the
//! split passes over a rail whose backlog does not drain, so what a rail was given, measured against
//! its nominal capacity and against the rail that was given most, is how fast it is. With little
//! traffic every rail gets its part, and none is called slow.

/// A share that differs by less than this factor from the one last told is no news.
const STEP: f64 = 1.25;
/// From here on a rail that was slow is as good as the others.
const FULL: f64 = 0.9;
/// How much of the smoothed share is the latest window.
const LATEST: f64 = 0.25;
/// No rail is so slow that it counts for nothing while it works.
const LEAST: f64 = 0.01;

/// Measures the rails of one link.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    gauges: Vec<Gauge>,
    /// Bytes given in this window, and in a full one.
    given: u64,
    window_bytes: u64,
}

#[derive(Clone, Debug)]
struct Gauge {
    is_open: bool,
    given: u64,
    share: f64,
    told: f64,
}

impl Meter {
    /// So many rails, none of them open, looked at whenever they were given `window_bytes` in all.
    pub(super) fn new(rails: usize, window_bytes: u64) -> Self {
        let gauge = Gauge { is_open: false, given: 0, share: 1.0, told: 1.0 };
        Self { gauges: vec![gauge; rails], given: 0, window_bytes }
    }

    /// A rail takes part from now on, or no longer. It is presumed to be as fast as it says.
    pub(super) fn reset(&mut self, rail: usize, is_open: bool) {
        self.gauges[rail] = Gauge { is_open, given: 0, share: 1.0, told: 1.0 };
        self.begin();
    }

    /// `bytes` were given to a rail; `capacities` are nominal.
    pub(super) fn count(&mut self, rail: usize, bytes: usize, capacity: impl Fn(usize) -> f64) {
        self.gauges[rail].given += bytes as u64;
        self.given += bytes as u64;
        if self.given >= self.window_bytes {
            self.look(capacity);
            self.begin();
        }
    }

    /// A rail whose share of its nominal capacity is no longer what was told last, and this share,
    /// between 0 and 1.
    pub(super) fn news(&mut self) -> Option<(usize, f64)> {
        let is_news = |gauge: &Gauge| {
            let ratio = gauge.share / gauge.told;
            !(1.0 / STEP..=STEP).contains(&ratio) || (gauge.share >= FULL && gauge.told < 1.0)
        };
        let rail = self.gauges.iter().position(is_news)?;
        let gauge = &mut self.gauges[rail];
        gauge.told = if gauge.share >= FULL { 1.0 } else { gauge.share };
        Some((rail, gauge.told))
    }

    fn look(&mut self, capacity: impl Fn(usize) -> f64) {
        #[allow(clippy::cast_precision_loss, reason = "a number of bytes in a ratio")]
        let filled = |(rail, gauge): (usize, &Gauge)| gauge.given as f64 / capacity(rail);
        let open = self.gauges.iter().enumerate().filter(|(_, gauge)| gauge.is_open);
        let best = open.map(filled).fold(0.0, f64::max);
        if best <= 0.0 {
            return;
        }
        for (rail, gauge) in self.gauges.iter_mut().enumerate().filter(|(_, gauge)| gauge.is_open) {
            let latest = filled((rail, gauge)) / best;
            gauge.share = ((1.0 - LATEST) * gauge.share + LATEST * latest).max(LEAST);
        }
    }

    fn begin(&mut self) {
        self.given = 0;
        self.gauges.iter_mut().for_each(|gauge| gauge.given = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives tiles to rails of capacity 1 in these proportions, and returns what is told.
    fn told(meter: &mut Meter, proportions: &[u32], tiles: u32) -> Vec<(usize, f64)> {
        let mut told = Vec::new();
        for _ in 0..tiles {
            for (rail, count) in proportions.iter().enumerate() {
                (0..*count).for_each(|_| meter.count(rail, 10, |_| 1.0));
            }
            told.extend(meter.news());
        }
        told
    }

    fn open(rails: usize) -> Meter {
        let mut meter = Meter::new(rails, 3000);
        (0..rails).for_each(|rail| meter.reset(rail, true));
        meter
    }

    #[test]
    fn a_slow_rail_is_noticed_and_so_is_its_recovery() {
        let mut meter = open(3);
        assert_eq!(told(&mut meter, &[1, 1, 1], 1000), []);
        let slow = told(&mut meter, &[4, 1, 4], 1000);
        let last = slow.last().expect("the rail is slow");
        assert!(slow.iter().all(|(rail, _)| *rail == 1), "{slow:?}");
        assert!((0.2..0.32).contains(&last.1), "{slow:?}");
        let healed = told(&mut meter, &[1, 1, 1], 1000);
        assert_eq!(healed.last(), Some(&(1, 1.0)), "{healed:?}");
        assert_eq!(told(&mut meter, &[1, 1, 1], 1000), [], "told once");
    }

    #[test]
    fn noise_is_no_news() {
        let mut meter = open(2);
        for _ in 0..30 {
            assert_eq!(told(&mut meter, &[9, 10], 30), []);
            assert_eq!(told(&mut meter, &[10, 9], 30), []);
        }
    }

    #[test]
    fn a_closed_rail_is_not_slow_and_one_that_returns_is_presumed_fast() {
        let mut meter = open(2);
        assert!(!told(&mut meter, &[5, 1], 1000).is_empty());
        meter.reset(1, false);
        assert_eq!(told(&mut meter, &[1, 0], 1000), []);
        meter.reset(1, true);
        assert_eq!(told(&mut meter, &[1, 1], 1000), []);
    }
}
