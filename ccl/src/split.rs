//! Who belongs together when a communicator is split.

use ccl_core::ids::Rank;

/// What a rank tells the others: its part, if it takes part, and where it wants to stand in it.
pub(crate) fn wish(color: Option<u32>, key: i32) -> String {
    format!("{} {key}", color.map_or(-1, i64::from))
}

/// The ranks that wish `color`, given the wishes by rank: in order of their key and then of their rank.
pub(crate) fn members(wishes: &[Vec<u8>], color: u32) -> Vec<Rank> {
    let parse = |wish: &[u8]| -> Option<(i64, i64)> {
        let (color, key) = std::str::from_utf8(wish).ok()?.split_once(' ')?;
        Some((color.parse().ok()?, key.parse().ok()?))
    };
    let mut members: Vec<(i64, Rank)> = (0..)
        .map(Rank)
        .zip(wishes)
        .filter_map(|(rank, wish)| parse(wish).map(|(color, key)| (color, key, rank)))
        .filter(|(wished, ..)| *wished == i64::from(color))
        .map(|(_, key, rank)| (key, rank))
        .collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_stand_by_key_and_then_by_rank() {
        let wishes = [(Some(7), 3), (None, 0), (Some(7), -2), (Some(8), 0), (Some(7), 3)];
        let mut wishes = wishes.map(|(color, key)| wish(color, key).into_bytes()).to_vec();
        wishes.push(b"nonsense".to_vec());
        assert_eq!(members(&wishes, 7), [Rank(2), Rank(0), Rank(4)]);
        assert_eq!(members(&wishes, 8), [Rank(3)]);
        assert_eq!(members(&wishes, 9), []);
    }
}
