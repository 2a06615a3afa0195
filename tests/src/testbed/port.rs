//! Ports for programs that are told where to listen before they run.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of this host that the kernel gives to nobody who names none, as long as this lives.
///
/// A listener that names it, and allows the reuse of addresses as those of the library and of the standard library
/// do, gets it: a socket that is bound and does not listen is in nobody's way but the kernel's (socket(7),
/// `SO_REUSEADDR`). A number that was merely free a moment ago can be the near end of somebody's connection by now.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    /// Bound, for as long as the number is to be ours.
    _socket: Socket,
}

impl ReservedPort {
    /// A port that nobody has.
    ///
    /// # Errors
    /// All are taken, or there are no sockets left.
    pub fn new() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())?;
        let address = socket.local_addr()?;
        let number = address.as_socket_ipv4().expect("bound as one of IPv4").port();
        Ok(Self { number, _socket: socket })
    }

    /// Where to listen.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    #[test]
    fn only_who_names_a_reserved_port_gets_it() {
        let port = ReservedPort::new().unwrap();
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let refused = other.bind(&address.into()).expect_err("it is reserved");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        for _ in 0..2 {
            drop(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.number())).unwrap());
            drop(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port.number())).unwrap());
            drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap());
        }
        drop(port);
        other.bind(&address.into()).expect("it is free again");
    }
}
