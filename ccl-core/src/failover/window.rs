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
mod tests;
