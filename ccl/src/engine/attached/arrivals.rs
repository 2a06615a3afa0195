//! What each rank does where everybody reads the memory of everybody.

use ccl_core::collective::{Collective, Request};
use ccl_core::ids::Rank;
use ccl_kernels::Region;

use super::super::parts::{Of, Part, part, slice};

/// Bytes of a rank's buffer that belong somewhere in the own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The index of the rank that has them.
    pub(super) from: usize,
    pub(super) source: usize,
    pub(super) target: usize,
    pub(super) bytes: usize,
}

/// So much of two inputs, combined, is in a second-level cache with both of them.
const ALL_OF_TWO_BYTES: usize = 512 << 10;

/// What each of two ranks combines of their inputs in an AllReduce out of place, while that is not much: all of it.
///
/// It would read as many bytes of the other one if each combined one half, half of them from an output that was just written,
/// and had to wait for that. In place the inputs do not last for so long, and of more ranks there would be more to read.
pub(super) fn all_of_two(request: &Request, ranks: usize, any_in_place: bool) -> Option<Part> {
    let bytes = request.bytes();
    let is_possible = request.collective == Collective::AllReduce
        && ranks == 2
        && !any_in_place
        && bytes <= ALL_OF_TWO_BYTES;
    is_possible.then_some(Part { from: Of::All, source: 0, to: Of::All, target: 0, bytes })
}

/// What rank `me` of so many combines of the inputs of all.
pub(super) fn combined(request: &Request, me: Rank, ranks: usize) -> Option<Part> {
    request.collective.reduces().then(|| part(request, me, ranks)).flatten()
}

/// What rank `me` of so many has for itself, where nothing is combined.
pub(super) fn kept(request: &Request, me: Rank, ranks: usize) -> Option<Arrival> {
    arrival(request, me.index(), me, ranks).filter(|_| !request.collective.reduces())
}

/// What rank `me` of so many reads of others, beside what it combines: of their outputs in an AllReduce, else of their inputs.
pub(super) fn arrivals(request: &Request, me: Rank, ranks: usize) -> impl Iterator<Item = Arrival> {
    // So that not all read from the same one.
    let others = (1..ranks).map(move |step| (me.index() + step) % ranks);
    others.filter_map(move |from| arrival(request, from, me, ranks))
}

/// What one rank has that belongs into the output of `me`, as it is.
fn arrival(request: &Request, from: usize, me: Rank, ranks: usize) -> Option<Arrival> {
    let bytes = request.bytes();
    match request.collective {
        Collective::AllGather => Some(Arrival { from, source: 0, target: from * bytes, bytes }),
        Collective::AllToAll => {
            Some(Arrival { from, source: me.index() * bytes, target: from * bytes, bytes })
        }
        Collective::AllReduce => {
            let slice = slice(bytes, from, ranks);
            let (source, target) = (slice.start, slice.start);
            Some(Arrival { from, source, target, bytes: slice.len() })
        }
        Collective::Broadcast => {
            (request.root.index() == from).then_some(Arrival { from, source: 0, target: 0, bytes })
        }
        Collective::ReduceScatter
        | Collective::Reduce
        | Collective::AllToAllV
        | Collective::Gather
        | Collective::Scatter
        | Collective::Barrier
        | Collective::PointToPoint => None,
    }
}

/// Whether the input stays as it is until all have read it: an AllToAll in place writes there.
pub(super) fn is_readable(request: &Request, [input, output]: &[Region<'_>; 2]) -> bool {
    request.collective != Collective::AllToAll || input.address() != output.address()
}

#[cfg(test)]
mod tests {
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
                let own = combined(&request, me, RANKS).map(|own| own.written());
                let place = |one: Arrival| one.target..one.target + one.bytes;
                let kept = kept(&request, me, RANKS).map(place);
                let others = arrivals(&request, me, RANKS).map(|one| {
                    assert_ne!(one.from, me.index());
                    place(one)
                });
                let mut filled: Vec<_> = own.into_iter().chain(kept).chain(others).collect();
                filled.sort_by_key(|range| range.start);
                assert_eq!(filled[0].start, 0);
                assert!(filled.windows(2).all(|two| two[0].end == two[1].start), "{filled:?}");
                assert_eq!(filled.last().unwrap().end, blocks * request.bytes(), "{collective:?}");
            }
        }
    }

    #[test]
    fn only_two_ranks_out_of_place_combine_everything() {
        let of = |collective| Request { collective, count: 500, ..Request::BARRIER };
        let request = of(Collective::AllReduce);
        let all = all_of_two(&request, 2, false).unwrap();
        assert_eq!([all.read(), all.written()], [0..request.bytes(), 0..request.bytes()]);
        assert_eq!(all.from.indices(2), 0..2);
        assert_eq!(all_of_two(&request, 2, true), None);
        assert_eq!(all_of_two(&request, 3, false), None);
        let larger = Request { count: ALL_OF_TWO_BYTES + 1, ..request };
        assert_eq!(all_of_two(&larger, 2, false), None);
        assert_eq!(all_of_two(&of(Collective::ReduceScatter), 2, false), None);
    }

    #[test]
    fn every_rank_reads_its_own_block_of_an_all_to_all() {
        let request = Request { collective: Collective::AllToAll, count: 5, ..Request::BARRIER };
        let bytes = request.bytes();
        let read: Vec<_> =
            arrivals(&request, Rank(1), 3).map(|one| (one.from, one.source)).collect();
        assert_eq!(read, [(2, bytes), (0, bytes)]);
    }
}
