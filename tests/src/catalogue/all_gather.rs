//! Every rank gets the inputs of all ranks, in order of rank.

use ccl::Collective;

use super::{block_of, no_remark, one};
use crate::benchmark::{Benchmark, Counts, Factor, OperationColumn, block, input, output};

/// `all_gather_perf`.
pub const ALL_GATHER: Benchmark = Benchmark {
    name: "all_gather_perf",
    collective: Some(Collective::AllGather),
    operation: OperationColumn::Fixed("none"),
    rooted: false,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts { in_place_input: count, ..Counts::new(count, count, count * job.ranks) }
    },
    calls: |place| {
        let count = place.counts.count;
        one(Collective::AllGather, Some(input(count)), Some(output(count * place.ranks)))
    },
    expected: |place| {
        (0..place.ranks).map(|rank| block_of(rank, 0, rank, place.counts.count)).collect()
    },
    base: |counts, ranks| counts.count * ranks,
    factor: Factor::OthersShare,
    remark: no_remark,
};
