//! Every rank gets the root's input.

use ccl::Collective;

use super::{block_of, no_remark, one};
use crate::benchmark::{Benchmark, Counts, Factor, OperationColumn, input, output};

/// `broadcast_perf`.
pub const BROADCAST: Benchmark = Benchmark {
    name: "broadcast_perf",
    collective: Some(Collective::Broadcast),
    operation: OperationColumn::Fixed("none"),
    rooted: true,
    uneven: false,
    checks_in_place: true,
    counts: |job| Counts::new(job.elements, job.elements, job.elements),
    calls: |place| {
        let count = place.counts.count;
        let source = (place.rank == place.root).then(|| input(count));
        one(Collective::Broadcast, source, Some(output(count)))
    },
    expected: |place| vec![block_of(place.root, 0, 0, place.counts.count)],
    base: |counts, _| counts.count,
    factor: Factor::Whole,
    remark: no_remark,
};
