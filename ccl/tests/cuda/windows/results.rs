//! What ranks get from collectives in windows.

use std::sync::atomic::Ordering;

use ccl::cuda::{DeviceRegion, Stream};
use ccl::{Collective, DataType, OperationOn, Rank, ReduceOp, Region, Request};

use super::{LEAST_BYTES, WINDOW_BYTES, Windowed, bytes_of, gathered, noise};
use crate::direct::request;
use crate::ranks::{processes, processes_with, threads_with};
use crate::{Member, all_reduce, download, shape, words};

const GUARD: u8 = 0x5a;

/// One collective against the same one on the host, with the buffer that has to be there `shift` bytes into the window.
fn compare(windowed: &Windowed, request: Request, shift: usize, in_place: bool) {
    let member = &windowed.member;
    let (me, ranks) = (member.me() as usize, member.size() as usize);
    let (inputs, outputs, apart) = shape(request.collective, me, ranks);
    let block = request.bytes();
    let has_input = request.collective != Collective::Broadcast || request.root.index() == me;
    let sent = noise(inputs * block, member.me() + request.count as u32);
    let mut expected = vec![0; outputs * block];
    let (mut contribution, has_bytes) = (sent.clone(), block > 0);
    let operation = ccl::Operation::Collective {
        request,
        input: has_input.then(|| Region::of_mut(&mut contribution)),
        output: Some(Region::of_mut(&mut expected)),
    };
    member.host().run(operation).unwrap();

    let (is_exchange, before) = (request.collective == Collective::AllToAll, windowed.copied());
    windowed.write(0, &vec![GUARD; WINDOW_BYTES]);
    let elsewhere = member.upload(&vec![GUARD; inputs.max(outputs) * block + 1]);
    let inside = windowed.region().part(shift, inputs.max(outputs) * block);
    let outside = |bytes: usize| elsewhere.region().part(1, bytes);
    let own = apart.unsigned_abs() * block;
    let (input, output) = match (is_exchange, in_place) {
        (true, true) => (inside, inside),
        (true, false) => (inside, outside(outputs * block)),
        (false, true) => (inside.part(own, inputs * block), inside),
        (false, false) => (outside(inputs * block), inside),
    };
    // A rank without an input has nothing to say.
    if has_input {
        put(member, &sent, input);
    }
    let input = has_input.then_some(input);
    let operation = OperationOn::Collective { request, input, output: Some(output) };
    member.cuda.enqueue(operation, &member.stream).unwrap();
    member.stream.synchronise().unwrap();
    let what = format!("rank {me}: {request:?} at {shift}, in place: {in_place}");
    assert!(get(member, output) == expected, "{what}");
    assert!(in_place || input.is_none_or(|input| get(member, input) == sent), "{what}: input");
    let around = [(0, shift), (shift + inside.bytes(), WINDOW_BYTES - shift - inside.bytes())];
    for (start, bytes) in around {
        assert!(windowed.read(start, bytes).iter().all(|byte| *byte == GUARD), "{what}: around");
    }
    let is_copied = has_bytes && block >= LEAST_BYTES && !(is_exchange && in_place);
    assert_eq!(windowed.copied(), before + u64::from(is_copied), "{what}");
}

/// Copies to memory of the device, in the order of the stream.
fn put(member: &Member, bytes: &[u8], to: DeviceRegion<'_>) {
    let staged = member.upload(bytes);
    member.stream.copy(staged.region(), to).unwrap();
    member.stream.synchronise().unwrap();
}

fn get(member: &Member, from: DeviceRegion<'_>) -> Vec<u8> {
    let staged = member.gpu().allocate(from.bytes()).unwrap();
    member.stream.copy(from, staged.region()).unwrap();
    member.stream.synchronise().unwrap();
    download(&staged)
}

/// Some are smaller than what copy engines do, some have nothing.
fn all_calls(windowed: &Windowed) {
    let size = windowed.member.size();
    let most = WINDOW_BYTES / size as usize - 100;
    for (count, shift) in [(0, 0), (700, 3), (LEAST_BYTES, 0), (1777, 9), (most, 61)] {
        for in_place in [false, true] {
            for collective in [Collective::AllGather, Collective::AllToAll] {
                compare(windowed, bytes_of(collective, count, 0), shift, in_place);
            }
            for root in 0..size {
                compare(windowed, bytes_of(Collective::Broadcast, count, root), shift, in_place);
            }
        }
    }
    for (collective, shift) in [(Collective::AllGather, 8), (Collective::AllToAll, 5)] {
        compare(windowed, request(collective, 400, DataType::Int64, ReduceOp::Sum), shift, false);
    }
    windowed.member.cuda.check().unwrap();
}

#[test]
fn two_processes_get_what_they_get_on_the_host() {
    const TEST: &str = "windows::results::two_processes_get_what_they_get_on_the_host";
    processes_with(TEST, 2, &[], |rank, size, id| all_calls(&Windowed::new((rank, size), &id)));
}

#[test]
fn three_processes_without_kernels_get_what_they_get_on_the_host() {
    const TEST: &str =
        "windows::results::three_processes_without_kernels_get_what_they_get_on_the_host";
    processes(TEST, 3, &[], |rank, size, id| all_calls(&Windowed::new((rank, size), &id)));
}

#[test]
fn eight_processes_get_what_they_get_on_the_host() {
    const TEST: &str = "windows::results::eight_processes_get_what_they_get_on_the_host";
    processes(TEST, 8, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id);
        for (collective, root) in
            [Collective::AllGather, Collective::AllToAll, Collective::Broadcast]
                .into_iter()
                .zip(5..)
        {
            compare(&windowed, bytes_of(collective, 2003, root), 11, false);
            compare(&windowed, bytes_of(collective, 1500, root), 2, true);
        }
    });
}

#[test]
fn threads_on_two_devices_get_what_they_get_on_the_host() {
    const TEST: &str = "windows::results::threads_on_two_devices_get_what_they_get_on_the_host";
    threads_with(TEST, 2, |rank, id| all_calls(&Windowed::new((rank, 2), id)));
}

/// Rounds one behind the other, of which nobody waits for one, on streams in turn. In each there is other data, which is
/// in its place only when the stream has come so far, and which the next round on the stream overwrites.
fn rounds(windowed: &Windowed, streams: &[Stream; 2], count: usize, is_late: bool) {
    const ROUNDS: u32 = 12;
    let member = &windowed.member;
    let (me, ranks) = (member.me(), member.size() as usize);
    let seed = |round: u32, rank: u32| 100 * round + rank;
    let upload = |round| member.upload(&noise(ranks * count, seed(round, me)));
    let sources: Vec<_> = (0..ROUNDS).map(upload).collect();
    let kept: Vec<_> = (0..ROUNDS).map(|_| member.gpu().allocate(ranks * count).unwrap()).collect();
    let inputs = [0, 1].map(|_| member.gpu().allocate(count).unwrap());
    let sums = member.upload(&words([1; 900]));
    let word = member.gpu().pin(4).unwrap();
    if is_late && me == 1 {
        streams.iter().for_each(|stream| stream.wait_for_word(&word, 0, 1).unwrap());
    }
    for round in 0..ROUNDS {
        let turn = round as usize % 2;
        let (stream, source) = (&streams[turn], sources[round as usize].region());
        let area = windowed.region().part(turn * ranks * count, ranks * count);
        let out = kept[round as usize].region();
        match round / 2 % 3 {
            0 => {
                let input = inputs[turn].region();
                stream.copy(source.part(0, count), input).unwrap();
                call(member, Collective::AllGather, 0, (input, area), stream);
                stream.copy(area, out).unwrap();
            }
            1 => {
                stream.copy(source, area).unwrap();
                call(member, Collective::AllToAll, 0, (area, out), stream);
                // Nobody takes it any more.
                stream.copy(out, area).unwrap();
            }
            _ => {
                let shared = area.part(0, count);
                stream.copy(source.part(0, count), shared).unwrap();
                call(member, Collective::Broadcast, 1, (shared, shared), stream);
                stream.copy(shared, out.part(0, count)).unwrap();
            }
        }
        if round % 4 == 1 {
            member.cuda.enqueue(all_reduce(&sums), stream).unwrap();
        }
    }
    word.word(0).store(1, Ordering::Release);
    streams.iter().for_each(|stream| stream.synchronise().unwrap());
    member.cuda.wait().unwrap();
    for (round, kept) in (0..).zip(&kept) {
        let data = |rank: u32| noise(ranks * count, seed(round, rank));
        let own = me as usize * count;
        let expected: Vec<u8> = match round / 2 % 3 {
            0 => (0..member.size()).flat_map(|rank| data(rank)[..count].to_vec()).collect(),
            1 => {
                (0..member.size()).flat_map(|rank| data(rank)[own..own + count].to_vec()).collect()
            }
            _ => data(1)[..count].to_vec(),
        };
        assert!(download(kept)[..expected.len()] == expected, "round {round}, rank {me}");
    }
    assert!(download(&sums) == words([i64::from(member.size()).pow(3); 900]), "rank {me}");
}

fn call(
    member: &Member,
    collective: Collective,
    root: u32,
    (input, output): (DeviceRegion<'_>, DeviceRegion<'_>),
    stream: &Stream,
) {
    let ranks = member.size() as usize;
    let count =
        if collective == Collective::AllToAll { input.bytes() / ranks } else { input.bytes() };
    let request = Request { root: Rank(root), ..bytes_of(collective, count, root) };
    let operation = OperationOn::Collective { request, input: Some(input), output: Some(output) };
    member.cuda.enqueue(operation, stream).unwrap();
}

#[test]
fn calls_follow_each_other_on_two_streams() {
    const TEST: &str = "windows::results::calls_follow_each_other_on_two_streams";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let windowed = Windowed::new((rank, size), &id).prepared(&[DataType::Int64]);
        let member = &windowed.member;
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        for (count, is_late) in [(1501, false), (6000, true), (6601, false)] {
            let before = windowed.copied();
            rounds(&windowed, &streams, count, is_late);
            assert_eq!(windowed.copied(), before + 12);
            // Calls on the host come in between.
            let mut host = vec![1i64; 10];
            member.host().all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
            assert_eq!(host, vec![3; 10]);
        }
        let paths = member.cuda.paths().0;
        assert!(paths.push > 0 && paths.host == 0, "{paths:?}");
    });
}

#[test]
fn large_blocks_are_not_overwritten_while_others_take_them() {
    const TEST: &str = "windows::results::large_blocks_are_not_overwritten_while_others_take_them";
    processes(TEST, 3, &[], |rank, size, id| {
        let member = super::member((rank, size), &id, ("1", LEAST_BYTES));
        let windowed = Windowed::with(member, 6 << 20);
        let member = &windowed.member;
        let streams = [member.stream.clone(), member.gpu().stream().unwrap()];
        rounds(&windowed, &streams, 1 << 20, false);
        assert_eq!(windowed.copied(), 12);
    });
}

#[test]
fn the_same_call_again_is_another_one() {
    const TEST: &str = "windows::results::the_same_call_again_is_another_one";
    processes(TEST, 3, &[], |rank, size, id| {
        const ROUNDS: u32 = 20;
        let (windowed, count) = (Windowed::new((rank, size), &id), 5000);
        let member = &windowed.member;
        let upload = |round| member.upload(&noise(count, 100 * round + rank));
        let sources: Vec<_> = (0..ROUNDS).map(upload).collect();
        let kept: Vec<_> = (0..ROUNDS).map(|_| member.gpu().allocate(3 * count).unwrap()).collect();
        let (input, area) = (upload(0), windowed.region().part(0, 3 * count));
        for (source, kept) in sources.iter().zip(&kept) {
            member.stream.copy(source.region(), input.region()).unwrap();
            call(member, Collective::AllGather, 0, (input.region(), area), &member.stream);
            member.stream.copy(area, kept.region()).unwrap();
        }
        member.stream.synchronise().unwrap();
        for (round, kept) in (0..).zip(&kept) {
            let expected = gathered(&windowed, count, 100 * round);
            assert!(download(kept) == expected, "round {round}, rank {rank}");
        }
    });
}
