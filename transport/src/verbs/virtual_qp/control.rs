//! Memory of a virtual queue pair through which its two ends manage it, one-sided.
//!
//! ```text
//!   for each rail: hello sent | hello received | mail received | mail sent | key table of the peer
//!   then: log of the peer | entries sent | own log as read | scratch of the atomics
//! ```
//!
//! Mail is a body and, written behind it, a stamp. The body begins and ends with the same number, so
//! a body that is being replaced is not taken for a message.

use ccl_core::failover::queue::atomic::MAX_CLIENTS;
use ccl_core::failover::queue::{MESSAGE_WORDS, Message};

use super::super::Memory;
use super::keys::TABLE_BYTES;
use crate::TransportError;

/// A hello as words.
pub(super) const HELLO_WORDS: usize = 14;
pub(super) const HELLO_BYTES: usize = HELLO_WORDS * WORD;
const MAGIC: u64 = u64::from_le_bytes(*b"r2ccl-v1");
pub(super) const WORD: usize = 8;
const BODY_WORDS: usize = MESSAGE_WORDS + 2;
pub(super) const BODY_BYTES: usize = BODY_WORDS * WORD;
const MAIL_BYTES: usize = BODY_BYTES + WORD;
const RAIL_BYTES: usize = 2 * HELLO_BYTES + 2 * MAIL_BYTES + TABLE_BYTES;
const SCRATCH_BYTES: usize = 6 * WORD;

/// How an end introduces itself on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Distinguishes the two ends: the one with the higher number leads.
    pub(super) identity: u64,
    pub(super) rail: u64,
    pub(super) evidence: u64,
    /// Key of the control memory, and addresses in it.
    pub(super) key: u64,
    pub(super) mail: u64,
    pub(super) log: u64,
    pub(super) log_entries: u64,
    pub(super) table_key: u64,
    pub(super) table: u64,
    pub(super) records_key: u64,
    pub(super) records: u64,
    pub(super) record_count: u64,
    /// Number of the peer among the clients of these records.
    pub(super) client: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> [u64; HELLO_WORDS] {
        [
            MAGIC,
            self.identity,
            self.rail,
            self.evidence,
            self.key,
            self.mail,
            self.log,
            self.log_entries,
            self.table_key,
            self.table,
            self.records_key,
            self.records,
            self.record_count,
            self.client,
        ]
    }

    /// What the peer sent, if it is a hello.
    pub(super) fn decode(words: [u64; HELLO_WORDS]) -> Option<Self> {
        let [magic, identity, rail, evidence, key, mail, log, log_entries, rest @ ..] = words;
        let [table_key, table, records_key, records, record_count, client] = rest;
        let is_client = client < record_count.min(MAX_CLIENTS);
        let fits = [key, table_key, records_key].iter().all(|&key| u32::try_from(key).is_ok());
        (magic == MAGIC && fits && is_client).then_some(Self {
            identity,
            rail,
            evidence,
            key,
            mail,
            log,
            log_entries,
            table_key,
            table,
            records_key,
            records,
            record_count,
            client,
        })
    }
}

/// Where things lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    rails: usize,
    /// Entries of the log; none with evidence that needs none.
    pub(super) entries: usize,
}

impl Layout {
    pub(super) fn new(rails: usize, entries: usize) -> Self {
        Self { rails, entries }
    }

    pub(super) fn allocate(self) -> Result<Memory, TransportError> {
        Memory::allocate(self.scratch() + SCRATCH_BYTES)
    }

    pub(super) fn hello_out(self, rail: usize) -> usize {
        rail * RAIL_BYTES
    }

    pub(super) fn hello_in(self, rail: usize) -> usize {
        self.hello_out(rail) + HELLO_BYTES
    }

    pub(super) fn mail_in(self, rail: usize) -> usize {
        self.hello_in(rail) + HELLO_BYTES
    }

    pub(super) fn mail_out(self, rail: usize) -> usize {
        self.mail_in(rail) + MAIL_BYTES
    }

    pub(super) fn table(self, rail: usize) -> usize {
        self.mail_out(rail) + MAIL_BYTES
    }

    pub(super) fn log(self) -> usize {
        self.rails * RAIL_BYTES
    }

    pub(super) fn entry_out(self, slot: usize) -> usize {
        self.log() + (self.entries + slot) * WORD
    }

    pub(super) fn log_read(self) -> usize {
        self.log() + 2 * self.entries * WORD
    }

    fn scratch(self) -> usize {
        self.log() + 3 * self.entries * WORD
    }

    /// The record that is written: value and status.
    pub(super) fn record_out(self) -> usize {
        self.scratch()
    }

    pub(super) fn record_in(self) -> usize {
        self.scratch() + 2 * WORD
    }

    /// The word as it was.
    pub(super) fn word_in(self) -> usize {
        self.scratch() + 4 * WORD
    }

    /// The status as it was, which nobody looks at.
    pub(super) fn status_in(self) -> usize {
        self.scratch() + 5 * WORD
    }
}

pub(super) fn store_words(memory: &Memory, offset: usize, words: &[u64]) {
    for (index, &word) in words.iter().enumerate() {
        memory.store(offset + index * WORD, word);
    }
}

pub(super) fn load_words<const N: usize>(memory: &Memory, offset: usize) -> [u64; N] {
    std::array::from_fn(|index| memory.load(offset + index * WORD))
}

/// Prepares message number `serial` to be written: the body, and the stamp behind it.
pub(super) fn write_mail(memory: &Memory, offset: usize, serial: u64, message: Message) {
    let [kind, first, second] = message.encode();
    store_words(memory, offset, &[serial, kind, first, second, serial, serial]);
}

/// The message that has arrived, if it is complete and newer than number `heard`. The inner `None` is
/// a message that no correct peer says.
pub(super) fn read_mail(
    memory: &Memory,
    offset: usize,
    heard: u64,
) -> Option<(u64, Option<Message>)> {
    let stamp = memory.load(offset + BODY_BYTES);
    if stamp == heard {
        return None;
    }
    let [first, kind, one, two, last]: [u64; BODY_WORDS] = load_words(memory, offset);
    (first == stamp && last == stamp).then(|| (stamp, Message::decode([kind, one, two])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let layout = Layout::new(3, 10);
        let memory = layout.allocate().unwrap();
        let mut places: Vec<(usize, usize)> = Vec::new();
        for rail in 0..3 {
            places.push((layout.hello_out(rail), HELLO_BYTES));
            places.push((layout.hello_in(rail), HELLO_BYTES));
            places.push((layout.mail_in(rail), MAIL_BYTES));
            places.push((layout.mail_out(rail), MAIL_BYTES));
            places.push((layout.table(rail), TABLE_BYTES));
        }
        places.push((layout.log(), 10 * WORD));
        places.push((layout.entry_out(0), 10 * WORD));
        places.push((layout.log_read(), 10 * WORD));
        places.push((layout.record_out(), 2 * WORD));
        places.push((layout.record_in(), 2 * WORD));
        places.extend([(layout.word_in(), WORD), (layout.status_in(), WORD)]);
        for pair in places.windows(2) {
            assert_eq!(pair[0].0 + pair[0].1, pair[1].0);
        }
        assert_eq!(layout.status_in() + WORD, memory.bytes());
        assert!(places.iter().all(|place| place.0.is_multiple_of(WORD)));
    }

    #[test]
    fn mail_that_is_being_replaced_is_not_taken() {
        let memory = Memory::allocate(100).unwrap();
        assert_eq!(read_mail(&memory, 0, 0), None);
        write_mail(&memory, 0, 1, Message::Return(7));
        assert_eq!(read_mail(&memory, 0, 0), Some((1, Some(Message::Return(7)))));
        assert_eq!(read_mail(&memory, 0, 1), None);
        memory.store(0, 2);
        assert_eq!(read_mail(&memory, 0, 0), None);
        write_mail(&memory, 0, 2, Message::Stay(7));
        assert_eq!(read_mail(&memory, 0, 1), Some((2, Some(Message::Stay(7)))));
    }

    #[test]
    fn a_hello_survives_the_journey_and_nothing_else_is_one() {
        let words: [u64; HELLO_WORDS] = std::array::from_fn(|index| match index {
            0 => MAGIC,
            _ => 20 - index as u64,
        });
        let hello = Hello::decode(words).unwrap();
        assert_eq!(hello.encode(), words);
        for (index, lie) in [(0, 1), (4, 1 << 32), (13, 99)] {
            let mut words = words;
            words[index] = lie;
            assert_eq!(Hello::decode(words), None);
        }
    }
}
