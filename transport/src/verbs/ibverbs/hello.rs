//! What two ends tell each other over the connection beside the queue pair.
//!
//! Each says a [`Hello`], from which the other learns where to send. When an end can receive it says that
//! it is ready, because what arrives before that is lost, and lost packets look like a dead peer. The last
//! thing, before it closes the connection, is why it stops. Every message has the same size.
//!
//! | bytes | field of a hello |
//! |---|---|
//! | 0–7 | magic and version |
//! | 8 | kind of message |
//! | 9 | largest packets, as in the header of libibverbs |
//! | 10 | 1 on Ethernet |
//! | 11 | 1 if atomics work |
//! | 12, 13 | reads and atomics at a time that it answers, and that it asks for |
//! | 14–15 | local identifier of the port, on InfiniBand |
//! | 16–19 | number of the queue pair; 0 of an end that is dynamic |
//! | 20–23 | number of its first packet |
//! | 24–39 | address of the port |
//! | 40–43 | number of a dynamic target; 0 if there is none |
//! | 44–51 | its key |
//! | 52–55 | key of its ledger |
//! | 56–59 | entries of the ledger |
//!
//! A farewell has its reason in byte 9.

use super::sys::{Gid, TargetAddress};

pub(super) const MESSAGE_BYTES: usize = 60;
const MAGIC: [u8; 8] = *b"r2ccl-i2";
/// Numbers of queue pairs and packets have 24 bits.
const LIMIT: u32 = 1 << 24;
const MTUS: std::ops::RangeInclusive<u8> = 1..=5;

/// How an end introduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) mtu: u8,
    pub(super) is_ethernet: bool,
    pub(super) has_atomics: bool,
    pub(super) reads_answered: u8,
    pub(super) reads_asked: u8,
    pub(super) lid: u16,
    pub(super) number: u32,
    pub(super) packet: u32,
    pub(super) gid: Gid,
    /// Of a dynamic end, which has no other number.
    pub(super) target: Option<TargetAddress>,
}

/// Why an end stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Its owner wants it.
    Fenced,
    /// This end refused what the other asked for, or was refused.
    Refused,
    /// The connection is lost, as this end sees it.
    Lost,
    /// The device took the queue pair to its error state and did not say why.
    Unexplained,
}

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Hello(Hello),
    Ready,
    Farewell(Farewell),
}

const FAREWELLS: [Farewell; 4] =
    [Farewell::Fenced, Farewell::Refused, Farewell::Lost, Farewell::Unexplained];

impl Message {
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        match self {
            Self::Hello(hello) => {
                bytes[8] = 1;
                hello.write(&mut bytes);
            }
            Self::Ready => bytes[8] = 2,
            Self::Farewell(reason) => (bytes[8], bytes[9]) = (3, *reason as u8),
        }
        bytes
    }

    /// Reads a message; `None` if no correct peer wrote it.
    pub(super) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        if bytes[..8] != MAGIC {
            return None;
        }
        match bytes[8] {
            1 => Hello::read(bytes).map(Self::Hello),
            2 => Some(Self::Ready),
            3 => FAREWELLS.get(usize::from(bytes[9])).copied().map(Self::Farewell),
            _ => None,
        }
    }
}

impl Hello {
    fn write(&self, bytes: &mut [u8; MESSAGE_BYTES]) {
        bytes[9] = self.mtu;
        bytes[10] = u8::from(self.is_ethernet);
        bytes[11] = u8::from(self.has_atomics);
        bytes[12] = self.reads_answered;
        bytes[13] = self.reads_asked;
        bytes[14..16].copy_from_slice(&self.lid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.packet.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.gid);
        if let Some(target) = &self.target {
            bytes[40..44].copy_from_slice(&target.number.to_le_bytes());
            bytes[44..52].copy_from_slice(&target.key.to_le_bytes());
            bytes[52..56].copy_from_slice(&target.ledger.to_le_bytes());
            bytes[56..60].copy_from_slice(&target.entries.to_le_bytes());
        }
    }

    fn read(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let target = TargetAddress {
            number: number(40),
            key: u64::from_le_bytes(bytes[44..52].try_into().expect("8 bytes")),
            ledger: number(52),
            entries: number(56),
        };
        let hello = Self {
            mtu: bytes[9],
            is_ethernet: bytes[10] == 1,
            has_atomics: bytes[11] == 1,
            reads_answered: bytes[12],
            reads_asked: bytes[13],
            lid: u16::from_le_bytes([bytes[14], bytes[15]]),
            number: number(16),
            packet: number(20),
            gid: bytes[24..40].try_into().expect("16 bytes"),
            target: (target.number != 0).then_some(target),
        };
        let is_addressed = match hello.target {
            None => (1..LIMIT).contains(&hello.number),
            Some(target) => hello.number == 0 && target.number < LIMIT && target.entries > 0,
        };
        let is_reachable = if hello.is_ethernet { hello.gid != [0; 16] } else { hello.lid != 0 };
        let is_sound = bytes[10] <= 1
            && bytes[11] <= 1
            && MTUS.contains(&hello.mtu)
            && is_addressed
            && hello.packet < LIMIT;
        (is_sound && is_reachable).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HELLO: Hello = Hello {
        mtu: 3,
        is_ethernet: true,
        has_atomics: true,
        reads_answered: 16,
        reads_asked: 8,
        lid: 0,
        number: 17,
        packet: 0xff_ffff,
        gid: [7; 16],
        target: None,
    };
    const TARGET: TargetAddress =
        TargetAddress { number: 18, key: u64::MAX - 1, ledger: 19, entries: 65 };

    #[test]
    fn messages_survive_the_journey() {
        let infiniband = Hello { is_ethernet: false, lid: 0x1234, gid: [0; 16], ..HELLO };
        let dynamic = Hello { number: 0, target: Some(TARGET), ..HELLO };
        let farewells = FAREWELLS.map(Message::Farewell);
        let hellos = [HELLO, infiniband, dynamic].map(Message::Hello);
        let messages = hellos.into_iter().chain([Message::Ready]);
        for message in messages.into_iter().chain(farewells) {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn values_that_no_correct_end_has_are_refused() {
        let lies = [
            Hello { mtu: 0, ..HELLO },
            Hello { mtu: 6, ..HELLO },
            Hello { number: 0, ..HELLO },
            Hello { number: 1 << 24, ..HELLO },
            Hello { packet: 1 << 24, ..HELLO },
            Hello { gid: [0; 16], ..HELLO },
            Hello { is_ethernet: false, ..HELLO },
            Hello { target: Some(TARGET), ..HELLO },
            Hello { number: 0, target: Some(TargetAddress { number: 1 << 24, ..TARGET }), ..HELLO },
            Hello { number: 0, target: Some(TargetAddress { entries: 0, ..TARGET }), ..HELLO },
        ];
        for lie in lies {
            assert_eq!(Message::decode(&Message::Hello(lie).encode()), None, "{lie:?}");
        }
        let good = Message::Hello(HELLO).encode();
        for (at, value) in [(0, 0), (7, b'0'), (8, 0), (8, 4), (10, 2), (11, 2)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Message::decode(&bytes), None, "byte {at} = {value}");
        }
        let mut farewell = Message::Farewell(Farewell::Lost).encode();
        farewell[9] = 4;
        assert_eq!(Message::decode(&farewell), None);
    }

    proptest! {
        #[test]
        fn whatever_is_read_can_be_written(bytes: [u8; MESSAGE_BYTES]) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8] %= 5;
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }
    }
}
