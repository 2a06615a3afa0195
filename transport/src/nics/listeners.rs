//! Listeners on the NICs of rails, each on one port for good, whatever becomes of its interface.
//!
//! A listener that is tied to an interface hears nothing from another one of the same name, which is there after a
//! driver was loaded again or a virtual NIC was put in anew. Peers know the port and go on to dial it. So whoever waits
//! for connections waits for [announcements](Listeners::announcements) too, and [follows](Listeners::follow) them.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{LOOK_SELDOM, index, take_announcements};
use crate::TransportError;
use crate::verbs::soft::socket::{self, Binding};

/// Listeners in the order of their rails.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<TcpListener>,
    homes: Vec<Home>,
    /// For questions about interfaces; any socket will do.
    inquiry: OwnedFd,
    events: Option<OwnedFd>,
}

/// Where one of them listens.
#[derive(Debug)]
struct Home {
    binding: Binding,
    address: SocketAddr,
    /// The kernel's number of the interface that it hears.
    index: Option<u32>,
}

impl Listeners {
    /// Listens on these NICs, in the network namespace of this thread, on ports of the kernel's choice.
    ///
    /// # Errors
    /// A NIC is not there, or the system has no socket left.
    pub fn open(bindings: &[Binding]) -> Result<Self, TransportError> {
        let inquiry =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|cause| TransportError::system("create a socket", cause))?;
        // Before anybody listens: what changes from now on is announced.
        let events = super::listen();
        let (mut all, mut homes) = (Vec::new(), Vec::new());
        for binding in bindings {
            let index = index(&inquiry, binding);
            let listener = socket::listen(binding)?;
            let address = listener.local_addr().map_err(|cause| {
                TransportError::system("ask for the address of a listener", cause)
            })?;
            all.push(listener);
            homes.push(Home { binding: binding.clone(), address, index });
        }
        Ok(Self { all, homes, inquiry, events })
    }

    /// Where they listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.homes.iter().map(|home| home.address).collect()
    }

    /// The listeners as they are now.
    #[must_use]
    pub fn all(&self) -> &[TcpListener] {
        &self.all
    }

    /// Readable when it is time to [follow](Self::follow); `None` where the kernel announces nothing.
    #[must_use]
    pub fn announcements(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// After so long it is time to follow, although nothing was announced.
    #[must_use]
    pub fn longest_sleep(&self) -> Option<Duration> {
        self.events.is_none().then_some(LOOK_SELDOM)
    }

    /// Listens anew where there is another interface, on the same port. Asks the kernel one question for each rail;
    /// an interface that has no address yet is taken when that is announced.
    pub fn follow(&mut self) {
        take_announcements(self.events.as_ref());
        for (rail, (listener, home)) in self.all.iter_mut().zip(&mut self.homes).enumerate() {
            let present = index(&self.inquiry, &home.binding);
            if present.is_none() || present == home.index {
                continue;
            }
            match socket::listen_on(&home.binding, home.address.port()) {
                Ok(another) => {
                    tracing::info!(rail, address = %home.address, "listens on another interface");
                    (*listener, home.index) = (another, present);
                }
                // Where sockets may not be tied to interfaces the old one hears everything, and is in the way.
                Err(cause) => tracing::debug!(rail, %cause, "the listener stays"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_left_alone() {
        let bindings = [("127.0.0.1", Some("lo")), ("127.4.5.6", None)].map(|(address, name)| {
            Binding { address: address.parse().unwrap(), interface: name.map(str::to_owned) }
        });
        let mut listeners = Listeners::open(&bindings).unwrap();
        let addresses = listeners.addresses();
        listeners.follow();
        let now: Vec<_> = listeners.all().iter().map(|one| one.local_addr().unwrap()).collect();
        assert_eq!((now, listeners.addresses()), (addresses.clone(), addresses));
    }
}
