//! The atomics of a ring: those of the standard library, or of [`loom`](super::model) where rings are model-checked.

#[cfg(all(loom, test))]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
