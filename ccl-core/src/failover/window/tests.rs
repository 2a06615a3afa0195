//! What is sent again, and when slots are free.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn nobody(_: usize, _: usize) {}

fn full() -> Window {
    let mut window = Window::new(4);
    for sequence in 0..4 {
        assert_eq!(window.stage(), sequence);
        assert!(!window.post(sequence, sequence as usize % 2, 10));
    }
    window
}

#[test]
fn what_a_lost_path_carried_is_sent_again_in_order() {
    let mut window = full();
    assert!(window.landed(0, 0, &mut nobody));
    let loss = window.lose(0, 0, &mut nobody);
    assert_eq!(loss, Loss { tiles: 1, bytes: 10 }, "0 has arrived, 2 has not");
    assert_eq!(window.lose(1, 0, &mut nobody), Loss { tiles: 2, bytes: 20 });
    for sequence in [1, 2, 3] {
        assert_eq!(window.next(), Some(sequence));
        assert!(window.post(sequence, 2, 10), "this is a repeat");
    }
    assert_eq!(window.next(), None);
}

#[test]
fn a_slot_waits_for_the_second_copy_of_its_tile() {
    let mut window = full();
    window.lose(0, 0, &mut nobody);
    assert!(window.post(0, 2, 10) && window.post(2, 2, 10));
    window.consumed(4, &mut nobody).unwrap();
    assert!(!window.has_room(), "the second copy of 0 may still land");
    let mut arrived = Vec::new();
    assert!(window.landed(0, 2, &mut |path, _| arrived.push(path)));
    assert_eq!(arrived, [2, 1], "as has 1, whose only copy it was");
    assert!(window.has_room());
    assert_eq!(window.stage(), 4);
    arrived.clear();
    window.lose(2, 3, &mut |path, _| arrived.push(path));
    assert_eq!(window.next(), Some(4), "2 was consumed");
    window.closed(2, 3, &mut |path, _| arrived.push(path));
    window.closed(1, 9, &mut |path, _| arrived.push(path));
    assert_eq!(arrived, [], "the copy of 2 may still land");
    window.closed(2, 4, &mut |path, _| arrived.push(path));
    assert_eq!(arrived, [1], "it cannot, and 3 has landed");
}

#[test]
fn a_slot_waits_for_every_copy_that_was_lost_but_the_first() {
    let mut window = full();
    assert!(window.landed(2, 0, &mut nobody));
    for (path, next) in [(0, 2), (2, 3), (3, 4)] {
        window.lose(path, 0, &mut nobody);
        assert_eq!(window.next(), Some(0));
        assert!(window.post(0, next, 10));
    }
    window.consumed(1, &mut nobody).unwrap();
    assert!(window.landed(0, 4, &mut nobody));
    window.closed(3, 1, &mut nobody);
    assert!(!window.has_room(), "the copy on path 2");
    window.closed(2, 1, &mut nobody);
    assert!(window.has_room());
}

#[test]
fn what_is_in_doubt_is_sent_again_unless_it_was_consumed() {
    let mut window = full();
    for sequence in 0..4 {
        assert!(window.landed(sequence, sequence as usize % 2, &mut nobody));
    }
    window.consumed(1, &mut nobody).unwrap();
    window.doubt(0);
    assert_eq!(window.lose(0, 0, &mut nobody), Loss { tiles: 1, bytes: 10 });
    assert_eq!(window.next(), Some(2), "0 was consumed, 1 and 3 came on another path");
    window.doubt(0);
    assert_eq!(window.lose(0, 0, &mut nobody), Loss::default(), "it is lost already");
    assert!(window.post(2, 1, 10));
    window.doubt(0);
    assert_eq!(window.lose(0, 0, &mut nobody), Loss::default(), "it is under way elsewhere");
    window.consumed(4, &mut nobody).unwrap();
    assert!(window.landed(2, 1, &mut nobody));
    assert!(window.is_settled());
}

#[test]
fn a_peer_cannot_consume_what_was_not_sent() {
    let mut window = full();
    let impossible = Impossible { consumed: 5, posted: 4 };
    assert_eq!(window.consumed(5, &mut nobody), Err(impossible));
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Stage,
    Post(usize),
    Land(usize),
    Hear(usize),
    Consume,
    Lose(usize),
    /// And the peer never hears of what has come on that path.
    LoseUnheard(usize),
    /// What was lost comes nevertheless.
    LandLate(usize),
    Close(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Stage),
        4 => (0usize..3).prop_map(Act::Post),
        4 => (0usize..8).prop_map(Act::Land),
        4 => (0usize..8).prop_map(Act::Hear),
        2 => Just(Act::Consume),
        1 => (0usize..3).prop_map(Act::Lose),
        1 => (0usize..3).prop_map(Act::LoseUnheard),
        1 => (0usize..8).prop_map(Act::LandLate),
        1 => (0usize..3).prop_map(Act::Close),
    ]
}

/// A copy of a tile in the network.
#[derive(Clone, Copy, Debug)]
struct Flight {
    tile: u64,
    path: usize,
    /// How many fences go before it.
    fences: usize,
}

/// A window, and what its peer and the network have.
#[derive(Debug)]
struct World {
    window: Window,
    /// What the network carries.
    wire: Vec<Flight>,
    /// What the NIC of the peer has and its host does not know.
    came: Vec<Flight>,
    /// What was lost, and with which fence, unless the peer has closed its connection.
    late: Vec<(Flight, usize)>,
    has: BTreeSet<u64>,
    consumed: u64,
    /// Paths that were fenced, in order.
    fences: Vec<usize>,
    /// Copies by path that were posted, and neither reported nor lost with their path.
    open: [i32; 3],
}

impl World {
    fn new() -> Self {
        Self {
            window: Window::new(4),
            wire: Vec::new(),
            came: Vec::new(),
            late: Vec::new(),
            has: BTreeSet::new(),
            consumed: 0,
            fences: Vec::new(),
            open: [0; 3],
        }
    }

    /// A slot is never staged while a copy of an older tile may land in it.
    fn stage(&mut self) {
        let sequence = self.window.stage();
        let mut flights = self.wire.iter().chain(self.late.iter().map(|(flight, _)| flight));
        assert!(flights.all(|flight| flight.tile % 4 != sequence % 4), "{self:?}");
        assert!(sequence < 4 || self.consumed > sequence - 4);
    }

    /// Whether there was anything to post.
    fn post(&mut self, path: usize) -> bool {
        let Some(tile) = self.window.next() else { return false };
        self.window.post(tile, path, 10);
        self.wire.push(Flight { tile, path, fences: self.fences.len() });
        self.open[path] += 1;
        true
    }

    fn land(&mut self, index: usize) {
        let flight = self.wire.remove(index % self.wire.len());
        self.came.push(flight);
        self.window.landed(flight.tile, flight.path, &mut |path, _| self.open[path] -= 1);
    }

    /// The peer hears of the fences before the tile.
    fn hear(&mut self, index: usize) {
        let flight = self.came.remove(index % self.came.len());
        self.late.retain(|(_, fence)| *fence >= flight.fences);
        self.has.insert(flight.tile);
    }

    fn land_late(&mut self, index: usize) {
        let (flight, _) = self.late.remove(index % self.late.len());
        self.came.push(flight);
    }

    /// What was consumed over its only copy counts as arrived.
    fn consume(&mut self) {
        self.consumed += 1;
        self.window.consumed(self.consumed, &mut |path, _| self.open[path] -= 1).unwrap();
    }

    /// Fences are the incarnations of their path.
    fn lose(&mut self, path: usize) {
        let fence = self.fences.len();
        self.window.lose(path, fence as u32, &mut |path, _| self.open[path] -= 1);
        self.fences.push(path);
        self.open[path] = 0;
        let lost = self.wire.extract_if(.., |flight| flight.path == path);
        self.late.extend(lost.map(|flight| (flight, fence)));
    }

    fn close(&mut self, path: usize) {
        self.late.retain(|(flight, _)| flight.path != path);
        let below = self.fences.len() as u32;
        self.window.closed(path, below, &mut |path, _| self.open[path] -= 1);
    }

    fn forget(&mut self, path: usize) {
        self.came.retain(|flight| flight.path != path);
        self.window.doubt(path);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Stage if self.window.has_room() => self.stage(),
            Act::Post(path) => _ = self.post(path),
            Act::Land(index) if !self.wire.is_empty() => self.land(index),
            Act::Hear(index) if !self.came.is_empty() => self.hear(index),
            Act::Consume if self.has.contains(&self.consumed) => self.consume(),
            Act::Lose(path) => self.lose(path),
            Act::LoseUnheard(path) => {
                self.forget(path);
                self.lose(path);
            }
            Act::LandLate(index) if !self.late.is_empty() => self.land_late(index),
            Act::Close(path) => self.close(path),
            Act::Stage | Act::Land(_) | Act::Hear(_) | Act::Consume | Act::LandLate(_) => {}
        }
    }

    /// Everything comes, is heard and consumed.
    fn finish(&mut self) {
        while self.post(0) {}
        while !self.wire.is_empty() {
            self.land(0);
        }
        while !self.came.is_empty() {
            self.hear(0);
        }
        while self.has.contains(&self.consumed) {
            self.consume();
        }
        (0..3).for_each(|path| self.close(path));
    }
}

proptest! {
    /// Slots are reused only when nothing can land in them, and are in the end; every tile is delivered, and every copy is
    /// reported once or lost with its path.
    #[test]
    fn every_tile_is_delivered_whatever_is_lost(acts in prop::collection::vec(act(), 0..300)) {
        let mut world = World::new();
        acts.into_iter().for_each(|act| world.act(act));
        world.finish();
        prop_assert_eq!(world.open, [0; 3]);
        prop_assert_eq!(world.consumed, world.window.staged());
        prop_assert_eq!(world.window.freed, world.consumed);
    }
}
