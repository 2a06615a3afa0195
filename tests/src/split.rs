//! `NCCL_TESTS_SPLIT`: several groups of ranks run the same benchmark at the same time.

use crate::Outcome;
use crate::environment::Wishes;
use crate::error::Failure;

/// How ranks are divided into groups: ranks with the same colour are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All ranks are one group.
    None,
    /// The colour is rank & n.
    And(u32),
    /// The colour is rank | n.
    Or(u32),
    /// The colour is rank % n.
    Modulo(u32),
    /// The colour is rank / n.
    Divide(u32),
}

impl Split {
    /// What the environment asks for.
    ///
    /// # Errors
    /// It is not understood.
    pub fn wished(wishes: &Wishes) -> Outcome<Self> {
        wishes.split.as_deref().map_or(Ok(Self::None), |text| {
            parse(text).ok_or_else(|| {
                Failure::Input(format!(
                    "NCCL_TESTS_SPLIT={text:?}: expected AND, OR, MOD or DIV and a number"
                ))
            })
        })
    }

    /// The colour of `rank`.
    #[must_use]
    pub fn color(self, rank: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::And(number) => rank & number,
            Self::Or(number) => rank | number,
            Self::Modulo(number) => rank % number,
            Self::Divide(number) => rank / number,
        }
    }
}

/// The spellings of a kind of split, and how to make it.
type Kind = (&'static [&'static str], fn(u32) -> Split);

fn parse(text: &str) -> Option<Split> {
    let text = text.trim().to_ascii_uppercase();
    let kinds: [Kind; 4] = [
        (&["AND", "&"], Split::And),
        (&["OR", "|"], Split::Or),
        (&["MOD", "%"], Split::Modulo),
        (&["DIV", "/"], Split::Divide),
    ];
    kinds.into_iter().find_map(|(names, split)| {
        let rest = names.iter().find_map(|name| text.strip_prefix(name))?.trim();
        let number = match rest.strip_prefix("0X") {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => rest.parse().ok()?,
        };
        let divides = matches!(split(number), Split::Modulo(_) | Split::Divide(_));
        (number > 0 || !divides).then(|| split(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_read_and_applied() {
        for (text, split, colors) in [
            ("AND 0x1", Split::And(1), [0, 1, 0, 1]),
            ("&3", Split::And(3), [0, 1, 2, 3]),
            ("or 1", Split::Or(1), [1, 1, 3, 3]),
            ("MOD2", Split::Modulo(2), [0, 1, 0, 1]),
            ("DIV 2", Split::Divide(2), [0, 0, 1, 1]),
        ] {
            assert_eq!(parse(text), Some(split), "{text}");
            assert_eq!([0, 1, 2, 3].map(|rank| split.color(rank)), colors, "{text}");
        }
        for text in ["", "MOD 0", "DIV", "XOR 1", "AND x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
