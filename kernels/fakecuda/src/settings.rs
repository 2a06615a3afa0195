//! What the environment says, and the clock.

use std::sync::OnceLock;
use std::time::Instant;

/// How many devices there are.
pub(crate) const DEVICES: &str = "FAKECUDA_DEVICES";
/// From what the order of threads is drawn.
pub(crate) const SEED: &str = "FAKECUDA_SEED";
/// Whether accesses of more than 8 bytes are torn: `1` for yes.
pub(crate) const TORN: &str = "FAKECUDA_TORN";

/// Whether what real drivers do late is done late here: `1` for yes. Copies and fills that are said to wait return before small ones from
/// ordinary memory are done, and who loads kernels or frees memory waits for the device and keeps all others from the driver meanwhile.
const LATE: &str = "FAKECUDA_LATE";

/// How much may wait in a stream: who puts in more waits until there is room, as with real drivers. Without it there is no limit.
const QUEUE: &str = "FAKECUDA_QUEUE";

/// Which call fails, and how: `cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY` for the second call of this function. Nothing of it is done.
pub(crate) const FAIL: &str = "FAKECUDA_FAIL";

/// How many queues the streams of a device share, as with real ones. Without it each has its own.
const CONNECTIONS: &str = "FAKECUDA_CONNECTIONS";

/// What is exported as a dma-buf: `0`: nothing, `sealed`: memory that processors cannot map.
const DMABUF: &str = "FAKECUDA_DMABUF";

/// What becomes of memory that is exported as a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DmaBufs {
    /// The device says that it exports none.
    None,
    /// Only other devices could use it, and there are none: as with real ones.
    Sealed,
    /// Processors can map it.
    Open,
}

/// What the environment says of dma-bufs.
pub(crate) fn dmabufs() -> DmaBufs {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
    match std::env::var(DMABUF).as_deref() {
        Ok("0") => DmaBufs::None,
        Ok("sealed") => DmaBufs::Sealed,
        Ok(_) | Err(_) => DmaBufs::Open,
    }
}

/// What the environment says of a call that fails.
pub(crate) fn failure() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
    std::env::var(FAIL).ok()
}

/// Whether it does late what real drivers do late.
pub(crate) fn is_late() -> bool {
    static IS_LATE: OnceLock<bool> = OnceLock::new();
    *IS_LATE.get_or_init(|| number(LATE) == Some(1))
}

/// How much may wait in a stream.
pub(crate) fn most_queued() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| number(QUEUE).map_or(usize::MAX, |most| most.max(1) as usize))
}

/// How many queues the streams of a device share; 0 if each has its own.
pub(crate) fn connections() -> usize {
    number(CONNECTIONS).unwrap_or(0) as usize
}

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
