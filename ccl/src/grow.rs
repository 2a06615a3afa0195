//! How the ranks of a communicator agree on the larger one that they make together with new ranks.

use ccl_core::error::Error;
use ccl_core::ids::Rank;

use crate::bootstrap::{Place, UNIQUE_ID_BYTES, UniqueId};

/// Stands for an id in what a rank tells the others.
const OVER: u8 = 0;

/// What a rank knows of where all meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// It was not asked for that.
    Elsewhere,
    /// New ranks wait there, or will.
    At(UniqueId),
    /// New ranks have waited for too long, or have gone.
    Over,
}

impl Meeting {
    pub(crate) fn of(place: Option<&Place>) -> Self {
        match place {
            None => Self::Elsewhere,
            Some(place) if place.is_open() => Self::At(*place.id()),
            Some(_) => Self::Over,
        }
    }
}

/// What a rank tells the others: how many all are to be, and where to meet.
pub(crate) fn wish(size: u32, meeting: Meeting) -> Vec<u8> {
    let mut wish = size.to_le_bytes().to_vec();
    match meeting {
        Meeting::Elsewhere => {}
        Meeting::At(id) => wish.extend(id.to_bytes()),
        Meeting::Over => wish.push(OVER),
    }
    wish
}

/// Where all meet, given the wishes by rank.
///
/// # Errors
/// [`Error::InvalidArgument`]: the sizes differ, or are not larger than the number of ranks. [`Error::InvalidUsage`]: not just one
/// rank says where, or nobody waits there any more.
pub(crate) fn agreed(wishes: &[Vec<u8>]) -> Result<UniqueId, Error> {
    let parsed = (0..).map(Rank).zip(wishes).map(|(rank, wish)| parse(rank, wish));
    let wishes = parsed.collect::<Result<Vec<(u32, Meeting)>, _>>()?;
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
    let places = (0u32..).zip(wishes).map(|(rank, (_, meeting))| (rank, meeting));
    let places: Vec<_> = places.filter(|(_, meeting)| *meeting != Meeting::Elsewhere).collect();
    match places[..] {
        [(_, Meeting::At(id))] => Ok(id),
        [(rank, _)] => Err(Error::InvalidUsage(format!(
            "new ranks wait no longer where rank {rank} has told them: one of them has gone, or has waited too long; ask for \
             another id"
        ))),
        [] => Err(Error::InvalidUsage(
            "no rank has asked for the id with which the new ranks join; one does so before all grow"
                .into(),
        )),
        [(first, _), (second, _), ..] => Err(Error::InvalidUsage(format!(
            "rank {first} and rank {second} have both asked for an id for new ranks; one does so"
        ))),
    }
}

fn parse(rank: Rank, wish: &[u8]) -> Result<(u32, Meeting), Error> {
    let nonsense = || Error::Internal(format!("rank {rank} says nothing about how to grow"));
    let (size, meeting) = wish.split_first_chunk().ok_or_else(nonsense)?;
    let meeting = match meeting {
        [] => Meeting::Elsewhere,
        [OVER] => Meeting::Over,
        id => {
            let id: &[u8; UNIQUE_ID_BYTES] = id.try_into().map_err(|_| nonsense())?;
            Meeting::At(UniqueId::from_bytes(id)?)
        }
    };
    Ok((u32::from_le_bytes(*size), meeting))
}

#[cfg(test)]
mod tests {
    use super::*;

    use Meeting::{At, Elsewhere, Over};

    fn id() -> UniqueId {
        UniqueId::create(&crate::Settings::default()).unwrap()
    }

    #[test]
    fn one_rank_says_where_all_meet() {
        let id = id();
        assert_eq!(agreed(&[wish(3, Elsewhere), wish(3, At(id))]), Ok(id));
        assert_eq!(agreed(&[wish(2, At(id))]), Ok(id));
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let id = id();
        for (wishes, why) in [
            (
                &[wish(3, Elsewhere), wish(3, At(id)), wish(4, Elsewhere)][..],
                "rank 0 wants to grow to 3 ranks, rank 2 to 4",
            ),
            (&[wish(2, Elsewhere), wish(2, At(id))], "2 ranks cannot grow to 2"),
            (&[wish(0, At(id))], "1 ranks cannot grow to 0"),
        ] {
            let error = agreed(wishes).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
        for (wishes, why) in [
            (&[wish(3, Elsewhere), wish(3, Elsewhere)][..], "no rank has asked for the id"),
            (&[wish(3, Elsewhere), wish(3, Over)], "wait no longer where rank 1 has told them"),
            (
                &[wish(4, Elsewhere), wish(4, At(id)), wish(4, At(id))],
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
