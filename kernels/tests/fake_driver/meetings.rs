//! Ranks that meet, and what is seen of one that does not come.

use std::sync::Arc;
use std::thread;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{
    Exchange, Ground, Laggards, Layout, Messages, Moment, Own, Part, Protocol, Side, Stream,
};
use ccl_kernels::cuda::{Arithmetic, Entry, Family, Operation};

use super::{gpu, inside};

/// Of staging memory on each side: of a push for so many blocks of each rank.
const STAGING_BYTES: usize = 2 * BLOCKS as usize * BLOCK_BYTES;
const BLOCKS: u32 = 2;
/// What a block combines that has as many threads as there are.
const BLOCK_BYTES: usize = 512 * 16;

/// Two ranks of this process, each with a device.
fn two_ranks() -> [Exchange; 2] {
    let gpus = [0, 1].map(|ordinal| Arc::new(gpu(ordinal)));
    let layout = Layout { ranks: 2, small_bytes: 64, staging_bytes: STAGING_BYTES };
    let owns = gpus.each_ref().map(|gpu| Own::new(gpu, layout).expect("the driver does it"));
    let invitations = owns.each_ref().map(|own| own.invitation().expect("the driver does it"));
    let [first, second] = owns;
    let of = |rank: usize, own: Own| {
        let gpu = Arc::clone(&gpus[rank]);
        let mut mapped = vec![None, None];
        mapped[1 - rank] = Some(gpu.map(&invitations[1 - rank]).expect("the driver does it"));
        let seen = invitations.iter().map(|invitation| invitation.address).collect();
        Exchange::new(gpu, own, rank, BLOCKS, (mapped, seen))
    };
    [of(0, first), of(1, second)]
}

#[test]
fn streams_meet_by_marks() {
    inside("meetings::streams_meet_by_marks", 2, || {
        let ranks = two_ranks();
        let streams = [0, 1].map(|ordinal| gpu(ordinal).stream().unwrap());
        let looked = |rank: usize| {
            ranks[rank].look_at_marks().unwrap().synchronise().unwrap();
            let marks = [Moment::Ready, Moment::Taken].map(|moment| ranks[rank].marks(moment)[0]);
            (marks, ranks[rank].gone())
        };
        let meet = |rank: usize, moment, mark| {
            ranks[rank].meet(&streams[rank], moment, mark).unwrap();
            streams[rank].mark().unwrap()
        };
        for mark in [5, 6] {
            for moment in [Moment::Ready, Moment::Taken] {
                let waiting = meet(0, moment, mark);
                assert!(!waiting.has_happened().unwrap(), "nobody has come");
                meet(1, moment, mark).synchronise().unwrap();
                waiting.synchronise().unwrap();
            }
        }
        assert_eq!(looked(0), ([(1, 6), (1, 6)], vec![]));
        // Marks that differ let nobody pass.
        let waiting = [meet(0, Moment::Ready, 7), meet(1, Moment::Ready, 8)];
        let told = || [looked(0).0[0], looked(1).0[0]];
        while told() != [(1, 8), (0, 7)] {
            thread::yield_now();
        }
        assert!(waiting.iter().all(|event| !event.has_happened().unwrap()));
        // Whoever lets its own stream go says so before anything of that stream is seen.
        ranks[0].let_go(7).unwrap();
        waiting[0].synchronise().unwrap();
        assert_eq!((looked(0).1, looked(1).1), (vec![], vec![0]));
        assert!(!waiting[1].has_happened().unwrap());
        // A stream finds that where it comes to it.
        ranks[1].report(&streams[1]).unwrap();
        assert_eq!(ranks[1].reported_gone(), []);
        ranks[1].let_go(8).unwrap();
        waiting[1].synchronise().unwrap();
        streams[1].synchronise().unwrap();
        assert_eq!(ranks[1].reported_gone(), [0]);
        assert_eq!(looked(0).1, [1]);
    });
}

fn sum(family: Family) -> Entry {
    Entry::Elements { family, operation: Operation::Sum, datatype: DataType::Float32 }
}

/// Staging memory is combined into staging memory, `pieces` times, by so many blocks.
fn push(own: &Exchange, stream: &Stream, pieces: usize, blocks: u32) {
    let half =
        |side, of: usize| (of < 2).then(|| own.told_staging(side, of).at(of * STAGING_BYTES / 2));
    let count = blocks as usize * BLOCK_BYTES / size_of::<f32>();
    let part = Part {
        sources: std::array::from_fn(|of| half(Side::Input, of)),
        destinations: std::array::from_fn(|of| half(Side::Output, of)),
        count,
        reach: count,
        stride_bytes: 0,
        pieces,
        turns: 1,
        largest: count,
        arithmetic: Arithmetic::default(),
    };
    assert!(count * size_of::<f32>() <= STAGING_BYTES / 2);
    own.push(stream, sum(Family::Push), &part).expect("it can be launched");
}

fn low_latency(own: &Exchange, stream: &Stream) {
    let (input, output) =
        (own.staging(Side::Input).part(0, 64), own.staging(Side::Output).part(0, 64));
    let result =
        own.low_latency(stream, sum(Family::LowLatency), Arithmetic::default(), (input, output));
    result.expect("it can be launched");
}

/// A message of a few bytes from each to each.
fn pull(own: &Exchange, stream: &Stream) {
    let input = own.staging(Side::Input).part(0, 48);
    let sent = (0..2).map(|to| (Ground::Mapped(own.told_staging(Side::Input, to)), 48)).collect();
    let received = (0..2).map(|from| own.staging(Side::Output).part(from * 48, 48)).collect();
    own.pull(stream, &Messages { sent, own: input, received }).expect("it can be launched");
}

/// What the first rank sees as soon as it sees that it waits for somebody.
fn seen(rank: &Exchange, protocol: Protocol) -> Laggards {
    loop {
        rank.look().expect("the driver does it").synchronise().expect("it has ended");
        let seen = rank.awaited(protocol);
        if seen != Laggards::default() {
            return seen;
        }
        thread::yield_now();
    }
}

#[test]
fn who_does_not_come_is_seen_until_it_does() {
    inside("meetings::who_does_not_come_is_seen_until_it_does", 2, || {
        let ranks = two_ranks();
        let streams = [0, 1].map(|ordinal| gpu(ordinal).stream().unwrap());
        let calls: [(Protocol, &dyn Fn(usize)); 3] = [
            (Protocol::LowLatency, &|rank| low_latency(&ranks[rank], &streams[rank])),
            (Protocol::Push, &|rank| push(&ranks[rank], &streams[rank], 1, BLOCKS)),
            (Protocol::Pull, &|rank| pull(&ranks[rank], &streams[rank])),
        ];
        for (protocol, call) in calls.iter().cycle().take(9) {
            call(0);
            assert_eq!(seen(&ranks[0], *protocol), Laggards { late: vec![1], slow: vec![] });
            call(1);
            streams.iter().for_each(|stream| stream.synchronise().unwrap());
            for rank in &ranks {
                rank.look().unwrap().synchronise().unwrap();
                assert_eq!(rank.awaited(*protocol), Laggards::default(), "{protocol:?} is over");
            }
        }
    });
}

#[test]
fn nobody_is_awaited_in_a_call_that_was_given_up() {
    inside("meetings::nobody_is_awaited_in_a_call_that_was_given_up", 2, || {
        for protocol in [Protocol::LowLatency, Protocol::Push, Protocol::Pull] {
            let [own, _other] = two_ranks();
            let stream = gpu(0).stream().unwrap();
            match protocol {
                Protocol::LowLatency => low_latency(&own, &stream),
                Protocol::Push => push(&own, &stream, 1, BLOCKS),
                Protocol::Pull => pull(&own, &stream),
            }
            assert_eq!(seen(&own, protocol), Laggards { late: vec![1], slow: vec![] });
            own.give_up();
            stream.synchronise().unwrap();
            own.look().unwrap().synchronise().unwrap();
            assert_eq!(own.awaited(protocol), Laggards::default(), "{protocol:?}");
        }
    });
}

#[test]
fn who_stops_in_a_call_is_seen_by_the_block_that_waits() {
    inside("meetings::who_stops_in_a_call_is_seen_by_the_block_that_waits", 2, || {
        let ranks = two_ranks();
        let streams = [0, 1].map(|ordinal| gpu(ordinal).stream().unwrap());
        // The first blocks end together.
        push(&ranks[0], &streams[0], 1, BLOCKS);
        push(&ranks[1], &streams[1], 1, 1);
        streams[1].synchronise().unwrap();
        assert_eq!(seen(&ranks[0], Protocol::Push), Laggards { late: vec![1], slow: vec![] });
        ranks[0].give_up();
        streams[0].synchronise().unwrap();
    });
}

#[test]
fn who_has_come_and_does_not_go_on_is_slow() {
    inside("meetings::who_has_come_and_does_not_go_on_is_slow", 2, || {
        let ranks = two_ranks();
        let streams = [0, 1].map(|ordinal| gpu(ordinal).stream().unwrap());
        // Of two pieces the second one does not come.
        push(&ranks[0], &streams[0], 2, 1);
        push(&ranks[1], &streams[1], 1, 1);
        streams[1].synchronise().unwrap();
        let is_late = |seen: &Laggards| !seen.late.is_empty();
        let mut last = seen(&ranks[0], Protocol::Push);
        while is_late(&last) {
            last = seen(&ranks[0], Protocol::Push);
        }
        assert_eq!(last, Laggards { late: vec![], slow: vec![1] });
        ranks[0].give_up();
        streams[0].synchronise().unwrap();
    });
}
