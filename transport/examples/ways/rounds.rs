//! Candidates that take turns, and tables of what came out.

use crate::peers::{Distance, Pair};

/// Rounds of measurements of one process.
pub(crate) const ROUNDS: usize = 9;

/// A distance with fewer times than this is left out.
const LEAST_TIMES: usize = 7;
pub(crate) const DISTANCES: [(Distance, &str); 2] =
    [(Distance::Near, "near"), (Distance::Far, "far")];

/// Seconds of one candidate in all rounds, the least first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<f64>);

/// Seconds of one candidate by how far the two processors were from each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sorted {
    near: Times,
    far: Times,
}

/// Runs every candidate once a round, and returns the times of each.
pub(crate) fn interleaved<C>(
    candidates: &mut [C],
    mut run: impl FnMut(&mut C) -> f64,
) -> Vec<Times> {
    let mut times: Vec<_> = candidates.iter().map(|_| Times::default()).collect();
    for _ in 0..ROUNDS {
        for (candidate, times) in candidates.iter_mut().zip(&mut times) {
            times.insert(run(candidate));
        }
    }
    times
}

/// The same for two processes, and for some rounds of several: adds to the times of each candidate those of which the
/// distance was the same before and after.
pub(crate) fn sorted<C>(
    pair: &Pair,
    rounds: usize,
    candidates: &mut [(C, Sorted)],
    mut run: impl FnMut(&mut C) -> f64,
) {
    let mut before = pair.distance();
    for _ in 0..rounds {
        for (candidate, times) in &mut *candidates {
            let seconds = run(candidate);
            let after = pair.distance();
            if before == after {
                times.of_mut(after).insert(seconds);
            }
            before = after;
        }
    }
}

impl Sorted {
    /// Those at this distance, if they are enough.
    pub(crate) fn of(&self, distance: Distance) -> Option<&Times> {
        let times = match distance {
            Distance::Near => &self.near,
            Distance::Far => &self.far,
        };
        (times.0.len() >= LEAST_TIMES).then_some(times)
    }

    fn of_mut(&mut self, distance: Distance) -> &mut Times {
        match distance {
            Distance::Near => &mut self.near,
            Distance::Far => &mut self.far,
        }
    }
}

impl Times {
    fn insert(&mut self, seconds: f64) {
        let place = self.0.partition_point(|least| *least < seconds);
        self.0.insert(place, seconds);
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Microseconds.
    pub(crate) fn microseconds(&self) -> String {
        self.cell(|seconds| 1e6 * seconds, false)
    }

    /// Gigabytes of 10⁹ a second.
    pub(crate) fn rate(&self, bytes: usize) -> String {
        self.cell(|seconds| bytes as f64 / seconds / 1e9, true)
    }

    fn cell(&self, unit: impl Fn(f64) -> f64, falls: bool) -> String {
        let [first, last] = [self.0[0], self.0[self.0.len() - 1]].map(&unit);
        let (least, most) = if falls { (last, first) } else { (first, last) };
        format!("{} ({}–{})", short(unit(self.median())), short(least), short(most))
    }
}

/// Three digits.
pub(crate) fn short(number: f64) -> String {
    match number {
        number if number < 10.0 => format!("{number:.2}"),
        number if number < 100.0 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

/// Bytes as people write them, in powers of two.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes < 1 << 10 => format!("{bytes} B"),
        bytes if bytes < 1 << 20 => format!("{} KB", bytes >> 10),
        bytes => format!("{} MB", bytes >> 20),
    }
}

/// Prints the head of a table.
pub(crate) fn head(title: &str, columns: &[&str]) {
    println!("\n### {title}\n");
    row(columns);
    println!("|{}", "---|".repeat(columns.len()));
}

/// Prints a row.
pub(crate) fn row<T: AsRef<str>>(cells: &[T]) {
    let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
    println!("| {} |", cells.join(" | "));
}
