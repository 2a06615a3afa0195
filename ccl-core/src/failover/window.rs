//! Which tiles are on the way, on which path, and which must be sent again.

use std::collections::VecDeque;

/// What the peer claims about tiles that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{consumed} tiles consumed of {posted} sent")]
pub struct Impossible {
    /// How many tiles the peer says it has consumed.
    pub consumed: u64,
    /// How many were sent.
    pub posted: u64,
}

/// A copy of a tile that was handed to a path and is not known to have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copy {
    path: usize,
    bytes: usize,
    /// Whether another copy was handed to another path before, so that the peer can have consumed
    /// the tile while this copy is still under way.
    is_repeat: bool,
}

/// A second copy of a tile that was lost with a connection and may land late. The peer can have consumed the first
/// copy, so nothing that it says about the tile tells whether it still takes this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Straggler {
    sequence: u64,
    path: usize,
    incarnation: u32,
}

/// What was lost with a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Tiles to send again.
    pub tiles: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The sending side of a link with `slots` slots.
///
/// Tiles are counted from 0; `freed <= consumed <= posted <= staged <= freed + slots`.
#[derive(Clone, Debug)]
pub struct Window {
    /// By slot: the copy that is under way.
    copies: Vec<Option<Copy>>,
    /// By slot: the copy of which it was said that it has arrived.
    arrived: Vec<Option<Copy>>,
    /// Handed to a path that was lost, in order.
    lost: VecDeque<u64>,
    /// May land until the peer has closed their connections.
    stragglers: Vec<Straggler>,
    /// Committed by the application.
    staged: u64,
    /// Handed to a path once at least.
    posted: u64,
    /// Consumed by the peer, as far as known.
    consumed: u64,
    /// Slots that may be filled again.
    freed: u64,
}

impl Window {
    /// A window of so many slots; nothing is staged.
    ///
    /// # Panics
    /// There are no slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        assert!(slots > 0, "a window without slots carries nothing");
        let (copies, arrived) = (vec![None; slots], vec![None; slots]);
        let (lost, stragglers) = (VecDeque::new(), Vec::new());
        Self { copies, arrived, lost, stragglers, staged: 0, posted: 0, consumed: 0, freed: 0 }
    }

    /// Whether another tile can be staged.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.staged - self.freed < self.copies.len() as u64
    }

    /// The sequence number of the next tile to be staged.
    #[must_use]
    pub fn staged(&self) -> u64 {
        self.staged
    }

    /// Stages a tile and returns its sequence number.
    ///
    /// # Panics
    /// There is no room.
    pub fn stage(&mut self) -> u64 {
        assert!(self.has_room(), "a tile was staged into a slot that is in use");
        self.staged += 1;
        self.staged - 1
    }

    /// The tile to hand to a path next: what was lost first, in order.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.lost.front().copied().or_else(|| (self.posted < self.staged).then_some(self.posted))
    }

    /// Notes that the [next](Self::next) tile was handed to `path`; tells whether it is sent again.
    ///
    /// # Panics
    /// It is not the next tile.
    pub fn post(&mut self, sequence: u64, path: usize, bytes: usize) -> bool {
        assert_eq!(self.next(), Some(sequence), "tiles are handed out in order");
        let is_repeat = self.lost.pop_front().is_some();
        self.posted += u64::from(!is_repeat);
        let slot = self.slot(sequence);
        self.copies[slot] = Some(Copy { path, bytes, is_repeat });
        self.arrived[slot] = None;
        is_repeat
    }

    /// Notes that the copy of a tile on `path` has arrived; tells whether it was under way. Calls `arrived` with the path and
    /// bytes of this copy, and of others that must have arrived.
    pub fn landed(
        &mut self,
        sequence: u64,
        path: usize,
        arrived: &mut impl FnMut(usize, usize),
    ) -> bool {
        if !(self.freed..self.posted).contains(&sequence) {
            return false;
        }
        let slot = self.slot(sequence);
        let Some(copy) = self.copies[slot].filter(|copy| copy.path == path) else { return false };
        self.copies[slot] = None;
        self.arrived[slot] = Some(copy);
        arrived(path, copy.bytes);
        self.advance(arrived);
        true
    }

    /// Notes that the peer has consumed the tiles before this one. Calls `arrived` with the path and
    /// bytes of copies that must have arrived. A smaller number than before is an old one.
    ///
    /// # Errors
    /// No correct peer says that.
    pub fn consumed(
        &mut self,
        consumed: u64,
        arrived: &mut impl FnMut(usize, usize),
    ) -> Result<(), Impossible> {
        if consumed > self.posted {
            return Err(Impossible { consumed, posted: self.posted });
        }
        if consumed > self.consumed {
            self.consumed = consumed;
            self.lost.retain(|sequence| *sequence >= consumed);
            self.advance(arrived);
        }
        Ok(())
    }

    /// Notes that the peer may not know of tiles that have arrived on `path`, and never will: a NIC has confirmed them, and died
    /// before it told its host. Until they are consumed they count as under way again.
    pub fn doubt(&mut self, path: usize) {
        for sequence in self.freed.max(self.consumed)..self.posted {
            let slot = self.slot(sequence);
            if self.copies[slot].is_none() && !self.lost.contains(&sequence) {
                self.copies[slot] = self.arrived[slot].filter(|copy| copy.path == path);
            }
        }
    }

    /// Notes that what is under way on this `incarnation` of `path` was lost: the path is fenced, and the peer hears of
    /// this ahead of anything that is handed out later. Tiles that the peer may not have are the next to be handed out;
    /// slots into which a copy may still fall wait until the peer has [closed](Self::closed) the connection. Calls `arrived`
    /// with the path and bytes of copies on other paths that must have arrived.
    pub fn lose(
        &mut self,
        path: usize,
        incarnation: u32,
        arrived: &mut impl FnMut(usize, usize),
    ) -> Loss {
        let mut loss = Loss::default();
        for sequence in self.freed..self.posted {
            let slot = self.slot(sequence);
            let Some(copy) = self.copies[slot].filter(|copy| copy.path == path) else { continue };
            self.copies[slot] = None;
            if copy.is_repeat {
                self.stragglers.push(Straggler { sequence, path, incarnation });
            }
            if sequence >= self.consumed {
                self.lost.push_back(sequence);
                loss.tiles += 1;
                loss.bytes += copy.bytes;
            }
        }
        self.lost.make_contiguous().sort_unstable();
        self.advance(arrived);
        loss
    }

    /// Notes that the peer takes nothing more from incarnations of `path` before `below`. Calls `arrived` with the path and
    /// bytes of copies that must have arrived.
    pub fn closed(&mut self, path: usize, below: u32, arrived: &mut impl FnMut(usize, usize)) {
        self.stragglers.retain(|lost| lost.path != path || lost.incarnation >= below);
        self.advance(arrived);
    }

    /// How many tiles the peer has consumed, as far as known.
    #[must_use]
    pub fn consumed_tiles(&self) -> u64 {
        self.consumed
    }

    /// Whether everything staged has arrived, as far as this end knows.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_posted() && self.copies.iter().all(Option::is_none)
    }

    /// Whether everything staged was handed to a path that still works.
    #[must_use]
    pub fn is_posted(&self) -> bool {
        self.posted == self.staged && self.lost.is_empty()
    }

    /// Frees the slots that may be filled again: the peer has consumed the tile, and no copy of it
    /// can land later. The copy of a tile that was sent once has arrived if the tile was consumed.
    fn advance(&mut self, arrived: &mut impl FnMut(usize, usize)) {
        while self.freed < self.consumed {
            if self.stragglers.iter().any(|lost| lost.sequence == self.freed) {
                return;
            }
            let slot = self.slot(self.freed);
            match self.copies[slot] {
                Some(Copy { is_repeat: true, .. }) => return,
                Some(Copy { path, bytes, is_repeat: false }) => arrived(path, bytes),
                None => {}
            }
            self.copies[slot] = None;
            self.freed += 1;
        }
    }

    fn slot(&self, sequence: u64) -> usize {
        let slot = sequence % self.copies.len() as u64;
        usize::try_from(slot).expect("smaller than the number of slots")
    }
}

#[cfg(test)]
mod tests {
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
}
