//! What ranks write in front of their data, and how it is checked.

use crate::collective::{Collective, Signature};

/// Identifies the call a tile belongs to: its place in the sequence of calls of the communicator,
/// and everything on which ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Position in the sequence of calls of the communicator; wraps.
    pub sequence: u32,
    /// What was called.
    pub signature: Signature,
}

/// Encoded size of a [`Stamp`], in bytes.
pub const STAMP_BYTES: usize = 24;

/// A stamp as it stands on the wire. Two stamps are equal if and only if these bytes are.
pub type EncodedStamp = [u8; STAMP_BYTES];

impl Stamp {
    /// The stamp as it stands on the wire, little-endian.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> EncodedStamp {
        let mut bytes = [0; STAMP_BYTES];
        bytes[0..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4] = self.signature.collective as u8;
        bytes[5] = self.signature.datatype;
        bytes[6] = self.signature.reduction;
        bytes[8..12].copy_from_slice(&self.signature.root.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.signature.count.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.signature.plan.to_le_bytes());
        bytes
    }

    /// Reads a stamp; `None` if no correct rank wrote it.
    #[must_use]
    pub fn decode(bytes: &EncodedStamp) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let count = u64::from(word(12)) | u64::from(word(16)) << 32;
        Some(Self {
            sequence: word(0),
            signature: Signature {
                collective: Collective::from_number(bytes[4])?,
                datatype: bytes[5],
                reduction: bytes[6],
                root: word(8),
                count,
                plan: word(20),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stamp_survives_the_wire(sequence: u32, kind in 0u8..11, datatype: u8, reduction: u8, root: u32, count: u64, plan: u32) {
            let collective = Collective::from_number(kind).unwrap();
            let stamp = Stamp { sequence, signature: Signature { collective, datatype, reduction, root, count, plan } };
            prop_assert_eq!(Stamp::decode(&stamp.encode()), Some(stamp));
        }
    }

    #[test]
    fn an_unknown_collective_is_refused() {
        let mut bytes = [0; STAMP_BYTES];
        bytes[4] = 200;
        assert_eq!(Stamp::decode(&bytes), None);
    }
}
