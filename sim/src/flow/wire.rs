//! One direction of a link: what the sender may still send, and what has arrived.
//!
//! Between hosts the sender's side is the production code: [`Window`] knows which slots are free,
//! [`Split`] which rail carries the next tile.

use std::collections::VecDeque;

use ccl_core::failover::window::Window;
use ccl_transport::network::split::Split;

use super::{Picos, timestamp};

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) source: usize,
    pub(super) tile_bytes: usize,
    window: Window,
    pub(super) paths: Option<Paths>,
    /// One per reader; more than one only for what goes to a whole host.
    pub(super) inboxes: Vec<Inbox>,
}

/// The rails of a wire between hosts.
#[derive(Debug)]
pub(super) struct Paths {
    /// The wire in the other direction.
    pub(super) opposite: usize,
    /// The number of the rail, by path.
    pub(super) rails: Vec<usize>,
    split: Split,
    /// When the sender learns that a tile has landed: moment, tile, path.
    landings: VecDeque<(Picos, u64, usize)>,
}

/// Where the tiles of a wire arrive.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) reader: usize,
    /// Payload in bytes, by slot.
    arrived: Vec<Option<usize>>,
    /// Tiles used up, and how many of them the sender was told of.
    consumed: u64,
    credited: u64,
    /// Bytes of the oldest tile that are used up.
    used: usize,
}

impl Paths {
    /// Rails with their numbers and capacities; the window is so many bytes.
    pub(super) fn new(opposite: usize, rails: &[(usize, f64)], window_bytes: usize) -> Self {
        let capacities: Vec<f64> = rails.iter().map(|(_, capacity)| *capacity).collect();
        let mut split = Split::new(&capacities, window_bytes);
        (0..rails.len()).for_each(|path| split.open(path));
        let rails = rails.iter().map(|(rail, _)| *rail).collect();
        Self { opposite, rails, split, landings: VecDeque::new() }
    }

    /// Divides the bytes among the rails in these proportions, by number of rail.
    pub(super) fn divide(&mut self, proportions: &[u16]) {
        let of_path = |rail: &usize| proportions.get(*rail).copied().unwrap_or(0);
        let proportions: Vec<u16> = self.rails.iter().map(of_path).collect();
        self.split.divide(&proportions);
    }

    /// The path for a parcel of so many bytes.
    pub(super) fn choose(&self, bytes: usize) -> usize {
        self.split.choose(bytes).unwrap_or(0)
    }

    /// The sender will learn at `at` that a tile has landed.
    pub(super) fn confirm(&mut self, at: Picos, sequence: u64, path: usize) {
        self.landings.push_back((at, sequence, path));
    }
}

impl Wire {
    pub(super) fn new(
        source: usize,
        readers: Vec<usize>,
        (slots, tile_bytes): (usize, usize),
        paths: Option<Paths>,
    ) -> Self {
        let inbox = |reader| {
            let arrived = vec![None; slots];
            Inbox { reader, arrived, consumed: 0, credited: 0, used: 0 }
        };
        let inboxes = readers.into_iter().map(inbox).collect();
        Self { source, tile_bytes, window: Window::new(slots), paths, inboxes }
    }

    /// Whether another tile can be staged now.
    pub(super) fn has_room(&mut self, now: Picos) -> bool {
        if let Some(Paths { split, landings, .. }) = &mut self.paths {
            while let Some((at, sequence, path)) = landings.pop_front_if(|(at, ..)| *at <= now) {
                self.window.landed(sequence, path, &mut |path, bytes| {
                    split.finished(path, bytes, timestamp(at));
                });
            }
        }
        self.window.has_room()
    }

    /// Stages and posts a tile of so many bytes on the wire; returns its number and path.
    pub(super) fn post(&mut self, bytes: usize, now: Picos) -> (u64, usize) {
        let sequence = self.window.stage();
        let path = self.paths.as_mut().map_or(0, |paths| {
            let path = paths.choose(bytes);
            paths.split.give(path, bytes, timestamp(now));
            // The split goes by what it measures from now on; that others are told is left out. The NICs
            // carry what they are said to.
            if paths.split.is_measured() {
                let _ = paths.split.news(&vec![1.0; paths.rails.len()]);
            }
            path
        });
        self.window.post(sequence, path, bytes);
        (sequence, path)
    }

    /// A tile that takes no time on its way has landed.
    pub(super) fn land(&mut self, sequence: u64, path: usize) {
        let landed = self.window.landed(sequence, path, &mut |_, _| ());
        assert!(landed, "a tile lands after it was posted");
    }

    /// The readers have consumed so many tiles, as far as the sender knows.
    pub(super) fn free(&mut self, consumed: u64, now: Picos) {
        let Self { window, paths, .. } = self;
        let freed = window.consumed(consumed, &mut |path, bytes| {
            if let Some(paths) = paths {
                paths.split.finished(path, bytes, timestamp(now));
            }
        });
        assert!(freed.is_ok(), "nobody consumes what was not sent: {freed:?}");
    }

    /// The readers of a wire inside a host have consumed what they have.
    pub(super) fn free_local(&mut self, now: Picos) {
        let consumed = self.inboxes.iter().map(|inbox| inbox.consumed).min().unwrap_or(0);
        self.free(consumed, now);
    }
}

impl Inbox {
    pub(super) fn deliver(&mut self, sequence: u64, payload: usize) {
        let slot = self.slot(sequence);
        assert!(self.arrived[slot].is_none(), "a tile was sent into a slot that is in use");
        self.arrived[slot] = Some(payload);
    }

    /// Bytes of the oldest tile that are not used up; none if it has not arrived.
    pub(super) fn left(&self) -> usize {
        self.arrived[self.slot(self.consumed)].map_or(0, |payload| payload - self.used)
    }

    /// Uses bytes of the oldest tile up; tells whether it was the rest of it.
    pub(super) fn use_up(&mut self, bytes: usize) -> bool {
        let is_rest = bytes == self.left();
        self.used += bytes;
        if is_rest {
            let slot = self.slot(self.consumed);
            self.arrived[slot] = None;
            self.consumed += 1;
            self.used = 0;
        }
        is_rest
    }

    /// Whether the sender does not know of so many tiles that were used up.
    pub(super) fn owes(&self, batch: usize) -> bool {
        self.consumed - self.credited >= batch.max(1) as u64
    }

    /// How many tiles were used up, to tell the sender.
    pub(super) fn credit(&mut self) -> u64 {
        self.credited = self.consumed;
        self.consumed
    }

    fn slot(&self, sequence: u64) -> usize {
        usize::try_from(sequence % self.arrived.len() as u64).unwrap_or_default()
    }
}
