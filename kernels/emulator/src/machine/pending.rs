//! Stores that other blocks do not see yet.
//!
//! The memory model of PTX promises nothing about when and in which order ordinary stores arrive
//! elsewhere. Here the threads of a block see each other's stores at once; others see them in any
//! order, one by one, or all of them when a thread of the block executes a fence or a release. So a
//! flag can overtake data unless something orders them. Loads are never stale.

use ccl_core::random::Random;

use crate::memory::Reach;

/// Stores that wait at most; then the oldest arrives.
const MOST: usize = 512;
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
}

/// The stores of a block that wait, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pending(Vec<Store>);

impl Pending {
    /// A store of up to 8 bytes, which the block may make.
    pub(crate) fn push(&mut self, reach: &mut Reach<'_>, address: u64, bytes: usize, value: u64) {
        self.0.push(Store { address, bytes, value });
        if self.0.len() > MOST {
            self.arrive(reach, 0);
        }
    }

    /// What the block sees where memory holds `value`.
    pub(crate) fn seen(&self, address: u64, bytes: usize, value: u64) -> u64 {
        let mut seen = value.to_le_bytes();
        for store in self.0.iter().filter(|store| store.overlaps(address, bytes)) {
            for (index, byte) in store.value.to_le_bytes()[..store.bytes].iter().enumerate() {
                let place = (store.address + index as u64).wrapping_sub(address);
                if place < bytes as u64 {
                    seen[place as usize] = *byte;
                }
            }
        }
        u64::from_le_bytes(seen)
    }

    /// Everything arrives.
    pub(crate) fn flush(&mut self, reach: &mut Reach<'_>) {
        for store in std::mem::take(&mut self.0) {
            write(reach, store);
        }
    }

    /// Everything arrives that an access of these bytes would meet.
    pub(crate) fn flush_at(&mut self, reach: &mut Reach<'_>, address: u64, bytes: usize) {
        while let Some(index) = self.0.iter().position(|store| store.overlaps(address, bytes)) {
            self.arrive(reach, index);
        }
    }

    /// Some stores arrive, in any order but that of one place.
    pub(crate) fn drift(&mut self, reach: &mut Reach<'_>, random: &mut Random) {
        while !self.0.is_empty() && !random.percent(DELAY_PERCENT) {
            let drawn = random.index(self.0.len());
            let Store { address, bytes, .. } = self.0[drawn];
            let first = self.0.iter().position(|store| store.overlaps(address, bytes));
            self.arrive(reach, first.unwrap_or(drawn));
        }
    }

    fn arrive(&mut self, reach: &mut Reach<'_>, index: usize) {
        write(reach, self.0.remove(index));
    }
}

fn write(reach: &mut Reach<'_>, store: Store) {
    // Memory that was unregistered meanwhile is nobody's any more.
    let _ = reach.store(0, store.address, store.bytes, store.value);
}
