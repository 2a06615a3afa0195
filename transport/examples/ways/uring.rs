//! Sockets through io_uring.

use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode};

use crate::area::{Area, Pages};

const ENTRIES: u32 = 64;
/// Bytes of one request of a stream.
const CHUNK_BYTES: usize = 128 << 10;
/// Requests of one submission, each of which begins when the one before has ended.
const LINKED: usize = 8;
/// Buffers that receives of many results fill.
const BUFFERS: u16 = 32;
const GROUP: u16 = 7;
const RECEIVE: u64 = 1;
const CANCEL: u64 = 2;
/// `IORING_SEND_ZC_REPORT_USAGE`: notifications say whether the bytes were copied.
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = i32::MIN;

/// How a send gets at its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Copied,
    /// From the registered buffer, which has index 0.
    Registered,
}

/// A ring of this process.
pub(crate) struct Ring {
    ring: IoUring,
    provided: Provided,
    /// Sends without a copy that are done, and those of them that were copied after all.
    pub(crate) notified: u64,
    pub(crate) copied: u64,
}

impl Ring {
    /// None where the kernel does not have it, or not for this process. `registered` must outlive the ring.
    pub(crate) fn new(registered: &[u8]) -> Option<Self> {
        let ring = IoUring::new(ENTRIES).ok()?;
        let buffer = libc::iovec {
            iov_base: registered.as_ptr().cast_mut().cast(),
            iov_len: registered.len(),
        };
        // SAFETY: the buffer outlives the ring (caller), and sends only read it.
        unsafe { ring.submitter().register_buffers(&[buffer]) }.ok()?;
        let provided = Provided::new(&ring)?;
        Some(Self { ring, provided, notified: 0, copied: 0 })
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, stream: &TcpStream, bytes: &[u8], sending: Sending) {
        let (fd, flags) = (Fd(stream.as_raw_fd()), libc::MSG_WAITALL);
        let before = self.notified;
        for batch in bytes.chunks(LINKED * CHUNK_BYTES) {
            self.linked(batch.chunks(CHUNK_BYTES).map(|chunk| {
                let (start, bytes) = (chunk.as_ptr(), chunk.len().try_into().unwrap());
                match sending {
                    Sending::Copied => opcode::Send::new(fd, start, bytes).flags(flags).build(),
                    Sending::Registered => opcode::SendZc::new(fd, start, bytes)
                        .flags(flags)
                        .buf_index(Some(0))
                        .zc_flags(REPORT_USAGE)
                        .build(),
                }
            }));
        }
        if sending == Sending::Registered {
            let all = before + bytes.len().div_ceil(CHUNK_BYTES) as u64;
            while self.notified < all {
                self.ring.submit_and_wait(1).unwrap();
                self.reap();
            }
        }
    }

    /// Receives until the target is full.
    pub(crate) fn receive(&mut self, stream: &TcpStream, target: &mut [u8]) {
        let fd = Fd(stream.as_raw_fd());
        for batch in target.chunks_mut(LINKED * CHUNK_BYTES) {
            self.linked(batch.chunks_mut(CHUNK_BYTES).map(|chunk| {
                let (start, bytes) = (chunk.as_mut_ptr(), chunk.len().try_into().unwrap());
                opcode::Recv::new(fd, start, bytes).flags(libc::MSG_WAITALL).build()
            }));
        }
    }

    /// Carries out requests one after the other, each of which is whole or an error.
    fn linked(&mut self, requests: impl ExactSizeIterator<Item = Entry>) {
        let count = requests.len();
        for (index, request) in requests.enumerate() {
            let last = index + 1 == count;
            self.push(request.flags(if last { Flags::empty() } else { Flags::IO_LINK }));
        }
        let mut ended = 0;
        self.ring.submit_and_wait(count).unwrap();
        loop {
            ended += self.reap();
            if ended == count {
                break;
            }
            self.ring.submit_and_wait(1).unwrap();
        }
    }

    /// Takes the completions that are there, and returns how many requests have ended.
    fn reap(&mut self) -> usize {
        let mut ended = 0;
        for completion in self.ring.completion() {
            if cqueue::notif(completion.flags()) {
                self.notified += 1;
                self.copied += u64::from(completion.result() & COPIED != 0);
            } else {
                assert!(completion.result() > 0, "io_uring: {}", completion.result());
                ended += 1;
            }
        }
        ended
    }

    /// Receives with one request into buffers that the kernel picks, and copies from there.
    pub(crate) fn receive_multishot(&mut self, stream: &TcpStream, target: &mut [u8]) {
        let fd = Fd(stream.as_raw_fd());
        let (mut received, mut armed) = (0, false);
        while received < target.len() {
            if !armed {
                self.push(opcode::RecvMulti::new(fd, GROUP).build().user_data(RECEIVE));
                armed = true;
            }
            self.ring.submit_and_wait(1).unwrap();
            for completion in self.ring.completion() {
                armed = cqueue::more(completion.flags());
                if completion.result() == -libc::ENOBUFS {
                    continue;
                }
                let bytes = usize::try_from(completion.result()).unwrap();
                let buffer = cqueue::buffer_select(completion.flags()).unwrap();
                self.provided.take(buffer, &mut target[received..received + bytes]);
                received += bytes;
            }
        }
        if armed {
            self.cancel();
        }
    }

    /// Ends the receive of many results.
    fn cancel(&mut self) {
        self.push(opcode::AsyncCancel::new(RECEIVE).build().user_data(CANCEL));
        let mut ended = 0;
        while ended < 2 {
            self.ring.submit_and_wait(1).unwrap();
            let completions = self.ring.completion();
            ended += completions.filter(|completion| !cqueue::more(completion.flags())).count();
        }
    }

    /// Sends one message, receives one, or both; `waits` in the kernel, or looks at the ring all the time.
    pub(crate) fn messages(
        &mut self,
        stream: &TcpStream,
        sent: Option<&[u8]>,
        received: Option<&mut [u8]>,
        waits: bool,
    ) {
        let fd = Fd(stream.as_raw_fd());
        let mut count = 0;
        if let Some(sent) = sent {
            let bytes = sent.len().try_into().unwrap();
            self.push(opcode::Send::new(fd, sent.as_ptr(), bytes).build());
            count += 1;
        }
        if let Some(received) = received {
            let bytes = received.len().try_into().unwrap();
            self.push(opcode::Recv::new(fd, received.as_mut_ptr(), bytes).build());
            count += 1;
        }
        self.ring.submit_and_wait(if waits { count } else { 0 }).unwrap();
        let mut ended = 0;
        while ended < count {
            ended += self.reap();
        }
    }

    fn push(&mut self, request: Entry) {
        // SAFETY: whoever pushes waits for the completion, so the bytes outlive the request.
        unsafe { self.ring.submission().push(&request) }.unwrap();
    }
}

/// Buffers that belong to the kernel until it has filled them.
struct Provided {
    entries: Area,
    buffers: Area,
    tail: u16,
}

impl Provided {
    fn new(ring: &IoUring) -> Option<Self> {
        let entries = Area::anonymous(4096, Pages::Ordinary);
        let buffers = Area::anonymous(usize::from(BUFFERS) * CHUNK_BYTES, Pages::Ordinary);
        let start = entries.address() as u64;
        let submitter = ring.submitter();
        // SAFETY: the area has room for the entries, and stays mapped.
        unsafe { submitter.register_buf_ring_with_flags(start, BUFFERS, GROUP, 0) }.ok()?;
        let mut provided = Self { entries, buffers, tail: 0 };
        (0..BUFFERS).for_each(|buffer| provided.give(buffer));
        Some(provided)
    }

    /// Copies out of a filled buffer, and gives it back.
    fn take(&mut self, buffer: u16, target: &mut [u8]) {
        let offset = usize::from(buffer) * CHUNK_BYTES;
        ccl_kernels::copy(self.buffers.source(offset, target.len()), target.into());
        self.give(buffer);
    }

    fn give(&mut self, buffer: u16) {
        let entries = std::ptr::with_exposed_provenance_mut::<BufRingEntry>(self.entries.address());
        let place = entries.wrapping_add(usize::from(self.tail % BUFFERS));
        // SAFETY: inside the area, and the kernel does not look at it before the tail says so.
        let entry = unsafe { &mut *place };
        entry.set_addr((self.buffers.address() + usize::from(buffer) * CHUNK_BYTES) as u64);
        entry.set_len(CHUNK_BYTES.try_into().unwrap());
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry is inside the area.
        let tail = unsafe { BufRingEntry::tail(entries) };
        // SAFETY: the tail is inside the first entry and aligned; only this process writes it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
