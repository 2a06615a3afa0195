//! Devices of the imitation, for tests.

use std::net::IpAddr;

use ccl_core::settings::HcaFilter;

use super::super::{Access, Depth, Device, Domain, Memory, MemoryRegion, QueuePair};
pub(in super::super) use super::sys::imitation::{Make, Network};
use super::{IbDevice, Inventory};
use crate::TransportError;

/// So many devices that reach each other.
pub(in super::super) fn devices(count: usize, make: Make) -> (Network, Vec<IbDevice>) {
    let network = Network::new("imitated", count, make);
    let devices = Inventory::of(network.list()).devices(&HcaFilter::default());
    (network, devices.expect("all of them can be used"))
}

/// The devices of two hosts, one for each rail.
pub(in super::super) fn hosts(rails: usize, make: Make) -> [Vec<IbDevice>; 2] {
    let (_, mut left) = devices(2 * rails, make);
    let right = left.split_off(rails);
    [left, right]
}

/// A device all of whose queue pairs are those for spares: dynamic, if it has such.
#[derive(Debug)]
pub(in super::super) struct Spares(pub(in super::super) IbDevice);

#[derive(Debug)]
struct SpareDomain(Box<dyn Domain>);

impl Device for Spares {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn address(&self) -> IpAddr {
        self.0.address()
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        Ok(Box::new(SpareDomain(self.0.domain()?)))
    }
}

impl Domain for SpareDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        self.0.register(memory, access)
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        self.0.spare_queue_pair(depth)
    }
}
