//! Who sends how much to whom in AllToAllV.
//!
//! Without a file, every rank sends and receives as much as in an AllToAll of the row's size. `spread` 0 divides it evenly; 1
//! divides it by how far the other rank is behind this one in a ring of all ranks, nothing for the rank itself and most for
//! its neighbour before; numbers in between blend the two. The default is 1, and all is rounded down, as in nccl-tests.

use std::sync::Arc;

use crate::Outcome;
use crate::environment::Wishes;
use crate::error::Failure;

/// Counts are whole multiples of so many bytes.
const ALIGNMENT_BYTES: usize = 16;

/// Elements from every rank (outer) to every rank (inner).
pub type Matrix = Arc<Vec<Vec<usize>>>;

/// How AllToAllV divides its data.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// By formula; see the module.
    Spread(f64),
    /// Bytes from every rank to every rank, whatever the size of the row.
    Bytes(Arc<Vec<Vec<usize>>>),
}

impl Default for Traffic {
    fn default() -> Self {
        Self::Spread(1.0)
    }
}

impl Traffic {
    /// What the environment asks for.
    ///
    /// # Errors
    /// The file cannot be read, or holds no matrix.
    pub fn wished(wishes: &Wishes) -> Outcome<Self> {
        let Some(path) = &wishes.matrix_file else {
            let spread = wishes.spread.unwrap_or(1.0);
            return if (0.0..=1.0).contains(&spread) {
                Ok(Self::Spread(spread))
            } else {
                Err(Failure::Input(format!("the spread {spread} is not between 0 and 1")))
            };
        };
        let path = std::path::Path::new(path);
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Failure::system(format!("reading {}", path.display()), cause))?;
        parse(&text, wishes.matrix_scale.unwrap_or(1.0))
            .map(|rows| Self::Bytes(Arc::new(rows)))
            .map_err(|cause| Failure::Input(format!("{}: {cause}", path.display())))
    }

    /// Whether there is a matrix large enough for `ranks` ranks.
    ///
    /// # Errors
    /// The matrix of a file is too small.
    pub fn fits(&self, ranks: usize) -> Outcome<()> {
        match self {
            Self::Bytes(rows) if rows.len() < ranks => Err(Failure::Input(format!(
                "the matrix has {} rows and columns, {ranks} ranks need {ranks}",
                rows.len()
            ))),
            Self::Bytes(_) | Self::Spread(_) => Ok(()),
        }
    }

    /// Elements between all pairs of `ranks` ranks in a row of `block` elements for every pair, if all were alike.
    #[must_use]
    pub fn matrix(&self, block: usize, element_bytes: usize, ranks: usize) -> Matrix {
        let total_bytes = block * ranks * element_bytes;
        let bytes = |from: usize, to: usize| match self {
            Self::Bytes(rows) => rows[from][to],
            Self::Spread(spread) => aligned(share(*spread, from, to, ranks, total_bytes)),
        };
        let row = |from| (0..ranks).map(|to| bytes(from, to) / element_bytes).collect();
        Arc::new((0..ranks).map(row).collect())
    }
}

/// What of the bytes that a rank sends goes from one rank to the other, in the arithmetic of nccl-tests.
fn share(spread: f64, from: usize, to: usize, ranks: usize, total_bytes: usize) -> usize {
    if ranks == 1 {
        return total_bytes;
    }
    #[allow(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
    let [distance, distances, ranks, total_bytes] =
        [(to + ranks - from) % ranks, ranks * (ranks - 1) / 2, ranks, total_bytes]
            .map(|number| number as f64);
    let even = total_bytes / ranks;
    let by_distance = distance * total_bytes / distances;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some bytes, rounded down on purpose"
    )]
    let share = ((1.0 - spread) * even + spread * by_distance) as usize;
    share
}

fn aligned(bytes: usize) -> usize {
    bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES
}

/// Reads whitespace-separated numbers of bytes, as many columns as rows.
fn parse(text: &str, scale: f64) -> Result<Vec<Vec<usize>>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Vec<usize>> = lines
        .map(|line| line.split_whitespace().map(|cell| bytes(cell, scale)).collect())
        .collect::<Result<_, _>>()?;
    match rows.iter().find(|row| row.len() != rows.len()) {
        Some(row) => Err(format!("{} rows, but a row of {} numbers", rows.len(), row.len())),
        None if rows.is_empty() => Err("there are no numbers".to_owned()),
        None => Ok(rows),
    }
}

fn bytes(cell: &str, scale: f64) -> Result<usize, String> {
    let number: f64 = cell.parse().map_err(|_| format!("{cell:?} is not a number"))?;
    let bytes = number * scale;
    if !(0.0..=1e15).contains(&bytes) {
        return Err(format!("{cell} times {scale} is no number of bytes"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range, and fractions of a byte are dropped on purpose"
    )]
    let bytes = bytes as usize;
    Ok(aligned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_divides_by_distance() {
        let matrix = Traffic::Spread(1.0).matrix(1488, 1, 4);
        assert_eq!(matrix[0], [0, 992, 1984, 2976]);
        assert_eq!(matrix[1], [2976, 0, 992, 1984]);
        let even = Traffic::Spread(0.0).matrix(1024, 4, 4);
        assert!(even.iter().flatten().all(|count| *count == 1024));
        assert_eq!(Traffic::Spread(0.5).matrix(64, 4, 2)[0], [32, 96]);
        assert_eq!(*Traffic::Spread(1.0).matrix(64, 4, 1), [[64]]);
    }

    #[test]
    fn files_hold_bytes() {
        let rows = parse("100 200 150\n 0 16 1e3\n\n1 2 3\n", 1.0).unwrap();
        assert_eq!(rows, [[96, 192, 144], [0, 16, 992], [0, 0, 0]]);
        let traffic = Traffic::Bytes(Arc::new(rows));
        assert_eq!(*traffic.matrix(7, 4, 2), [[24, 48], [0, 4]]);
        assert!(traffic.fits(3).is_ok() && traffic.fits(4).is_err());
        assert_eq!(parse("1", 32.0), Ok(vec![vec![32]]));
        for text in ["", "1 2", "1 2\n3", "a", "-1"] {
            assert!(parse(text, 1.0).is_err(), "{text:?}");
        }
    }
}
