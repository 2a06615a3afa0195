//! Tables for people, and for programs.

use std::fmt::Write;

use serde::Serialize;

/// The first column to the left, the others to the right, all as wide as they need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.row(heads);
        table
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(line, "{cell:width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

/// Rows for programs.
pub(crate) fn json(rows: &[impl Serialize]) -> Result<String, String> {
    serde_json::to_string_pretty(rows).map(|text| text + "\n").map_err(|cause| cause.to_string())
}

/// A share as a percentage, or a dash if there is none.
pub(crate) fn percent(share: f64, digits: usize) -> String {
    if !share.is_finite() {
        return "-".to_owned();
    }
    format!("{:.digits$} %", 100.0 * share)
}

/// A duration with a unit that suits it, or a dash if it never ends.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "-".to_owned(),
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}
