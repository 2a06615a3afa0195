//! Where payloads lie, and what a peer can do to a ring that does not keep to the rules.

use ccl_core::collective::Signature;

use super::distance::PAUSE_BYTES;
use super::floor::reused_bytes;
use super::*;
use crate::memory;

const TILE_BYTES: usize = 128 << 10;
const SHAPE: RingShape = RingShape { tile_bytes: TILE_BYTES, slots: 32, tiles: 64 };

fn stamp() -> Stamp {
    Stamp { sequence: 1, signature: Signature::POINT_TO_POINT }
}

/// Sends a tile; tells where its payload begins on the floor.
fn send(ring: &Ring, writer: &mut Writer, bytes: usize, filling: u8) -> usize {
    let room = writer.reserve(bytes).expect("nobody releases too much").expect("there is room");
    room.fill(filling);
    let place = room.as_ptr().addr() - ring.payload(0).addr().get();
    writer.commit(&stamp());
    place
}

fn receive(reader: &mut Reader, bytes: usize, filling: u8) {
    let tile = reader.peek().expect("a tile has come");
    assert!(tile.payload.len() == bytes && tile.payload.iter().all(|byte| *byte == filling));
    reader.release();
}

/// Where so many tiles lie on the floor, counted in tiles, each of which is consumed before the next is sent, while so many
/// ranks send.
fn places(tiles: usize, writers: usize) -> Vec<usize> {
    let (mut writer, mut readers) = memory::multicast(SHAPE, 2);
    writer.share(writers);
    let mut place = |index: usize| {
        let filling = index as u8;
        let room = writer.reserve(TILE_BYTES).expect("nobody releases too much");
        let room = room.expect("there is room");
        room.fill(filling);
        let place = room.as_ptr().addr();
        writer.commit(&stamp()).expect("rings do not fail");
        for reader in &mut readers {
            let tile = reader.peek().expect("a tile has come");
            assert!(tile.payload.iter().all(|byte| *byte == filling));
            reader.release().expect("rings do not fail");
        }
        place
    };
    let places: Vec<_> = (0..tiles).map(&mut place).collect();
    places.iter().map(|place| (place - places[0]) / TILE_BYTES).collect()
}

#[test]
fn what_was_consumed_is_used_again() {
    for writers in [1, 4, 64] {
        // So many are filled before the first place is used again.
        let tiles = reused_bytes(writers) / TILE_BYTES;
        let expected: Vec<_> = (0..tiles).cycle().take(3 * tiles).collect();
        assert_eq!(places(3 * tiles, writers), expected, "{writers} writers");
    }
}

#[test]
fn a_writer_looks_how_far_readers_are() {
    let ring = memory::ring(SHAPE, 1);
    let mut writer = Writer::new(ring.clone(), vec![0]);
    let mut reader = Reader::new(ring.clone(), 0);
    let looks: Vec<_> = (0..=3 * PAUSE_BYTES / TILE_BYTES)
        .map(|_| {
            send(&ring, &mut writer, TILE_BYTES, 1);
            receive(&mut reader, TILE_BYTES, 1);
            writer.looks()
        })
        .collect();
    // A look may be interrupted, and another one follows soon.
    assert_eq!(looks[..3], [0, 0, 1]);
    assert!(looks[4] >= 2 && looks[6] >= 3, "{looks:?}");
}

#[test]
fn a_writer_that_has_seen_nothing_looks_again() {
    let ring = memory::ring(SHAPE, 1);
    let mut writer = Writer::new(ring.clone(), vec![0]);
    let mut reader = Reader::new(ring.clone(), 0);
    let mut looks = |bytes| {
        send(&ring, &mut writer, bytes, 1);
        writer.looks()
    };
    assert_eq!([TILE_BYTES; 4].map(&mut looks), [0, 0, 1, 2], "nothing was released");
    receive(&mut reader, TILE_BYTES, 1);
    assert_eq!([100; 2].map(looks), [3, 3], "it has seen how far the reader is");
}

#[test]
fn what_one_reader_has_not_seen_stays() {
    let ring = memory::ring(SHAPE, 2);
    let mut writer = Writer::new(ring.clone(), vec![0, 1]);
    let [mut fast, mut slow] = [0, 1].map(|index| Reader::new(ring.clone(), index));
    let all = SHAPE.slots as u8;
    for filling in 0..all {
        assert_eq!(
            send(&ring, &mut writer, TILE_BYTES, filling),
            usize::from(filling) * TILE_BYTES
        );
        receive(&mut fast, TILE_BYTES, filling);
    }
    assert!(writer.reserve(TILE_BYTES).unwrap().is_none(), "the slow one has nothing yet");
    (0..all).for_each(|filling| receive(&mut slow, TILE_BYTES, filling));
    assert_eq!(send(&ring, &mut writer, TILE_BYTES, 99), 0);
}

#[test]
fn a_place_beyond_the_floor_is_refused() {
    let floor = SHAPE.slots * SHAPE.tile_bytes;
    for (offset, is_valid) in [
        (floor - TILE_BYTES, true),
        (floor - TILE_BYTES + 1, false),
        (floor, false),
        (usize::MAX, false),
    ] {
        let ring = memory::ring(SHAPE, 1);
        let mut writer = Writer::new(ring.clone(), vec![0]);
        let mut reader = Reader::new(ring.clone(), 0);
        send(&ring, &mut writer, TILE_BYTES, 1);
        // SAFETY: nobody else uses the ring.
        unsafe { ring.place_of_payload(ring.first()).write(offset as u32) };
        assert_eq!(reader.peek().is_some(), is_valid, "{offset}");
        assert_eq!(reader.wrong().is_none(), is_valid, "{offset}");
    }
}
