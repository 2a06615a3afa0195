//! How many flows it takes to fill an interface.
//!
//! A flow is what a network keeps together, here a connection: it has one pair of addresses and of port
//! numbers. A NIC that gives one flow less than it has is filled by several.

use std::path::Path;

use super::text;

/// Flows for each port of a bond: a hash leaves ports without any if there are as few flows as ports.
const FLOWS_PER_PORT: usize = 2;
/// No interface is said to need more.
const MOST_FLOWS: usize = 16;

/// Vendors (PCI) of NICs in clouds that limit the rate of a flow, and how many flows they are given. NCCL has the
/// same vendors (`NCCL_SOCKET_NTHREADS` times `NCCL_NSOCKS_PERTHREAD`, 16 and 4).
const VENDORS: [(&str, usize); 2] = [
    // Amazon's ENA: 5 Gbit/s for a flow, 10 inside a cluster placement group.
    ("0x1d0f", 8),
    // Google's gVNIC.
    ("0x1ae0", 4),
];

/// Of the interface with this folder alone.
pub(super) fn of(folder: &Path) -> usize {
    over_ports(&folder.join("bonding")).max(by_vendor(folder)).clamp(1, MOST_FLOWS)
}

fn by_vendor(folder: &Path) -> usize {
    let vendor = text(&folder.join("device/vendor")).unwrap_or_default();
    VENDORS.iter().find(|(known, _)| *known == vendor).map_or(1, |(_, flows)| *flows)
}

/// A bond chooses a port for each flow only if it balances by a hash, and the hash looks at the numbers of ports
/// (`Documentation/networking/bonding.rst` of Linux): its default, `layer2`, sends all that goes to one host over
/// one port.
fn over_ports(bonding: &Path) -> usize {
    let says = |file: &str| text(&bonding.join(file)).unwrap_or_default();
    let (mode, policy) = (says("mode"), says("xmit_hash_policy"));
    let balances = ["balance-xor", "802.3ad"].iter().any(|known| mode.starts_with(known));
    let by_flow = ["layer3+4", "encap3+4"].iter().any(|known| policy.starts_with(known));
    match balances && by_flow {
        true => FLOWS_PER_PORT * says("slaves").split_whitespace().count(),
        false => 1,
    }
}
