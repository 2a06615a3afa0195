//! Who goes on when a communicator is shrunk.

use std::collections::BTreeSet;

use ccl_core::error::Error;
use ccl_core::ids::Rank;

/// What becomes of the calls that were started on a communicator that is [shrunk](crate::Communicator::shrink).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ongoing {
    /// They are waited for.
    Finish,
    /// They end with [`Error::Aborted`], and so does the communicator, on all ranks.
    Abort,
}

/// The numbers of the ranks that rank `me` of `size` is to go on without.
///
/// # Errors
/// [`Error::InvalidArgument`]: one is no rank of the group, is this one, or is named twice.
pub(crate) fn absent(excluded: &[Rank], me: Rank, size: u32) -> Result<BTreeSet<u32>, Error> {
    let mut absent = BTreeSet::new();
    for rank in excluded {
        let objection = if rank.0 >= size {
            format!("rank {rank} is not a rank of a group of {size}")
        } else if *rank == me {
            format!("rank {me} cannot exclude itself: only ranks that go on take part")
        } else if !absent.insert(rank.0) {
            format!("rank {rank} is excluded twice")
        } else {
            continue;
        };
        return Err(Error::InvalidArgument(objection));
    }
    Ok(absent)
}

/// An error of the ranks that are `left`, of which the first is rank 0, in the numbers of the communicator that they have left.
pub(crate) fn renumbered(error: Error, left: &[Rank]) -> Error {
    let old = |rank: Rank| left.get(rank.index()).copied().unwrap_or(rank);
    told_as(error, old, "those that go on")
}

/// An error that names ranks by their numbers among `others`, in the numbers of this communicator.
pub(crate) fn told_as(error: Error, here: impl FnOnce(Rank) -> Rank, others: &str) -> Error {
    let told = |rank, reason| format!("as rank {rank} of {others}: {reason}");
    match error {
        Error::PeerLost { rank, reason } => {
            Error::PeerLost { rank: here(rank), reason: told(rank, reason) }
        }
        Error::Aborted { rank, reason } => {
            Error::Aborted { rank: here(rank), reason: told(rank, reason) }
        }
        Error::InvalidUsage(text) => Error::InvalidUsage(format!("as ranks of {others}: {text}")),
        Error::Deadline { call, seconds, waiting } => {
            Error::Deadline { call, seconds, waiting: format!("as ranks of {others}: {waiting}") }
        }
        same @ (Error::InvalidArgument(_)
        | Error::Disagreement { .. }
        | Error::System { .. }
        | Error::Cuda(_)
        | Error::Internal(_)) => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_lost_is_named_by_the_number_that_it_had() {
        let lost = Error::PeerLost { rank: Rank(1), reason: "closed".into() };
        let reason = "as rank 1 of those that go on: closed".into();
        let known = Error::PeerLost { rank: Rank(3), reason };
        assert_eq!(renumbered(lost, &[Rank(1), Rank(3)]), known);
    }

    #[test]
    fn ranks_are_excluded_once_and_nobody_excludes_itself() {
        assert_eq!(absent(&[Rank(2), Rank(0)], Rank(1), 3), Ok([0, 2].into()));
        assert_eq!(absent(&[], Rank(1), 3), Ok(BTreeSet::new()));
        for (excluded, why) in [
            (&[Rank(3)][..], "rank 3 is not a rank of a group of 3"),
            (&[Rank(1)], "rank 1 cannot exclude itself"),
            (&[Rank(0), Rank(0)], "rank 0 is excluded twice"),
        ] {
            let error = absent(excluded, Rank(1), 3).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
