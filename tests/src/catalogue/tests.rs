//! Properties of all benchmarks, and the tables of nccl-tests.

use super::*;
use crate::benchmark::{Benchmark, Counts, Factor, Job, Place, Side};
use crate::traffic::Traffic;

const ALL: [&Benchmark; 11] = [
    &ALL_REDUCE,
    &ALL_GATHER,
    &REDUCE_SCATTER,
    &BROADCAST,
    &REDUCE,
    &ALLTOALL,
    &ALLTOALLV,
    &GATHER,
    &SCATTER,
    &SENDRECV,
    &HYPERCUBE,
];

fn job(bytes: usize, element_bytes: usize, ranks: usize) -> Job {
    Job { elements: bytes / element_bytes, element_bytes, ranks, traffic: Traffic::default() }
}

/// Calls `check` for every benchmark, some numbers of ranks, and every rank and root.
fn everywhere(check: impl Fn(&Benchmark, &Place<'_>)) {
    for benchmark in ALL {
        for ranks in 1..=9 {
            let counts = (benchmark.counts)(&job(4096, 4, ranks));
            let roots = if benchmark.rooted { ranks } else { 1 };
            for (rank, root) in (0..ranks).flat_map(|r| (0..roots).map(move |root| (r, root))) {
                check(benchmark, &Place { rank, ranks, root, counts: &counts });
            }
        }
    }
}

fn spans(phases: &[Phase]) -> Vec<Span> {
    let of_call = |call: &Call| match call {
        Call::Collective { input, output, .. } => input.iter().chain(output).copied().collect(),
        Call::AllToAllV { send, receive } => {
            let part = |side, parts: &[(usize, usize)]| {
                let span = move |(count, offset): &(usize, usize)| Span {
                    side,
                    offset: *offset,
                    count: *count,
                };
                parts.iter().map(span).collect::<Vec<_>>()
            };
            [part(Side::Input, send), part(Side::Output, receive)].concat()
        }
        Call::Send { data, .. } | Call::Receive { data, .. } => vec![*data],
    };
    let of_phase = |phase: &Phase| match phase {
        Phase::Copy { from, to } => vec![*from, *to],
        Phase::Calls(calls) => calls.iter().flat_map(of_call).collect(),
    };
    phases.iter().flat_map(of_phase).collect()
}

#[test]
fn everything_is_inside_the_buffers() {
    everywhere(|benchmark, place| {
        for span in spans(&(benchmark.calls)(place)) {
            let limit = match span.side {
                Side::Input => place.counts.send,
                Side::Output => place.counts.receive,
            };
            assert!(span.offset + span.count <= limit, "{} {place:?}", benchmark.name);
        }
        for segment in (benchmark.expected)(place) {
            let end = segment.offset + segment.count;
            assert!(end <= place.counts.receive, "{} {place:?}", benchmark.name);
        }
        let Counts { in_place_input, in_place_output, send, receive, .. } = *place.counts;
        assert!(in_place_input * place.rank + send <= place.counts.largest());
        assert!(in_place_output * place.rank + receive <= place.counts.largest());
    });
}

#[test]
fn every_send_has_its_receive() {
    everywhere(|benchmark, place| {
        let between = |place: &Place<'_>, sending: bool, with: usize| {
            let phases = (benchmark.calls)(place);
            let calls = phases.iter().flat_map(|phase| match phase {
                Phase::Calls(calls) => calls.clone(),
                Phase::Copy { .. } => Vec::new(),
            });
            calls
                .filter_map(|call| match call {
                    Call::Send { peer, data } if sending && peer == with => Some(data.count),
                    Call::Receive { peer, data } if !sending && peer == with => Some(data.count),
                    Call::Send { .. }
                    | Call::Receive { .. }
                    | Call::Collective { .. }
                    | Call::AllToAllV { .. } => None,
                })
                .collect::<Vec<_>>()
        };
        for peer in 0..place.ranks {
            let other = Place { rank: peer, ..*place };
            assert_eq!(between(place, true, peer), between(&other, false, place.rank));
        }
    });
}

/// Runs the hypercube on blocks that are just the numbers of their sources.
#[test]
fn the_hypercube_delivers_what_is_expected() {
    for ranks in 1..=17 {
        let counts = (HYPERCUBE.counts)(&job(4 * 4 * ranks, 4, ranks));
        let place = |rank| Place { rank, ranks, root: 0, counts: &counts };
        let mut held: Vec<Vec<Option<usize>>> = vec![vec![None; ranks]; ranks];
        (0..ranks).for_each(|rank| held[rank][rank] = Some(rank));
        for mask in [1, 2, 4, 8, 16] {
            let before = held.clone();
            for rank in (0..ranks).filter(|rank| rank ^ mask < ranks) {
                let peer = rank ^ mask;
                let first = peer & !(mask - 1);
                let last = (first + mask).min(ranks);
                held[rank][first..last].copy_from_slice(&before[peer][first..last]);
            }
        }
        for (rank, held) in held.iter().enumerate() {
            let expected: Vec<usize> = (HYPERCUBE.expected)(&place(rank))
                .iter()
                .map(|s| s.offset / counts.count)
                .collect();
            let reached: Vec<usize> = held.iter().flatten().copied().collect();
            assert_eq!(expected, reached, "rank {rank} of {ranks}");
            assert!(rank > 0 || reached.len() == ranks);
        }
    }
}

#[test]
fn counts_are_those_of_nccl_tests() {
    // 1000 bytes, 3 ranks: 250 floats, 83 a rank, 80 in whole multiples of 16 bytes.
    for (benchmark, count, send, receive) in [
        (&ALL_REDUCE, 250, 250, 250),
        (&BROADCAST, 250, 250, 250),
        (&REDUCE, 250, 250, 250),
        (&SENDRECV, 250, 250, 250),
        (&ALL_GATHER, 80, 80, 240),
        (&GATHER, 80, 80, 240),
        (&HYPERCUBE, 80, 80, 240),
        (&REDUCE_SCATTER, 80, 240, 80),
        (&SCATTER, 80, 240, 80),
        (&ALLTOALL, 80, 240, 240),
        // Nothing for the rank itself, a third of 960 bytes for the next, two thirds for the one after that.
        (&ALLTOALLV, 80, 240, 240),
    ] {
        let counts = (benchmark.counts)(&job(1000, 4, 3));
        assert_eq!((counts.count, counts.send, counts.receive), (count, send, receive));
    }
    assert_eq!((ALL_GATHER.counts)(&job(8, 4, 2)).count, 0);
    assert_eq!((ALL_GATHER.counts)(&job(64, 8, 3)).count, 2);
    assert_eq!((ALL_GATHER.counts)(&job(64, 1, 3)).count, 16);
}

#[test]
fn factors_are_those_of_nccl_tests() {
    for (benchmark, base, factor) in [
        (&ALL_REDUCE, 100, 1.5),
        (&ALL_GATHER, 400, 0.75),
        (&REDUCE_SCATTER, 400, 0.75),
        (&ALLTOALL, 400, 0.75),
        (&GATHER, 400, 0.75),
        (&SCATTER, 400, 0.75),
        (&ALLTOALLV, 100, 0.75),
        (&BROADCAST, 100, 1.0),
        (&REDUCE, 100, 1.0),
        (&SENDRECV, 100, 1.0),
        (&HYPERCUBE, 300, 1.0),
    ] {
        let counts = Counts::new(100, 100, 100);
        assert_eq!((benchmark.base)(&counts, 4), base, "{}", benchmark.name);
        assert!((benchmark.factor.of(4) - factor).abs() < 1e-12, "{}", benchmark.name);
    }
    assert!(Factor::TwiceOthersShare.of(1) == 0.0);
}

#[test]
fn the_parts_of_alltoallv_fit_together() {
    let counts = (ALLTOALLV.counts)(&job(6000, 1, 4));
    let place = |rank| Place { rank, ranks: 4, root: 0, counts: &counts };
    let expected = (ALLTOALLV.expected)(&place(2));
    let origins: Vec<_> = expected.iter().map(|s| (s.offset, s.count, s.origin)).collect();
    assert_eq!(
        origins,
        [
            (0, 1984, Origin::Rank { rank: 0, first: 992 }),
            (1984, 992, Origin::Rank { rank: 1, first: 2976 }),
            (2976, 0, Origin::Rank { rank: 2, first: 4960 }),
            (2976, 2976, Origin::Rank { rank: 3, first: 2976 }),
        ]
    );
}
