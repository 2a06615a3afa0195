//! What the sender of a message writes into the memory of the peer's end, behind the message.
//!
//! | bytes | field |
//! |---|---|
//! | 0–7 | number of the message plus one, so that nothing is ever 0 |
//! | 8–11 | its length |
//! | 12–15 | its immediate |
//! | 16–19 | 1 if it has one |
//!
//! As many entries as the end has receives are enough: a message that takes the place of another one has found
//! a receive, so that one was reported.

use std::ops::Range;

use super::super::super::Memory;

pub(super) const ENTRY_BYTES: usize = 24;
/// Where the length is.
pub(super) const LENGTH: Range<usize> = 8..12;

/// What is known of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) bytes: u32,
    pub(super) immediate: Option<u32>,
}

impl Entry {
    /// Where that of a message lies, in a ledger of so many.
    pub(super) fn offset(number: u64, entries: u32) -> usize {
        let index = usize::try_from(number % u64::from(entries.max(1))).expect("less than entries");
        index * ENTRY_BYTES
    }

    pub(super) fn encode(self, number: u64) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
        bytes[LENGTH].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        bytes[16] = u8::from(self.immediate.is_some());
        bytes
    }

    /// That of a message, if it was written.
    pub(super) fn read(ledger: &Memory, number: u64) -> Option<Self> {
        let entries = u32::try_from(ledger.bytes() / ENTRY_BYTES).unwrap_or(u32::MAX);
        let mut bytes = [0; ENTRY_BYTES];
        ledger.read(Self::offset(number, entries), &mut bytes);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let written = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let immediate = (bytes[16] == 1).then(|| word(12));
        (written == number + 1).then(|| Self { bytes: word(LENGTH.start), immediate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_number_only() {
        let ledger = Memory::allocate(4 * ENTRY_BYTES).unwrap();
        assert_eq!(Entry::read(&ledger, 0), None);
        for (number, immediate) in [(6, None), (7, Some(0)), (8, Some(u32::MAX))] {
            let entry = Entry { bytes: 70_000, immediate };
            ledger.write(Entry::offset(number, 4), &entry.encode(number));
            assert_eq!(Entry::read(&ledger, number), Some(entry));
            assert_eq!(Entry::read(&ledger, number - 4), None);
            assert_eq!(Entry::read(&ledger, number + 4), None);
        }
    }
}
