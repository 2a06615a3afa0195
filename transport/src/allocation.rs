//! Memory for the application that peers on this host can read in place.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use crate::shm::{ApplicationMemory, SegmentAddress, SharedFile};
use crate::{Loan, TransportError};

/// Zeroed, page-aligned memory in a file without a name; freed when the last clone goes, and by the
/// kernel when the process ends. A peer that has read or written it keeps it mapped until it maps memory anew,
/// so it may return to the host later.
#[derive(Clone, Debug)]
pub struct Allocation {
    file: Arc<SharedFile>,
    /// Address of the first byte.
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointer is an address that others are told; what is behind it is touched through `SharedFile`, or by the
// application.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

/// Registrations that may lie in each other.
const NESTED: usize = 8;

/// All allocations that were [published](Allocation::publish), by their first address and length, and how often.
static PUBLISHED: RwLock<BTreeMap<(usize, usize), (Allocation, usize)>> =
    RwLock::new(BTreeMap::new());

impl Allocation {
    /// Allocates `bytes` bytes.
    ///
    /// # Errors
    /// The host refuses the memory.
    pub fn new(bytes: usize) -> Result<Self, TransportError> {
        let file = SharedFile::create("r2ccl-memory", bytes.max(1))?;
        Ok(Self { start: file.start(), file: Arc::new(file), bytes })
    }

    /// The application's own `bytes` bytes at `address`, if they are shared memory in a file: a memfd, or one in
    /// `/dev/shm`, mapped to be read and written. They must stay mapped, and the file must not become shorter, until they
    /// are [withdrawn](Self::withdraw).
    #[must_use]
    pub fn of_application(address: usize, bytes: usize) -> Option<Self> {
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
        Some(Self { file: ApplicationMemory::at(address, bytes)?, start, bytes })
    }

    /// Whether the application has made it.
    #[must_use]
    pub fn is_of_application(&self) -> bool {
        self.file.is_of_application()
    }

    /// The first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a clone under its address, so that [`Self::loan`] finds it, until as many [withdrawals](Self::withdraw).
    pub fn publish(&self) {
        let mut published = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
        published.entry(self.place()).or_insert_with(|| (self.clone(), 0)).1 += 1;
    }

    /// Takes back that it was published, or that another one of the same bytes was.
    pub fn withdraw(&self) {
        let mut published = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = published.get_mut(&self.place()) {
            *times -= 1;
            if *times == 0 {
                published.remove(&self.place());
            }
        }
    }

    /// Its first address and length.
    fn place(&self) -> (usize, usize) {
        (self.start().addr().get(), self.bytes)
    }

    /// The published allocation in which the `bytes` bytes at `address` lie: that which begins last, if there are several
    /// among the [`NESTED`] that begin last before them.
    #[must_use]
    pub fn containing(address: usize, bytes: usize) -> Option<Self> {
        let published = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
        let before = published.range(..=(address, usize::MAX)).rev().take(NESTED);
        let mut all = before.map(|((start, _), (allocation, _))| (start, allocation));
        let (_, found) = all.find(|(start, allocation)| {
            (address - *start).checked_add(bytes).is_some_and(|end| end <= allocation.bytes)
        })?;
        Some(found.clone())
    }

    /// How peers can read the `bytes` bytes at `address`, if they lie in a published allocation.
    #[must_use]
    pub fn loan(address: usize, bytes: usize) -> Option<Loan> {
        Self::containing(address, bytes).map(|allocation| allocation.part(address, bytes))
    }

    /// How peers can read the `bytes` bytes at `address`, which lie in here.
    pub(crate) fn part(&self, address: usize, bytes: usize) -> Loan {
        let offset = address - self.start().addr().get();
        Loan { segment: self.address(), offset, bytes }
    }

    fn address(&self) -> SegmentAddress {
        self.file.address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_found_from_any_address_inside() {
        let allocation = Allocation::new(10_000).unwrap();
        let start = allocation.start().addr().get();
        assert_eq!(Allocation::loan(start, 1), None, "not published");
        allocation.publish();
        assert_eq!(Allocation::loan(start + 100, 9_900).map(|loan| loan.offset), Some(100));
        assert_eq!(Allocation::loan(start + 100, 9_901), None);
        assert_eq!(Allocation::loan(start - 1, 1), None);
        allocation.withdraw();
        assert_eq!(Allocation::loan(start, 1), None);
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        for bytes in [usize::MAX, usize::MAX - 4095, usize::MAX / 2] {
            let refused = Allocation::new(bytes);
            let is_named = matches!(&refused, Err(TransportError::System { call, .. })
                if call.contains("allocate"));
            assert!(is_named, "{bytes}: {refused:?}");
        }
    }
}
