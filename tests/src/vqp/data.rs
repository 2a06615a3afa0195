//! What operations carry, so that every byte that arrives can be checked.
//!
//! Operation number `n` (from 1) of a queue pair lies in slot `n % slots` of its memory. The bytes of a
//! slot are drawn from the number of the queue pair and of the slot; the first and the last word are the
//! number of the operation.

use ccl::vqp::Memory;

/// Bytes of a stamp, where there is room for it.
const STAMP: usize = 8;

/// Where one queue pair has its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The queue pair.
    pub pair: usize,
    /// Where they begin.
    pub start: usize,
    /// Bytes of an operation.
    pub bytes: usize,
    /// How many there are.
    pub count: usize,
}

impl Slots {
    /// The slot of an operation.
    #[must_use]
    pub fn of(&self, number: u64) -> usize {
        usize::try_from(number % self.count as u64).unwrap_or(0)
    }

    /// Where a slot begins.
    #[must_use]
    pub fn offset(&self, slot: usize) -> usize {
        self.start + slot * self.bytes
    }

    /// Puts the bytes of all slots into memory, as of the operation with the number of the slot.
    pub fn fill(&self, memory: &Memory) {
        for slot in 0..self.count {
            memory.write(self.offset(slot), &self.expected(slot, slot as u64));
        }
    }

    /// Makes sure that nothing of an earlier row is taken for something of this one.
    pub fn clear(&self, memory: &Memory) {
        memory.write(self.start, &vec![0; self.bytes * self.count]);
    }

    /// Writes the stamp of an operation into its slot.
    pub fn stamp(&self, memory: &Memory, number: u64) {
        let (offset, width) = (self.offset(self.of(number)), self.width());
        let stamp = number.to_le_bytes();
        memory.write(offset, &stamp[..width]);
        memory.write(offset + self.bytes - width, &stamp[..width]);
    }

    /// Removes the stamp of an operation, so that its arrival shows.
    pub fn unstamp(&self, memory: &Memory, number: u64) {
        let offset = self.offset(self.of(number));
        memory.write(offset, &[0xff; STAMP][..self.width()]);
    }

    /// The number of the operation whose bytes begin at `offset`, as far as they tell.
    #[must_use]
    pub fn first_stamp(&self, memory: &Memory, offset: usize) -> u64 {
        let mut stamp = [0; STAMP];
        memory.read(offset, &mut stamp[..self.width()]);
        u64::from_le_bytes(stamp)
    }

    /// Whether operation `number` has come, to its last byte, where there is one slot.
    #[must_use]
    pub fn has_arrived(&self, memory: &Memory, number: u64) -> bool {
        let tail = self.start + self.bytes - self.width();
        let stamp = self.truncated(number);
        self.first_stamp(memory, tail) == stamp && self.first_stamp(memory, self.start) == stamp
    }

    /// As much of a number as a stamp holds.
    #[must_use]
    pub fn truncated(&self, number: u64) -> u64 {
        let mut stamp = [0; STAMP];
        stamp[..self.width()].copy_from_slice(&number.to_le_bytes()[..self.width()]);
        u64::from_le_bytes(stamp)
    }

    /// Whether the bytes at `offset` are those of operation `number`, in slot `slot`.
    #[must_use]
    pub fn is_right(&self, memory: &Memory, offset: usize, (slot, number): (usize, u64)) -> bool {
        *memory.lock().bytes(offset..offset + self.bytes) == *self.expected(slot, number)
    }

    /// How many slots do not hold the last of `count` operations in them, first of which is number 1.
    #[must_use]
    pub fn wrong(&self, memory: &Memory, count: u64) -> usize {
        let last = |slot: usize| {
            let back = (count + self.count as u64 - slot as u64) % self.count as u64;
            count.checked_sub(back).filter(|number| *number > 0)
        };
        let is_wrong = |slot: &usize| {
            last(*slot)
                .is_some_and(|number| !self.is_right(memory, self.offset(*slot), (*slot, number)))
        };
        (0..self.count).filter(is_wrong).count()
    }

    fn width(&self) -> usize {
        self.bytes.min(STAMP)
    }

    fn expected(&self, slot: usize, number: u64) -> Vec<u8> {
        let mut bytes = body((self.pair as u64) << 32 | slot as u64, self.bytes);
        let (stamp, width) = (number.to_le_bytes(), self.width());
        let tail = self.bytes - width;
        bytes[..width].copy_from_slice(&stamp[..width]);
        bytes[tail..].copy_from_slice(&stamp[..width]);
        bytes
    }
}

/// Bytes drawn from a seed.
fn body(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    let mut drawn: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    drawn.truncate(bytes);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(slots: &Slots) -> Memory {
        Memory::allocate(slots.start + slots.bytes * slots.count).unwrap()
    }

    #[test]
    fn the_last_operations_are_expected_and_nothing_else() {
        for bytes in [1, 2, 7, 8, 9, 15, 16, 17, 100] {
            let slots = Slots { pair: 3, start: 40, bytes, count: 4 };
            let memory = memory(&slots);
            slots.fill(&memory);
            for number in 1..=6 {
                slots.stamp(&memory, number);
            }
            assert_eq!(slots.wrong(&memory, 6), 0, "{bytes} bytes");
            assert_eq!(slots.wrong(&memory, 7), 1, "{bytes} bytes: number 7 has not come");
            let damaged = slots.offset(2) + bytes / 2;
            let mut byte = [0];
            memory.read(damaged, &mut byte);
            memory.write(damaged, &[!byte[0]]);
            assert_eq!(slots.wrong(&memory, 6), 1, "{bytes} bytes");
        }
    }

    #[test]
    fn slots_that_were_not_used_are_not_looked_at() {
        let slots = Slots { pair: 0, start: 0, bytes: 16, count: 8 };
        let memory = memory(&slots);
        assert_eq!(slots.wrong(&memory, 0), 0);
        assert_eq!(slots.wrong(&memory, 3), 3);
        slots.fill(&memory);
        slots.unstamp(&memory, 2);
        assert_eq!(slots.wrong(&memory, 3), 1);
        assert_ne!(slots.first_stamp(&memory, slots.offset(2)), 2);
    }
}
