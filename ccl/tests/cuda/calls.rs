//! What ranks do in tests of every way that calls can go without the host.

use std::process;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl::cuda::{self, Buffer, Paths};
use ccl::{Error, Rank, ReduceOp};

use super::{Member, all_reduce, download, words};

/// Calls with so many elements, one behind the other, of which nobody waits for one.
pub(crate) fn rounds(member: &Member, streams: &[cuda::Stream], counts: &[usize], is_late: bool) {
    let (me, size) = (i64::from(member.me()), i64::from(member.size()));
    let upload = |count: &usize| member.upload(&words(vec![me + 1; *count]));
    let buffers: Vec<Buffer> = counts.iter().map(upload).collect();
    let word = member.gpu().pin(4).unwrap();
    if is_late && me == 0 {
        streams.iter().for_each(|stream| stream.wait_for_word(&word, 0, 1).unwrap());
    }
    let rounds: u32 = 6;
    for round in 0..rounds {
        for (index, buffer) in buffers.iter().enumerate() {
            let stream = &streams[(index + round as usize) % streams.len()];
            member.cuda.enqueue(all_reduce(buffer), stream).unwrap();
        }
    }
    word.word(0).store(1, Ordering::Release);
    member.cuda.wait().unwrap();
    streams.iter().for_each(|stream| stream.synchronise().unwrap());
    let expected = size * (size + 1) / 2 * size.pow(rounds - 1);
    for (count, buffer) in counts.iter().zip(&buffers) {
        assert!(download(buffer) == words(vec![expected; *count]), "{count} elements, rank {me}");
    }
}

/// Ranks whose calls go through the host at first, because nobody prepares, and then, as `counted`, without it.
/// They are not equally fast.
pub(crate) fn changing(member: &Member, counted: impl Fn(Paths) -> u64) {
    let rank = member.me();
    let data = member.upload(&words([1; 900]));
    let mut calls = 0;
    loop {
        for _ in 0..10 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            calls += 1;
            if calls % (2 + rank) == 0 {
                member.stream.synchronise().unwrap();
            }
        }
        member.stream.synchronise().unwrap();
        let expected = i64::from(member.size()).wrapping_pow(calls);
        assert!(download(&data) == words([expected; 900]), "after {calls} calls, rank {rank}");
        // All ranks change after the same call.
        let paths = member.cuda.paths().0;
        let mut least = vec![counted(paths) as i64];
        member.host().all_reduce_in_place(&mut least, ReduceOp::Min).unwrap();
        assert_eq!(counted(paths) as i64, least[0], "rank {rank}: {paths:?}");
        if least[0] > 20 {
            break;
        }
    }
    assert!(member.cuda.paths().0.host > 0);
}

/// The error that ends the communicator, after a call was enqueued; the stream goes on.
pub(crate) fn failure(member: &Member, data: &Buffer) -> Error {
    loop {
        let enqueued = member.cuda.enqueue(all_reduce(data), &member.stream);
        let ended = enqueued.and_then(|()| member.cuda.wait());
        member.stream.synchronise().unwrap();
        if let Err(error) = ended {
            assert_eq!(member.cuda.check(), Err(error.clone()), "it is kept");
            return error;
        }
    }
}

/// Rank 1 makes a call and dies; the others are told so, and nothing of theirs goes through the host.
pub(crate) fn without_rank_one(member: &Member, data: &Buffer) {
    let before = member.cuda.paths().0;
    member.cuda.enqueue(all_reduce(data), &member.stream).unwrap();
    if member.me() == 1 {
        member.stream.synchronise().unwrap();
        process::abort();
    }
    let error = failure(member, data);
    assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
    assert_eq!(member.cuda.paths().0.host, before.host);
}

/// The error after three calls, when rank 2 does not come to the fourth one.
pub(crate) fn without_the_last(member: &Member, data: &Buffer) -> Error {
    for _ in 0..3 {
        member.cuda.enqueue(all_reduce(data), &member.stream).unwrap();
    }
    member.cuda.wait().unwrap();
    member.host().barrier().unwrap();
    if member.me() != 2 {
        member.host().set_timeout(Duration::from_secs(2)).unwrap();
        member.cuda.enqueue(all_reduce(data), &member.stream).unwrap();
    }
    let error = member.ending();
    member.stream.synchronise().unwrap();
    error
}
