//! What was confirmed between two NICs, on all connections of this host.
//!
//! A single message on a connection that was idle may wait for long behind what others have put into the
//! queues of its path, and so may a question. But then something of theirs is confirmed all the while,
//! which says that the path works as well as an answer does. (Where a network spreads connections between two
//! NICs over several ways, both may speak of another way than that of the silent connection.)

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

use crate::clock;

/// What was just learnt is not asked for again: questions about paths come in groups.
const FRESH: Duration = Duration::from_millis(1);
/// Nor so many times as long as it took to learn: where connections are many the keeper has other work too.
const TIMES_THE_EFFORT: u32 = 8;
/// The kernel tells no more at once.
const BUFFER_BYTES: usize = 32 << 10;

/// By the addresses of the near and the far NIC.
type Bytes = HashMap<(IpAddr, IpAddr), u64>;

/// The connections of this host, whoever has made them: those over IPv4 and those over IPv6.
#[derive(Debug, Default)]
pub(in super::super) struct Connections([Family; 2]);

#[derive(Debug, Default)]
struct Family {
    confirmed: Bytes,
    fresh_until: Option<Instant>,
    /// The kernel has refused to tell, which costs it a search for a module each time.
    is_refused: bool,
}

impl Connections {
    /// So many bytes were confirmed between two NICs, on the connections that there are now; as far as the kernel
    /// tells.
    pub(in super::super) fn confirmed(&mut self, now: Instant, near: IpAddr, far: IpAddr) -> u64 {
        let family = &mut self.0[usize::from(near.is_ipv6())];
        if !family.is_refused && family.fresh_until.is_none_or(|until| now >= until) {
            family.look(now, if near.is_ipv4() { AF_INET } else { AF_INET6 });
        }
        family.confirmed.get(&(near, far)).copied().unwrap_or(0)
    }
}

impl Family {
    fn look(&mut self, now: Instant, number: u8) {
        self.confirmed.clear();
        if let Err(cause) = count(number, &mut self.confirmed) {
            self.is_refused = is_refusal(&cause);
            tracing::debug!(%cause, "the kernel does not tell of other connections");
        }
        let end = clock::now();
        let effort = end.saturating_duration_since(now);
        self.fresh_until = Some(end + FRESH.max(TIMES_THE_EFFORT * effort));
    }
}

/// Whether the kernel will never tell. What it lacks at the moment, such as a descriptor, it may have later.
fn is_refusal(cause: &io::Error) -> bool {
    matches!(
        cause.raw_os_error(),
        Some(
            libc::EPERM
                | libc::EACCES
                | libc::ENOENT
                | libc::EPROTONOSUPPORT
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP
        )
    )
}

/// Adds what was confirmed on all connections of a family.
fn count(family: u8, confirmed: &mut Bytes) -> io::Result<()> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.set_non_blocking(true)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(family), 0)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = &buffer[..length.min(BUFFER_BYTES)];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
            let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if let NetlinkPayload::Error(refusal) = &message.payload {
                return Err(refusal.to_io());
            }
            let NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(connection)) =
                message.payload
            else {
                return Ok(());
            };
            let SocketId { source_address, destination_address, .. } = connection.header.socket_id;
            *confirmed.entry((source_address, destination_address)).or_default() +=
                bytes(&connection);
        }
    }
}

/// What was confirmed on a connection.
fn bytes(connection: &InetResponse) -> u64 {
    let report = connection.nlas.iter().find_map(|attribute| {
        if let Nla::TcpInfo(report) = attribute { Some(report.bytes_acked) } else { None }
    });
    report.unwrap_or(0)
}

/// For all connections of a family, with what the kernel knows of them.
fn request(family: u8) -> Vec<u8> {
    let socket_id = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::ESTABLISHED,
        socket_id,
    };
    let mut message = NetlinkMessage::from(SockDiagMessage::InetRequest(request));
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::verbs::soft::socket::{self, Binding};

    #[test]
    fn what_is_lacking_for_a_moment_is_asked_for_again() {
        let is_refusal = |number| is_refusal(&io::Error::from_raw_os_error(number));
        assert!(
            [libc::EPERM, libc::EACCES, libc::ENOENT, libc::EPROTONOSUPPORT]
                .map(is_refusal)
                .iter()
                .all(|is| *is)
        );
        assert!(
            ![libc::EMFILE, libc::ENOBUFS, libc::EAGAIN, libc::EINTR]
                .map(is_refusal)
                .iter()
                .any(|is| *is)
        );
        assert!(!super::is_refusal(&io::Error::from(io::ErrorKind::InvalidData)));
    }

    /// A connection between two addresses.
    fn connect(near: IpAddr, listener: &TcpListener) -> [TcpStream; 2] {
        let socket = socket::bound(&Binding { address: near, interface: None }, 0).unwrap();
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        [socket.into(), listener.accept().unwrap().0]
    }

    #[test]
    fn what_is_confirmed_on_all_connections_between_two_nics_is_counted() {
        for (near, far) in [("127.0.77.11", "127.0.77.12"), ("::1", "::1")] {
            let (near, far): (IpAddr, IpAddr) = (near.parse().unwrap(), far.parse().unwrap());
            let Ok(listener) = TcpListener::bind((far, 0)) else {
                io::stderr().write_all(b"skip: connections over IPv6: there is no ::1\n").unwrap();
                continue;
            };
            let mut pairs = [(); 2].map(|()| connect(near, &listener));
            let look = || Connections::default().confirmed(clock::now(), near, far);
            let before = look();
            for [one, other] in &mut pairs {
                one.write_all(&[7; 1000]).unwrap();
                other.read_exact(&mut [0; 1000]).unwrap();
            }
            let limit = clock::now() + Duration::from_secs(20);
            while look() < before + 2000 {
                assert!(clock::now() < limit, "{near}: {} after {before}", look());
            }
            assert_eq!(look(), before + 2000, "{near}");
        }
    }
}
