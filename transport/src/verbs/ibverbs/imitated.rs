//! Devices of the imitation, for tests.

use std::net::IpAddr;
use std::ptr::NonNull;

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

/// A device all of whose memory begins somewhere in a page, as that of programs does.
#[derive(Debug)]
pub(in super::super) struct Unaligned<D>(pub(in super::super) D);

#[derive(Debug)]
struct UnalignedDomain(Box<dyn Domain>);

/// As atomics want it, and no more.
const PLACE_IN_PAGE: usize = 8 * 37;

impl<D: Device> Device for Unaligned<D> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn address(&self) -> IpAddr {
        self.0.address()
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        Ok(Box::new(UnalignedDomain(self.0.domain()?)))
    }
}

impl Domain for UnalignedDomain {
    /// Other memory of the same length.
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        let around = Memory::allocate(PLACE_IN_PAGE + memory.bytes())?;
        let start = NonNull::new(around.start().as_ptr().wrapping_add(PLACE_IN_PAGE));
        // SAFETY: the region keeps it mapped, and nobody else knows of it.
        let unaligned = unsafe { Memory::lent(start.expect("inside"), memory.bytes()) };
        let region = self.0.register(&unaligned, access)?;
        let (local, remote) = (region.segment(0, 0).key, region.remote(0));
        let keys = (local, remote.key);
        Ok(MemoryRegion::new(unaligned, keys, remote.address, Box::new((region, around))))
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        self.0.queue_pair(depth)
    }
}
