//! TCP connections between the two processes.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::peers::{Pair, Side};

const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// Connections to the other side. Their calls block, unless they are asked not to.
pub(crate) fn connections(pair: &Pair, count: usize) -> Vec<TcpStream> {
    let streams: Vec<_> = match pair.side {
        Side::First => {
            let port = u16::try_from(pair.exchange(0)).unwrap();
            let address = (pair.address.as_str(), port);
            (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
        }
        Side::Second => {
            let listener = TcpListener::bind((pair.address.as_str(), 0)).unwrap();
            pair.exchange(listener.local_addr().unwrap().port().into());
            (0..count).map(|_| listener.accept().unwrap().0).collect()
        }
    };
    streams.iter().for_each(|stream| stream.set_nodelay(true).unwrap());
    streams
}

/// Sends as much as there is room for.
pub(crate) fn try_send(stream: &TcpStream, bytes: &[u8]) -> usize {
    now_or_never(send(stream, bytes, SendFlags::DONTWAIT))
}

/// Receives as much as there is.
pub(crate) fn try_receive(stream: &TcpStream, bytes: &mut [u8]) -> usize {
    now_or_never(recv(stream, bytes, RecvFlags::DONTWAIT).map(|(received, _)| received))
}

fn now_or_never(moved: rustix::io::Result<usize>) -> usize {
    match moved {
        Err(Errno::AGAIN) => 0,
        moved => moved.unwrap(),
    }
}

/// Sends whose bytes the kernel may fetch from where they are, until it says that it has.
pub(crate) struct ZeroCopy<'a> {
    stream: &'a TcpStream,
    sent: u32,
    pub(crate) done: u32,
    /// How many of those that are done were copied after all.
    pub(crate) copied: u32,
}

impl<'a> ZeroCopy<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> Self {
        let on: libc::c_int = 1;
        let bytes = libc::socklen_t::try_from(size_of_val(&on)).unwrap();
        // SAFETY: the option's value is an int, which lives longer than the call.
        let result = unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, bytes)
        };
        assert_eq!(result, 0, "SO_ZEROCOPY: {}", io::Error::last_os_error());
        Self { stream, sent: 0, done: 0, copied: 0 }
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.sent - self.done
    }

    /// Sends as much as there is room for. The bytes must not change until the send is done.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> usize {
        let flags = libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let start = bytes.as_ptr().cast();
        // SAFETY: the bytes are borrowed, and the caller keeps them as they are until the kernel is done.
        let sent = unsafe { libc::send(self.stream.as_raw_fd(), start, bytes.len(), flags) };
        if sent >= 0 {
            self.sent += 1;
            return sent.unsigned_abs();
        }
        let failed = io::Error::last_os_error();
        // ENOBUFS: too many sends of which the completion was not read.
        assert!(matches!(failed.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)), "{failed}");
        self.complete();
        0
    }

    /// Reads the completions that are there from the error queue.
    pub(crate) fn complete(&mut self) {
        while let Some(report) = self.completion() {
            let (low, high, copied) = report;
            let count = high.wrapping_sub(low) + 1;
            self.done += count;
            self.copied += if copied { count } else { 0 };
        }
    }

    /// The first and the last send that a completion is about, and whether they were copied.
    fn completion(&self) -> Option<(u32, u32, bool)> {
        // The header of a control message, `sock_extended_err` and an address.
        let mut control = [0_u64; 16];
        // SAFETY: a message without address and buffers is all zeros.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the message names the control buffer only, which is as long as it says.
        let read = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &raw mut message, flags) };
        if read < 0 {
            let failed = io::Error::last_os_error();
            assert_eq!(failed.raw_os_error(), Some(libc::EAGAIN), "{failed}");
            return None;
        }
        // After the header of 16 bytes: errno; origin, type, code, padding; first; last.
        let [codes, range] = [control[2], control[3]].map(u64::to_ne_bytes);
        assert_eq!(codes[4], SO_EE_ORIGIN_ZEROCOPY, "not about zero copy");
        let number = |at: usize| u32::from_ne_bytes(range[at..at + 4].try_into().unwrap());
        Some((number(0), number(4), codes[6] == SO_EE_CODE_ZEROCOPY_COPIED))
    }
}
