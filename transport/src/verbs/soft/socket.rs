//! TCP sockets tied to one NIC.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::{TransportError, descriptors};

/// Connections that wait to be accepted; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// How long an idle connection is left in peace before the kernel of the other end is asked about it, and how long
/// a question has to wait for the one before.
const QUIET_BEFORE_QUESTION: Duration = Duration::from_secs(1);
const QUESTION_PAUSE: Duration = Duration::from_secs(1);

/// Congestion controls that pace what they send by their own estimate of the bandwidth. Between hosts
/// that are microseconds apart, with bursts of a few tiles, the estimate is wrong by orders of
/// magnitude, and bytes wait for tens of milliseconds in front of an idle NIC.
const PACING: [&str; 1] = ["bbr"];
/// What every kernel has and permits, in place of one of those.
const UNPACED: &str = "reno";

/// Where a socket is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Address of the NIC.
    pub address: IpAddr,
    /// Name of the NIC: traffic goes through it even where the routes say otherwise.
    pub interface: Option<String>,
}

/// A non-blocking listener on a port of the kernel's choice, also where the NIC is off: it hears when that is switched on.
///
/// # Errors
/// The address or the interface does not exist, or the system refuses.
pub fn listen(binding: &Binding) -> Result<TcpListener, TransportError> {
    let socket = bound(binding, 0).or_else(|error| {
        let is_off = error.cause.kind() == io::ErrorKind::AddrNotAvailable && has_address(binding);
        if is_off { bound_with(binding, 0, free) } else { Err(error) }
    });
    listening(socket.map_err(BindError::explain)?, binding)
}

/// A non-blocking listener on this port; 0 lets the kernel choose.
pub(crate) fn listen_on(binding: &Binding, port: u16) -> Result<TcpListener, TransportError> {
    listening(bound(binding, port).map_err(BindError::explain)?, binding)
}

fn listening(socket: Socket, binding: &Binding) -> Result<TcpListener, TransportError> {
    socket
        .listen(BACKLOG)
        .and_then(|()| socket.set_nonblocking(true))
        .map_err(|cause| TransportError::system(format!("listen on {}", binding.address), cause))?;
    Ok(socket.into())
}

/// Lets an end that has nothing to send learn that the other one has given the connection up, although
/// its farewell was lost: the peer's kernel answers a question about a connection that it does not know
/// with a reset. A network that leaves so many `questions` without an answer is dead.
///
/// # Errors
/// The system refused.
pub fn keep_asking(stream: &TcpStream, questions: u32) -> Result<(), TransportError> {
    let asking = TcpKeepalive::new()
        .with_time(QUIET_BEFORE_QUESTION)
        .with_interval(QUESTION_PAUSE)
        .with_retries(questions);
    let set = SockRef::from(stream).set_tcp_keepalive(&asking);
    set.map_err(|cause| TransportError::system("keep asking about a connection", cause))
}

/// Connects to `peer` from the NIC.
///
/// # Errors
/// The address or the interface does not exist, or `peer` does not answer within `limit`.
pub fn dial(
    binding: &Binding,
    peer: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, TransportError> {
    let socket = bound(binding, 0).map_err(|error| {
        // Who dials comes again.
        descriptors::relieve(&error.cause);
        error.explain()
    })?;
    socket.connect_timeout(&SockAddr::from(peer), limit).map_err(|cause| {
        TransportError::system(format!("connect {} to {peer}", binding.address), cause)
    })?;
    Ok(socket.into())
}

/// Why a socket could not be tied to a NIC.
#[derive(Debug)]
pub(crate) struct BindError {
    call: String,
    pub(crate) cause: io::Error,
}

impl BindError {
    fn new(call: String) -> impl FnOnce(io::Error) -> Self {
        |cause| Self { call, cause }
    }

    fn explain(self) -> TransportError {
        TransportError::system(self.call, self.cause)
    }
}

/// A socket tied to the NIC and to a port, and not connected yet.
///
/// # Errors
/// The address or the interface does not exist, or the system refuses.
pub(crate) fn bound(binding: &Binding, port: u16) -> Result<Socket, BindError> {
    bound_with(binding, port, |_, _| Ok(()))
}

/// The same, of a socket that is prepared for its address.
fn bound_with(
    binding: &Binding,
    port: u16,
    prepare: impl FnOnce(&Socket, IpAddr) -> io::Result<()>,
) -> Result<Socket, BindError> {
    let domain = Domain::for_address(SocketAddr::new(binding.address, 0));
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
        .map_err(BindError::new("create a TCP socket".into()))?;
    if let Err(cause) = unpace(&socket) {
        tracing::debug!(%cause, "the congestion control stays as it is");
    }
    if let Some(interface) = &binding.interface {
        tie(&socket, interface).map_err(BindError::new(format!("bind to {interface}")))?;
    }
    let local = SockAddr::from(SocketAddr::new(binding.address, port));
    prepare(&socket, binding.address)
        .and_then(|()| socket.bind(&local))
        .map_err(BindError::new(format!("bind to {}", binding.address)))?;
    Ok(socket)
}

/// Whether the interface has the address, with which nothing can be done unless it is switched on.
fn has_address(binding: &Binding) -> bool {
    let Ok(mut entries) = nix::ifaddrs::getifaddrs() else { return false };
    let is_it = |entry: &nix::ifaddrs::InterfaceAddress| {
        let address = entry.address.as_ref();
        let v4 = address.and_then(|address| Some(IpAddr::V4(address.as_sockaddr_in()?.ip())));
        let v6 = address.and_then(|address| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())));
        binding.interface.as_ref() == Some(&entry.interface_name)
            && v4.or(v6) == Some(binding.address)
    };
    entries.any(|entry| is_it(&entry))
}

/// Lets a socket have an address that is not there yet.
#[cfg(target_os = "linux")]
fn free(socket: &Socket, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(_) => socket.set_freebind_v4(true),
        IpAddr::V6(_) => socket.set_freebind_v6(true),
    }
}

#[cfg(not(target_os = "linux"))]
fn free(_: &Socket, _: IpAddr) -> io::Result<()> {
    Ok(())
}

/// Keeps the congestion control that the host has chosen, unless it paces. Connections that a listener
/// accepts have that of the listener.
fn unpace(socket: &Socket) -> io::Result<()> {
    if PACING.contains(&tcp_congestion(socket)?.as_str()) {
        set_tcp_congestion(socket, UNPACED)?;
    }
    Ok(())
}

/// Ties the socket to a NIC by name. Where that is not permitted the source address has to do: it
/// selects the NIC wherever each NIC has its own subnet.
#[cfg(target_os = "linux")]
fn tie(socket: &Socket, interface: &str) -> io::Result<()> {
    match socket.bind_device(Some(interface.as_bytes())) {
        Err(cause) if cause.raw_os_error() == Some(libc::EPERM) => {
            tracing::debug!(interface, "binding to a device is not permitted");
            Ok(())
        }
        outcome => outcome,
    }
}

#[cfg(not(target_os = "linux"))]
fn tie(_: &Socket, _: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn connections_start_at_the_address_of_their_nic() {
        let near = Binding { address: "127.9.8.7".parse().unwrap(), interface: None };
        let far = Binding { address: "127.1.2.3".parse().unwrap(), interface: Some("lo".into()) };
        let listener = listen(&far).unwrap();
        let peer = listener.local_addr().unwrap();
        assert_eq!(peer.ip(), far.address);
        let stream = dial(&near, peer, Duration::from_secs(10)).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), near.address);
    }

    #[test]
    fn nothing_is_paced_at_either_end() {
        let loopback = Binding { address: "127.0.0.1".parse().unwrap(), interface: None };
        let socket = bound(&loopback, 0).unwrap();
        for pacing in PACING {
            match set_tcp_congestion(&socket, pacing) {
                Ok(()) => unpace(&socket).unwrap(),
                Err(reason) => {
                    let line = format!("skip: congestion control {pacing}: {reason}\n");
                    io::stderr().write_all(line.as_bytes()).unwrap();
                }
            }
        }
        socket.listen(1).unwrap();
        let listener = TcpListener::from(socket);
        let near = dial(&loopback, listener.local_addr().unwrap(), Duration::from_secs(10));
        for end in [near.unwrap(), listener.accept().unwrap().0] {
            let control = tcp_congestion(&end).unwrap();
            assert!(!PACING.contains(&control.as_str()), "{control}");
        }
    }

    #[test]
    fn a_chosen_congestion_control_stays() {
        let loopback = Binding { address: "127.0.0.1".parse().unwrap(), interface: None };
        let socket = bound(&loopback, 0).unwrap();
        set_tcp_congestion(&socket, UNPACED).unwrap();
        unpace(&socket).unwrap();
        assert_eq!(tcp_congestion(&socket).unwrap(), UNPACED);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let nowhere = Binding { address: "203.0.113.77".parse().unwrap(), interface: None };
        let error = listen(&nowhere).unwrap_err().to_string();
        assert!(error.contains("203.0.113.77"), "{error}");
        let address = "127.0.0.1".parse().unwrap();
        let missing = Binding { address, interface: Some("nonesuch0".into()) };
        let error = listen(&missing).unwrap_err().to_string();
        assert!(error.contains("nonesuch0"), "{error}");
    }
}
