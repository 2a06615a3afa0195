//! Which RDMA devices are used, in the language of NCCL's `NCCL_IB_HCA`.
//!
//! A list of `name[:port]`, separated by commas. `mlx5` is every device whose name begins so, `mlx5_1:1`
//! only port 1 of those. An `=` in front of the list compares whole names, a `^` takes all devices but
//! those listed, `^=` both.

use std::fmt;
use std::str::FromStr;

/// Which ports of which RDMA devices are used; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcaFilter {
    /// Those listed are not used.
    excludes: bool,
    /// Names are compared as a whole.
    is_exact: bool,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    name: String,
    port: Option<u8>,
}

impl FromStr for HcaFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (excludes, text) = flag(text.trim(), '^');
        let (is_exact, text) = flag(text, '=');
        let rows = text.split(',').map(str::trim).filter(|row| !row.is_empty());
        Ok(Self { excludes, is_exact, rows: rows.map(row).collect::<Result<_, _>>()? })
    }
}

fn flag(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign).map_or((false, text), |rest| (true, rest))
}

fn row(text: &str) -> Result<Row, String> {
    let wrong = || format!("{text:?} is not a device, like mlx5_0 or mlx5_0:1");
    let (name, port) = match text.split_once(':') {
        None => (text, None),
        Some((name, port)) => (name, Some(port.parse().map_err(|_| wrong())?)),
    };
    let is_name = |character: char| character.is_ascii_graphic() && !"^=:".contains(character);
    let is_sound = !name.is_empty() && name.chars().all(is_name) && port != Some(0);
    if is_sound { Ok(Row { name: name.into(), port }) } else { Err(wrong()) }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let excludes = if self.excludes { "^" } else { "" };
        let exact = if self.is_exact { "=" } else { "" };
        let rows: Vec<String> = self.rows.iter().map(Row::to_string).collect();
        write!(f, "{excludes}{exact}{}", rows.join(","))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
        }
    }
}

impl HcaFilter {
    /// Whether this port is used.
    #[must_use]
    pub fn takes(&self, name: &str, port: u8) -> bool {
        if self.rows.is_empty() {
            return true;
        }
        let is_listed = self.rows.iter().any(|row| {
            let is_named =
                if self.is_exact { row.name == name } else { name.starts_with(&row.name) };
            is_named && row.port.is_none_or(|wanted| wanted == port)
        });
        is_listed != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [(&str, u8); 5] =
        [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe_h0n0", 1)];

    fn taken(filter: &str) -> String {
        let filter: HcaFilter = filter.parse().unwrap();
        let taken = PORTS.iter().filter(|(name, port)| filter.takes(name, *port));
        taken.map(|(name, port)| format!("{name}:{port}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_filter_means_what_it_means_to_nccl() {
        let all = "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 rxe_h0n0:1";
        let expected = [
            ("", all),
            ("^", all),
            (" , ", all),
            ("mlx5", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
            ("mlx5_1", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
            ("mlx5_1:1", "mlx5_1:1 mlx5_10:1"),
            ("=mlx5_1", "mlx5_1:1 mlx5_1:2"),
            ("=mlx5_1:2", "mlx5_1:2"),
            ("=mlx5_0,rxe_h0n0", "mlx5_0:1 rxe_h0n0:1"),
            ("^mlx5_1", "mlx5_0:1 rxe_h0n0:1"),
            ("^=mlx5_1", "mlx5_0:1 mlx5_10:1 rxe_h0n0:1"),
            ("^=mlx5_1:2,rxe_h0n0:1", "mlx5_0:1 mlx5_1:1 mlx5_10:1"),
            ("mlx4", ""),
            ("^m,r", ""),
        ];
        for (filter, names) in expected {
            assert_eq!(taken(filter), names, "{filter:?}");
        }
    }

    #[test]
    fn it_prints_as_it_is_written() {
        for text in ["", "mlx5", "=mlx5_0,mlx5_1:1", "^mlx5_1:2", "^=rxe0"] {
            assert_eq!(text.parse::<HcaFilter>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_device_is_named() {
        for text in
            ["mlx5_0:", "mlx5_0:x", "mlx5_0:0", "mlx5_0:256", ":1", "a b", "=^mlx5", "a:1:2"]
        {
            let error = text.parse::<HcaFilter>().unwrap_err();
            let named = error.split('"').nth(1).unwrap();
            assert!(!named.is_empty() && text.contains(named), "{text:?}: {error}");
        }
        let error = "mlx5_0,mlx5_1:x".parse::<HcaFilter>().unwrap_err();
        assert_eq!(error, "\"mlx5_1:x\" is not a device, like mlx5_0 or mlx5_0:1");
    }
}
