//! Frames whose last bytes are not in their memory, but lent for a moment.

use std::io;
use std::mem::zeroed;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use libc::iovec;

use super::super::super::Unstaged;
use super::super::frame::HEADER_BYTES;
use super::{BATCH, INLINE_BYTES, Outgoing, Payload};

/// Of each frame, the header, what is in its memory, and what is lent.
const PARTS: usize = 3;

impl Outgoing {
    /// Whether frames of these operations can be handed over by [`Self::transmit_unstaged`].
    pub(in super::super) fn takes_unstaged(&self, operations: &[Unstaged<'_>]) -> bool {
        let is_lent = |operation: &Unstaged<'_>| {
            let bytes = operation.request.operation.segment().bytes;
            bytes > INLINE_BYTES && operation.rest.bytes() <= bytes
        };
        self.is_empty() && operations.len() <= BATCH && operations.iter().all(is_lent)
    }

    /// Hands the frames of these operations, which are all that are queued, to the kernel. What it does not take is stored in
    /// their memory. Returns of how many of the first ones the memory is not filled.
    pub(in super::super) fn transmit_unstaged(
        &mut self,
        stream: &TcpStream,
        operations: &[Unstaged<'_>],
    ) -> io::Result<usize> {
        let taken = loop {
            match self.offer_unstaged(stream, operations) {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break 0,
                result => break result?,
            }
        };
        self.advance(taken);
        let mut unfilled = operations.len() - self.frames.len();
        let mut begun = self.sent;
        for (frame, operation) in self.frames.iter().zip(&operations[unfilled..]) {
            let Payload::Lent(span) = &frame.payload else { unreachable!("frames are lent") };
            let head = span.bytes - operation.rest.bytes();
            let gone = begun.saturating_sub(HEADER_BYTES + head);
            span.memory.fill(span.offset + head + gone, operation.rest, gone);
            unfilled += usize::from(gone > 0);
            begun = 0;
        }
        Ok(unfilled)
    }

    /// Offers them all, or up to the first in other memory; returns the bytes taken.
    fn offer_unstaged(&self, stream: &TcpStream, operations: &[Unstaged<'_>]) -> io::Result<usize> {
        let memory = self.frames.iter().find_map(|frame| frame.payload.lent());
        let Some(memory) = memory.map(|span| &span.memory) else { return Ok(0) };
        let locked = memory.lock();
        let mut parts = [NOTHING; PARTS * BATCH];
        for (index, (frame, operation)) in self.frames.iter().zip(operations).enumerate() {
            let span = frame.payload.lent().filter(|span| memory.same(&span.memory));
            let Some(span) = span else { break };
            let head = span.bytes - operation.rest.bytes();
            let head = locked.bytes(span.offset..span.offset + head);
            let rest = with_exposed_provenance_mut(operation.rest.address());
            let rest = iovec { iov_base: rest, iov_len: operation.rest.bytes() };
            parts[PARTS * index..][..PARTS].copy_from_slice(&[
                part(&frame.header),
                part(head),
                rest,
            ]);
        }
        gather(stream, &mut parts[..PARTS * operations.len()])
    }
}

const NOTHING: iovec = iovec { iov_base: null_mut(), iov_len: 0 };

fn part(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Has the kernel copy and send these parts; returns how many bytes it takes.
fn gather(stream: &TcpStream, parts: &mut [iovec]) -> io::Result<usize> {
    // SAFETY: a header without name, parts and control data is one of zeros.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
    // SAFETY: the descriptor is open and the message is as sendmsg(2) wants it. The kernel reads the parts, and fails where
    // nothing is mapped.
    let taken =
        unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}
