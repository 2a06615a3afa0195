//! What leaves this host from the memory of the application, which is needed until it has come, or until it is staged.

use ccl_core::program::{Action, Port, StepIndex};
use ccl_kernels::{Source, copy};
use ccl_transport::{Link, Stretch};

use super::progress::Lent;
use super::{Executor, Run};

/// What is sent unstaged, or [lands](super::landing): steps and tiles of so many bytes at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Least {
    /// Shorter steps are staged, which is quicker than to wait until the peer says that they have come.
    pub(crate) step_bytes: usize,
    /// Where tiles are shorter, the network is slower than copying them.
    pub(crate) tile_bytes: usize,
    /// Shorter steps come through the slots of the link.
    pub(crate) landing_bytes: usize,
}

impl Least {
    /// Everything.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) const NOTHING: Self = Self { step_bytes: 0, tile_bytes: 0, landing_bytes: 0 };
}

impl Default for Least {
    fn default() -> Self {
        Self { step_bytes: 256 << 10, tile_bytes: 64 << 10, landing_bytes: 64 << 10 }
    }
}

/// When in so many sweeps nothing has come back at the end of a lane, what is out is staged.
pub(super) const PATIENCE: u32 = 64;

/// Memory of the application, for the link.
#[derive(Debug)]
pub(super) struct Origin<'a>(pub(super) Source<'a>);

impl ccl_transport::Origin for Origin<'_> {
    fn address(&self) -> usize {
        self.0.address()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        copy(self.0.part(offset, target.len()), target.into());
    }
}

impl Executor {
    /// Sends unstaged, and lets land, what is so long.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn unstaging(mut self, least: Least) -> Self {
        self.least = least;
        self
    }
}

impl Least {
    /// How many bytes of a step of so many the link is given now, of which so many are `posted` and so many (`limit`) may be:
    /// whole tiles, but for the last.
    pub(super) fn next(
        self,
        bytes: usize,
        (posted, limit): (usize, usize),
        link: &dyn Link,
    ) -> usize {
        if bytes < self.step_bytes || link.tile_bytes() < self.tile_bytes {
            return 0;
        }
        let tile_bytes = link.tile_bytes();
        let next = limit.saturating_sub(posted).min(link.unstaged_bytes());
        if posted + next == bytes { next } else { next / tile_bytes * tile_bytes }
    }
}

impl Run<'_> {
    /// The next bytes of a step have left from where they are, in tiles of which the last has this number.
    pub(super) fn note_unstaged(&mut self, lane: usize, step: StepIndex, bytes: usize, last: u64) {
        let index = self.index(self.task.program.sends[lane].port);
        let tile_bytes = self.links[index].as_ref().map_or(bytes, |link| link.tile_bytes());
        let tiles = bytes.div_ceil(tile_bytes);
        self.progress.patience[lane] = 0;
        for (place, tile) in (0..tiles).zip(last + 1 - tiles as u64..) {
            let (step_offset, offset) = (self.progress.posted[step as usize], place * tile_bytes);
            let (offset, bytes) = (step_offset + offset, tile_bytes.min(bytes - offset));
            self.progress.lent[lane].push_back(Lent { step, offset, bytes, tile });
        }
    }

    /// Supplies what the link wants; or all that is out, once nothing has come back for a while at the end of the lane.
    pub(super) fn supply(&mut self, lane: usize, port: Port) {
        let index = self.index(port);
        if self.links[index].as_ref().is_none_or(|link| link.lends()) {
            return;
        }
        while let Some(lent) = self.wanted(lane, index) {
            self.supply_tile(index, lent);
        }
        let is_at_end = self.progress.sent[lane] == self.task.program.sends[lane].steps.len();
        let patience = &mut self.progress.patience[lane];
        *patience = patience.saturating_add(u32::from(is_at_end));
        if self.progress.patience[lane] >= PATIENCE {
            let all = 0..self.progress.lent[lane].len();
            all.for_each(|place| self.supply_tile(index, self.progress.lent[lane][place]));
        }
    }

    /// What the link has to send again.
    fn wanted(&self, lane: usize, index: usize) -> Option<Lent> {
        let wanted = self.links[index].as_ref()?.wanted()?;
        self.progress.lent[lane].iter().find(|lent| lent.tile == wanted).copied()
    }

    fn supply_tile(&mut self, index: usize, Lent { step, offset, bytes, tile }: Lent) {
        let Action::Send { from, .. } = self.task.program.steps[step as usize].action else {
            unreachable!("a lane of sends")
        };
        let origin = Origin(self.region(from.buffer).source(from.offset + offset, bytes));
        if let Some(link) = self.links[index].as_mut().filter(|_| tile > 0) {
            link.supply(tile, Stretch::new(&origin, 0..bytes));
        }
    }
}
