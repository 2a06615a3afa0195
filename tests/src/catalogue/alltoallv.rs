//! AllToAll with a count of its own for every pair of ranks; see [`crate::traffic`] for the counts.
//! There is no in-place form.

use ccl::Collective;

use super::no_remark;
use crate::benchmark::{
    Benchmark, Call, Counts, Factor, OperationColumn, Origin, Phase, Place, Segment, block,
};
use crate::traffic::Traffic;

/// `alltoallv_perf`. Its size is what the busiest rank sends or receives, its count what every pair of ranks would have if all
/// were alike, and nothing where a file tells them, as in nccl-tests.
pub const ALLTOALLV: Benchmark = Benchmark {
    name: "alltoallv_perf",
    collective: Some(Collective::AllToAllV),
    operation: OperationColumn::Fixed("none"),
    rooted: false,
    uneven: true,
    checks_in_place: false,
    counts: |job| {
        let block = block(job);
        let matrix = job.traffic.matrix(block, job.element_bytes, job.ranks);
        let sent = (0..job.ranks).map(|rank| matrix[rank].iter().sum()).max().unwrap_or(0);
        let received =
            (0..job.ranks).map(|rank| matrix.iter().map(|row| row[rank]).sum()).max().unwrap_or(0);
        let count = match job.traffic {
            Traffic::Spread(_) => block,
            Traffic::Bytes(_) => 0,
        };
        Counts { matrix: Some(matrix), ..Counts::new(count, sent, received) }
    },
    calls: |place| {
        let (sent, received) = (sent(place, place.rank), received(place));
        vec![Phase::Calls(vec![Call::AllToAllV { send: sent, receive: received }])]
    },
    expected: |place| {
        let segment = |(rank, (count, offset)): (usize, (usize, usize))| {
            let first = sent(place, rank)[place.rank].1;
            Segment { offset, count, origin: Origin::Rank { rank, first } }
        };
        received(place).into_iter().enumerate().map(segment).collect()
    },
    base: |counts, _| counts.largest(),
    factor: Factor::OthersShare,
    remark: no_remark,
};

/// Count and displacement of what `rank` sends to every rank.
fn sent(place: &Place<'_>, rank: usize) -> Vec<(usize, usize)> {
    packed(cells(place).map(|row| row[rank].clone()).unwrap_or_default())
}

/// Count and displacement of what the rank of `place` receives from every rank.
fn received(place: &Place<'_>) -> Vec<(usize, usize)> {
    packed(cells(place).map(|m| m.iter().map(|row| row[place.rank]).collect()).unwrap_or_default())
}

fn cells<'a>(place: &Place<'a>) -> Option<&'a Vec<Vec<usize>>> {
    place.counts.matrix.as_deref()
}

/// Blocks one after the other.
fn packed(counts: Vec<usize>) -> Vec<(usize, usize)> {
    let end = |end: &mut usize, count: usize| {
        let start = *end;
        *end += count;
        Some((count, start))
    };
    counts.into_iter().scan(0, end).collect()
}
