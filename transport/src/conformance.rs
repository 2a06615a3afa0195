//! What every [`Link`] must do, as one suite: call [`check`] with a way to make a connected pair.

use std::collections::VecDeque;
use std::time::Duration;

use ccl_core::collective::{Collective, Signature};

use crate::{Link, Stamp, Stretch, clock};

/// A step of a check must be possible within this time: a tile on a rail that is held up takes some thousand looks, each of which
/// leaves the processor to others where there are any.
const DEADLINE: Duration = Duration::from_secs(120);

/// A connected pair.
pub type Pair = (Box<dyn Link>, Box<dyn Link>);

/// Runs the whole suite; `make` is called for a fresh pair each time.
///
/// # Panics
/// The link breaks the contract.
pub fn check(make: &mut dyn FnMut() -> Pair) {
    tiles_arrive_in_order_and_unchanged(make());
    a_full_window_is_back_pressure(make());
    both_directions_are_independent(make());
    the_empty_tile_arrives(make());
    a_tile_stays_until_it_is_released(make());
    random_traffic_arrives(make());
    unstaged_tiles_arrive(make());
    a_peer_within_reach_may_be_spared(make());
    staged_tiles_are_never_in_doubt(make());
    what_was_sent_before_leaving_arrives(make());
}

fn stamp(sequence: u32) -> Stamp {
    let signature = Signature {
        collective: Collective::AllReduce,
        datatype: 7,
        reduction: 0,
        root: 0,
        count: u64::from(sequence) * 3,
        plan: !sequence,
    };
    Stamp { sequence, signature }
}

fn pattern(tile: u32, at: usize) -> u8 {
    (tile as usize * 31 + at * 7 + at / 251).to_le_bytes()[0]
}

fn until(
    what: &str,
    links: &mut [&mut Box<dyn Link>],
    mut done: impl FnMut(&mut [&mut Box<dyn Link>]) -> bool,
) {
    let start = clock::now();
    while !done(links) {
        for link in links.iter_mut() {
            link.progress().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert!(clock::now() - start < DEADLINE, "{what}: nothing within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

fn try_send(link: &mut Box<dyn Link>, tile: u32, bytes: usize) -> bool {
    try_send_of(link, tile, (0..bytes).map(|at| pattern(tile, at)).collect())
}

fn try_send_of(link: &mut Box<dyn Link>, call: u32, bytes: Vec<u8>) -> bool {
    let Some(slot) = link.reserve(bytes.len()).expect("reserve") else { return false };
    slot.copy_from_slice(&bytes);
    link.commit(&stamp(call)).expect("commit");
    true
}

fn try_receive(link: &mut Box<dyn Link>, tile: u32, bytes: usize) -> bool {
    try_receive_of(link, tile, &(0..bytes).map(|at| pattern(tile, at)).collect::<Vec<u8>>())
}

fn try_receive_of(link: &mut Box<dyn Link>, call: u32, bytes: &[u8]) -> bool {
    let Some(arrived) = link.peek() else { return false };
    assert_eq!(*arrived.stamp, stamp(call).encode(), "the stamp of a tile of call {call}");
    assert_eq!(arrived.payload.len(), bytes.len(), "the length of a tile of call {call}");
    let wrong = arrived.payload.iter().zip(bytes).position(|(byte, right)| byte != right);
    assert_eq!(wrong, None, "the payload of a tile of call {call}");
    link.release().expect("release");
    true
}

fn tiles_arrive_in_order_and_unchanged((mut a, mut b): Pair) {
    let full = a.tile_bytes();
    assert_eq!(full, b.tile_bytes(), "both ends have the same tile size");
    for (tile, bytes) in (0u32..).zip([full, 1, 7, full - 1, 8, full, 4096.min(full)]) {
        until("send", &mut [&mut a, &mut b], |links| try_send(links[0], tile, bytes));
        until("receive", &mut [&mut a, &mut b], |links| try_receive(links[1], tile, bytes));
    }
}

fn a_full_window_is_back_pressure((mut a, mut b): Pair) {
    let mut sent = 0u32;
    let mut idle = 0;
    while idle < 100 {
        if try_send(&mut a, sent, 8) {
            sent += 1;
            idle = 0;
        }
        assert!(sent < 1_000_000, "the window has no bound");
        a.progress().expect("progress");
        b.progress().expect("progress");
        idle += 1;
    }
    assert!(sent > 0);
    for tile in 0..sent {
        until("drain", &mut [&mut a, &mut b], |links| try_receive(links[1], tile, 8));
    }
    until("credit", &mut [&mut a, &mut b], |links| try_send(links[0], sent, 8));
    until("last", &mut [&mut a, &mut b], |links| try_receive(links[1], sent, 8));
    until("flush", &mut [&mut a, &mut b], |links| links[0].flushed() && links[1].flushed());
}

fn both_directions_are_independent((mut a, mut b): Pair) {
    let full = a.tile_bytes();
    for tile in 0..40 {
        until("a sends", &mut [&mut a, &mut b], |links| try_send(links[0], tile, full));
        until("b sends", &mut [&mut a, &mut b], |links| try_send(links[1], 1000 + tile, 16));
        until("b receives", &mut [&mut a, &mut b], |links| try_receive(links[1], tile, full));
        until("a receives", &mut [&mut a, &mut b], |links| try_receive(links[0], 1000 + tile, 16));
    }
}

fn the_empty_tile_arrives((mut a, mut b): Pair) {
    until("send", &mut [&mut a, &mut b], |links| try_send(links[0], 5, 0));
    until("receive", &mut [&mut a, &mut b], |links| try_receive(links[1], 5, 0));
}

fn a_tile_stays_until_it_is_released((mut a, mut b): Pair) {
    until("first", &mut [&mut a, &mut b], |links| try_send(links[0], 1, 60));
    until("second", &mut [&mut a, &mut b], |links| try_send(links[0], 2, 60));
    until("arrival", &mut [&mut a, &mut b], |links| links[1].peek().is_some());
    for _ in 0..3 {
        assert_eq!(b.peek().map(|tile| *tile.stamp), Some(stamp(1).encode()), "peek takes nothing");
    }
    until("first", &mut [&mut a, &mut b], |links| try_receive(links[1], 1, 60));
    until("second", &mut [&mut a, &mut b], |links| try_receive(links[1], 2, 60));
}

/// Sends and receives interleave at random, with a fixed seed.
fn random_traffic_arrives((mut a, mut b): Pair) {
    let full = a.tile_bytes();
    let length = |tile: u32| (tile as usize * 2_654_435_761) % (full + 1);
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let (mut sent, mut received) = (0, 0);
    until("random traffic", &mut [&mut a, &mut b], |links| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        if seed & 1 == 0 && sent < 2000 && try_send(links[0], sent, length(sent)) {
            sent += 1;
        }
        if seed & 2 == 0 && try_receive(links[1], received, length(received)) {
            received += 1;
        }
        received == 2000
    });
}

/// Tiles leave unstaged and staged in turns. What was sent unstaged is kept until it has returned, and no longer.
fn unstaged_tiles_arrive((mut a, mut b): Pair) {
    const TILES: u32 = 300;
    let (full, most) = (a.tile_bytes(), a.unstaged_bytes());
    if most == 0 {
        return;
    }
    assert!(most.is_multiple_of(full), "{most} bytes in whole tiles of {full}");
    let length = |tile: u32| if tile % 7 == 6 { full / 2 + 1 } else { full };
    let content = |tile: u32| (0..length(tile)).map(move |at| pattern(tile, at));
    let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut sent, mut returned, mut received) = (0u32, 0, 0);
    until("unstaged traffic", &mut [&mut a, &mut b], |links| {
        let [near, far] = links else { unreachable!("two links") };
        while let Some(tile) = near.wanted() {
            let bytes = &kept[usize::try_from(tile - 1 - returned).expect("it was not returned")];
            near.supply(tile, Stretch::new(&&bytes[..], 0..bytes.len()));
        }
        let back = near.returned();
        assert!(back >= returned, "a tile that has returned has gone");
        kept.drain(..usize::try_from(back - returned).expect("few tiles"));
        returned = back;
        // As many tiles as go at a time, up to the next short one.
        let is_last = |tile: &u32| length(*tile) < full || *tile == TILES - 1;
        let last = (sent..TILES).find(is_last).unwrap_or(sent);
        let bytes: Vec<u8> = (sent..=last).flat_map(content).collect();
        let bytes = &bytes[..bytes.len().min(most)];
        if sent < TILES && sent % 3 == 2 && try_send_of(near, 0, bytes[..length(sent)].into()) {
            kept.push_back(Vec::new());
            sent += 1;
        } else if sent < TILES {
            let origin = Stretch::new(&bytes, 0..bytes.len());
            let gone = near.send_unstaged(&stamp(0), origin).expect("send");
            let count = gone.map_or(0, |(bytes, _)| bytes);
            kept.extend(bytes[..count].chunks(full).map(Vec::from));
            sent += u32::try_from(count.div_ceil(full)).expect("few tiles");
            assert!(gone.is_none_or(|(_, last)| last == u64::from(sent)), "{gone:?} of {sent}");
        }
        if far.peek().is_some() {
            assert!(try_receive_of(far, 0, &content(received).collect::<Vec<u8>>()));
            received += 1;
        }
        received == TILES
    });
    until("return", &mut [&mut a, &mut b], |links| {
        links[1].confirm();
        links[0].returned() == u64::from(TILES)
    });
}

/// Who spares a link over which it sends all the same loses nothing.
fn a_peer_within_reach_may_be_spared((mut a, mut b): Pair) {
    for tile in 0..20 {
        until("send", &mut [&mut a, &mut b], |links| try_send(links[0], tile, 60));
        assert!(!a.is_out_of_reach() && !b.is_out_of_reach());
        a.spare();
        b.spare();
        until("receive", &mut [&mut a, &mut b], |links| try_receive(links[1], tile, 60));
    }
}

/// Peers that read the memory of a rank are told that it renounces; what they have copies of stays what it is.
fn staged_tiles_are_never_in_doubt((mut a, mut b): Pair) {
    assert!(!a.has_renounced() && !b.has_renounced());
    until("send", &mut [&mut a, &mut b], |links| try_send(links[0], 1, 60));
    until("arrival", &mut [&mut a, &mut b], |links| links[1].peek().is_some());
    a.renounce();
    assert!(!a.has_renounced() && (b.has_renounced() || !b.lends()));
    assert_eq!(b.check_loan(), Ok(()));
    until("receive", &mut [&mut a, &mut b], |links| try_receive(links[1], 1, 60));
}

fn what_was_sent_before_leaving_arrives((mut a, mut b): Pair) {
    until("send", &mut [&mut a, &mut b], |links| try_send(links[0], 0, 60));
    let more = (1..3).take_while(|tile| try_send(&mut a, *tile, 60)).count();
    until("leave", &mut [&mut b], |links| {
        links[0].confirm();
        a.leave()
    });
    for tile in (0..3).take(1 + more) {
        until("receive", &mut [&mut b], |links| try_receive(links[0], tile, 60));
    }
}
