//! How a loan is written into a slot.

use crate::Loan;
use crate::shm::{COOKIE_BYTES, SegmentAddress};

/// Description of a loan: process, descriptor, cookie, offset and length.
pub(crate) const LOAN_BYTES: usize = 8 + COOKIE_BYTES + 16;

pub(crate) fn encode(loan: &Loan) -> [u8; LOAN_BYTES] {
    let mut bytes = [0; LOAN_BYTES];
    let SegmentAddress { pid, descriptor, cookie } = loan.segment;
    bytes[0..4].copy_from_slice(&pid.to_le_bytes());
    bytes[4..8].copy_from_slice(&descriptor.to_le_bytes());
    bytes[8..24].copy_from_slice(&cookie);
    bytes[24..32].copy_from_slice(&(loan.offset as u64).to_le_bytes());
    bytes[32..40].copy_from_slice(&(loan.bytes as u64).to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Loan> {
    let bytes: &[u8; LOAN_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| bytes[at..at + 4].try_into().ok();
    let long = |at: usize| {
        let value = bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes)?;
        usize::try_from(value).ok()
    };
    let segment = SegmentAddress {
        pid: u32::from_le_bytes(word(0)?),
        descriptor: i32::from_le_bytes(word(4)?),
        cookie: bytes[8..24].try_into().ok()?,
    };
    Some(Loan { segment, offset: long(24)?, bytes: long(32)? })
}
