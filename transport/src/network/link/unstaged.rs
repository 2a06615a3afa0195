//! Tiles that leave from the memory of the application, and are in that of the link only if they have to be.
//!
//! The kernel copies what it is given, so a tile that it has taken needs no other copy, unless its path dies before it has
//! arrived: then the application has to give it once more. What the kernel does not take at once is staged.

use smallvec::SmallVec;

use super::super::events::Evidence;
use super::NetworkLink;
use crate::verbs::Unstaged;
use crate::{HEADER_BYTES, Stamp, Stretch};

/// So many bytes are best given at a time, if they are not more than half of what may be on the way.
const MOST_BYTES: usize = 1 << 20;

/// Tiles in so many bytes, as a rule.
const INLINE_TILES: usize = 8;

/// Which slots lack the bytes of their tiles.
#[derive(Debug)]
pub(super) struct Slots {
    lack: Vec<bool>,
    /// How many of the first tiles the link does not need the application's memory for.
    returned: u64,
}

impl Slots {
    /// All have their bytes.
    pub(super) fn new(slots: usize) -> Self {
        Self { lack: vec![false; slots], returned: 0 }
    }

    pub(super) fn lacks(&self, slot: usize) -> bool {
        self.lack[slot]
    }

    pub(super) fn set(&mut self, slot: usize, lacks: bool) {
        self.lack[slot] = lacks;
    }
}

/// A tile on its way.
#[derive(Clone, Copy, Debug)]
struct Given<'a> {
    path: usize,
    sequence: u64,
    payload: Stretch<'a>,
}

impl NetworkLink {
    /// Bytes to send unstaged at a time; none if that is not possible.
    pub(super) fn most_unstaged_bytes(&self) -> usize {
        let mut live = self.carriers.iter().filter_map(|carrier| carrier.live.as_ref());
        if !live.all(|live| live.pair.sends_unstaged()) {
            return 0;
        }
        let tiles = (MOST_BYTES / self.tile_bytes).min(self.geometry.shape.slots / 2).max(1);
        tiles * self.tile_bytes
    }

    /// Sends as many tiles with these bytes as the paths take now; returns how many bytes.
    pub(super) fn give_unstaged(&mut self, stamp: &Stamp, bytes: Stretch<'_>) -> usize {
        if !self.window.is_posted() {
            return 0;
        }
        let mut tiles: SmallVec<[Given<'_>; INLINE_TILES]> = SmallVec::new();
        for payload in bytes.pieces(self.tile_bytes) {
            let whole = HEADER_BYTES + payload.bytes();
            let is_free = |path: &usize| self.fences.due(*path).is_none() && self.window.has_room();
            let Some(path) = self.split.choose(whole).filter(is_free) else { break };
            let sequence = self.stage(stamp, payload.bytes());
            self.given(sequence, path, whole);
            tiles.push(Given { path, sequence, payload });
        }
        for path in 0..self.carriers.len() {
            let of_path = tiles.iter().filter(|tile| tile.path == path);
            let of_path: SmallVec<[Given<'_>; INLINE_TILES]> = of_path.copied().collect();
            if !of_path.is_empty() && !self.post_unstaged(path, &of_path) {
                let cause = "it does not take as many operations as it was made for";
                self.give_up(path, Evidence::Device, cause.into());
            }
        }
        tiles.iter().map(|tile| tile.payload.bytes()).sum()
    }

    /// Hands tiles over, or stages them all; tells whether the path took them.
    fn post_unstaged(&mut self, path: usize, tiles: &[Given<'_>]) -> bool {
        if let Some(unfilled) = self.hand_over(path, tiles) {
            for tile in &tiles[..unfilled] {
                self.unstaged.set(self.geometry.index(tile.sequence), true);
            }
            return true;
        }
        for tile in tiles {
            let place = self.geometry.slot(tile.sequence);
            self.outbound.fill(place + HEADER_BYTES, tile.payload, 0);
        }
        let Some(live) = &mut self.carriers[path].live else { return false };
        tiles.iter().all(|Given { sequence, payload, .. }| {
            let (place, bytes) = (self.geometry.slot(*sequence), HEADER_BYTES + payload.bytes());
            live.post_tile(*sequence, place, bytes)
        })
    }

    /// Hands tiles over; returns how many of the first ones are not staged, or `None` if the path takes them staged only.
    fn hand_over(&mut self, path: usize, tiles: &[Given<'_>]) -> Option<usize> {
        let live = self.carriers[path].live.as_mut()?;
        let mut operations: SmallVec<[Unstaged<'_>; INLINE_TILES]> = SmallVec::new();
        for Given { sequence, payload, .. } in tiles {
            let (place, bytes) = (self.geometry.slot(*sequence), HEADER_BYTES + payload.bytes());
            let request = live.tile(*sequence, place, bytes)?;
            operations.push(Unstaged { request, rest: *payload });
        }
        live.pair.post_unstaged(&operations)
    }

    /// How many of the first tiles have come, or are staged.
    pub(super) fn count_returned(&mut self) -> u64 {
        let (consumed, staged) = (self.window.consumed_tiles(), self.window.staged());
        let mut returned = self.unstaged.returned.max(consumed);
        while returned < staged && !self.unstaged.lacks(self.geometry.index(returned)) {
            returned += 1;
        }
        self.unstaged.returned = returned;
        returned
    }

    /// The tile that has to be sent again and lacks its bytes, which come first.
    pub(super) fn lacking(&self) -> Option<u64> {
        self.window.next().filter(|next| self.unstaged.lacks(self.geometry.index(*next)))
    }

    /// Stages a tile that was sent unstaged.
    pub(super) fn fill(&mut self, sequence: u64, payload: Stretch<'_>) {
        let slot = self.geometry.index(sequence);
        if !self.unstaged.lacks(slot) {
            return;
        }
        let place = self.geometry.slot(sequence);
        assert_eq!(HEADER_BYTES + payload.bytes(), self.staged_bytes(place), "another tile");
        self.outbound.fill(place + HEADER_BYTES, payload, 0);
        self.unstaged.set(slot, false);
        self.post_staged();
    }
}
