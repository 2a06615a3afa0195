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
        let lost = VecDeque::new();
        Self { copies, arrived, lost, staged: 0, posted: 0, consumed: 0, freed: 0 }
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

    /// Notes that what is under way on `path` will never arrive: the path is fenced, and this is
    /// known to the peer before anything else reaches it. Tiles that the peer may not have are the
    /// next to be handed out. Calls `arrived` with the path and bytes of copies on other paths that must have arrived.
    pub fn lose(&mut self, path: usize, arrived: &mut impl FnMut(usize, usize)) -> Loss {
        let mut loss = Loss::default();
        for sequence in self.freed..self.posted {
            let slot = self.slot(sequence);
            let Some(copy) = self.copies[slot].filter(|copy| copy.path == path) else { continue };
            self.copies[slot] = None;
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
        let loss = window.lose(0, &mut nobody);
        assert_eq!(loss, Loss { tiles: 1, bytes: 10 }, "0 has arrived, 2 has not");
        assert_eq!(window.lose(1, &mut nobody), Loss { tiles: 2, bytes: 20 });
        for sequence in [1, 2, 3] {
            assert_eq!(window.next(), Some(sequence));
            assert!(window.post(sequence, 2, 10), "this is a repeat");
        }
        assert_eq!(window.next(), None);
    }

    #[test]
    fn a_slot_waits_for_the_second_copy_of_its_tile() {
        let mut window = full();
        window.lose(0, &mut nobody);
        assert!(window.post(0, 2, 10) && window.post(2, 2, 10));
        window.consumed(4, &mut nobody).unwrap();
        assert!(!window.has_room(), "the second copy of 0 may still land");
        let mut arrived = Vec::new();
        assert!(window.landed(0, 2, &mut |path, _| arrived.push(path)));
        assert_eq!(arrived, [2, 1], "as has 1, whose only copy it was");
        assert!(window.has_room());
        assert_eq!(window.stage(), 4);
        arrived.clear();
        window.lose(2, &mut |path, _| arrived.push(path));
        assert_eq!(arrived, [1], "3 has; the copy of 2 is fenced");
        assert_eq!(window.next(), Some(4), "2 was consumed");
    }

    #[test]
    fn what_is_in_doubt_is_sent_again_unless_it_was_consumed() {
        let mut window = full();
        for sequence in 0..4 {
            assert!(window.landed(sequence, sequence as usize % 2, &mut nobody));
        }
        window.consumed(1, &mut nobody).unwrap();
        window.doubt(0);
        assert_eq!(window.lose(0, &mut nobody), Loss { tiles: 1, bytes: 10 });
        assert_eq!(window.next(), Some(2), "0 was consumed, 1 and 3 came on another path");
        window.doubt(0);
        assert_eq!(window.lose(0, &mut nobody), Loss::default(), "it is lost already");
        assert!(window.post(2, 1, 10));
        window.doubt(0);
        assert_eq!(window.lose(0, &mut nobody), Loss::default(), "it is under way elsewhere");
        window.consumed(4, &mut nobody).unwrap();
        assert!(window.landed(2, 1, &mut nobody));
        assert!(window.is_settled());
    }

    #[test]
    fn a_peer_cannot_consume_what_was_not_sent() {
        let mut window = full();
        let impossible = Impossible { consumed: 5, posted: 4 };
        assert_eq!(window.consumed(5, &mut |_, _| ()), Err(impossible));
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Stage,
        Post(usize),
        Land(usize),
        Consume,
        Lose(usize),
        /// And what has arrived on that path, unknown to the peer.
        LoseUnheard(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => Just(Act::Stage),
            4 => (0usize..3).prop_map(Act::Post),
            4 => (0usize..8).prop_map(Act::Land),
            2 => Just(Act::Consume),
            1 => (0usize..3).prop_map(Act::Lose),
            1 => (0usize..3).prop_map(Act::LoseUnheard),
        ]
    }

    proptest! {
        /// A slot is never staged while a copy of an older tile in it is under way, every tile is
        /// delivered, and nothing is sent again that is known to be there.
        #[test]
        fn slots_are_reused_only_when_nothing_can_land(acts in prop::collection::vec(act(), 0..300)) {
            let mut window = Window::new(4);
            // What the network carries, and what the peer has.
            let mut wire: Vec<(u64, usize)> = Vec::new();
            let (mut has, mut consumed) = (std::collections::BTreeSet::new(), 0);
            let mut came: Vec<(u64, usize)> = Vec::new();
            // Copies by path that were posted, and neither reported nor lost with their path.
            let mut open = [0_i32; 3];
            for act in acts {
                match act {
                    Act::Stage if window.has_room() => {
                        let sequence = window.stage();
                        prop_assert!(wire.iter().all(|(other, _)| other % 4 != sequence % 4));
                        prop_assert!(sequence < 4 || consumed > sequence - 4);
                    }
                    Act::Post(path) => {
                        if let Some(sequence) = window.next() {
                            window.post(sequence, path, 10);
                            wire.push((sequence, path));
                            open[path] += 1;
                        }
                    }
                    Act::Land(index) if !wire.is_empty() => {
                        let (sequence, path) = wire.remove(index % wire.len());
                        has.insert(sequence);
                        came.push((sequence, path));
                        window.landed(sequence, path, &mut |path, _| open[path] -= 1);
                    }
                    Act::LoseUnheard(path) => {
                        for (sequence, _) in came.iter().filter(|(_, other)| *other == path) {
                            let is_elsewhere = came.iter().any(|(one, on)| one == sequence && *on != path);
                            if *sequence >= consumed && !is_elsewhere {
                                has.remove(sequence);
                            }
                        }
                        came.retain(|(_, other)| *other != path);
                        window.doubt(path);
                        window.lose(path, &mut |path, _| open[path] -= 1);
                        open[path] = 0;
                        wire.retain(|(_, other)| *other != path);
                    }
                    Act::Consume if has.contains(&consumed) => {
                        // What was consumed over its only copy counts as arrived.
                        consumed += 1;
                        window.consumed(consumed, &mut |path, _| open[path] -= 1).unwrap();
                    }
                    Act::Lose(path) => {
                        window.lose(path, &mut |path, _| open[path] -= 1);
                        open[path] = 0;
                        // Some of it has arrived, unknown to the sender.
                        for (sequence, other) in &wire {
                            if *other == path && sequence % 2 == 0 {
                                has.insert(*sequence);
                            }
                        }
                        wire.retain(|(_, other)| *other != path);
                    }
                    Act::Stage | Act::Land(_) | Act::Consume => {}
                }
            }
            while let Some(sequence) = window.next() {
                window.post(sequence, 0, 10);
                wire.push((sequence, 0));
                open[0] += 1;
            }
            for (sequence, path) in wire.drain(..) {
                has.insert(sequence);
                window.landed(sequence, path, &mut |path, _| open[path] -= 1);
            }
            prop_assert_eq!(open, [0; 3], "each copy arrives once, or is lost with its path");
            prop_assert!((consumed..window.staged()).all(|sequence| has.contains(&sequence)));
        }
    }
}
