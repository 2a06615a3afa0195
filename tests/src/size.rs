//! Sizes on the command line, and the sequence of sizes of a run.

/// Parses `32M` or `1.5M`: a number and at most one of `K`, `M`, `G` (powers of 1024, either case),
/// optionally followed by `B` or `iB`. Fractions of a byte are dropped.
///
/// # Errors
/// Says what is allowed.
pub fn parse(text: &str) -> Result<usize, String> {
    const ALLOWED: &str = "allowed: a number such as 8 or 1.5, optionally with K, M or G";
    let is_digit = |character: char| character.is_ascii_digit() || character == '.';
    let digits = text.len() - text.trim_start_matches(is_digit).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match letter {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(ALLOWED.to_owned()),
    };
    if number.contains('.') {
        let number: f64 = number.parse().map_err(|_| ALLOWED)?;
        return Ok(scaled(number, 1 << shift));
    }
    let number: usize = number.parse().map_err(|_| ALLOWED)?;
    number.checked_mul(1 << shift).ok_or_else(|| "the size is too large".to_owned())
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "units are powers of two, fractions are dropped on purpose, and what is too large becomes the largest"
)]
fn scaled(number: f64, unit: usize) -> usize {
    (number * unit as f64) as usize
}

/// From which size to which, and how to get from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// First size in bytes.
    pub least: usize,
    /// No size is larger than this.
    pub most: usize,
    /// How the size grows.
    pub step: Step,
}

/// How the size grows from row to row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// By so many bytes.
    Bytes(usize),
    /// So many times.
    Factor(usize),
}

impl Sweep {
    /// The sizes, in order. A step of nothing gives one size.
    pub fn sizes(self) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(self.least), move |size| {
            let next = match self.step {
                Step::Bytes(bytes) => size.checked_add(bytes)?,
                Step::Factor(factor) => size.checked_mul(factor)?,
            };
            (next > *size && next <= self.most).then_some(next)
        })
    }

    /// From the first size on, each twice the one before. What is twice nothing is a byte here.
    pub fn doubling(self) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(self.least), move |size| {
            size.checked_mul(2).map(|next| next.max(1)).filter(|next| *next <= self.most)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("8", 8),
            ("0", 0),
            ("4k", 4096),
            ("32M", 32 << 20),
            ("32MB", 32 << 20),
            ("2GiB", 2 << 30),
            ("1 K", 1024),
            ("1.5M", 3 << 19),
            (".5K", 512),
            ("0.3K", 307),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "M", "-1", ".", "1.5.2M", "3T", "8x", "99999999999999999999", "99999999999G"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sweeps_end_at_the_most() {
        let sizes = |least, most, step| Sweep { least, most, step }.sizes().collect::<Vec<_>>();
        assert_eq!(sizes(8, 100, Step::Factor(4)), [8, 32]);
        assert_eq!(sizes(8, 20, Step::Bytes(4)), [8, 12, 16, 20]);
        assert_eq!(sizes(8, 20, Step::Bytes(0)), [8]);
        assert_eq!(sizes(0, 20, Step::Factor(2)), [0]);
        assert_eq!(sizes(64, 64, Step::Bytes(1 << 20)), [64]);
    }

    #[test]
    fn sizes_double_up_to_the_most_however_they_grow() {
        let sizes = |least, most| {
            let sweep = Sweep { least, most, step: Step::Bytes(1 << 20) };
            sweep.doubling().collect::<Vec<_>>()
        };
        assert_eq!(sizes(64, 64), [64]);
        assert_eq!(sizes(24, 100), [24, 48, 96]);
        assert_eq!(sizes(0, 5), [0, 1, 2, 4]);
        assert_eq!(sizes(usize::MAX, usize::MAX), [usize::MAX]);
    }
}
