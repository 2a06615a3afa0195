//! Stores that others do not see yet.
//!
//! The memory model of PTX promises nothing about when and in which order ordinary stores arrive
//! elsewhere. Here the threads of a block see each other's stores at once; the other blocks of the device
//! see them in any order, one by one, and after them other devices and the host do. A fence or a release lets all of
//! them arrive as far as it reaches. So a flag can overtake data unless something orders them for whoever looks at
//! the flag. Loads are never stale.

use std::mem;

use ccl_core::random::Random;

use crate::memory::Reach;
use crate::program::Scope;

/// Stores that wait at most; then the oldest arrives.
const MOST: usize = 512;
/// Remainders by which words are told apart.
const WORDS: usize = 4096;
/// In so many of a hundred turns nothing arrives, and as often each time after something has.
const DELAY_PERCENT: u64 = 60;

#[derive(Clone, Copy, Debug)]
struct Store {
    address: u64,
    bytes: usize,
    value: u64,
}

impl Store {
    fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }

    fn overlaps(&self, address: u64, bytes: usize) -> bool {
        self.address < address + bytes as u64 && address < self.end()
    }

    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        words(self.address, self.bytes)
    }
}

/// The words of 8 bytes of which these are parts, one unless they are not aligned, by their remainders.
#[inline]
fn words(address: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let last = address + (bytes as u64).max(1) - 1;
    (address / 8..=last / 8).map(|word| word as usize % WORDS)
}

/// Stores that wait at one place.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The oldest first.
    stores: Vec<Store>,
    /// How many of them are in words with this remainder: most loads are in others. There are none before the first store.
    in_words: Vec<u16>,
}

impl Pending {
    /// Puts a store at the end; the one that there is no room for any more.
    fn push(&mut self, store: Store) -> Option<Store> {
        self.in_words.resize(WORDS, 0);
        store.words().for_each(|word| self.in_words[word] += 1);
        self.stores.push(store);
        (self.stores.len() > MOST).then(|| self.remove(0))
    }

    fn remove(&mut self, index: usize) -> Store {
        let store = self.stores.remove(index);
        store.words().for_each(|word| self.in_words[word] -= 1);
        store
    }

    /// Whether there may be a store among these bytes.
    #[inline]
    fn may_meet(&self, address: u64, bytes: usize) -> bool {
        !self.stores.is_empty() && words(address, bytes).any(|word| self.in_words[word] > 0)
    }

    /// What is seen where it would be `value` without the stores that wait.
    #[inline]
    fn seen(&self, address: u64, bytes: usize, value: u64) -> u64 {
        if self.may_meet(address, bytes) { self.met(address, bytes, value) } else { value }
    }

    fn met(&self, address: u64, bytes: usize, value: u64) -> u64 {
        let mut seen = value.to_le_bytes();
        for store in self.stores.iter().filter(|store| store.overlaps(address, bytes)) {
            for (index, byte) in store.value.to_le_bytes()[..store.bytes].iter().enumerate() {
                let place = (store.address + index as u64).wrapping_sub(address);
                if place < bytes as u64 {
                    seen[place as usize] = *byte;
                }
            }
        }
        u64::from_le_bytes(seen)
    }

    fn take_all(&mut self) -> Vec<Store> {
        let stores = mem::take(&mut self.stores);
        stores.iter().flat_map(Store::words).for_each(|word| self.in_words[word] -= 1);
        stores
    }

    /// Takes a store that must arrive before these bytes are as the stores want them; none if they are.
    fn take_at(&mut self, address: u64, bytes: usize) -> Option<Store> {
        if !self.may_meet(address, bytes) {
            return None;
        }
        let index = self.stores.iter().position(|store| store.overlaps(address, bytes))?;
        Some(self.take(index))
    }

    /// Takes some store, in any order but that of one place; none if it is not yet time.
    fn take_any(&mut self, random: &mut Random) -> Option<Store> {
        let is_time = !self.stores.is_empty() && !random.percent(DELAY_PERCENT);
        is_time.then(|| self.take(random.index(self.stores.len())))
    }

    /// Takes a store, or an older one that must arrive before it.
    fn take(&mut self, mut index: usize) -> Store {
        loop {
            let Store { address, bytes, .. } = self.stores[index];
            let older =
                self.stores[..index].iter().position(|store| store.overlaps(address, bytes));
            match older {
                Some(older) => index = older,
                None => return self.remove(index),
            }
        }
    }
}

/// What the stores of a block pass before everybody sees them.
#[derive(Debug)]
pub(crate) struct Unseen<'a> {
    /// Only the block sees these.
    pub(crate) block: &'a mut Pending,
    /// Only the blocks of the device see these.
    pub(crate) device: &'a mut Pending,
}

impl Unseen<'_> {
    /// A store of up to 8 bytes, which the block may make.
    pub(crate) fn push(&mut self, reach: &mut Reach<'_>, address: u64, bytes: usize, value: u64) {
        if let Some(oldest) = self.block.push(Store { address, bytes, value }) {
            arrive(self.device, reach, oldest);
        }
    }

    /// What the block sees where memory holds `value`.
    pub(crate) fn seen(&self, address: u64, bytes: usize, value: u64) -> u64 {
        self.block.seen(address, bytes, self.device.seen(address, bytes, value))
    }

    /// Everything that the block has seen arrives as far as the order reaches.
    pub(crate) fn order(&mut self, reach: &mut Reach<'_>, scope: Scope) {
        if scope == Scope::Block {
            return;
        }
        for store in self.block.take_all() {
            arrive(self.device, reach, store);
        }
        if scope == Scope::System {
            flush(self.device, reach);
        }
    }

    /// Everything arrives that an access of these bytes would meet.
    pub(crate) fn flush_at(&mut self, reach: &mut Reach<'_>, address: u64, bytes: usize) {
        while let Some(store) = self.block.take_at(address, bytes) {
            arrive(self.device, reach, store);
        }
        while let Some(store) = self.device.take_at(address, bytes) {
            write(reach, store);
        }
    }

    /// Some stores arrive at the other blocks of the device.
    pub(crate) fn drift(&mut self, reach: &mut Reach<'_>, random: &mut Random) {
        while let Some(store) = self.block.take_any(random) {
            arrive(self.device, reach, store);
        }
    }
}

/// Some stores that a device has seen arrive everywhere.
pub(crate) fn drift(device: &mut Pending, reach: &mut Reach<'_>, random: &mut Random) {
    while let Some(store) = device.take_any(random) {
        write(reach, store);
    }
}

/// All stores that a device has seen arrive everywhere.
pub(crate) fn flush(device: &mut Pending, reach: &mut Reach<'_>) {
    for store in device.take_all() {
        write(reach, store);
    }
}

/// A store arrives at all blocks of a device.
fn arrive(device: &mut Pending, reach: &mut Reach<'_>, store: Store) {
    if let Some(oldest) = device.push(store) {
        write(reach, oldest);
    }
}

fn write(reach: &mut Reach<'_>, store: Store) {
    // Memory that was unregistered meanwhile is nobody's any more.
    let _ = reach.store(0, store.address, store.bytes, store.value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Buffer, Memory, Words};

    #[test]
    fn a_block_sees_its_own_stores_at_once_and_nothing_else() {
        let mut pending = Pending::default();
        assert_eq!(pending.seen(64, 4, 9), 9);
        // That of 7 is in two words; that of 8 in one with the remainder of another.
        for (address, value) in [(64, 1), (32, 2), (96, 3), (134, 7), (64 + (8 << 12), 8), (64, 4)]
        {
            assert!(pending.push(Store { address, bytes: 4, value }).is_none());
        }
        let seen = [28, 32, 36, 60, 64, 68, 92, 96, 100].map(|at| pending.seen(at, 4, 9));
        assert_eq!(seen, [9, 2, 9, 9, 4, 9, 9, 3, 9]);
        assert_eq!(pending.seen(96, 8, 9 << 32), 9 << 32 | 3, "half of it");
        assert_eq!([128, 136].map(|at| pending.seen(at, 8, 0)), [7 << 48, 0], "some of it");
        assert_eq!(pending.take(4).value, 8);
        assert_eq!([64, 64 + (8 << 12)].map(|at| pending.seen(at, 4, 9)), [4, 9]);
        assert_eq!(pending.take_all().len(), 5);
        assert!(pending.in_words.iter().all(|count| *count == 0));
        assert!(pending.push(Store { address: 40, bytes: 8, value: 5 }).is_none());
        assert_eq!([32, 40, 64].map(|at| pending.seen(at, 8, 9)), [9, 5, 9]);
    }

    #[test]
    fn stores_at_one_place_arrive_in_their_order() {
        let memory = Memory::new();
        let buffer = Buffer::new(&memory, 8, 0);
        let (ranges, none, start) = (memory.ranges(), Words::new(0), buffer.address());
        let mut reach = Reach::registered(&ranges, &none);
        let (block, device) = (&mut Pending::default(), &mut Pending::default());
        let mut unseen = Unseen { block, device };
        unseen.push(&mut reach, start, 4, 1);
        unseen.push(&mut reach, start, 8, 2 << 32 | 2);
        unseen.push(&mut reach, start + 4, 4, 3);
        // The second has both halves, so the first goes before it.
        unseen.flush_at(&mut reach, start + 4, 4);
        unseen.order(&mut reach, Scope::System);
        assert_eq!(buffer.read(), [2, 0, 0, 0, 3, 0, 0, 0]);
    }
}
