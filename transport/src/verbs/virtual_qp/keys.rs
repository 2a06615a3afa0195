//! The same memory under other keys: a region is registered with the domain of every rail.
//!
//! The application sees the keys of the default rail, which need no translation there. For each
//! backup a table in registered memory says what they are called on it; the peer reads it one-sided,
//! when it meets a key that it does not know.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::{Access, LocalKey, Memory, MemoryRegion, RemoteAddress, RemoteKey, Segment};
use super::SharedDomain;
use super::control::{WORD, load_words, store_words};
use crate::TransportError;

/// Regions that a virtual domain has at the same time, at most.
pub const MAX_REGIONS: usize = 64;
/// An entry: whether it is one, key and address on the default rail, key and address on this one.
const ENTRY_WORDS: usize = 5;
const ENTRY_BYTES: usize = ENTRY_WORDS * WORD;
pub(super) const TABLE_BYTES: usize = MAX_REGIONS * ENTRY_BYTES;

/// What is registered with the domains of all rails.
#[derive(Debug)]
pub(super) struct Keys {
    /// The tables of all rails, one behind the other.
    memory: Memory,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    free: Vec<usize>,
    /// What is registered, by its key on the default rail.
    local: BTreeMap<LocalKey, Local>,
}

#[derive(Debug)]
struct Local {
    memory: Memory,
    /// Keys on all rails.
    keys: Vec<LocalKey>,
}

impl Keys {
    pub(super) fn new(rails: usize) -> Result<Self, TransportError> {
        let slots = Slots { free: (0..MAX_REGIONS).rev().collect(), local: BTreeMap::new() };
        Ok(Self { memory: Memory::allocate(rails * TABLE_BYTES)?, slots: Mutex::new(slots) })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where the table of a rail lies.
    pub(super) fn table(rail: usize) -> usize {
        rail * TABLE_BYTES
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a region is called on a rail.
    pub(super) fn local(&self, rail: usize, key: LocalKey) -> Option<LocalKey> {
        self.slots().local.get(&key)?.keys.get(rail).copied()
    }

    /// The memory of the result of an atomic, if that is what the segment is.
    pub(super) fn result(&self, segment: Segment) -> Option<Memory> {
        let slots = self.slots();
        let memory = &slots.local.get(&segment.key)?.memory;
        let is_inside = segment.offset.checked_add(WORD)? <= memory.bytes();
        (is_inside && segment.bytes == WORD).then(|| memory.clone())
    }

    fn insert(&self, regions: &[MemoryRegion]) -> Result<usize, TransportError> {
        let mut slots = self.slots();
        let slot = slots.free.pop().ok_or_else(|| {
            TransportError::system("register memory", format!("{MAX_REGIONS} regions are in use"))
        })?;
        let keys: Vec<LocalKey> = regions.iter().map(|region| region.segment(0, 0).key).collect();
        slots.local.insert(keys[0], Local { memory: regions[0].memory().clone(), keys });
        let default = regions[0].remote(0);
        for (rail, region) in regions.iter().enumerate() {
            let RemoteAddress { key, address } = region.remote(0);
            let entry = [u64::from(default.key.0), default.address, u64::from(key.0), address];
            let offset = Self::table(rail) + slot * ENTRY_BYTES;
            store_words(&self.memory, offset + WORD, &entry);
            self.memory.store(offset, 1);
        }
        Ok(slot)
    }

    fn remove(&self, slot: usize, key: LocalKey, rails: usize) {
        let mut slots = self.slots();
        for rail in 0..rails {
            self.memory.store(Self::table(rail) + slot * ENTRY_BYTES, 0);
        }
        slots.local.remove(&key);
        slots.free.push(slot);
    }
}

/// Registers `memory` on all rails.
pub(super) fn register(
    keys: &Arc<Keys>,
    domains: &[SharedDomain],
    memory: &Memory,
    access: Access,
) -> Result<MemoryRegion, TransportError> {
    let regions = domains
        .iter()
        .map(|domain| domain.lock().register(memory, access))
        .collect::<Result<Vec<_>, _>>()?;
    let slot = keys.insert(&regions)?;
    let (local, remote) = (regions[0].segment(0, 0).key, regions[0].remote(0));
    let registration = Registration { keys: Arc::clone(keys), slot, regions };
    Ok(MemoryRegion::new(
        memory.clone(),
        (local, remote.key),
        remote.address,
        Box::new(registration),
    ))
}

/// Takes the keys out of the tables when the region is dropped, and then the regions themselves.
#[derive(Debug)]
struct Registration {
    keys: Arc<Keys>,
    slot: usize,
    regions: Vec<MemoryRegion>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keys.remove(self.slot, self.regions[0].segment(0, 0).key, self.regions.len());
    }
}

/// The table of the peer for one rail, as it was read last.
#[derive(Debug, Default)]
pub(super) struct PeerKeys(BTreeMap<RemoteKey, Named>);

#[derive(Clone, Copy, Debug)]
struct Named {
    default_address: u64,
    key: RemoteKey,
    address: u64,
}

impl PeerKeys {
    /// Takes over a table that was read to `offset`.
    pub(super) fn take(&mut self, memory: &Memory, offset: usize) {
        self.0.clear();
        for slot in 0..MAX_REGIONS {
            let entry: [u64; ENTRY_WORDS] = load_words(memory, offset + slot * ENTRY_BYTES);
            let [1, default_key, default_address, key, address] = entry else { continue };
            let (Ok(default_key), Ok(key)) = (u32::try_from(default_key), u32::try_from(key))
            else {
                continue;
            };
            let named = Named { default_address, key: RemoteKey(key), address };
            self.0.insert(RemoteKey(default_key), named);
        }
    }

    pub(super) fn translate(&self, target: RemoteAddress) -> Option<RemoteAddress> {
        let named = self.0.get(&target.key)?;
        let offset = target.address.wrapping_sub(named.default_address);
        Some(RemoteAddress { key: named.key, address: named.address.wrapping_add(offset) })
    }
}
