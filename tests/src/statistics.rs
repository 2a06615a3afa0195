//! What the times of single iterations say.

use serde::Serialize;

/// Summary of the times of single iterations, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The shortest.
    pub least: f64,
    /// The longest.
    pub most: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub median: f64,
    /// What 95 % do not exceed.
    pub p95: f64,
    /// What 99 % do not exceed.
    pub p99: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Summary {
    /// The summary of `times`; zeros if there are none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "numbers of iterations are far below 2^53")]
    pub fn of(times: &[f64]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let variance = sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / n as f64;
        let percentile = |percent: usize| sorted[((n * percent).div_ceil(100) - 1).min(n - 1)];
        Self {
            least: *least,
            most: *most,
            mean,
            median: sorted[n / 2],
            p95: percentile(95),
            p99: percentile(99),
            deviation: variance.sqrt(),
        }
    }

    /// The standard deviation in percent of the mean.
    #[must_use]
    pub fn variation_percent(&self) -> f64 {
        if self.mean > 0.0 { self.deviation / self.mean * 100.0 } else { 0.0 }
    }
}

/// The part of the report for the iterations of one form, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct PerIteration {
    skipped_iterations: usize,
    min_us: f64,
    max_us: f64,
    avg_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    stdev_us: f64,
    cv_pct: f64,
    times_us: Vec<f64>,
    /// If there are several processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_process_max_times_us: Option<Vec<Vec<f64>>>,
}

impl PerIteration {
    /// `times` are all of them, and those of each process; the summary leaves out the first `skipped`.
    #[must_use]
    pub fn new(summary: &Summary, skipped: usize, times: &[f64], by_process: &[Vec<f64>]) -> Self {
        let us = |seconds: f64| seconds * 1e6;
        let all_us = |times: &[f64]| times.iter().copied().map(us).collect::<Vec<_>>();
        let processes = || by_process.iter().map(|times| all_us(times)).collect();
        Self {
            skipped_iterations: skipped,
            min_us: us(summary.least),
            max_us: us(summary.most),
            avg_us: us(summary.mean),
            p50_us: us(summary.median),
            p95_us: us(summary.p95),
            p99_us: us(summary.p99),
            stdev_us: us(summary.deviation),
            cv_pct: summary.variation_percent(),
            times_us: all_us(times),
            per_process_max_times_us: (by_process.len() > 1).then(processes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_known_times() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&times);
        assert_eq!((summary.least, summary.most, summary.mean), (1.0, 100.0, 50.5));
        assert_eq!((summary.median, summary.p95, summary.p99), (51.0, 95.0, 99.0));
        assert!((summary.deviation - 28.866).abs() < 1e-3);
        assert!((summary.variation_percent() - 57.16).abs() < 0.01);
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[2.0]).p99, 2.0);
    }
}
