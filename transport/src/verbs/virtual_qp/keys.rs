//! The same memory under other keys: a region is registered with the domain of every rail that is open.
//!
//! The application sees the keys of the default rail, which need no translation there. For each
//! backup a table in registered memory says what they are called on it; the peer reads it one-sided,
//! when it meets a key that it does not know.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::{Access, LocalKey, Memory, MemoryRegion, RemoteAddress, RemoteKey, Segment};
use super::control::{WORD, load_words, store_words};
use crate::TransportError;

/// Regions that a virtual domain has at the same time, at most.
pub const MAX_REGIONS: usize = 64;
/// An entry: whether it is one, key and address on the default rail, key and address on this one.
const ENTRY_WORDS: usize = 5;
const ENTRY_BYTES: usize = ENTRY_WORDS * WORD;
pub(super) const TABLE_BYTES: usize = MAX_REGIONS * ENTRY_BYTES;

/// What is registered with the domains of the rails.
#[derive(Debug)]
pub(super) struct Keys {
    /// The tables of all rails, one behind the other.
    memory: Memory,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    free: Vec<usize>,
    /// Whether everything is registered on a rail, and everything new has to be.
    is_open: Vec<bool>,
    /// Number of the next region.
    next: u64,
    /// By their numbers.
    entries: BTreeMap<u64, Entry>,
    /// Their numbers by their keys on the default rail.
    serials: BTreeMap<LocalKey, u64>,
}

/// What was registered.
#[derive(Debug)]
pub(super) struct Entry {
    slot: usize,
    access: Access,
    /// On the default rail.
    default: MemoryRegion,
    /// On the backups, as far as they have got it.
    backups: BTreeMap<usize, MemoryRegion>,
}

/// What a rail has not got.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) serial: u64,
    pub(super) memory: Memory,
    pub(super) access: Access,
}

impl Slots {
    fn is_missing(&self, rail: usize, entry: &Entry) -> bool {
        rail > 0 && !entry.backups.contains_key(&rail)
    }

    fn entry(&self, key: LocalKey) -> Option<&Entry> {
        self.entries.get(self.serials.get(&key)?)
    }
}

impl Keys {
    pub(super) fn new(rails: usize) -> Result<Self, TransportError> {
        let slots = Slots {
            free: (0..MAX_REGIONS).rev().collect(),
            is_open: vec![false; rails],
            next: 0,
            entries: BTreeMap::new(),
            serials: BTreeMap::new(),
        };
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

    /// What a region is called on a backup.
    pub(super) fn local(&self, rail: usize, key: LocalKey) -> Option<LocalKey> {
        Some(self.slots().entry(key)?.backups.get(&rail)?.segment(0, 0).key)
    }

    /// The memory of the result of an atomic, if that is what the segment is: this process writes it.
    pub(super) fn result(&self, segment: Segment) -> Option<Memory> {
        let slots = self.slots();
        let memory = slots.entry(segment.key)?.default.memory();
        let is_inside =
            segment.offset.checked_add(WORD)? <= memory.bytes() && memory.dmabuf().is_none();
        (is_inside && segment.bytes == WORD).then(|| memory.clone())
    }

    /// Takes a region that the default rail has. Returns its number, and the rails that have to get it
    /// now: any other one looks for it when it becomes open.
    pub(super) fn insert(
        &self,
        region: MemoryRegion,
        access: Access,
    ) -> Result<(u64, Vec<usize>), TransportError> {
        let mut slots = self.slots();
        let slot = slots.free.pop().ok_or_else(|| {
            TransportError::system("register memory", format!("{MAX_REGIONS} regions are in use"))
        })?;
        let serial = slots.next;
        slots.next += 1;
        slots.serials.insert(region.segment(0, 0).key, serial);
        let entry = Entry { slot, access, default: region, backups: BTreeMap::new() };
        slots.entries.insert(serial, entry);
        let open = (1..slots.is_open.len()).filter(|&rail| slots.is_open[rail]).collect();
        Ok((serial, open))
    }

    pub(super) fn is_open(&self, rail: usize) -> bool {
        self.slots().is_open[rail]
    }

    /// Makes a rail an open one if it has got everything; tells whether it has.
    pub(super) fn declare_open(&self, rail: usize) -> bool {
        let mut slots = self.slots();
        let has_all = !slots.entries.values().any(|entry| slots.is_missing(rail, entry));
        slots.is_open[rail] |= has_all;
        has_all
    }

    /// What a rail has not got.
    pub(super) fn missing(&self, rail: usize) -> Vec<Missing> {
        let slots = self.slots();
        let entries = slots.entries.iter().filter(|(_, entry)| slots.is_missing(rail, entry));
        let missing = entries.map(|(&serial, entry)| Missing {
            serial,
            memory: entry.default.memory().clone(),
            access: entry.access,
        });
        missing.collect()
    }

    /// A backup has got a region, which may have been dropped since it was missed.
    pub(super) fn put(&self, rail: usize, serial: u64, region: MemoryRegion) {
        let mut slots = self.slots();
        let Some(entry) = slots.entries.get_mut(&serial) else {
            // Undone without the lock: it may take a while.
            drop(slots);
            return drop(region);
        };
        let (default, here) = (entry.default.remote(0), region.remote(0));
        let words =
            [u64::from(default.key.0), default.address, u64::from(here.key.0), here.address];
        let offset = Self::table(rail) + entry.slot * ENTRY_BYTES;
        store_words(&self.memory, offset + WORD, &words);
        self.memory.store(offset, 1);
        entry.backups.insert(rail, region);
    }

    /// Forgets a region. Whoever drops it undoes its registrations.
    pub(super) fn remove(&self, serial: u64) -> Option<Entry> {
        let mut slots = self.slots();
        let entry = slots.entries.remove(&serial)?;
        for rail in 0..slots.is_open.len() {
            self.memory.store(Self::table(rail) + entry.slot * ENTRY_BYTES, 0);
        }
        slots.serials.remove(&entry.default.segment(0, 0).key);
        slots.free.push(entry.slot);
        Some(entry)
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
