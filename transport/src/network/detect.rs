//! Finds out whether a path works, without the help of the peer's process.
//!
//! A [`Knock`] is an attempt to connect that nobody waits for. The peer's kernel answers it even while
//! the peer's process is stopped or starved, so an answer says that the path works, whoever is at its
//! end, and that is what a probe wants to know.

pub(super) mod confirmed;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockAddr, Socket};

use crate::verbs::soft::socket::{self, Binding};

/// Shortest time after which the kernel sends unconfirmed bytes again, instead of its 200 ms. Above the
/// 40 ms for which a peer's kernel may hold a confirmation back, so nothing is sent twice for that.
const SHORTEST_RETRANSMISSION: Duration = Duration::from_millis(50);
/// Questions about an idle connection that may remain without an answer.
pub(super) const QUESTIONS: u32 = 10;
/// `TCP_RTO_MIN_US` of Linux 6.18 and later.
const TCP_RTO_MIN_US: libc::c_int = 45;

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The peer's kernel accepted.
    Accepted,
    /// The peer's kernel answered that nobody listens.
    Refused,
    /// This host or one on the way says that the path does not exist.
    Unreachable,
    /// There is no answer, for a reason that says nothing about the path.
    None,
}

impl Reply {
    fn from_error(cause: &io::Error) -> Self {
        match cause.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => Self::Refused,
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL
                | libc::ENODEV,
            ) => Self::Unreachable,
            Some(_) | None => Self::None,
        }
    }
}

/// An attempt to connect that is under way.
#[derive(Debug)]
pub(super) struct Knock(Socket);

impl Knock {
    /// Begins to connect from a NIC.
    ///
    /// # Errors
    /// What is known at once: the NIC is gone, or there is no route.
    pub(super) fn begin(binding: &Binding, peer: SocketAddr) -> Result<Self, Reply> {
        let failed = |cause: &io::Error| Reply::from_error(cause);
        let socket = socket::bound(binding, 0).map_err(|error| failed(&error.cause))?;
        socket.set_nonblocking(true).map_err(|cause| failed(&cause))?;
        match socket.connect(&SockAddr::from(peer)) {
            Err(cause) if cause.raw_os_error() != Some(libc::EINPROGRESS) => Err(failed(&cause)),
            Ok(()) | Err(_) => Ok(Self(socket)),
        }
    }

    /// Begins to connect without the wish to stay: when it is dropped, nothing is left of it at either
    /// end.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub(super) fn probe(binding: &Binding, peer: SocketAddr) -> Result<Self, Reply> {
        let knock = Self::begin(binding, peer)?;
        // Without it the answer is the same, and a closed connection is remembered for a minute.
        let _ = knock.0.set_linger(Some(Duration::ZERO));
        Ok(knock)
    }

    /// The end of it, if it has come.
    pub(super) fn reply(&self) -> Option<Reply> {
        let mut polled = [PollFd::new(&self.0, PollFlags::OUT)];
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(1..) => match self.0.take_error() {
                Ok(None) => Some(Reply::Accepted),
                Ok(Some(cause)) | Err(cause) => Some(Reply::from_error(&cause)),
            },
            Ok(0) | Err(_) => None,
        }
    }

    /// The connection that was [accepted](Reply::Accepted).
    pub(super) fn into_stream(self) -> TcpStream {
        self.0.into()
    }
}

impl AsFd for Knock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets a connection recover quickly from a loss, where the kernel can.
///
/// It gets no `TCP_USER_TIMEOUT`: Linux ends a connection after that time also when the peer's host
/// answers all the while that its process reads nothing, and a peer may compute for long.
pub(super) fn hasten(stream: &TcpStream) {
    let microseconds = libc::c_int::try_from(SHORTEST_RETRANSMISSION.as_micros()).unwrap_or(0);
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads one int from where it is told. Kernels that
    // do not know the option refuse it.
    let _ = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MIN_US,
            (&raw const microseconds).cast(),
            bytes,
        )
    };
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, TcpListener};
    use std::time::Instant;

    use super::*;
    use crate::clock;

    fn loopback(last: u8) -> Binding {
        Binding { address: IpAddr::from([127, 0, 77, last]), interface: None }
    }

    fn outcome(peer: SocketAddr) -> Reply {
        let limit: Instant = clock::now() + Duration::from_secs(20);
        match Knock::probe(&loopback(1), peer) {
            Err(reply) => reply,
            Ok(knock) => loop {
                if let Some(reply) = knock.reply() {
                    return reply;
                }
                assert!(clock::now() < limit, "no reply from {peer}");
            },
        }
    }

    #[test]
    fn the_network_answers_for_a_process_that_does_not() {
        let listener = TcpListener::bind("127.0.77.2:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(outcome(address), Reply::Accepted);
        drop(listener);
        assert_eq!(outcome(address), Reply::Refused);
    }

    #[test]
    fn what_has_no_route_is_unreachable() {
        assert_eq!(outcome("224.0.0.1:9".parse().unwrap()), Reply::Unreachable);
        let absent = Binding { address: "203.0.113.77".parse().unwrap(), interface: None };
        let peer = "203.0.113.78:9".parse().unwrap();
        assert_eq!(Knock::probe(&absent, peer).unwrap_err(), Reply::Unreachable);
        let removed = Binding { interface: Some("nonesuch0".into()), ..loopback(1) };
        assert_eq!(Knock::probe(&removed, peer).unwrap_err(), Reply::Unreachable);
    }

    #[test]
    fn a_probe_leaves_nothing_behind() {
        let listener = TcpListener::bind("127.0.77.3:0").unwrap();
        assert_eq!(outcome(listener.local_addr().unwrap()), Reply::Accepted);
        let (visitor, _) = listener.accept().unwrap();
        let ended = visitor.peek(&mut [0]);
        assert!(matches!(&ended, Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset));
    }

    /// Closes a connection without a word to the other end; needs CAP_NET_ADMIN.
    fn vanish(stream: TcpStream) -> io::Result<()> {
        let on: libc::c_int = 1;
        let bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and the kernel reads one int from where it is told.
        let outcome = unsafe {
            let option = libc::TCP_REPAIR;
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                option,
                (&raw const on).cast(),
                bytes,
            )
        };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn an_idle_end_learns_that_the_other_has_gone_without_a_word() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        socket::keep_asking(&near, QUESTIONS).unwrap();
        if let Err(reason) = vanish(far) {
            let line = format!("skip: a lost farewell: {reason}\n");
            return io::stderr().write_all(line.as_bytes()).unwrap();
        }
        near.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // An interrupted wait goes on, other than in a plain read.
        let cause = near.read_exact(&mut [0]).unwrap_err();
        assert_eq!(cause.kind(), io::ErrorKind::ConnectionReset, "{cause}");
    }
}
