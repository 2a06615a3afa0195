//! The figures of the R²CCL paper beside what is simulated here.
//!
//! Every number comes from a simulation. Where the paper leaves parameters open, all readings are simulated, and
//! their range stands beside the first. [`Row::accepted`] is what was expected before anything was simulated, with
//! its tolerance: a row outside of it is shown as missed.

mod channels;
mod collectives;
mod html;
mod serving;
mod svg;
mod training;

pub use html::page;
pub(crate) use html::tally;
pub(crate) use svg::draw;

/// Whether what is simulated is what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first reading is.
    Within,
    /// Another reading is, or one between two.
    InRange,
    /// None is.
    Missed,
}

impl Verdict {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::InRange => "in range",
            Self::Missed => "MISSED",
        }
    }
}

/// One claim of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The figure.
    pub figure: &'static str,
    /// What is compared.
    pub what: String,
    /// What the paper says.
    pub paper: &'static str,
    /// By the reading that is meant if nothing else is said.
    pub value: f64,
    /// By all readings, the least and the most.
    pub range: (f64, f64),
    /// What is expected, with its tolerance.
    pub accepted: (f64, f64),
    /// Of the numbers.
    pub unit: Unit,
    /// What to bear in mind.
    pub caveat: &'static str,
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share, shown as a percentage.
    Percent,
    /// A ratio.
    Times,
    /// Bytes, shown as megabytes.
    Megabytes,
}

impl Unit {
    /// A number for people.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        if number.is_infinite() {
            return "unbounded".to_owned();
        }
        match self {
            Self::Percent => format!("{:.2} %", 100.0 * number),
            Self::Times => format!("{number:.2} x"),
            Self::Megabytes => format!("{:.0} MB", number / 1e6),
        }
    }
}

impl Row {
    /// A claim, by the readings that there are; the first is the one that is meant.
    fn new(
        (figure, what): (&'static str, impl Into<String>),
        paper: &'static str,
        readings: &[f64],
        (least, most): (f64, f64),
        unit: Unit,
        caveat: &'static str,
    ) -> Self {
        let range = (
            readings.iter().copied().fold(f64::INFINITY, f64::min),
            readings.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        );
        let value = readings.first().copied().unwrap_or(f64::NAN);
        Self {
            figure,
            what: what.into(),
            paper,
            value,
            range,
            accepted: (least, most),
            unit,
            caveat,
        }
    }

    /// Whether it is what was expected.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (least, most) = self.accepted;
        match () {
            () if (least..=most).contains(&self.value) => Verdict::Within,
            () if self.range.0 <= most && self.range.1 >= least => Verdict::InRange,
            () => Verdict::Missed,
        }
    }

    /// What is simulated, for people.
    #[must_use]
    pub fn ours(&self) -> String {
        let show = |number| self.unit.show(number);
        if self.range.0 == self.range.1 {
            return show(self.value);
        }
        format!("{} ({} to {})", show(self.value), show(self.range.0), show(self.range.1))
    }

    /// What is expected, for people.
    #[must_use]
    pub fn tolerance(&self) -> String {
        format!("{} to {}", self.unit.show(self.accepted.0), self.unit.show(self.accepted.1))
    }
}

/// A curve: its name and its points.
pub type Curve = (String, Vec<(f64, f64)>);

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What is on the axes.
    pub axes: (&'static str, &'static str),
    /// Whether they are logarithmic.
    pub logarithmic: (bool, bool),
    /// What is drawn.
    pub curves: Vec<Curve>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The claims.
    pub rows: Vec<Row>,
    /// The figures.
    pub plots: Vec<Plot>,
}

impl Report {
    /// Simulates all figures; `patterns` for each number of failures are drawn from `seed`.
    ///
    /// # Errors
    /// A simulation is impossible.
    pub fn simulate(patterns: u64, seed: u64) -> Result<Self, String> {
        let parts = [collectives::part()?, training::part(patterns, seed)?, serving::part()?];
        let mut report = Self { rows: Vec::new(), plots: Vec::new() };
        for (rows, plots) in parts {
            report.rows.extend(rows);
            report.plots.extend(plots);
        }
        Ok(report)
    }
}

/// What one file of this module contributes.
type Part = (Vec<Row>, Vec<Plot>);

#[cfg(test)]
mod tests {
    use super::*;

    /// What is missed among some rows.
    pub(super) fn missed(rows: &[Row]) -> Vec<&str> {
        assert!(!rows.is_empty());
        let missed = rows.iter().filter(|row| row.verdict() == Verdict::Missed);
        missed.map(|row| row.what.as_str()).collect()
    }

    #[test]
    fn verdicts_follow_the_readings() {
        let verdict = |readings: &[f64]| {
            Row::new(("1", "x"), "2", readings, (1.0, 2.0), Unit::Times, "").verdict()
        };
        assert_eq!(verdict(&[1.5, 9.0]), Verdict::Within);
        assert_eq!(verdict(&[9.0, 1.5]), Verdict::InRange);
        assert_eq!(verdict(&[9.0, 8.0]), Verdict::Missed);
        assert_eq!(verdict(&[]), Verdict::Missed);
    }
}
