//! When a poll looks at rails that are not in use.
//!
//! What the application waits for comes over the rail in use, and a look at any other takes as long: a call of the
//! kernel, with the software device. So rails on which nothing is under way share a look now and then. That
//! they have died, and what the peer says there of a fault that only it has seen, is known so much later. While
//! no requests flow every poll looks at all of them.

use ccl_core::ids::Timestamp;

use super::queue_pair::VirtualQp;

/// From one look to the next where polls follow each other closely; the fastest repairs take twenty times as long.
const PAUSE_NS: u64 = 50_000;

/// When the next look is due.
#[derive(Debug, Default)]
pub(super) struct Glances {
    due: Timestamp,
}

impl Glances {
    /// Has the next poll look.
    pub(super) fn hurry(&mut self) {
        self.due = Timestamp(0);
    }

    /// Whether this poll looks.
    fn take(&mut self, now: Timestamp) -> bool {
        let is_due = self.due <= now;
        if is_due {
            self.due = now.after(PAUSE_NS);
        }
        is_due
    }
}

impl VirtualQp {
    /// Whether this poll looks at rails that it could leave alone.
    pub(super) fn glances(&mut self) -> bool {
        if !self.is_running() {
            return true;
        }
        let now = self.now();
        self.glances.take(now)
    }
}
