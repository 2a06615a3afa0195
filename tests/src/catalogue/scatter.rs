//! Every rank gets its block of the root's input.

use ccl::Collective;

use super::{block_of, no_remark, one};
use crate::benchmark::{Benchmark, Counts, Factor, OperationColumn, block, input, output};

/// `scatter_perf`.
pub const SCATTER: Benchmark = Benchmark {
    name: "scatter_perf",
    collective: Some(Collective::Scatter),
    operation: OperationColumn::Fixed("none"),
    rooted: true,
    uneven: false,
    checks_in_place: true,
    counts: |job| {
        let count = block(job);
        Counts { in_place_output: count, ..Counts::new(count, count * job.ranks, count) }
    },
    calls: |place| {
        let count = place.counts.count;
        let source = (place.rank == place.root).then(|| input(count * place.ranks));
        one(Collective::Scatter, source, Some(output(count)))
    },
    expected: |place| {
        let count = place.counts.count;
        vec![block_of(place.root, place.rank * count, 0, count)]
    },
    base: |counts, ranks| counts.count * ranks,
    factor: Factor::OthersShare,
    remark: no_remark,
};
