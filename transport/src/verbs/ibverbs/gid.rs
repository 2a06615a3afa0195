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
    #[error(
        "it does not have the address {0} any more; give it to its network interface (ip address)"
    )]
    Lost(IpAddr),
}

/// How good an address is; the greatest is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    LinkLocal,
    Global6,
    Mapped4,
}

/// The row to use on Ethernet: that of `wanted`, if an address is wanted; otherwise of RoCE v2, rather of an IPv4 address than of an IPv6 one, and rather of
/// one that leaves the network; among equals the first, since later ones are often of short-lived
/// addresses.
///
/// # Errors
/// There is none.
pub(super) fn choose(entries: &[GidEntry], wanted: Option<IpAddr>) -> Result<GidEntry, NoGid> {
    if let Some(wanted) = wanted {
        let found = usable(entries).find(|entry| address(&entry.gid) == wanted);
        return found.copied().ok_or(NoGid::Lost(wanted));
    }
    let better = |entry: &&GidEntry| (rank(&entry.gid), std::cmp::Reverse(entry.index));
    let best = usable(entries).max_by_key(better);
    best.copied().ok_or_else(
        || {
            if entries.iter().any(is_set) { NoGid::OnlyOld } else { NoGid::Empty }
        },
    )
}

/// The addresses of a port beside the one that it is used with: those of further networks over its cable (VLAN), or
/// of the same. Of link-local ones each network has the same, so they name none.
pub(super) fn others(entries: &[GidEntry], chosen: &Gid) -> Vec<IpAddr> {
    let others = usable(entries).filter(|entry| rank(&entry.gid) != Rank::LinkLocal);
    let mut found = Vec::new();
    for other in others.map(|entry| address(&entry.gid)) {
        if other != address(chosen) && !found.contains(&other) {
            found.push(other);
        }
    }
    found
}

fn usable(entries: &[GidEntry]) -> impl Iterator<Item = &GidEntry> {
    entries.iter().filter(|entry| is_set(entry) && entry.kind == GidKind::RoceV2)
}

fn is_set(entry: &GidEntry) -> bool {
    entry.gid != [0; 16]
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
        assert_eq!(choose(&rows, None).unwrap().index, 4);
        assert_eq!(choose(&rows[..4], None).unwrap().index, 2);
        assert_eq!(choose(&rows[..2], None).unwrap().index, 1);
        let others = others(&rows, &rows[4].gid).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(others, ["2001:db8::1", "10.0.0.2"]);
        assert_eq!(address(&rows[4].gid).to_string(), "10.0.0.1");
        assert_eq!(address(&rows[2].gid).to_string(), "2001:db8::1");
    }

    #[test]
    fn an_address_that_is_wanted_is_that_of_its_row_or_none() {
        let rows = [
            entry(4, GidKind::RoceV2, "10.0.0.1"),
            entry(5, GidKind::RoceV1, "10.0.0.2"),
            entry(6, GidKind::RoceV2, "10.0.0.2"),
        ];
        let wanted = "10.0.0.2".parse().unwrap();
        assert_eq!(choose(&rows, Some(wanted)).unwrap().index, 6);
        assert_eq!(choose(&rows[..2], Some(wanted)), Err(NoGid::Lost(wanted)));
    }

    #[test]
    fn without_a_usable_address_it_is_said_why() {
        let old = entry(0, GidKind::RoceV1, "10.0.0.1");
        let unset = entry(1, GidKind::RoceV2, "::");
        assert_eq!(choose(&[old, unset], None), Err(NoGid::OnlyOld));
        assert_eq!(choose(&[unset], None), Err(NoGid::Empty));
        assert_eq!(choose(&[], None), Err(NoGid::Empty));
    }
}
