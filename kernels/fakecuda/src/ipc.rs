//! Handles with which other processes of the same user find memory and events.
//!
//! What they name is a file without a name, open in the process that made it: nothing is left when
//! the last process has ended, however it ended.

use std::os::fd::{AsFd, OwnedFd, RawFd};

use crate::codes::{Code, Result};
use crate::outside;

/// Bytes of a handle in C.
pub(crate) const HANDLE_BYTES: usize = 64;

const MAGIC: u32 = 0x7232_6363;

/// As it is passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawHandle([u8; HANDLE_BYTES]);

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) process: u32,
    pub(crate) device: u32,
    descriptor: u32,
    pub(crate) bytes: u64,
    pub(crate) identity: u64,
}

impl Handle {
    pub(crate) fn of(
        file: impl AsFd,
        descriptor: RawFd,
        bytes: usize,
        device: usize,
    ) -> Result<Self> {
        Ok(Self {
            process: std::process::id(),
            device: device as u32,
            descriptor: descriptor as u32,
            bytes: bytes as u64,
            identity: outside::identity(file)?,
        })
    }

    /// The file, unless it is of this process, which must not open what it has itself.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        if self.process == std::process::id() {
            return Err(Code::InvalidContext);
        }
        outside::file_of(self.process, self.descriptor, self.identity)
    }
}

impl From<Handle> for RawHandle {
    fn from(handle: Handle) -> Self {
        let words = [MAGIC, handle.process, handle.device, handle.descriptor];
        let longs = [handle.bytes, handle.identity];
        let mut raw = [0; HANDLE_BYTES];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        let bytes = bytes.chain(longs.iter().flat_map(|long| long.to_le_bytes()));
        raw.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        Self(raw)
    }
}

impl TryFrom<RawHandle> for Handle {
    type Error = Code;

    fn try_from(RawHandle(raw): RawHandle) -> Result<Self> {
        let number = |from: usize, bytes: usize| {
            raw[from..from + bytes].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
        };
        if number(0, 4) != u64::from(MAGIC) {
            return Err(Code::InvalidValue);
        }
        let word = |index: usize| number(4 * index, 4) as u32;
        Ok(Self {
            process: word(1),
            device: word(2),
            descriptor: word(3),
            bytes: number(16, 8),
            identity: number(24, 8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_bytes() {
        let handle =
            Handle { process: 7, device: 1, descriptor: 9, bytes: 1 << 40, identity: 0x1234_5678 };
        assert_eq!(Handle::try_from(RawHandle::from(handle)), Ok(handle));
        assert_eq!(Handle::try_from(RawHandle([0; 64])), Err(Code::InvalidValue));
        let own = Handle { process: std::process::id(), ..handle };
        assert_eq!(own.open().map(drop), Err(Code::InvalidContext));
    }
}
