//! What arrives right where it belongs.

use ccl_core::program::{Action, Port};
use ccl_core::wire::EncodedStamp;
use ccl_kernels::{Target, fill};
use ccl_transport::TransportError;

use super::Run;

impl<'a> Run<'a> {
    /// Lets a link do its own work, and tells it where the next step stores what arrives on it.
    pub(super) fn progress_link(&mut self, index: usize) -> Result<bool, TransportError> {
        let landing = self.landing(index);
        let Some(link) = &mut self.links[index] else { return Ok(false) };
        let Some((stamp, target)) = landing else { return link.progress() };
        let mut moved = false;
        fill(target, |memory| {
            moved = link.progress_into(&stamp, memory)?;
            Ok(())
        })?;
        Ok(moved)
    }

    /// Where the next bytes on a link belong, and their stamp; `None` if the step is short, or does not only store. Nor if this
    /// rank does nothing but receive: without anything to copy it would ask the kernel so often that little comes at a time.
    ///
    /// A tile of which a part has landed waits for its place, and with it all behind it on its rail. So what is told once is told
    /// until the end of the step: nothing here depends on how far that has come but whether the oldest tile is used in part, and it
    /// is not, since it was allowed as a whole before one behind it could land.
    fn landing(&self, index: usize) -> Option<(EncodedStamp, Target<'a>)> {
        // Of what runs straight through nothing lands, and how far its lanes have come nobody counts.
        if self.task.is_straight || self.task.program.sends.is_empty() {
            return None;
        }
        let lane = *self.progress.lane_of.get(index)?;
        let receives = self.task.program.receives.get(lane)?;
        let is_at_tile = self.index(receives.port) == index && self.progress.used[index] == 0;
        let step = *receives.steps.get(self.progress.received[lane]).filter(|_| is_at_tile)?;
        let this = &self.task.program.steps[step as usize];
        let Action::Receive { into, .. } = this.action else { return None };
        if this.bytes < self.least.landing_bytes {
            return None;
        }
        let bytes = self.progress.allowed(self.task.program, step);
        let offset = into.offset + self.progress.done[step as usize];
        Some((self.expected(step), self.region(into.buffer).target(offset, bytes)))
    }

    /// Whether the oldest tile is where it belongs already.
    pub(super) fn has_landed(&self, port: Port) -> bool {
        let link = self.links[self.index(port)].as_ref();
        link.and_then(|link| link.peek()).is_some_and(|tile| tile.has_landed)
    }
}
