//! What each rank keeps and reads where everybody reads the memory of everybody, beside what it [combines](super::super::parts::part).

use ccl_core::collective::{Collective, Request};
use ccl_core::ids::Rank;
use ccl_kernels::Region;

use super::super::parts::{Of, Part, slice};

/// Bytes of a peer's buffer that belong somewhere in the own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The index of its rank.
    pub(super) peer: usize,
    pub(super) source: usize,
    pub(super) target: usize,
    pub(super) bytes: usize,
}

/// What rank `me` has for itself, where nothing is combined.
pub(super) fn kept(request: &Request, me: Rank) -> Option<Part> {
    let own = Of::One(me);
    let whole =
        |source, target| Some(Part { from: own, source, to: own, target, bytes: request.bytes() });
    let block = me.index() * request.bytes();
    match request.collective {
        Collective::AllGather => whole(0, block),
        Collective::AllToAll => whole(block, block),
        Collective::Broadcast if request.root == me => whole(0, 0),
        Collective::Broadcast
        | Collective::AllReduce
        | Collective::ReduceScatter
        | Collective::Reduce
        | Collective::AllToAllV
        | Collective::Gather
        | Collective::Scatter
        | Collective::Barrier
        | Collective::PointToPoint => None,
    }
}

/// What rank `me` of so many reads of others, beside what it combines: of their outputs in an AllReduce, else of their inputs.
pub(super) fn arrivals(request: &Request, me: Rank, ranks: usize) -> impl Iterator<Item = Arrival> {
    let (request, bytes) = (*request, request.bytes());
    // So that not all read from the same one.
    let peers = (1..ranks).map(move |step| (me.index() + step) % ranks);
    peers.filter_map(move |peer| match request.collective {
        Collective::AllGather => Some(Arrival { peer, source: 0, target: peer * bytes, bytes }),
        Collective::AllToAll => {
            Some(Arrival { peer, source: me.index() * bytes, target: peer * bytes, bytes })
        }
        Collective::AllReduce => {
            let slice = slice(bytes, peer, ranks);
            let (source, target) = (slice.start, slice.start);
            Some(Arrival { peer, source, target, bytes: slice.len() })
        }
        Collective::Broadcast if request.root.index() == peer => {
            Some(Arrival { peer, source: 0, target: 0, bytes })
        }
        Collective::Broadcast
        | Collective::ReduceScatter
        | Collective::Reduce
        | Collective::AllToAllV
        | Collective::Gather
        | Collective::Scatter
        | Collective::Barrier
        | Collective::PointToPoint => None,
    })
}

/// Whether the input stays as it is until all have read it: an AllToAll in place writes there.
pub(super) fn is_readable(request: &Request, [input, output]: &[Region<'_>; 2]) -> bool {
    request.collective != Collective::AllToAll || input.address() != output.address()
}

#[cfg(test)]
mod tests {
    use super::super::super::parts::part;
    use super::super::rank;
    use super::*;

    #[test]
    fn what_is_kept_combined_and_read_is_all_of_an_output() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
        const RANKS: usize = 3;
        for (collective, blocks) in [
            (AllGather, RANKS),
            (AllToAll, RANKS),
            (AllReduce, 1),
            (ReduceScatter, 1),
            (Broadcast, 1),
        ] {
            for me in (0..RANKS).map(rank) {
                let request = Request { collective, count: 500, root: Rank(1), ..Request::BARRIER };
                let own = match collective.reduces() {
                    true => part(&request, me, RANKS),
                    false => kept(&request, me),
                };
                let mut filled: Vec<_> = own
                    .into_iter()
                    .map(|own| own.written())
                    .chain(arrivals(&request, me, RANKS).map(|one| {
                        assert_ne!(one.peer, me.index());
                        one.target..one.target + one.bytes
                    }))
                    .collect();
                filled.sort_by_key(|range| range.start);
                assert_eq!(filled[0].start, 0);
                assert!(filled.windows(2).all(|two| two[0].end == two[1].start), "{filled:?}");
                assert_eq!(filled.last().unwrap().end, blocks * request.bytes(), "{collective:?}");
            }
        }
    }

    #[test]
    fn every_rank_reads_its_own_block_of_an_all_to_all() {
        let request = Request { collective: Collective::AllToAll, count: 5, ..Request::BARRIER };
        let bytes = request.bytes();
        let read: Vec<_> =
            arrivals(&request, Rank(1), 3).map(|one| (one.peer, one.source)).collect();
        assert_eq!(read, [(2, bytes), (0, bytes)]);
    }
}
