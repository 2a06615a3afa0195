//! Whether the NICs of this host work, as the kernel sees it.
//!
//! The kernel announces changes of links and addresses on a netlink socket. An announcement only says
//! that it is time to look: what counts is the state that is found then, so announcements that are
//! lost, merged or late do no harm, and nobody has to understand them. Because some kernels announce
//! the loss of a carrier late or, where netlink is not permitted, never, the state is looked at every
//! few milliseconds as well.

mod homes;
mod listeners;
mod lookout;

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netdevice::name_to_index;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::TransportError;
use crate::verbs::soft::socket::{self, Binding};

pub use listeners::Listeners;
pub use lookout::{Lookout, Watched};

/// How often to look without having been told. A look at one NIC takes less than a microsecond.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often if nobody uses the links: waking for a look costs a hundred times as much as the look.
pub(crate) const LOOK_SELDOM: Duration = Duration::from_millis(640);

/// Looks without having been told from one search for another address to the next: a search takes as long
/// as there are interfaces.
const LOOKS_PER_SEARCH: u32 = 16;
/// `RTMGRP_IPV6_IFADDR`; the others have their constants.
const IPV6_ADDRESSES: u32 = 0x100;
/// Longest name of an interface, with the zero that ends it.
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// A NIC that stopped working, or works again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Index of its rail.
    pub(crate) rail: usize,
    pub(crate) kind: ChangeKind,
}

/// What happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// It does not work, because of this.
    Severed(String),
    /// It works again.
    Restored,
    /// In its place there is another interface of the same name, which listeners do not hear.
    Replaced,
    /// It works again, under another address.
    Moved(IpAddr),
}

/// How thorough a look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Carriers only.
    Quick,
    /// Addresses too, which takes a few microseconds for each.
    Thorough,
}

/// The NICs of all rails.
#[derive(Debug)]
pub(crate) struct Nics {
    nics: Vec<Nic>,
    /// For questions about interfaces; any socket will do.
    inquiry: OwnedFd,
    events: Option<OwnedFd>,
    /// What the interfaces had besides at first, which is there for something else; `None` where a NIC keeps its
    /// address.
    foreign: Option<Vec<IpAddr>>,
}

#[derive(Debug)]
struct Nic {
    binding: Binding,
    /// Whether there is a cable that could be lost.
    has_carrier: bool,
    /// The kernel's number of the interface.
    index: Option<u32>,
    is_severed: bool,
    /// Looks since it was searched for another address.
    looks: u32,
    /// A connection over it was faster than the kernel, which still says that it has no carrier.
    is_proved: bool,
}

impl Nics {
    /// Watches the NICs of these rails, which work as far as anybody knows. One that has lost its address gets
    /// another one, if there is one.
    ///
    /// # Errors
    /// The system has no socket left.
    pub(crate) fn watch(bindings: Vec<Binding>) -> Result<Self, TransportError> {
        let own: Vec<IpAddr> = bindings.iter().map(|binding| binding.address).collect();
        let present = homes::addresses().into_iter().map(|(_, address)| address);
        let foreign = present.filter(|address| !own.contains(address)).collect();
        Ok(Self { foreign: Some(foreign), ..Self::watch_in_place(bindings)? })
    }

    /// Watches NICs that keep their addresses: one that has lost it does not work until it is back.
    ///
    /// # Errors
    /// As for [`Self::watch`].
    pub(crate) fn watch_in_place(bindings: Vec<Binding>) -> Result<Self, TransportError> {
        let inquiry =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|cause| TransportError::system("create a socket", cause))?;
        let nic = |binding: Binding| {
            let flags = binding.interface.as_deref().and_then(|name| flags(&inquiry, name).ok());
            let has_carrier = flags.is_some_and(|flags| flags & libc::IFF_LOOPBACK == 0);
            let index = index(&inquiry, &binding);
            Nic { binding, has_carrier, index, is_severed: false, looks: 0, is_proved: false }
        };
        let nics = bindings.into_iter().map(nic).collect();
        Ok(Self { nics, inquiry, events: listen(), foreign: None })
    }

    /// Readable when something was announced.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Whether there is anything that only a look finds out.
    pub(crate) fn needs_looks(&self) -> bool {
        self.nics.iter().any(|nic| nic.has_carrier || nic.is_severed)
    }

    /// Whether a NIC did not work at the last look.
    pub(crate) fn any_severed(&self) -> bool {
        self.nics.iter().any(|nic| nic.is_severed)
    }

    /// Whether the NIC of a rail did not work at the last look.
    pub(crate) fn is_severed(&self, rail: usize) -> bool {
        self.nics[rail].is_severed
    }

    /// A new connection over a NIC shows that it has a carrier. The kernel may find that out up to a
    /// second later, and until then what it says about the carrier is old.
    pub(crate) fn prove(&mut self, rail: usize) {
        self.nics[rail].is_proved = true;
    }

    /// Takes all announcements; tells whether there were any.
    pub(crate) fn was_told(&self) -> bool {
        take_announcements(self.events.as_ref())
    }

    /// What has changed since the last look.
    pub(crate) fn changes(&mut self, look: Look) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut homeless = Vec::new();
        for (rail, nic) in self.nics.iter_mut().enumerate() {
            let ailment = ailment(&self.inquiry, nic, look);
            let was_severed = std::mem::replace(&mut nic.is_severed, ailment.is_some());
            match ailment {
                Some(ailment) => {
                    if ailment.is_homeless && nic.is_searched(look, was_severed) {
                        homeless.push(rail);
                    }
                    if !was_severed {
                        changes.push(Change { rail, kind: ChangeKind::Severed(ailment.text) });
                    }
                }
                None if !was_severed => {
                    // Gone and back in less than a look. The next one finds that it is another one.
                    if look == Look::Thorough && nic.index != index(&self.inquiry, &nic.binding) {
                        nic.is_severed = true;
                        let kind = ChangeKind::Severed(nic.replaced());
                        changes.push(Change { rail, kind });
                    }
                }
                None if nic.is_another(&self.inquiry) => {
                    changes.push(Change { rail, kind: ChangeKind::Replaced });
                }
                None => changes.push(Change { rail, kind: ChangeKind::Restored }),
            }
        }
        changes.extend(homeless.into_iter().filter_map(|rail| self.rehouse(rail)));
        changes
    }

    /// Gives a NIC that has lost its address another one, if it has one.
    fn rehouse(&mut self, rail: usize) -> Option<Change> {
        let rails = self.nics.iter().map(|nic| nic.binding.address);
        let taken: Vec<IpAddr> = self.foreign.as_ref()?.iter().copied().chain(rails).collect();
        let nic = &mut self.nics[rail];
        let address = homes::another(&nic.binding, &homes::addresses(), &taken)?;
        (nic.binding.address, nic.is_severed) = (address, false);
        nic.index = index(&self.inquiry, &nic.binding);
        Some(Change { rail, kind: ChangeKind::Moved(address) })
    }
}

/// What is wrong with a NIC.
struct Ailment {
    text: String,
    /// Nothing but that its address is gone.
    is_homeless: bool,
}

impl Ailment {
    fn of_cable(text: String) -> Self {
        Self { text, is_homeless: false }
    }
}

impl Nic {
    /// Whether it is time to look for another address. Announcements tell when there may be one; where
    /// there are none, or they come early, looks in between find it.
    fn is_searched(&mut self, look: Look, was_severed: bool) -> bool {
        self.looks = if was_severed { self.looks + 1 } else { 0 };
        look == Look::Thorough || self.looks.is_multiple_of(LOOKS_PER_SEARCH)
    }

    fn replaced(&self) -> String {
        let name = self.binding.interface.as_deref().unwrap_or_default();
        format!("{name} is another interface than before")
    }

    /// Whether the interface is not the one that it was at the last look.
    fn is_another(&mut self, inquiry: &OwnedFd) -> bool {
        let before = std::mem::replace(&mut self.index, index(inquiry, &self.binding));
        before != self.index
    }
}

fn index(inquiry: &OwnedFd, binding: &Binding) -> Option<u32> {
    name_to_index(inquiry, binding.interface.as_deref()?).ok()
}

/// What is wrong with a NIC. One that was severed is well again only when everything is.
fn ailment(inquiry: &OwnedFd, nic: &mut Nic, look: Look) -> Option<Ailment> {
    if let (true, Some(name)) = (nic.has_carrier, &nic.binding.interface) {
        match flags(inquiry, name) {
            Ok(flags) if flags & libc::IFF_UP == 0 => {
                return Some(Ailment::of_cable(format!("{name} is off")));
            }
            Ok(flags) if flags & libc::IFF_RUNNING != 0 => nic.is_proved = false,
            Ok(_) if !nic.is_proved => {
                return Some(Ailment::of_cable(format!("{name} has no carrier")));
            }
            Err(libc::ENODEV) => {
                return Some(Ailment::of_cable(format!("{name} does not exist any more")));
            }
            Ok(_) | Err(_) => {}
        }
    }
    if look == Look::Quick && !nic.is_severed {
        return None;
    }
    let cause = socket::bound(&nic.binding, 0).err()?.cause;
    let is_gone = matches!(cause.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV));
    let text = format!("this host has lost the address {}", nic.binding.address);
    is_gone.then_some(Ailment { text, is_homeless: true })
}

/// The flags of an interface, or the error number.
fn flags(inquiry: &OwnedFd, interface: &str) -> Result<libc::c_int, libc::c_int> {
    // SAFETY: all fields are integers or, in the union, pointers that nobody follows.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= NAME_BYTES {
        return Err(libc::ENODEV);
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(name) {
        *target = *byte as libc::c_char;
    }
    // SAFETY: the descriptor is open, and the kernel reads and writes one `ifreq` where it is told.
    let result = unsafe { libc::ioctl(inquiry.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    if result != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    // SAFETY: the kernel has filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags.cast_unsigned()))
}

/// A socket for announcements of links and addresses, if there may be one.
fn listen() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::RAW;
    // The protocol that the kernel takes where none is named is that of routes.
    let events = socket_with(AddressFamily::NETLINK, kind, flags, None).ok()?;
    let groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR).cast_unsigned() | IPV6_ADDRESSES;
    bind(&events, &SocketAddrNetlink::new(0, groups)).ok()?;
    Some(events)
}

/// Takes all announcements; tells whether there were any.
fn take_announcements(events: Option<&OwnedFd>) -> bool {
    let Some(events) = events else { return false };
    let mut told = false;
    loop {
        match recv(events, &mut [0_u8; 64], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            // Too many announcements for the socket are one as well.
            Ok(_) | Err(rustix::io::Errno::NOBUFS) => told = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(address: &str, interface: Option<&str>) -> Binding {
        Binding { address: address.parse().unwrap(), interface: interface.map(str::to_owned) }
    }

    #[test]
    fn loopback_has_nothing_to_lose() {
        let rails = [None, Some("lo")].map(|interface| binding("127.3.4.5", interface));
        let mut nics = Nics::watch(rails.into()).unwrap();
        assert!(!nics.needs_looks());
        for look in [Look::Quick, Look::Thorough] {
            assert_eq!(nics.changes(look), []);
        }
    }

    #[test]
    fn an_address_that_is_gone_is_told_once() {
        let mut nics = Nics::watch(vec![binding("203.0.113.77", None)]).unwrap();
        assert_eq!(nics.changes(Look::Quick), []);
        let ailment = "this host has lost the address 203.0.113.77".to_owned();
        let kind = ChangeKind::Severed(ailment);
        assert_eq!(nics.changes(Look::Thorough), [Change { rail: 0, kind }]);
        assert!(nics.needs_looks());
        for look in [Look::Quick, Look::Thorough] {
            assert_eq!(nics.changes(look), []);
        }
    }

    #[test]
    fn interfaces_have_flags() {
        let nics = Nics::watch(vec![]).unwrap();
        assert_ne!(flags(&nics.inquiry, "lo").unwrap() & libc::IFF_LOOPBACK, 0);
        for missing in ["nonesuch0", "a name that is longer than any"] {
            assert_eq!(flags(&nics.inquiry, missing), Err(libc::ENODEV));
        }
    }
}
