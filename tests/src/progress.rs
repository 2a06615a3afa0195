//! Shows on a terminal how far a run is; shows nothing where nobody looks.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Outcome;
use crate::error::Failure;

/// How often the bar moves while a row takes long.
const TICK: Duration = Duration::from_millis(200);

/// Standard output, and below it a bar if a person is watching.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `rows` rows, or none under a pipe.
    #[must_use]
    pub fn new(rows: u64) -> Self {
        if !(std::io::stdout().is_terminal() && std::io::stderr().is_terminal()) {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:32} {pos}/{len} rows, {eta} left: {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Names the row that is measured now.
    pub fn begins(&self, row: impl Into<std::borrow::Cow<'static, str>>) {
        self.bar.set_message(row);
    }

    /// A row is finished.
    pub fn finished(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar.
    pub fn ends(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints lines on standard output at once, above the bar.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn print(&self, lines: &[String]) -> Outcome<()> {
        let write = || {
            let mut output = std::io::stdout().lock();
            lines.iter().try_for_each(|line| writeln!(output, "{line}"))?;
            output.flush()
        };
        self.bar
            .suspend(write)
            .map_err(|cause| Failure::system("writing to standard output", cause))
    }
}
