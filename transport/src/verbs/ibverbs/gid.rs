//! Which of its addresses a port is used with.

use std::net::{IpAddr, Ipv6Addr};

use super::sys::{Gid, GidEntry, GidKind};

/// Why no address can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoGid {
    #[error(
        "it has no address: its network interface is down, or has no IP address; switch it on and give it \
         one (ip link, ip address)"
    )]
    Empty,
    #[error(
        "it has addresses of RoCE v1 only, which no router passes on; give its network interface an IP \
         address, and look whether the device does RoCE v2 (show_gids)"
    )]
    OnlyOld,
}

/// How good an address is; the greatest is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    LinkLocal,
    Global6,
    Mapped4,
}

/// The row to use on Ethernet: of RoCE v2, rather of an IPv4 address than of an IPv6 one, and rather of
/// one that leaves the network; among equals the first, since later ones are often of short-lived
/// addresses.
///
/// # Errors
/// There is none.
pub(super) fn choose(entries: &[GidEntry]) -> Result<GidEntry, NoGid> {
    let is_set = |entry: &&GidEntry| entry.gid != [0; 16];
    let usable = entries.iter().filter(is_set).filter(|entry| entry.kind == GidKind::RoceV2);
    let best = usable.max_by_key(|entry| (rank(&entry.gid), std::cmp::Reverse(entry.index)));
    best.copied().ok_or_else(|| {
        if entries.iter().any(|entry| is_set(&entry)) { NoGid::OnlyOld } else { NoGid::Empty }
    })
}

fn rank(gid: &Gid) -> Rank {
    match address(gid) {
        IpAddr::V4(_) => Rank::Mapped4,
        IpAddr::V6(address) if address.is_unicast_link_local() => Rank::LinkLocal,
        IpAddr::V6(_) => Rank::Global6,
    }
}

/// The IP address that it is made of.
pub(super) fn address(gid: &Gid) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, kind: GidKind, address: &str) -> GidEntry {
        let gid = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        GidEntry { index, gid, kind }
    }

    #[test]
    fn an_ipv4_address_over_roce_v2_is_best() {
        let rows = [
            entry(0, GidKind::RoceV1, "fe80::1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV2, "2001:db8::1"),
            entry(3, GidKind::RoceV1, "10.0.0.1"),
            entry(4, GidKind::RoceV2, "10.0.0.1"),
            entry(5, GidKind::RoceV2, "10.0.0.2"),
        ];
        assert_eq!(choose(&rows).unwrap().index, 4);
        assert_eq!(choose(&rows[..4]).unwrap().index, 2);
        assert_eq!(choose(&rows[..2]).unwrap().index, 1);
        assert_eq!(address(&rows[4].gid).to_string(), "10.0.0.1");
        assert_eq!(address(&rows[2].gid).to_string(), "2001:db8::1");
    }

    #[test]
    fn without_a_usable_address_it_is_said_why() {
        let old = entry(0, GidKind::RoceV1, "10.0.0.1");
        let unset = entry(1, GidKind::RoceV2, "::");
        assert_eq!(choose(&[old, unset]), Err(NoGid::OnlyOld));
        assert_eq!(choose(&[unset]), Err(NoGid::Empty));
        assert_eq!(choose(&[]), Err(NoGid::Empty));
    }
}
