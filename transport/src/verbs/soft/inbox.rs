//! The read-ahead: small frames cost one read together, large payloads bypass it.

use std::io::{self, IoSliceMut, Read};
use std::net::TcpStream;

use super::frame::HEADER_BYTES;

/// What is read ahead while no payload is under way: a tile of 16 KiB comes with one read. More than this of a payload is never
/// copied twice.
const READ_AHEAD_BYTES: usize = 20 << 10;
/// What is read ahead behind a payload, which may be one of many large ones.
const READ_BEHIND_BYTES: usize = 8 << 10;

/// What one read from the socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Nothing is there.
    Empty,
    /// The peer closed.
    Closed,
    /// So many bytes came, the first `direct` of them into the target; `more` if there may be others.
    Bytes { count: usize, direct: usize, more: bool },
}

impl Fill {
    /// Bytes that went into the target.
    pub(super) fn direct(&self) -> usize {
        match self {
            Self::Bytes { direct, .. } => *direct,
            Self::Empty | Self::Closed => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; READ_AHEAD_BYTES].into(), start: 0, end: 0 }
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The next header, if it is complete. It stays until [`Self::skip_header`].
    pub(super) fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.bytes[self.start..self.end].first_chunk()
    }

    pub(super) fn skip_header(&mut self) {
        self.start += HEADER_BYTES;
        assert!(self.start <= self.end, "only a complete header is skipped");
    }

    /// Moves what is there into `target`, as far as it goes.
    pub(super) fn take(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Reads once: first into `target`, for which everything read ahead must have been taken, then
    /// ahead.
    pub(super) fn fill(&mut self, stream: &TcpStream, target: &mut [u8]) -> io::Result<Fill> {
        assert!(target.is_empty() || self.is_empty(), "bytes keep their order");
        self.compact();
        let wanted = target.len();
        let most = if wanted == 0 { READ_AHEAD_BYTES } else { READ_BEHIND_BYTES };
        let ahead = &mut self.bytes[self.end..most];
        let capacity = wanted + ahead.len();
        let read = if wanted == 0 {
            (&*stream).read(ahead)
        } else {
            (&*stream).read_vectored(&mut [IoSliceMut::new(target), IoSliceMut::new(ahead)])
        };
        let count = match read {
            Ok(0) => return Ok(Fill::Closed),
            Ok(count) => count,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(Fill::Empty),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => return Ok(Fill::Empty),
            Err(cause) => return Err(cause),
        };
        let direct = count.min(wanted);
        self.end += count - direct;
        Ok(Fill::Bytes { count, direct, more: count == capacity })
    }

    /// Moves what is there, less than a header, to the front.
    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}
