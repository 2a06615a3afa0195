//! What was executed for the peer, and when it is told.

/// Operations executed, but for riders, before the peer is told although nothing else goes its way.
const ACKNOWLEDGE_FRAMES: u64 = 16;
/// Bytes executed before the peer is told, so that it knows how fast its rails drain.
const ACKNOWLEDGE_BYTES: u64 = 256 << 10;
/// Polls that found nothing before the peer is told: it gives an answer of the application, which
/// carries the count for nothing, time to go first.
const ACKNOWLEDGE_IDLE_POLLS: u32 = 32;

/// What this end has executed for the peer, and what the peer knows of it.
#[derive(Debug, Default)]
pub(super) struct Executed {
    pub(super) operations: u64,
    pub(super) unreported_frames: u64,
    pub(super) unreported_bytes: u64,
    reported: u64,
    idle_polls: u32,
}

impl Executed {
    /// How many operations, of which the peer is told now.
    pub(super) fn reported(&mut self) -> u64 {
        self.reported = self.operations;
        (self.unreported_frames, self.unreported_bytes, self.idle_polls) = (0, 0, 0);
        self.operations
    }

    /// Whether the peer must be told now, after a poll that did or did not move anything.
    pub(super) fn is_due(&mut self, moved: bool) -> bool {
        self.idle_polls = if moved { 0 } else { self.idle_polls.saturating_add(1) };
        self.unreported_frames >= ACKNOWLEDGE_FRAMES
            || self.unreported_bytes >= ACKNOWLEDGE_BYTES
            || (!self.is_reported() && self.idle_polls >= ACKNOWLEDGE_IDLE_POLLS)
    }

    /// Whether the peer was told of all.
    pub(super) fn is_reported(&self) -> bool {
        self.operations == self.reported
    }
}
