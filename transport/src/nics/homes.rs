//! Where a NIC may live when it has lost its address.
//!
//! A NIC that comes back may have got another address (DHCP). What the interface had all along besides is
//! there for something else, and is never taken.

use std::net::IpAddr;

use crate::verbs::soft::socket::{self, Binding};

/// The addresses of all interfaces: name and address.
pub(super) fn addresses() -> Vec<(String, IpAddr)> {
    let Ok(entries) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let of = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        Some((entry.interface_name, v4.or_else(v6)?))
    };
    entries.filter_map(of).collect()
}

/// Another address for a NIC that can be used: the smallest that is not `taken`.
pub(super) fn another(
    binding: &Binding,
    present: &[(String, IpAddr)],
    taken: &[IpAddr],
) -> Option<IpAddr> {
    let interface = binding.interface.as_ref()?;
    let own = present.iter().filter(|(name, _)| name == interface).map(|(_, address)| *address);
    let mut fitting: Vec<IpAddr> = own
        .filter(|address| is_alike(*address, binding.address) && !taken.contains(address))
        .collect();
    fitting.sort_unstable();
    fitting.into_iter().find(|address| {
        let binding = Binding { address: *address, ..binding.clone() };
        socket::bound(&binding, 0).is_ok()
    })
}

/// Whether one may stand in for the other: an address that is valid on one link only does not for one
/// that is valid everywhere.
fn is_alike(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.is_link_local() == other.is_link_local(),
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            one.is_unicast_link_local() == other.is_unicast_link_local()
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Of the loopback interface, on which every address of 127/8 can be used.
    fn choose(old: &str, present: &[&str], taken: &[&str]) -> Option<IpAddr> {
        let binding = Binding { address: old.parse().unwrap(), interface: Some("lo".into()) };
        let present: Vec<_> =
            parse(present).into_iter().map(|address| ("lo".to_owned(), address)).collect();
        another(&binding, &present, &parse(taken))
    }

    #[test]
    fn the_smallest_usable_address_of_the_same_kind_is_taken() {
        let present = ["::1", "169.254.1.1", "127.0.0.9", "127.0.0.10", "127.0.0.8"];
        assert_eq!(choose("10.0.0.1", &present, &["127.0.0.8"]), Some(parse(&["127.0.0.9"])[0]));
        assert_eq!(choose("10.0.0.1", &["203.0.113.77"], &[]), None);
        assert_eq!(choose("2001:db8::1", &["127.0.0.9", "fe80::1"], &[]), None);
        assert_eq!(choose("10.0.0.1", &[], &[]), None);
    }

    #[test]
    fn other_interfaces_do_not_count() {
        let binding = |interface: Option<&str>| Binding {
            address: "10.0.0.1".parse().unwrap(),
            interface: interface.map(str::to_owned),
        };
        let present = [("lo".to_owned(), "127.0.0.9".parse().unwrap())];
        assert_eq!(another(&binding(Some("eth7")), &present, &[]), None);
        assert_eq!(another(&binding(None), &present, &[]), None);
    }

    #[test]
    fn loopback_has_its_address() {
        let home = ("lo".to_owned(), "127.0.0.1".parse().unwrap());
        assert!(addresses().contains(&home));
    }
}
