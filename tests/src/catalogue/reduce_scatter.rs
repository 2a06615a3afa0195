//! Every rank gets its block of the reduction of all inputs.

use ccl::Collective;

use super::{no_remark, one};
use crate::benchmark::{
    Benchmark, Counts, Factor, OperationColumn, Origin, Segment, block, input, output,
};

/// `reduce_scatter_perf`.
pub const REDUCE_SCATTER: Benchmark = Benchmark {
    name: "reduce_scatter_perf",
    collective: Some(Collective::ReduceScatter),
    operation: OperationColumn::Chosen,
    rooted: false,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts { in_place_output: count, ..Counts::new(count, count * job.ranks, count) }
    },
    calls: |place| {
        let count = place.counts.count;
        one(Collective::ReduceScatter, Some(input(count * place.ranks)), Some(output(count)))
    },
    expected: |place| {
        let count = place.counts.count;
        vec![Segment { offset: 0, count, origin: Origin::Reduced { first: place.rank * count } }]
    },
    base: |counts, ranks| counts.count * ranks,
    factor: Factor::OthersShare,
    remark: no_remark,
};
