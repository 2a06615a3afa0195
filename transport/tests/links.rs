//! The conformance suite of links over the implementations that live on one host.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccl_core::collective::{Collective, Signature};
use ccl_transport::bell::Bell;
use ccl_transport::conformance::check;
use ccl_transport::ring::RingShape;
use ccl_transport::{Link, Stamp, TransportError, memory, shm};

const SHAPES: [RingShape; 6] = [
    RingShape { tile_bytes: 64, slots: 2, tiles: 2 },
    RingShape { tile_bytes: 4096, slots: 3, tiles: 3 },
    RingShape { tile_bytes: 4096, slots: 3, tiles: 40 },
    RingShape { tile_bytes: 65536, slots: 1, tiles: 7 },
    RingShape { tile_bytes: 65536, slots: 4, tiles: 64 },
    RingShape { tile_bytes: 131_072, slots: 4, tiles: 64 },
];

#[test]
fn memory_links_conform() {
    for shape in SHAPES {
        check(&mut || {
            let (a, b) = memory::pair(shape);
            (Box::new(a), Box::new(b))
        });
    }
}

#[test]
fn shared_memory_links_conform() {
    for shape in SHAPES {
        check(&mut || shared_pair(shape));
    }
}

fn shared_pair(shape: RingShape) -> (Box<dyn Link>, Box<dyn Link>) {
    let segments = [0, 1].map(|_| shm::Segment::create(2, shape, shape).unwrap());
    let addresses = [0, 1].map(|index: usize| segments[index].address());
    let link = |me: usize, peer: usize| {
        segments[me].link(me, &segments[me].open(peer, &addresses[peer]).unwrap())
    };
    (link(0, 1), link(1, 0))
}

#[test]
fn lent_memory_is_read_in_place_and_comes_back() {
    let (mut a, mut b) = shared_pair(SHAPES[0]);
    let allocation = shm::Allocation::new(100_000).unwrap();
    allocation.publish();
    let start = allocation.start();
    // SAFETY: the allocation is zeroed, and nobody else uses it yet.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), 100_000) };
    bytes[5_000..55_000].fill(7);
    let loan = shm::Allocation::loan(start.addr().get() + 5_000, 50_000).unwrap();
    let signature = Signature {
        collective: Collective::Broadcast,
        datatype: 1,
        reduction: 0,
        root: 0,
        count: 50_000,
        plan: 3,
    };
    let stamp = Stamp { sequence: 9, signature };
    assert!(a.lends());
    let number = a.lend(&stamp, &loan).unwrap().unwrap();
    let tile = b.peek().unwrap();
    assert_eq!((*tile.stamp, tile.payload), (stamp.encode(), &[7u8; 50_000][..]));
    assert!(a.returned() < number);
    b.release().unwrap();
    assert_eq!(a.returned(), number);
    allocation.withdraw();
}

#[test]
fn what_is_read_of_a_rank_that_has_renounced_is_in_doubt_if_it_is_its_memory() {
    let segments = [0, 1].map(|_| shm::Segment::create(2, SHAPES[0], SHAPES[0]).unwrap());
    let addresses = [0, 1].map(|index: usize| segments[index].address());
    let neighbours = [1, 0].map(|peer: usize| segments[1 - peer].open(peer, &addresses[peer]));
    let [second, first] = neighbours.map(Result::unwrap);
    let (mut a, mut b) = (segments[0].link(0, &second), segments[1].link(1, &first));
    let mut to_all = segments[0].multicast(std::slice::from_ref(&second));
    let mut heard = segments[1].listen(1, &first);
    let allocation = shm::Allocation::new(1000).unwrap();
    allocation.publish();
    let loan = shm::Allocation::loan(allocation.start().addr().get(), 1000).unwrap();
    let stamp = Stamp { sequence: 1, signature: Signature::POINT_TO_POINT };
    for link in [&mut a, &mut to_all] {
        link.reserve(8).unwrap().unwrap();
        link.commit(&stamp).unwrap();
        link.lend(&stamp, &loan).unwrap().unwrap();
    }
    assert!(!b.has_renounced() && !heard.has_renounced());
    a.renounce();
    assert!(b.has_renounced() && heard.has_renounced() && !a.has_renounced());
    for link in [&mut b, &mut heard] {
        assert_eq!(link.check_loan(), Ok(()), "a copy stays what it was");
        link.release().unwrap();
        assert_eq!(link.peek().unwrap().payload.len(), 1000);
        assert!(matches!(link.check_loan(), Err(TransportError::PeerGone(_))));
    }
    allocation.withdraw();
}

#[test]
fn every_reader_gets_every_tile_and_the_slowest_decides() {
    let shape = RingShape { tile_bytes: 64, slots: 2, tiles: 2 };
    let (mut writer, mut readers) = memory::multicast(shape, 3);
    let signature = Signature {
        collective: Collective::AllGather,
        datatype: 1,
        reduction: 0,
        root: 0,
        count: 1,
        plan: 0,
    };
    let stamp = |sequence| Stamp { sequence, signature };
    for tile in 0..100u32 {
        writer.reserve(4).unwrap().unwrap().copy_from_slice(&tile.to_le_bytes());
        writer.commit(&stamp(tile)).unwrap();
        if tile == 0 {
            continue;
        }
        assert!(writer.reserve(4).unwrap().is_none(), "both slots are in use");
        for (index, reader) in readers.iter_mut().enumerate() {
            let arrived = reader.peek().unwrap();
            assert_eq!(arrived.payload, (tile - 1).to_le_bytes());
            assert_eq!(*arrived.stamp, stamp(tile - 1).encode());
            reader.release().unwrap();
            assert_eq!(writer.reserve(4).unwrap().is_some(), index == 2);
        }
        assert_eq!(writer.returned(), u64::from(tile));
    }
}

/// Tiles that each reader of the test below gets.
const TILES: u32 = 500;

/// Most tiles are short, as small messages are; some are as long as they can be.
fn length(tile: u32, most: usize) -> usize {
    let random = (tile.wrapping_mul(0x9E37_79B1) >> 8) as usize;
    match random % 8 {
        0 => random % (most + 1),
        1 => most,
        2 => random % 4096.min(most + 1),
        _ => random % 130.min(most + 1),
    }
}

#[test]
fn tiles_of_all_lengths_arrive_while_all_ends_run() {
    let stamp = |sequence| Stamp { sequence, signature: Signature::POINT_TO_POINT };
    let byte = |tile: u32, at: usize| (tile as usize * 31 + at * 7).to_le_bytes()[0];
    for shape in SHAPES {
        let (mut writer, readers) = memory::multicast(shape, 3);
        std::thread::scope(|threads| {
            for (index, mut reader) in (1..).zip(readers) {
                threads.spawn(move || {
                    for tile in 0..TILES {
                        while reader.peek().is_none() {
                            std::thread::yield_now();
                        }
                        let arrived = reader.peek().unwrap();
                        assert_eq!(*arrived.stamp, stamp(tile).encode(), "tile {tile}");
                        assert_eq!(arrived.payload.len(), length(tile, shape.tile_bytes));
                        let mut bytes = arrived.payload.iter().enumerate();
                        assert!(bytes.all(|(at, got)| *got == byte(tile, at)), "tile {tile}");
                        // Readers fall behind each other.
                        if tile.is_multiple_of(97 * index) {
                            std::thread::yield_now();
                        }
                        reader.release().unwrap();
                    }
                });
            }
            for tile in 0..TILES {
                let bytes = length(tile, shape.tile_bytes);
                loop {
                    if let Some(room) = writer.reserve(bytes).unwrap() {
                        for (at, place) in room.iter_mut().enumerate() {
                            *place = byte(tile, at);
                        }
                        break writer.commit(&stamp(tile)).unwrap();
                    }
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(writer.returned(), u64::from(TILES), "{shape:?}");
    }
}

#[test]
fn a_loan_beyond_the_allocation_is_refused() {
    let (mut a, mut b) = shared_pair(SHAPES[0]);
    let allocation = shm::Allocation::new(4096).unwrap();
    allocation.publish();
    let mut loan = shm::Allocation::loan(allocation.start().addr().get(), 4096).unwrap();
    loan.bytes = 4097;
    let signature = Signature {
        collective: Collective::Broadcast,
        datatype: 1,
        reduction: 0,
        root: 0,
        count: 0,
        plan: 0,
    };
    assert!(a.lend(&Stamp { sequence: 1, signature }, &loan).unwrap().is_some());
    assert!(b.peek().is_none());
    assert!(matches!(b.progress(), Err(TransportError::Protocol(_))));
    allocation.withdraw();
}

#[test]
fn who_writes_memory_of_a_rank_is_known_to_it_and_nobody_begins_when_it_has_renounced() {
    let segments = [0, 1].map(|_| shm::Segment::create(2, SHAPES[0], SHAPES[0]).unwrap());
    let addresses = segments.each_ref().map(shm::Segment::address);
    let link = |me: usize| {
        let peer = 1 - me;
        segments[me].link(me, &segments[me].open(peer, &addresses[peer]).unwrap())
    };
    let [owner, peer] = [link(0), link(1)];
    let writing = [(); 2].map(|()| peer.begin_to_write().unwrap());
    assert!(writing.iter().all(Option::is_some));
    owner.renounce();
    assert!(matches!(peer.begin_to_write(), Err(TransportError::PeerGone(_))));
    assert!(owner.is_written() && !peer.is_written(), "who was refused does not count");
    let [first, second] = writing;
    drop(first);
    assert!(owner.is_written());
    drop(second);
    assert!(!owner.is_written());
    assert!(owner.begin_to_write().unwrap().is_some(), "the other one has not renounced");
}

/// Longer than anybody sleeps who is woken.
const LONG: Duration = Duration::from_secs(20);
const ROUNDS: u32 = 20;

#[test]
fn a_sleeping_rank_is_woken_by_tiles_and_by_slots_that_come_back() {
    let shape = RingShape { tile_bytes: 64, slots: 1, tiles: 1 };
    let segments = [0, 1].map(|_| shm::Segment::create(2, shape, shape).unwrap());
    let addresses = [0, 1].map(|index: usize| segments[index].address());
    let neighbours = [1, 0].map(|peer: usize| segments[1 - peer].open(peer, &addresses[peer]));
    let [first, second] = neighbours.map(Result::unwrap);
    let send = |link: &mut dyn Link| {
        link.reserve(8).unwrap().unwrap();
        link.commit(&Stamp { sequence: 1, signature: Signature::POINT_TO_POINT }).unwrap();
    };
    let mut to_second = segments[0].link(0, &first);
    let mut from_first = segments[1].link(1, &second);
    let mut to_all = segments[0].multicast(std::slice::from_ref(&first));
    let mut heard = segments[1].listen(1, &second);
    let bells = segments.each_ref().map(shm::Segment::bell);
    let overslept = AtomicU32::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..ROUNDS {
                sleep_until(&bells[1], &overslept, || from_first.peek().is_some());
                from_first.release().unwrap();
                sleep_until(&bells[1], &overslept, || heard.peek().is_some());
                heard.release().unwrap();
            }
        });
        for _ in 0..ROUNDS {
            sleep_until(&bells[0], &overslept, || to_second.reserve(8).unwrap().is_some());
            send(&mut *to_second);
            sleep_until(&bells[0], &overslept, || to_all.reserve(8).unwrap().is_some());
            send(&mut *to_all);
        }
    });
}

#[test]
fn rings_to_one_rank_and_to_all_have_their_own_shapes() {
    let [short, long] = [SHAPES[0], SHAPES[3]];
    for (pair, multicast) in [(short, long), (long, short)] {
        let segments = [0, 1].map(|_| shm::Segment::create(2, pair, multicast).unwrap());
        let addresses = [0, 1].map(|index: usize| segments[index].address());
        let first = segments[0].open(1, &addresses[1]).unwrap();
        let second = segments[1].open(0, &addresses[0]).unwrap();
        let mut ends = [
            (pair, segments[0].link(0, &first), segments[1].link(1, &second)),
            (multicast, segments[0].multicast(&[first]), segments[1].listen(1, &second)),
        ];
        for (filling, (shape, from, to)) in (1..).zip(&mut ends) {
            assert_eq!([from.tile_bytes(), to.tile_bytes()], [shape.tile_bytes; 2]);
            for _ in 0..shape.slots {
                from.reserve(shape.tile_bytes).unwrap().unwrap().fill(filling);
                let stamp = Stamp { sequence: 1, signature: Signature::POINT_TO_POINT };
                from.commit(&stamp).unwrap();
            }
            assert!(from.reserve(shape.tile_bytes).unwrap().is_none(), "all slots are full");
        }
        for (filling, (shape, _, to)) in (1..).zip(&mut ends) {
            for _ in 0..shape.slots {
                assert_eq!(to.peek().unwrap().payload, vec![filling; shape.tile_bytes]);
                to.release().unwrap();
            }
        }
    }
}

/// As a rank waits: arms its bell, looks, and only then sleeps. Counts how often nobody woke it: a rank
/// can be overlooked while it arms its bell, but hardly ever.
fn sleep_until(bell: &Bell, overslept: &AtomicU32, mut is_there: impl FnMut() -> bool) {
    loop {
        bell.arm();
        if is_there() {
            return bell.disarm();
        }
        if !bell.sleep(LONG) {
            let before = overslept.fetch_add(1, Ordering::Relaxed);
            assert!(before == 0, "nobody was woken again");
        }
    }
}

#[test]
fn a_segment_with_another_cookie_is_refused() {
    let segments = [0, 1].map(|_| shm::Segment::create(2, SHAPES[1], SHAPES[1]).unwrap());
    let mut address = segments[1].address();
    address.cookie[3] ^= 1;
    let refused = segments[0].open(1, &address);
    assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");
}

#[test]
fn a_segment_of_another_size_is_an_error_that_names_the_settings() {
    let segments = [SHAPES[1], SHAPES[2]].map(|shape| shm::Segment::create(2, shape, shape));
    let [small, large] = segments.map(Result::unwrap);
    let refused = large.open(1, &small.address()).unwrap_err().to_string();
    assert!(refused.contains("R2CCL_SHM_SLOTS"), "{refused}");
    // Somebody else's file.
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 30).unwrap();
    let mut address = small.address();
    address.descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    let refused = large.open(1, &address).unwrap_err().to_string();
    assert!(refused.contains("not memory of this library"), "{refused}");
}

#[test]
fn a_segment_of_a_dead_process_is_an_error_that_names_it() {
    let segment = shm::Segment::create(2, SHAPES[1], SHAPES[1]).unwrap();
    let mut address = segment.address();
    address.pid = 0x7fff_fff0;
    let refused = segment.open(1, &address);
    assert!(format!("{refused:?}").contains("/proc/2147483632/fd/"), "{refused:?}");
}

#[test]
fn memory_that_the_host_does_not_have_is_an_error() {
    let shape = RingShape { tile_bytes: 1 << 40, slots: 1 << 4, tiles: 16 };
    let refused = shm::Segment::create(8, shape, shape);
    let Err(TransportError::System { cause, .. }) = refused else { panic!("{refused:?}") };
    assert!(cause.contains("available"), "{cause}");
}
