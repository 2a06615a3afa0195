//! A ring: every rank sends to the next one and receives from the previous one. There is no in-place
//! form.

use super::{block_of, no_remark};
use crate::benchmark::{
    Benchmark, Call, Counts, Factor, OperationColumn, Phase, Place, input, output,
};

/// `sendrecv_perf`. nccl-tests shows an operation although nothing is reduced; so does this.
pub const SENDRECV: Benchmark = Benchmark {
    name: "sendrecv_perf",
    collective: None,
    operation: OperationColumn::Fixed("sum"),
    rooted: false,
    uneven: false,
    checks_in_place: false,
    counts: |job| Counts::new(job.elements, job.elements, job.elements),
    calls: |place| {
        let count = place.counts.count;
        vec![Phase::Calls(vec![
            Call::Send { peer: (place.rank + 1) % place.ranks, data: input(count) },
            Call::Receive { peer: previous(place), data: output(count) },
        ])]
    },
    expected: |place| vec![block_of(previous(place), 0, 0, place.counts.count)],
    base: |counts, _| counts.count,
    factor: Factor::Whole,
    remark: no_remark,
};

fn previous(place: &Place<'_>) -> usize {
    (place.rank + place.ranks - 1) % place.ranks
}
