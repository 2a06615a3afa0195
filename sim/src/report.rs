//! The figures of the R²CCL paper beside what is simulated here.
//!
//! Where the paper leaves parameters open, all readings are simulated, and their range stands beside the first.
//! [`Row::accepted`] is what was expected before anything was simulated, with its tolerance: a row outside of it is
//! shown as missed. Rows that nothing can be concluded from are not counted: what was asked for only after the numbers
//! were known, and what follows from numbers of the paper alone. Figure 7 without its 13B model, SendRecv of figure 16
//! and small sizes of balance in figure 15 are left out.

mod channels;
mod collectives;
mod html;
mod serving;
mod svg;
mod training;

pub use html::page;
pub(crate) use svg::draw;

/// What of the figures is not simulated.
pub(crate) const LEFT_OUT: &str = "Left out: the 13B model of figure 7, small sizes of balance in figure 15, SendRecv \
     of figure 16.";

/// Whether what is simulated is what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first reading is.
    Within,
    /// Another reading is.
    InRange,
    /// None is.
    Missed,
    /// Nothing was expected before.
    NotSet,
    /// Nothing is simulated.
    Arithmetic,
}

impl Verdict {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::InRange => "in range",
            Self::Missed => "MISSED",
            Self::NotSet => "not set before",
            Self::Arithmetic => "arithmetic",
        }
    }
}

/// What a row is evidence of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A simulation, and what was expected of it before.
    Expected,
    /// A simulation of which nothing was expected before its numbers were known.
    Afterwards,
    /// Numbers of the paper.
    Arithmetic,
}

/// One claim of the paper, in one experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The figure.
    pub figure: &'static str,
    /// What is compared.
    pub what: String,
    /// What the paper says.
    pub paper: &'static str,
    /// By all readings; the first is the one that is meant if nothing else is said.
    pub readings: Vec<f64>,
    /// What is expected, with its tolerance; infinite if only the least is.
    pub accepted: (f64, f64),
    /// What it is evidence of.
    pub basis: Basis,
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
        accepted: (f64, f64),
        unit: Unit,
        caveat: &'static str,
    ) -> Self {
        Self {
            figure,
            what: what.into(),
            paper,
            readings: readings.to_vec(),
            accepted,
            basis: Basis::Expected,
            unit,
            caveat,
        }
    }

    /// The same, as evidence of something else.
    fn with(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// Whether it is what was expected.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (least, most) = self.accepted;
        let is_accepted = |reading: &f64| (least..=most).contains(reading);
        match self.basis {
            Basis::Afterwards => Verdict::NotSet,
            Basis::Arithmetic => Verdict::Arithmetic,
            Basis::Expected if self.readings.first().is_some_and(is_accepted) => Verdict::Within,
            Basis::Expected if self.readings.iter().any(is_accepted) => Verdict::InRange,
            Basis::Expected => Verdict::Missed,
        }
    }

    /// What is simulated, for people: the first reading, and the least and the most of all.
    #[must_use]
    pub fn ours(&self) -> String {
        let show = |number| self.unit.show(number);
        let least = self.readings.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.readings.first() {
            None => "-".to_owned(),
            Some(first) if least == most => show(*first),
            Some(first) => format!("{} ({} to {})", show(*first), show(least), show(most)),
        }
    }

    /// What is expected, for people.
    #[must_use]
    pub fn tolerance(&self) -> String {
        let [least, most] = [self.accepted.0, self.accepted.1].map(|number| self.unit.show(number));
        match self.accepted.1.is_infinite() {
            true => format!("at least {least}"),
            false => format!("{least} to {most}"),
        }
    }
}

/// How many rows have which verdict.
pub(crate) fn tally(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict() == verdict).count();
    let [within, in_range, missed] =
        [Verdict::Within, Verdict::InRange, Verdict::Missed].map(count);
    let [not_set, arithmetic] = [Verdict::NotSet, Verdict::Arithmetic].map(count);
    format!(
        "{} rows: {within} within, {in_range} in range, {missed} missed; not counted: {not_set} not set before, \
         {arithmetic} arithmetic",
        within + in_range + missed
    )
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
        let missed = rows.iter().filter(|row| row.verdict() == Verdict::Missed);
        missed.map(|row| row.what.as_str()).collect()
    }

    fn row(readings: &[f64], accepted: (f64, f64)) -> Row {
        Row::new(("1", "x"), "2", readings, accepted, Unit::Times, "")
    }

    #[test]
    fn verdicts_follow_the_readings() {
        let verdict = |readings: &[f64]| row(readings, (1.0, 2.0)).verdict();
        assert_eq!(verdict(&[1.5, 9.0]), Verdict::Within);
        assert_eq!(verdict(&[9.0, 1.5]), Verdict::InRange);
        assert_eq!(verdict(&[9.0, 8.0]), Verdict::Missed);
        assert_eq!(verdict(&[9.0, 0.5]), Verdict::Missed, "nothing is between them");
        assert_eq!(verdict(&[]), Verdict::Missed);
    }

    #[test]
    fn rows_that_show_nothing_are_not_counted() {
        let rows = [
            row(&[1.5], (1.0, 2.0)),
            row(&[9.0], (1.0, f64::INFINITY)),
            row(&[1.5], (1.0, 2.0)).with(Basis::Afterwards),
            row(&[9.0], (1.0, 2.0)).with(Basis::Arithmetic),
        ];
        let expected =
            "2 rows: 2 within, 0 in range, 0 missed; not counted: 1 not set before, 1 arithmetic";
        assert_eq!(tally(&rows), expected);
        assert_eq!(rows[1].tolerance(), "at least 1.00 x");
    }
}
