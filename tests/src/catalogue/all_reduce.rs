//! Every rank gets the reduction of all inputs.

use ccl::Collective;

use super::{no_remark, one};
use crate::benchmark::{
    Benchmark, Counts, Factor, OperationColumn, Origin, Segment, input, output,
};

/// `all_reduce_perf`.
pub const ALL_REDUCE: Benchmark = Benchmark {
    name: "all_reduce_perf",
    collective: Some(Collective::AllReduce),
    operation: OperationColumn::Chosen,
    rooted: false,
    uneven: false,
    checks_in_place: true,
    counts: |job| Counts::new(job.elements, job.elements, job.elements),
    calls: |place| {
        let count = place.counts.count;
        one(Collective::AllReduce, Some(input(count)), Some(output(count)))
    },
    expected: |place| {
        let count = place.counts.count;
        vec![Segment { offset: 0, count, origin: Origin::Reduced { first: 0 } }]
    },
    base: |counts, _| counts.count,
    factor: Factor::TwiceOthersShare,
    remark: no_remark,
};
