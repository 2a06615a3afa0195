//! Where the ranks of a job find each other.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use ccl_launcher::Failure;
use rustix::rand::{GetRandomFlags, getrandom};
use socket2::{Domain, Socket, Type};

/// How many ports are tried.
const MOST_TRIES: usize = 100;

/// Two ports, one behind the other, that nobody else is given while this value lives: torchrun's
/// convention has the first for PyTorch's store and the one above for this library's.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) port: u16,
    /// Bound, but not listening: who asks for these very ports and allows their reuse, as stores do,
    /// gets them.
    _reserved: [Socket; 2],
}

impl Meeting {
    /// # Errors
    /// The system has no ports, or no sockets.
    pub(crate) fn reserve() -> Result<Self, Failure> {
        let failed = |cause| Failure::system("finding ports where the ranks can meet", cause);
        let mut refusal = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..MOST_TRIES {
            let (first, port) = bound(0).map_err(failed)?;
            match port.checked_add(1).map(bound) {
                Some(Ok((second, _))) => return Ok(Self { port, _reserved: [first, second] }),
                Some(Err(cause)) => refusal = cause,
                None => {}
            }
        }
        Err(failed(refusal))
    }
}

fn bound(port: u16) -> io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    let port = socket.local_addr()?.as_socket().map_or(port, |address| address.port());
    Ok((socket, port))
}

/// A pass phrase that nobody guesses.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn key() -> Result<String, Failure> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|cause| Failure::system("drawing the key of the job", cause))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ports_are_for_those_who_ask_for_them() {
        let [one, other] = [0; 2].map(|_| Meeting::reserve().unwrap());
        assert!(one.port.abs_diff(other.port) > 1, "{one:?} {other:?}");
        for port in [one.port, one.port + 1] {
            // Listeners of the standard library allow reuse.
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(key().unwrap(), key().unwrap());
    }
}
