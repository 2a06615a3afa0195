//! The atomics of rings, and of who [renounces](crate::shm::Renunciation): those of the standard library, or of [`loom`](super::model) where they are model-checked.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
