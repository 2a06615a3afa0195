//! The root gets the reduction of all inputs.

use ccl::Collective;

use super::{no_remark, one};
use crate::benchmark::{
    Benchmark, Counts, Factor, OperationColumn, Origin, Segment, input, output,
};

/// `reduce_perf`.
pub const REDUCE: Benchmark = Benchmark {
    name: "reduce_perf",
    collective: Some(Collective::Reduce),
    operation: OperationColumn::Chosen,
    rooted: true,
    uneven: false,
    checks_in_place: true,
    counts: |job| Counts::new(job.elements, job.elements, job.elements),
    calls: |place| {
        let count = place.counts.count;
        let target = (place.rank == place.root).then(|| output(count));
        one(Collective::Reduce, Some(input(count)), target)
    },
    expected: |place| {
        let whole =
            Segment { offset: 0, count: place.counts.count, origin: Origin::Reduced { first: 0 } };
        (place.rank == place.root).then_some(whole).into_iter().collect()
    },
    base: |counts, _| counts.count,
    factor: Factor::Whole,
    remark: no_remark,
};
