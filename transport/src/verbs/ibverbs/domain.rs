//! What is registered with a port's device, and the queue pairs on it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::super::{
    Access, Depth, Domain, LocalKey, Memory, MemoryRegion, QueuePair, RemoteKey, Segment,
};
use super::gid;
use super::hello::Hello;
use super::posted::at_the_device;
use super::queue_pair::IbQueuePair;
use super::stock::Stock;
use super::sys::{
    Context, DeviceLimits, Endpoint, Gid, GidEntry, Place, PortState, ProtectionDomain,
    Registration,
};
use super::watch::Watch;
use crate::TransportError;

/// Reads and atomics at a time; more would not make them faster, and devices pay for each.
const MOST_READS: u8 = 16;

/// A protection domain.
#[derive(Debug)]
pub(super) struct IbDomain(Arc<Shared>);

/// What all queue pairs of a domain use.
#[derive(Debug)]
pub(super) struct Shared {
    protection: Arc<ProtectionDomain>,
    pub(super) port: u8,
    /// The address with which the port is used; otherwise with the best that it has.
    wanted: Option<IpAddr>,
    pub(super) limits: DeviceLimits,
    /// Bytes of an operation, at most.
    pub(super) longest: u32,
    pub(super) watch: Watch,
    /// The registered memory, by its local key.
    regions: RwLock<BTreeMap<u32, Memory>>,
    /// Dynamic ends that are ready.
    stock: Stock,
}

impl IbDomain {
    pub(super) fn new(
        context: &Arc<Context>,
        port: u8,
        wanted: Option<IpAddr>,
        limits: DeviceLimits,
    ) -> Result<Self, TransportError> {
        Ok(Self(Arc::new(Shared {
            protection: ProtectionDomain::new(context)?,
            port,
            wanted,
            limits,
            longest: context.port(port)?.longest,
            watch: Watch::new(Arc::clone(context)),
            regions: RwLock::default(),
            stock: Stock::default(),
        })))
    }
}

impl Domain for IbDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        let shared = &self.0;
        // A device without atomics has no such right to give. Atomics are refused when they are posted.
        let remote_atomic = access.remote_atomic && shared.limits.has_atomics;
        let access = Access { remote_atomic, ..access };
        let registration = shared.protection.register(memory, access)?;
        let ((local, remote), address) = (registration.keys(), registration.address());
        let mut regions = shared.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(local, memory.clone());
        let region = Region { shared: Arc::clone(shared), registration };
        let keys = (LocalKey(local), RemoteKey(remote));
        Ok(MemoryRegion::new(memory.clone(), keys, address, Box::new(region)))
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(Box::new(IbQueuePair::new(Arc::clone(&self.0), depth, false)?))
    }

    fn spare_queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(Box::new(IbQueuePair::new(Arc::clone(&self.0), depth, true)?))
    }

    fn keep_ready(&self, depth: Depth, count: usize) -> usize {
        self.0.keep_ready(at_the_device(depth), count)
    }
}

/// Takes the key out of the table when the region is dropped, and then undoes the registration.
struct Region {
    shared: Arc<Shared>,
    registration: Registration,
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut regions = self.shared.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.remove(&self.registration.keys().0);
    }
}

impl Shared {
    /// The memory that a segment is part of, if it is registered.
    pub(super) fn memory(&self, segment: Segment) -> Option<Memory> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let memory = regions.get(&segment.key.0)?;
        let end = segment.offset.checked_add(segment.bytes)?;
        (end <= memory.bytes()).then(|| memory.clone())
    }

    pub(super) fn endpoint(&self, depth: Depth) -> Result<Arc<Endpoint>, TransportError> {
        let limits = self.limits;
        self.check(depth)?;
        let endpoint = Endpoint::reliable(&self.protection, self.port, depth, limits.has_atomics)?;
        Ok(Arc::new(endpoint))
    }

    /// A dynamic end that is ready, or one that is made now; none if the device makes none, or has no link.
    pub(super) fn take_ready(&self, depth: Depth) -> Option<Arc<Endpoint>> {
        let place = self.place_for_dynamic()?;
        let ready = self.stock.take(depth, place);
        ready.or_else(|| self.make_dynamic(depth, place))
    }

    /// Has so many dynamic ends ready; tells how many there are.
    pub(super) fn keep_ready(&self, depth: Depth, count: usize) -> usize {
        let Some(place) = self.place_for_dynamic() else { return 0 };
        self.stock.fill(depth, place, count, || self.make_dynamic(depth, place))
    }

    /// Where this end is, if its device is one that has dynamic queue pairs.
    fn place_for_dynamic(&self) -> Option<Place> {
        let context = self.protection.context();
        context.is_mlx5().then(|| self.place().ok().map(|(place, _)| place)).flatten()
    }

    fn make_dynamic(&self, depth: Depth, place: Place) -> Option<Arc<Endpoint>> {
        // A message is two requests.
        let requests = Depth { sends: 2 * depth.sends, ..depth };
        let has_atomics = self.limits.has_atomics;
        let made = self
            .check(requests)
            .and_then(|()| Endpoint::dynamic(&self.protection, place, depth, has_atomics));
        match made {
            Ok(endpoint) => Some(Arc::new(endpoint)),
            Err(reason) => {
                tracing::debug!(device = self.name(), %reason, "spares get reliable queue pairs");
                None
            }
        }
    }

    /// Whether the device has queues of this depth.
    fn check(&self, depth: Depth) -> Result<(), TransportError> {
        let limits = self.limits;
        if depth.sends.max(depth.receives) > limits.queue_entries
            || depth.sends + depth.receives > limits.completions
        {
            let most =
                format!("{} operations, {} completions", limits.queue_entries, limits.completions);
            let text = format!("{depth:?} is more than it has: {most}");
            return Err(TransportError::system(
                format!("make a queue pair of {}", self.name()),
                text,
            ));
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        self.protection.context().name()
    }

    /// How this end introduces itself, and the row of the address it uses. The address is looked up
    /// anew each time, because it may have changed while the port was down.
    pub(super) fn describe(
        &self,
        endpoint: &Endpoint,
        packet: u32,
    ) -> Result<(Hello, Place), TransportError> {
        let (place, is_ethernet) = self.place()?;
        let target = endpoint.target();
        let hello = Hello {
            mtu: place.mtu,
            is_ethernet,
            has_atomics: self.limits.has_atomics,
            reads_answered: self.limits.reads_answered.min(MOST_READS),
            reads_asked: self.limits.reads_asked.min(MOST_READS),
            lid: place.lid,
            number: if target.is_some() { 0 } else { endpoint.numbers()[0] },
            packet,
            gid: place.gid,
            target,
        };
        Ok((hello, place))
    }

    /// Whether what was made for a queue pair can be used where this end is now.
    pub(super) fn can_use(&self, endpoint: &Endpoint) -> Result<bool, TransportError> {
        Ok(endpoint.target().is_none() || endpoint.is_for(self.place()?.0))
    }

    /// Where this end is now, and whether on Ethernet.
    fn place(&self) -> Result<(Place, bool), TransportError> {
        let (port, gid) = look_up(self.protection.context(), self.port, self.wanted)?;
        let place = Place {
            port: self.port,
            gid_index: gid.map(|entry| entry.index),
            gid: gid.map_or([0; 16], |entry| entry.gid),
            lid: port.lid,
            mtu: port.mtu,
        };
        Ok((place, port.is_ethernet))
    }

    /// Whether the port has a link now: an event may be about one that was lost and is back.
    pub(super) fn has_link(&self) -> bool {
        self.protection.context().port(self.port).is_ok_and(|port| port.is_active)
    }

    /// Whether the row still has this address.
    pub(super) fn has_address(&self, index: u8, gid: Gid) -> bool {
        let row = self.protection.context().gid(self.port, u32::from(index));
        row.is_some_and(|row| row.gid == gid)
    }
}

/// The state of a port that can be used, and the address to use, on Ethernet: the wanted one, if one is.
///
/// # Errors
/// It cannot be used, for the reason given.
pub(super) fn look_up(
    context: &Context,
    number: u8,
    wanted: Option<IpAddr>,
) -> Result<(PortState, Option<GidEntry>), TransportError> {
    let port = context.port(number)?;
    let failed = |cause: String| {
        TransportError::system(format!("use port {number} of {}", context.name()), cause)
    };
    if !port.is_active {
        return Err(failed(
            "it has no link: its cable, its switch or its network interface is off".into(),
        ));
    }
    if !port.is_ethernet {
        return Ok((port, None));
    }
    let rows = context.gids(number, port.gids);
    let best = gid::choose(&rows, wanted).map_err(|reason| failed(reason.to_string()))?;
    Ok((port, Some(best)))
}
