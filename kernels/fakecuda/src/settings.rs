//! What the environment says, and the clock.

use std::time::Instant;

/// How many devices there are.
pub(crate) const DEVICES: &str = "FAKECUDA_DEVICES";
/// From what the order of threads is drawn.
pub(crate) const SEED: &str = "FAKECUDA_SEED";
/// Whether accesses of more than 8 bytes are torn: `1` for yes.
pub(crate) const TORN: &str = "FAKECUDA_TORN";

/// A number in the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
    std::env::var(name).ok()?.parse().ok()
}

/// The time, for events.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the clock")]
    Instant::now()
}
