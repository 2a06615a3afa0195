//! Rings in every order in which threads can run and see each other's stores, within bounds: a loom model of the
//! [`Writer`] and [`Reader`] that everything uses.
//!
//! `tests/models.rs` builds the crate with `--cfg loom` and runs this. The words of rings are loom's atomics
//! then, so no process could share a ring. What is not an atomic is watched line by line: the model fails if two threads
//! touch one, one of them to write, and nothing orders the two.
#![allow(clippy::print_stdout, reason = "how much was looked at is for who runs it")]

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccl_core::collective::{Collective, Signature};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::atomics::{AtomicU32, AtomicU64};
use super::{HEADER_BYTES, Header, LINE_BYTES, PAIR_BYTES, Reader, Ring, RingShape, Writer};
use crate::{Stamp, memory};

/// More switches between threads that could have gone on find nothing more in rings that are this small.
const SWITCHES: usize = 3;

/// Longer than what a header has room for.
const LONG: usize = 100;
const SHORT: usize = 5;

const SHAPE: RingShape = RingShape { tile_bytes: 128, slots: 2, tiles: 2 };

/// Memory that is no atomic, and who may touch it.
struct Watched {
    ring: Ring,
    lines: Vec<UnsafeCell<()>>,
    /// Memory that the writer lends with a tile, until the tile has come back.
    lent: Vec<UnsafeCell<()>>,
}

impl Watched {
    /// A ring for so many readers and tiles, whose atomics are made.
    fn new(shape: RingShape, readers: usize, tiles: usize) -> Self {
        let ring = memory::ring(shape, readers);
        let make = |offset| {
            // SAFETY: nobody has the ring yet, and there is room for a word of the model at each of these places.
            unsafe { ring.at(offset).cast().write(AtomicU64::new(0)) };
        };
        let make_half = |offset| {
            // SAFETY: as above.
            unsafe { ring.at(offset).cast().write(AtomicU32::new(0)) };
        };
        (0..readers).for_each(|reader| make(reader * PAIR_BYTES));
        for tile in 0..shape.tiles {
            let Header(start) = header(&ring, tile);
            make(start);
            make_half(start + super::LENGTH_AT);
            make_half(start + super::KIND_AT);
        }
        let cells = |count| (0..count).map(|_| UnsafeCell::new(())).collect();
        Self { lines: cells(shape.bytes(readers) / LINE_BYTES), lent: cells(tiles), ring }
    }

    fn reads(&self, bytes: &[u8]) {
        for line in self.under(bytes) {
            self.lines[line].with(|_| ());
        }
    }

    fn writes(&self, bytes: &[u8]) {
        for line in self.under(bytes) {
            self.lines[line].with_mut(|_| ());
        }
    }

    /// The lines in which these bytes lie.
    fn under(&self, bytes: &[u8]) -> Range<usize> {
        let start = bytes.as_ptr().addr() - self.ring.at(0).addr().get();
        start / LINE_BYTES..(start + bytes.len()).div_ceil(LINE_BYTES)
    }

    /// What stands in the header of a tile beside atomics.
    fn header(&self, tile: usize) -> &[u8] {
        let place = self.ring.stamp(header(&self.ring, tile)).cast::<u8>();
        // SAFETY: in the header. Only where it lies is looked at.
        unsafe { slice::from_raw_parts(place.as_ptr(), HEADER_BYTES - super::STAMP_AT) }
    }
}

fn header(ring: &Ring, tile: usize) -> Header {
    Header(ring.first().0 + tile % ring.shape.tiles * HEADER_BYTES)
}

fn stamp(tile: usize) -> Stamp {
    let collective = Collective::AllReduce;
    let signature = Signature { collective, datatype: 0, reduction: 0, root: 0, count: 0, plan: 0 };
    Stamp { sequence: tile as u32, signature }
}

/// Looks again until something is there. With several readers a model has no end of executions in which nobody but those
/// who wait is run, so there everybody gives up after a few looks: every state is reached by executions that go on.
#[derive(Clone, Copy)]
struct Patience(Option<usize>);

impl Patience {
    fn wait<T>(self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut looks = 0;
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            looks += 1;
            if self.0.is_some_and(|most| looks >= most) {
                return None;
            }
            thread::yield_now();
        }
    }
}

/// Sends tiles of these lengths, and touches what was lent with each once it has come back. Tells whether all was done.
fn write(watched: &Watched, mut writer: Writer, lengths: &[usize], patience: Patience) -> bool {
    for (tile, &bytes) in lengths.iter().enumerate() {
        let filled = patience.wait(|| {
            let room = writer.reserve(bytes).expect("nobody releases too much")?;
            watched.writes(room);
            room.fill(tile as u8 + 1);
            Some(())
        });
        if filled.is_none() {
            return false;
        }
        watched.writes(watched.header(tile));
        watched.lent[tile].with_mut(|_| ());
        writer.commit(&stamp(tile));
    }
    (0..lengths.len()).all(|tile| {
        let back = patience.wait(|| (writer.returned() > tile as u64).then_some(()));
        if back.is_some() {
            watched.lent[tile].with_mut(|_| ());
        }
        back.is_some()
    })
}

fn read(watched: &Watched, mut reader: Reader, lengths: &[usize], patience: Patience) {
    for (tile, &bytes) in lengths.iter().enumerate() {
        let seen = patience.wait(|| {
            let seen = reader.peek()?;
            watched.reads(watched.header(tile));
            watched.reads(seen.payload);
            watched.lent[tile].with(|_| ());
            assert_eq!(*seen.stamp, stamp(tile).encode());
            assert_eq!(seen.payload, &[tile as u8 + 1; LONG][..bytes]);
            Some(())
        });
        if seen.is_none() {
            return;
        }
        reader.release();
    }
    assert!(reader.peek().is_none() && reader.wrong().is_none());
}

/// One writer, and readers that each read all of it.
fn check(shape: RingShape, readers: usize, lengths: &'static [usize]) {
    let patience = Patience((readers > 1).then_some(2));
    let done = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&done);
    let mut model = Builder::new();
    model.preemption_bound = Some(SWITCHES);
    model.check(move || {
        let watched = Arc::new(Watched::new(shape, readers, lengths.len()));
        let threads: Vec<_> = (0..readers)
            .map(|index| {
                let watched = Arc::clone(&watched);
                let reader = Reader::new(watched.ring.clone(), index);
                thread::spawn(move || read(&watched, reader, lengths, patience))
            })
            .collect();
        let writer = Writer::new(watched.ring.clone(), (0..readers).collect());
        let is_done = write(&watched, writer, lengths, patience);
        threads.into_iter().for_each(|thread| thread.join().expect("a reader"));
        count.fetch_add(usize::from(is_done), Ordering::Relaxed);
    });
    let done = done.load(Ordering::Relaxed);
    println!("{done} executions to the end");
    assert!(done > 100, "only {done} executions came to their end");
}

#[test]
fn long_tiles_of_a_ring_that_fills() {
    check(SHAPE, 1, &[LONG; 4]);
}

#[test]
fn more_headers_than_room_for_payloads() {
    check(RingShape { slots: 1, tiles: 3, ..SHAPE }, 1, &[LONG; 3]);
}

#[test]
fn short_tiles_between_long_ones() {
    check(SHAPE, 1, &[SHORT, LONG, SHORT, LONG]);
}

#[test]
fn two_readers_get_everything() {
    check(RingShape { slots: 1, tiles: 1, ..SHAPE }, 2, &[LONG, SHORT]);
}
