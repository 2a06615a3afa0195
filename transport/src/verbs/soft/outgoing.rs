//! Frames on their way to the kernel.

mod unstaged;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::domain::Span;
use super::frame::{HEADER_BYTES, Rider};

/// Frames handed over with one call, at most.
const BATCH: usize = 16;

/// Bytes that a payload may have to be copied into its frame: entries of logs, counters, flags. So frames
/// with small payloads leave together, whatever memory they are from.
const INLINE_BYTES: usize = 16;

/// So few bytes are copied to one place first: for the kernel to gather them takes longer.
const GATHERED_BYTES: usize = 256;

/// Frames with so many bytes of payload are worth waiting for others.
const LARGE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) payload: Payload,
}

/// What is sent after the header.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// So many of these bytes.
    Inline([u8; INLINE_BYTES], usize),
    /// The memory belongs to the operation until it completes.
    Lent(Span),
}

impl Payload {
    pub(super) fn of(span: Option<Span>) -> Self {
        match span {
            None => Self::None,
            Some(span) if span.bytes <= INLINE_BYTES => {
                let mut bytes = [0; INLINE_BYTES];
                span.memory.read(span.offset, &mut bytes[..span.bytes]);
                Self::Inline(bytes, span.bytes)
            }
            Some(span) => Self::Lent(span),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(_, bytes) => *bytes,
            Self::Lent(span) => span.bytes,
        }
    }

    fn lent(&self) -> Option<&Span> {
        match self {
            Self::Lent(span) => Some(span),
            Self::None | Self::Inline(..) => None,
        }
    }
}

impl Frame {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.bytes()
    }
}

/// A queue of frames, the first of which may have left in part.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that the kernel has.
    sent: usize,
    /// Large frames may wait until there are so many bytes.
    cork_bytes: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    /// Lets a write ride on the newest frame, of which nothing has left; tells whether it does.
    pub(super) fn mount(&mut self, rider: &Rider) -> bool {
        self.frames.back_mut().is_some_and(|frame| rider.mount(&mut frame.header))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Lets large frames wait until there are so many bytes.
    pub(super) fn cork(&mut self, bytes: usize) {
        self.cork_bytes = bytes;
    }

    /// Whether what is queued, large frames at the end, can wait for more.
    pub(super) fn is_corked(&self) -> bool {
        let is_large = |frame: &Frame| frame.payload.bytes() >= LARGE_BYTES;
        let bytes = || self.frames.iter().map(Frame::bytes).sum::<usize>();
        self.frames.back().is_some_and(is_large) && bytes() < self.cork_bytes
    }

    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.sent = 0;
    }

    /// Drops what has not begun to leave.
    pub(super) fn cut(&mut self) {
        self.frames.truncate(usize::from(self.sent > 0));
    }

    /// Hands over what the kernel takes; tells whether it took anything.
    pub(super) fn transmit(&mut self, stream: &TcpStream) -> io::Result<bool> {
        let mut moved = false;
        while !self.frames.is_empty() {
            let (taken, offered) = match self.offer(stream) {
                Ok(counts) => counts,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(cause),
            };
            self.advance(taken);
            moved = true;
            if taken < offered {
                return Ok(true);
            }
        }
        Ok(moved)
    }

    /// Offers the first frames, up to the first whose payload lies in other memory than those before:
    /// only one memory is locked at a time. Returns the bytes taken and the bytes offered.
    fn offer(&self, stream: &TcpStream) -> io::Result<(usize, usize)> {
        let memory = self.frames.iter().take(BATCH).find_map(|frame| frame.payload.lent());
        let memory = memory.map(|span| &span.memory);
        let locked = memory.map(super::super::Memory::lock);
        let mut slices = [IoSlice::new(&[]); 2 * BATCH];
        let mut offered = 0;
        for (index, frame) in self.frames.iter().take(BATCH).enumerate() {
            let payload = match (&frame.payload, memory, &locked) {
                (Payload::None, ..) => &[],
                (Payload::Inline(bytes, count), ..) => &bytes[..*count],
                (Payload::Lent(span), Some(memory), Some(locked)) if memory.same(&span.memory) => {
                    locked.bytes(span.offset..span.offset + span.bytes)
                }
                (Payload::Lent(_), ..) => break,
            };
            slices[2 * index] = IoSlice::new(&frame.header);
            slices[2 * index + 1] = IoSlice::new(payload);
            offered += frame.bytes();
        }
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, self.sent);
        let used = rest.iter().rposition(|slice| !slice.is_empty()).map_or(0, |last| last + 1);
        let offered = offered - self.sent;
        Ok((hand_over(stream, &rest[..used], offered)?, offered))
    }

    fn advance(&mut self, taken: usize) {
        self.sent += taken;
        while let Some(first) = self.frames.front()
            && self.sent >= first.bytes()
        {
            self.sent -= first.bytes();
            self.frames.pop_front();
        }
    }
}

/// Gives the kernel slices that have so many bytes together; returns how many it takes.
fn hand_over(
    stream: &TcpStream,
    slices: &[IoSlice<'_>],
    bytes: usize,
) -> rustix::io::Result<usize> {
    // Without the flag a peer that is gone would end this process by SIGPIPE.
    let flags = SendFlags::NOSIGNAL;
    if bytes > GATHERED_BYTES {
        return sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags);
    }
    let mut gathered = [0; GATHERED_BYTES];
    let mut end = 0;
    for slice in slices {
        gathered[end..][..slice.len()].copy_from_slice(slice);
        end += slice.len();
    }
    send(stream, &gathered[..end], flags)
}
