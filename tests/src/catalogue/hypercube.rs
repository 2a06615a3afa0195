//! An AllGather by pairs: in step k, ranks whose numbers differ in bit k exchange all they have.
//!
//! That needs a power of two of ranks. With another number, the pairs whose partner does not exist
//! are left out, and a rank ends with the blocks that reach it over existing ranks: block b reaches
//! rank r if b with its lowest 1, 2, 3, … bits replaced by those of r is always an existing rank. Rank
//! 0 gets every block, so the bandwidth shown is that of rank 0.

use super::block_of;
use crate::benchmark::{
    Benchmark, Call, Counts, Factor, OperationColumn, Phase, Place, Side, Span, block, input,
};

/// `hypercube_perf`.
pub const HYPERCUBE: Benchmark = Benchmark {
    name: "hypercube_perf",
    collective: None,
    operation: OperationColumn::Fixed(""),
    rooted: false,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts { in_place_input: count, ..Counts::new(count, count, count * job.ranks) }
    },
    calls: |place| {
        let count = place.counts.count;
        let own = Phase::Copy { from: input(count), to: blocks(place, place.rank, 1) };
        let exchanges = steps(place.ranks).filter_map(|mask| exchange(place, mask));
        std::iter::once(own).chain(exchanges).collect()
    },
    expected: |place| {
        let sources = (0..place.ranks).filter(|source| reaches(*source, place));
        sources.map(|source| block_of(source, 0, source, place.counts.count)).collect()
    },
    base: |counts, ranks| counts.count * (ranks - 1),
    factor: Factor::Whole,
    remark: |ranks| {
        let text = format!(
            "{ranks} ranks are not a power of 2: pairs without a partner are left out, and only \
             blocks that arrive are checked"
        );
        (!ranks.is_power_of_two()).then_some(text)
    },
};

fn steps(ranks: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |mask| Some(mask << 1)).take_while(move |mask| *mask < ranks)
}

/// The exchange of a rank with its partner across the bit of `mask`, if there is a partner.
fn exchange(place: &Place<'_>, mask: usize) -> Option<Phase> {
    let peer = place.rank ^ mask;
    (peer < place.ranks).then(|| {
        let data = |rank: usize| blocks(place, rank & !(mask - 1), mask);
        Phase::Calls(vec![
            Call::Send { peer, data: data(place.rank) },
            Call::Receive { peer, data: data(peer) },
        ])
    })
}

/// `number` blocks of the output from `first` on, as far as there are ranks.
fn blocks(place: &Place<'_>, first: usize, number: usize) -> Span {
    let count = place.counts.count;
    let existing = number.min(place.ranks - first);
    Span { side: Side::Output, offset: first * count, count: existing * count }
}

/// Whether the block of `source` gets to the rank of `place`; see the module.
fn reaches(source: usize, place: &Place<'_>) -> bool {
    steps(place.ranks).all(|mask| {
        let replaced = 2 * mask - 1;
        source & !replaced | place.rank & replaced < place.ranks
    })
}
