//! How the ranks of a communicator agree on the larger one that they make together with new ranks.

use ccl_core::error::Error;
use ccl_core::ids::Rank;

use crate::bootstrap::{UNIQUE_ID_BYTES, UniqueId};

/// What a rank tells the others: how many all are to be, and where to meet if it has been asked for that.
pub(crate) fn wish(size: u32, id: Option<&UniqueId>) -> Vec<u8> {
    let mut wish = size.to_le_bytes().to_vec();
    wish.extend(id.iter().flat_map(|id| id.to_bytes()));
    wish
}

/// Where all meet, given the wishes by rank.
///
/// # Errors
/// [`Error::InvalidArgument`]: the sizes differ, or are not larger than the number of ranks. [`Error::InvalidUsage`]: not just one
/// rank says where.
pub(crate) fn agreed(wishes: &[Vec<u8>]) -> Result<UniqueId, Error> {
    let wishes: Vec<(u32, Option<UniqueId>)> = (0..)
        .map(Rank)
        .zip(wishes)
        .map(|(rank, wish)| parse(rank, wish))
        .collect::<Result<_, _>>()?;
    let size = wishes.first().map_or(0, |(size, _)| *size);
    if let Some((rank, (other, _))) = (0u32..).zip(&wishes).find(|(_, (other, _))| *other != size) {
        return Err(Error::InvalidArgument(format!(
            "rank 0 wants to grow to {size} ranks, rank {rank} to {other}"
        )));
    }
    if u64::from(size) <= wishes.len() as u64 {
        return Err(Error::InvalidArgument(format!(
            "{} ranks cannot grow to {size}: the size counts the old and the new ranks",
            wishes.len()
        )));
    }
    let ids: Vec<(u32, UniqueId)> =
        (0..).zip(&wishes).filter_map(|(rank, (_, id))| id.map(|id| (rank, id))).collect();
    match ids[..] {
        [(_, id)] => Ok(id),
        [] => Err(Error::InvalidUsage(
            "no rank has asked for the id with which the new ranks join; one does so before all grow".into(),
        )),
        [(first, _), (second, _), ..] => Err(Error::InvalidUsage(format!(
            "rank {first} and rank {second} have both asked for an id for new ranks; one does so"
        ))),
    }
}

fn parse(rank: Rank, wish: &[u8]) -> Result<(u32, Option<UniqueId>), Error> {
    let nonsense = || Error::Internal(format!("rank {rank} says nothing about how to grow"));
    let (size, id) = wish.split_first_chunk().ok_or_else(nonsense)?;
    let size = u32::from_le_bytes(*size);
    if id.is_empty() {
        return Ok((size, None));
    }
    let id: &[u8; UNIQUE_ID_BYTES] = id.try_into().map_err(|_| nonsense())?;
    Ok((size, Some(UniqueId::from_bytes(id)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> UniqueId {
        UniqueId::create(&crate::Settings::default()).unwrap()
    }

    #[test]
    fn one_rank_says_where_all_meet() {
        let id = id();
        assert_eq!(agreed(&[wish(3, None), wish(3, Some(&id))]), Ok(id));
        assert_eq!(agreed(&[wish(2, Some(&id))]), Ok(id));
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let id = id();
        for (wishes, why) in [
            (
                &[wish(3, None), wish(3, Some(&id)), wish(4, None)][..],
                "rank 0 wants to grow to 3 ranks, rank 2 to 4",
            ),
            (&[wish(2, None), wish(2, Some(&id))], "2 ranks cannot grow to 2"),
            (&[wish(0, Some(&id))], "1 ranks cannot grow to 0"),
        ] {
            let error = agreed(wishes).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
        for (wishes, why) in [
            (&[wish(3, None), wish(3, None)][..], "no rank has asked for the id"),
            (
                &[wish(4, None), wish(4, Some(&id)), wish(4, Some(&id))],
                "rank 1 and rank 2 have both asked",
            ),
        ] {
            let error = agreed(wishes).unwrap_err();
            assert!(matches!(error, Error::InvalidUsage(_)), "{error:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_no_wish_is_no_panic() {
        for nonsense in [&b""[..], b"abc", b"\x03\0\0\0abc", &[7; 4 + UNIQUE_ID_BYTES]] {
            assert!(agreed(&[nonsense.to_vec()]).is_err());
        }
    }
}
