//! What the two ends of a queue say to each other about its rails.

use super::{MAX_EPOCH, Sequence};
use crate::ids::Epoch;

/// A message, said over a rail. A newer one on the same rail replaces one that was not heard yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Of the follower: the rail of this epoch has failed here.
    Suspect(Epoch),
    /// Of the leader: its old rail is fenced, and this epoch goes on with the rail that says so.
    Resume {
        /// The new epoch.
        epoch: Epoch,
        /// Messages that have filled a receive of this end, ever.
        delivered: u64,
    },
    /// Of the follower: its old rail is fenced too.
    Accept {
        /// The epoch of the `Resume`.
        epoch: Epoch,
        /// Messages that have filled a receive of this end, ever.
        delivered: u64,
    },
    /// Of the leader: complete what is outstanding, and withhold what comes then.
    Return(u64),
    /// Of the follower: nothing is outstanding, in this round of the return.
    Drained(u64),
    /// Of the leader: this round of the return is given up.
    Stay(u64),
}

/// A message as words.
pub const MESSAGE_WORDS: usize = 3;

impl Message {
    /// As words.
    #[must_use]
    pub fn encode(self) -> [u64; MESSAGE_WORDS] {
        match self {
            Self::Suspect(epoch) => [1, u64::from(epoch.0), 0],
            Self::Resume { epoch, delivered } => [2, u64::from(epoch.0), delivered],
            Self::Accept { epoch, delivered } => [3, u64::from(epoch.0), delivered],
            Self::Return(round) => [4, round, 0],
            Self::Drained(round) => [5, round, 0],
            Self::Stay(round) => [6, round, 0],
        }
    }

    /// From the words of the peer; `None` if they are no message.
    #[must_use]
    pub fn decode([kind, first, second]: [u64; MESSAGE_WORDS]) -> Option<Self> {
        let epoch = || u32::try_from(first).ok().filter(|&epoch| epoch <= MAX_EPOCH).map(Epoch);
        match kind {
            1 => epoch().map(Self::Suspect),
            2 => Some(Self::Resume { epoch: epoch()?, delivered: second }),
            3 => Some(Self::Accept { epoch: epoch()?, delivered: second }),
            4 => Some(Self::Return(first)),
            5 => Some(Self::Drained(first)),
            6 => Some(Self::Stay(first)),
            _ => None,
        }
    }
}

/// What is written into the completion log of the peer behind a request: 16 bits of epoch and 48 of
/// sequence. Both only grow, and a queue ends before either is used up, so an entry is never taken
/// for a later one. Zero, which no request has, is an empty entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry(pub u64);

const SEQUENCE_BITS: u32 = 48;

impl LogEntry {
    /// The last request that an entry can name.
    pub const MAX_SEQUENCE: Sequence = Sequence((1 << SEQUENCE_BITS) - 2);

    /// The entry of a request posted in an epoch.
    ///
    /// # Panics
    /// Either is beyond what an entry holds.
    #[must_use]
    pub fn new(epoch: Epoch, sequence: Sequence) -> Self {
        let number = sequence.0 + 1;
        assert!(epoch.0 <= MAX_EPOCH && number >> SEQUENCE_BITS == 0, "{epoch:?} {sequence:?}");
        Self(u64::from(epoch.0) << SEQUENCE_BITS | number)
    }

    /// The request it is about, if it was posted in this epoch or before.
    #[must_use]
    pub fn sequence(self, newest: Epoch) -> Option<Sequence> {
        let number = self.0 & ((1 << SEQUENCE_BITS) - 1);
        let is_known = self.0 >> SEQUENCE_BITS <= u64::from(newest.0);
        (is_known && number > 0).then(|| Sequence(number - 1))
    }

    /// Where in a log of so many entries it lies.
    #[must_use]
    pub fn slot(sequence: Sequence, entries: u64) -> u64 {
        sequence.0 % entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let epoch = Epoch(MAX_EPOCH);
        let messages = [
            Message::Suspect(epoch),
            Message::Resume { epoch, delivered: u64::MAX },
            Message::Accept { epoch, delivered: 0 },
            Message::Return(1),
            Message::Drained(2),
            Message::Stay(3),
        ];
        for message in messages {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        for words in [[0, 0, 0], [7, 0, 0], [2, u64::from(MAX_EPOCH) + 1, 0]] {
            assert_eq!(Message::decode(words), None);
        }
    }

    #[test]
    fn an_entry_names_its_request_and_no_other() {
        for sequence in [Sequence(0), Sequence(77), LogEntry::MAX_SEQUENCE] {
            let entry = LogEntry::new(Epoch(9), sequence);
            assert_eq!(entry.sequence(Epoch(9)), Some(sequence));
            assert_eq!(entry.sequence(Epoch(8)), None);
            assert_eq!(LogEntry::slot(sequence, 64), sequence.0 % 64);
        }
        assert_eq!(LogEntry(0).sequence(Epoch(MAX_EPOCH)), None);
    }
}
