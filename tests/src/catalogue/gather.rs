//! The root gets the inputs of all ranks, in order of rank.

use ccl::Collective;

use super::{block_of, no_remark, one};
use crate::benchmark::{Benchmark, Counts, Factor, OperationColumn, block, input, output};

/// `gather_perf`.
pub const GATHER: Benchmark = Benchmark {
    name: "gather_perf",
    collective: Some(Collective::Gather),
    operation: OperationColumn::Fixed("none"),
    rooted: true,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts { in_place_input: count, ..Counts::new(count, count, count * job.ranks) }
    },
    calls: |place| {
        let count = place.counts.count;
        let target = (place.rank == place.root).then(|| output(count * place.ranks));
        one(Collective::Gather, Some(input(count)), target)
    },
    expected: |place| {
        let sources = if place.rank == place.root { place.ranks } else { 0 };
        (0..sources).map(|rank| block_of(rank, 0, rank, place.counts.count)).collect()
    },
    base: |counts, ranks| counts.count * ranks,
    factor: Factor::OthersShare,
    remark: no_remark,
};
