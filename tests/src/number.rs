//! Numbers as nccl-tests prints them.

/// `value` right-aligned in `width` characters: the widest of two decimals, one, none and
/// exponential form that fits; wider than `width` only if nothing fits.
#[must_use]
pub fn fitted(value: f64, width: usize) -> String {
    let fixed = [2, 1, 0].map(|decimals| format!("{value:.decimals$}"));
    let exponential = [1, 0].map(|decimals| exponential(value, decimals));
    let mut forms = fixed.into_iter().chain(exponential.iter().cloned());
    let text = forms.find(|text| text.len() <= width).unwrap_or_else(|| exponential[1].clone());
    format!("{text:>width$}")
}

/// `value` as C's `%g` writes it: six significant digits, no trailing zeros.
#[must_use]
pub fn general(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return if value == 0.0 { "0".into() } else { value.to_string().to_lowercase() };
    }
    let rounded = format!("{value:.5e}");
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        return format!("{}{}", without_zeros(mantissa), c_exponent(exponent));
    }
    let decimals = usize::try_from(5 - exponent).unwrap_or(0);
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// An amount of memory as nccl-tests' memory report writes it.
#[must_use]
pub fn memory(bytes: f64) -> String {
    const UNITS: [(&str, f64); 3] =
        [("GB", (1u64 << 30) as f64), ("MB", (1u64 << 20) as f64), ("KB", (1u64 << 10) as f64)];
    let fitting = UNITS.into_iter().find(|(_, size)| bytes >= *size);
    let (unit, amount) = fitting.map_or(("B", bytes), |(unit, size)| (unit, bytes / size));
    let decimals = match amount {
        small if small < 10.0 => 2,
        medium if medium < 100.0 => 1,
        _ => 0,
    };
    format!("{amount:.decimals$} {unit}")
}

fn exponential(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    format!("{mantissa}{}", c_exponent(exponent.parse().unwrap_or(0)))
}

/// C writes a sign and at least two digits.
fn c_exponent(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.abs())
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_form_that_fits_is_taken() {
        for (value, width, expected) in [
            (0.0, 7, "   0.00"),
            (12.345, 7, "  12.35"),
            (1234.5, 7, "1234.50"),
            (12345.67, 7, "12345.7"),
            (123_456.7, 7, " 123457"),
            (1_234_567.8, 7, "1234568"),
            (12_345_678.0, 7, "1.2e+07"),
            (99_999.99, 7, " 100000"),
            (0.01, 6, "  0.01"),
            (123.456, 6, "123.46"),
            (1234.56, 6, "1234.6"),
            (123_456.0, 6, "123456"),
            (1_234_567.0, 6, " 1e+06"),
        ] {
            assert_eq!(fitted(value, width), expected, "{value} in {width}");
        }
    }

    #[test]
    fn general_form_is_that_of_c() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (5.1234567, "5.12346"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.9, "1e+06"),
            (0.000_123_456, "0.000123456"),
            (0.000_012_345_67, "1.23457e-05"),
            (2.5, "2.5"),
        ] {
            assert_eq!(general(value), expected);
        }
    }

    #[test]
    fn memory_has_three_digits() {
        assert_eq!(memory(12.0), "12.0 B");
        assert_eq!(memory(1536.0), "1.50 KB");
        assert_eq!(memory(67_108_864.0), "64.0 MB");
        assert_eq!(memory(3.25e11), "303 GB");
    }
}
