//! What is registered, and the checks of everything that names it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::super::{
    Access, Depth, Domain, LocalKey, Memory, MemoryRegion, QueuePair, RemoteAddress, RemoteKey,
    Segment,
};
use super::queue_pair::SoftQueuePair;
use crate::TransportError;
use crate::nics::Watched;

/// The registered memory of one domain, by key.
#[derive(Debug, Default)]
pub(super) struct Table(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    regions: BTreeMap<u32, (Memory, Access)>,
    last_key: u32,
}

/// A checked range of registered memory, which stays alive as long as the span.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Table {
    fn insert(&self, memory: Memory, access: Access) -> u32 {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        entries.last_key = entries.last_key.checked_add(1).expect("keys are not used up");
        let key = entries.last_key;
        entries.regions.insert(key, (memory, access));
        key
    }

    fn remove(&self, key: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).regions.remove(&key);
    }

    /// The memory an operation posted at this end names, if it is registered.
    pub(super) fn local(&self, segment: Segment) -> Option<Span> {
        self.span(segment.key.0, segment.offset, segment.bytes, Access::LOCAL)
    }

    /// The memory an operation of the peer names, if it is registered for that.
    pub(super) fn remote(
        &self,
        address: RemoteAddress,
        bytes: usize,
        wanted: Access,
    ) -> Option<Span> {
        self.span(address.key.0, usize::try_from(address.address).ok()?, bytes, wanted)
    }

    fn span(&self, key: u32, offset: usize, bytes: usize, wanted: Access) -> Option<Span> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (memory, access) = entries.regions.get(&key)?;
        let inside = offset.checked_add(bytes)? <= memory.bytes();
        (inside && access.allows(wanted)).then(|| Span { memory: memory.clone(), offset, bytes })
    }
}

/// A protection domain of the software device.
#[derive(Debug)]
pub(super) struct SoftDomain {
    table: Arc<Table>,
    /// That of the device, if it is watched.
    nic: Option<Watched>,
}

impl SoftDomain {
    pub(super) fn new(table: Arc<Table>, nic: Option<Watched>) -> Self {
        Self { table, nic }
    }
}

impl Domain for SoftDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        let reached = memory.reached().map_err(|cause| {
            let text = format!("it moves bytes with the processor: {cause}");
            TransportError::system("register memory with a software device", text)
        })?;
        let key = self.table.insert(reached, access);
        let registration = Registration { table: Arc::clone(&self.table), key };
        let keys = (LocalKey(key), RemoteKey(key));
        Ok(MemoryRegion::new(memory.clone(), keys, 0, Box::new(registration)))
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(Box::new(SoftQueuePair::new(Arc::clone(&self.table), self.nic.clone(), depth)))
    }
}

/// Takes the key out of the table when the region is dropped.
struct Registration {
    table: Arc<Table>,
    key: u32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_for_it_is_reached() {
        let table = Arc::new(Table::default());
        let domain = SoftDomain::new(Arc::clone(&table), None);
        let memory = Memory::allocate(100).unwrap();
        let region = domain.register(&memory, Access::READ).unwrap();
        let at = |offset: usize, bytes, wanted| table.remote(region.remote(offset), bytes, wanted);
        assert!(at(0, 100, Access::READ).is_some() && at(100, 0, Access::READ).is_some());
        assert!(at(0, 101, Access::READ).is_none() && at(101, 0, Access::READ).is_none());
        assert!(at(1, usize::MAX, Access::READ).is_none());
        assert!(at(0, 8, Access::WRITE).is_none() && at(0, 8, Access::ATOMIC).is_none());
        assert!(table.local(region.segment(50, 50)).is_some());
        assert!(table.local(region.segment(50, 51)).is_none());
        let segment = region.segment(0, 1);
        drop(region);
        assert!(table.local(segment).is_none());
    }

    #[test]
    fn memory_of_other_devices_is_moved_where_it_can_be_mapped() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let (there, descriptor) = Memory::in_file(8192).unwrap();
        let memory = Memory::of_dmabuf(descriptor, 4096, 4096).unwrap();
        let table = Arc::new(Table::default());
        let domain = SoftDomain::new(Arc::clone(&table), None);
        let region = domain.register(&memory, Access::ALL).unwrap();
        let span = table.local(region.segment(8, 8)).unwrap();
        span.memory.store(span.offset, 7);
        assert_eq!(there.load(4096 + 8), 7);
        assert!(region.memory().dmabuf().is_some(), "results of atomics cannot lie there");
    }

    #[test]
    fn memory_of_other_devices_that_cannot_be_mapped_is_refused() {
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        let memory = Memory::of_dmabuf(descriptor, 0, 4096).unwrap();
        let domain = SoftDomain::new(Arc::new(Table::default()), None);
        let error = domain.register(&memory, Access::ALL).unwrap_err().to_string();
        assert!(error.contains("dma-buf"), "{error}");
    }
}
