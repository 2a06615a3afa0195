//! What goes over the connection: a header of fixed size, then the payload if the kind has one.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | magic |
//! | 1 | kind |
//! | 2 | whether it has a rider |
//! | 3 | zero |
//! | 4–7 | length: of the payload, or of what is to be read |
//! | 8–11 | key of the region named |
//! | 12–15 | immediate |
//! | 16–23 | address named |
//! | 24–31 | operations of the other end executed so far |
//! | 32–47 | two operands of an atomic; the first one also carries its result, or the refusal |
//!
//! A *rider* is a write of eight bytes that was posted behind a message or a write in the same list, as entries of
//! logs are. It has no frame of its own: its key travels as the immediate, its address and its bytes as the operands
//! of the operation before it, after which it is executed.

use super::super::{Operation, RemoteAddress, RemoteKey};
use super::domain::Span;

pub(super) const HEADER_BYTES: usize = 48;

/// Bytes of a rider.
pub(super) const RIDER_BYTES: usize = 8;

const MAGIC: u8 = 0xc7;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Send = 1,
    Write = 2,
    WriteWithImmediate = 3,
    Read = 4,
    CompareAndSwap = 5,
    FetchAdd = 6,
    /// Answers `Read`; the payload is what was read.
    ReadResponse = 7,
    /// Answers an atomic.
    AtomicResponse = 8,
    /// Only says how much was executed.
    Acknowledge = 9,
    /// The operation after those executed was refused; nothing follows.
    Refuse = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Send,
        Self::Write,
        Self::WriteWithImmediate,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAdd,
        Self::ReadResponse,
        Self::AtomicResponse,
        Self::Acknowledge,
        Self::Refuse,
    ];

    fn from_number(number: u8) -> Option<Self> {
        usize::from(number).checked_sub(1).and_then(|index| Self::ALL.get(index).copied())
    }

    /// Whether the other end counts it as an operation executed.
    pub(super) fn is_operation(self) -> bool {
        match self {
            Self::Send
            | Self::Write
            | Self::WriteWithImmediate
            | Self::Read
            | Self::CompareAndSwap
            | Self::FetchAdd => true,
            Self::ReadResponse | Self::AtomicResponse | Self::Acknowledge | Self::Refuse => false,
        }
    }
}

/// A header, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) length: u32,
    pub(super) remote: RemoteAddress,
    pub(super) immediate: u32,
    pub(super) acknowledged: u64,
    pub(super) operands: [u64; 2],
    pub(super) has_rider: bool,
}

/// A write of a word that travels with another operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rider {
    pub(super) target: RemoteAddress,
    pub(super) word: [u8; RIDER_BYTES],
}

impl Rider {
    /// Mounts it on a frame whose header was encoded; tells whether that takes one.
    pub(super) fn mount(&self, header: &mut [u8; HEADER_BYTES]) -> bool {
        let takes_one = [Kind::Send, Kind::Write].iter().any(|&kind| header[1] == kind as u8);
        let is_free = takes_one && header[2] == 0;
        if is_free {
            header[2] = 1;
            header[12..16].copy_from_slice(&self.target.key.0.to_le_bytes());
            header[32..40].copy_from_slice(&self.target.address.to_le_bytes());
            header[40..48].copy_from_slice(&self.word);
        }
        is_free
    }
}

impl Header {
    /// A header with everything else zero.
    pub(super) fn new(kind: Kind, length: usize) -> Self {
        Self {
            kind,
            length: u32::try_from(length).expect("operations are shorter than 4 GiB"),
            remote: RemoteAddress { key: RemoteKey(0), address: 0 },
            immediate: 0,
            acknowledged: 0,
            operands: [0; 2],
            has_rider: false,
        }
    }

    /// What is executed after it.
    pub(super) fn rider(&self) -> Option<Rider> {
        let [address, word] = self.operands;
        let target = RemoteAddress { key: RemoteKey(self.immediate), address };
        self.has_rider.then_some(Rider { target, word: word.to_le_bytes() })
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = self.kind as u8;
        bytes[2] = u8::from(self.has_rider);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.remote.key.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.immediate.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.remote.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.operands[0].to_le_bytes());
        bytes[40..48].copy_from_slice(&self.operands[1].to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if no correct peer wrote it.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kind = Kind::from_number(bytes[1])?;
        let has_rider = match bytes[2..4] {
            [0, 0] => false,
            [1, 0] if matches!(kind, Kind::Send | Kind::Write) => true,
            _ => return None,
        };
        if bytes[0] != MAGIC {
            return None;
        }
        Some(Self {
            kind,
            length: half(4),
            remote: RemoteAddress { key: RemoteKey(half(8)), address: word(16) },
            immediate: half(12),
            acknowledged: word(24),
            operands: [word(32), word(40)],
            has_rider,
        })
    }
}

/// The header of an operation on `span`, and the payload behind it.
pub(super) fn frame(operation: Operation, span: Span) -> (Header, Option<Span>) {
    let header = |kind, remote| Header { remote, ..Header::new(kind, span.bytes) };
    match operation {
        Operation::Send { .. } => (Header::new(Kind::Send, span.bytes), Some(span)),
        Operation::Write { target, .. } => (header(Kind::Write, target), Some(span)),
        Operation::WriteWithImmediate { target, immediate, .. } => {
            (Header { immediate, ..header(Kind::WriteWithImmediate, target) }, Some(span))
        }
        Operation::Read { source, .. } => (header(Kind::Read, source), None),
        Operation::CompareAndSwap { target, expected, new, .. } => {
            let operands = [expected, new];
            (Header { operands, ..header(Kind::CompareAndSwap, target) }, None)
        }
        Operation::FetchAdd { target, addend, .. } => {
            (Header { operands: [addend, 0], ..header(Kind::FetchAdd, target) }, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_survives_the_wire(
            kind in 0usize..10,
            length: u32,
            key: u32,
            address: u64,
            immediate: u32,
            acknowledged: u64,
            operands: [u64; 2],
        ) {
            let remote = RemoteAddress { key: RemoteKey(key), address };
            let kind = Kind::ALL[kind];
            let has_rider = false;
            let header =
                Header { kind, length, remote, immediate, acknowledged, operands, has_rider };
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes), Some(header));
            let rider = Rider { target: remote, word: acknowledged.to_le_bytes() };
            if rider.mount(&mut bytes) {
                prop_assert!(matches!(kind, Kind::Send | Kind::Write));
                prop_assert_eq!(Header::decode(&bytes).unwrap().rider(), Some(rider));
                prop_assert!(!rider.mount(&mut bytes), "one at a time");
            }
        }
    }

    #[test]
    fn noise_is_not_a_header() {
        let good = Header::new(Kind::Refuse, 3).encode();
        for (at, value) in [(0, 0), (1, 0), (1, 11), (1, 255), (2, 1), (3, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Header::decode(&bytes), None, "byte {at} = {value}");
        }
    }
}
