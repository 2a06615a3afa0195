//! What is said first on a connection.

use ccl_core::ids::Rank;

use super::super::medium::Medium;

const HELLO_BYTES: usize = 28;

/// What the connecting end says about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Hello {
    pub(in super::super) communicator: u64,
    pub(in super::super) from: Rank,
    pub(in super::super) to: Rank,
    /// Which of the connections between the two.
    pub(in super::super) index: u32,
    /// How often that connection has been replaced, or a higher number.
    pub(in super::super) incarnation: u32,
    /// What it carries tiles with.
    pub(in super::super) medium: Medium,
}

impl Hello {
    pub(in super::super) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&self.communicator.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.index.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.medium.encode().to_le_bytes());
        bytes
    }

    pub(in super::super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let communicator = u64::from(half(0)) | u64::from(half(4)) << 32;
        let (from, to) = (Rank(half(8)), Rank(half(12)));
        let medium = Medium::decode(half(24))?;
        Some(Self { communicator, from, to, index: half(16), incarnation: half(20), medium })
    }
}
