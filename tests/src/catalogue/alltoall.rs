//! Rank j gets block j of every rank's input, in order of rank.

use ccl::Collective;

use super::{block_of, no_remark, one};
use crate::benchmark::{Benchmark, Counts, Factor, OperationColumn, block, input, output};

/// `alltoall_perf`.
pub const ALLTOALL: Benchmark = Benchmark {
    name: "alltoall_perf",
    collective: Some(Collective::AllToAll),
    operation: OperationColumn::Fixed("none"),
    rooted: false,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts::new(count, count * job.ranks, count * job.ranks)
    },
    calls: |place| {
        let whole = place.counts.count * place.ranks;
        one(Collective::AllToAll, Some(input(whole)), Some(output(whole)))
    },
    expected: |place| {
        let count = place.counts.count;
        (0..place.ranks).map(|rank| block_of(rank, place.rank * count, rank, count)).collect()
    },
    base: |counts, ranks| counts.count * ranks,
    factor: Factor::OthersShare,
    remark: no_remark,
};
