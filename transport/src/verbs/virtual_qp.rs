//! Queue pairs that survive their NIC.
//!
//! A [`VirtualDevice`] is several devices in the order of their rails: the default one, then the
//! backups. Its queue pairs have the contract of every other: they differ in that a fault of a rail
//! is not an error of theirs. The machine of [`ccl_core::failover::queue`] decides; this module posts
//! what it says on the queue pairs of the devices, and keeps what it needs at the peer in registered
//! memory, which both ends use one-sided. No thread serves anybody; those of a shadow only make connections.
//!
//! [`QueuePair::connect`](super::QueuePair::connect) connects the default rail. Backups are connected
//! whenever a connection is there, before or after a fault: by a [`Shadow`] in the background, or with
//! [`VirtualQp::attach`]: each queue pair its own, or one of a [`SparePool`] that many share.
//!
//! What is relaxed, and for which operations, is in `docs/virtual-queue-pair.md`.

mod complete;
mod control;
mod keys;
mod post;
mod queue_pair;
mod rail;
mod readiness;
mod shadow;
mod spare;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::failover::queue::atomic::MAX_CLIENTS;
pub use ccl_core::failover::queue::{
    Cause, Counters, Evidence, Limits, ReceiveState, SendState, Standing,
};

use super::{Access, Depth, Device, Domain, Memory, MemoryRegion, QueuePair};
use crate::TransportError;
use control::{Layout, WORD};
use keys::Keys;
pub use keys::MAX_REGIONS;
pub use queue_pair::{Footprint, VirtualQp};
use rail::RailEnd;
pub use readiness::Readiness;
pub use shadow::{Attempt, Bell, Connector, Shadow, Store, Switchboard, TcpConnector};
pub use spare::{Claim, Owner, SparePool};

/// Requests of a rail besides those of the application: introductions, mail, logs and tables.
const MANAGEMENT_DEPTH: usize = 32;

/// How virtual queue pairs repair themselves.
#[derive(Clone, Debug)]
pub struct VirtualSettings {
    /// How they learn what the peer has.
    pub evidence: Evidence,
    /// How long things may take.
    pub limits: Limits,
    /// What each rail is worth; the first is the default whatever it is worth.
    pub standings: Vec<Standing>,
    /// How long the host of the peer may confirm nothing that is on its way before a rail is given up.
    pub silence: Duration,
    /// Queue pairs that a domain serves with atomic operations, over its life.
    pub clients: usize,
}

impl VirtualSettings {
    /// So many rails that are all alike.
    #[must_use]
    pub fn new(evidence: Evidence, rails: usize) -> Self {
        let standings = vec![Standing::default(); rails];
        let silence = Duration::from_secs(1);
        Self { evidence, limits: Limits::default(), standings, silence, clients: 1024 }
    }
}

/// Several devices as one.
#[derive(Debug)]
pub struct VirtualDevice {
    rails: Vec<Arc<dyn Device>>,
    settings: VirtualSettings,
}

impl VirtualDevice {
    /// The default device, then the backups.
    ///
    /// # Panics
    /// There is none, or not one for each standing.
    #[must_use]
    pub fn new(rails: Vec<Arc<dyn Device>>, settings: VirtualSettings) -> Self {
        assert!(!rails.is_empty() && rails.len() == settings.standings.len(), "{settings:?}");
        Self { rails, settings }
    }

    /// A domain over all devices.
    ///
    /// # Errors
    /// A device refused.
    pub fn virtual_domain(&self) -> Result<VirtualDomain, TransportError> {
        let domains = self
            .rails
            .iter()
            .map(|device| device.domain().map(SharedDomain::new))
            .collect::<Result<Vec<_>, _>>()?;
        VirtualDomain::new(domains, self.settings.clone())
    }
}

impl Device for VirtualDevice {
    fn name(&self) -> &str {
        self.rails[0].name()
    }

    fn address(&self) -> IpAddr {
        self.rails[0].address()
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        Ok(Box::new(self.virtual_domain()?))
    }
}

/// The domain of one rail, from which queue pairs are made also later.
#[derive(Clone, Debug)]
struct SharedDomain(Arc<Mutex<Box<dyn Domain>>>);

impl SharedDomain {
    fn new(domain: Box<dyn Domain>) -> Self {
        Self(Arc::new(Mutex::new(domain)))
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Domain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A domain over several devices: what is registered here is registered with all of them.
#[derive(Debug)]
pub struct VirtualDomain {
    domains: Vec<SharedDomain>,
    settings: VirtualSettings,
    shared: Arc<Shared>,
}

/// What all queue pairs of a domain use.
#[derive(Debug)]
struct Shared {
    keys: Arc<Keys>,
    /// The key tables, on each rail.
    tables: Vec<MemoryRegion>,
    /// The records of the atomics of all clients, on each rail.
    records: Vec<MemoryRegion>,
    record_count: u64,
    clients: AtomicU64,
}

impl Shared {
    fn new(domains: &[SharedDomain], clients: u64) -> Result<Self, TransportError> {
        let keys = Arc::new(Keys::new(domains.len())?);
        let records = Memory::allocate(clients as usize * 2 * WORD)?;
        let everywhere = |memory: &Memory, access| {
            let register = |domain: &SharedDomain| domain.lock().register(memory, access);
            domains.iter().map(register).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            tables: everywhere(keys.memory(), Access::READ)?,
            records: everywhere(&records, Access::ALL)?,
            record_count: clients,
            clients: AtomicU64::new(0),
            keys,
        })
    }

    /// A number that no other client of this domain has or had.
    fn next_client(&self) -> Result<u64, TransportError> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        if number < self.record_count {
            return Ok(number);
        }
        let text = format!("the domain has served {} already", self.record_count);
        Err(TransportError::system("make a virtual queue pair", text))
    }
}

impl VirtualDomain {
    fn new(domains: Vec<SharedDomain>, settings: VirtualSettings) -> Result<Self, TransportError> {
        let clients = (settings.clients as u64).clamp(1, MAX_CLIENTS);
        let shared = Arc::new(Shared::new(&domains, clients)?);
        Ok(Self { domains, settings, shared })
    }

    /// A queue pair over all rails, whose other methods need no `dyn`.
    ///
    /// # Errors
    /// A device refused, or the domain has had as many queue pairs as its settings say.
    pub fn virtual_queue_pair(&self, depth: Depth) -> Result<VirtualQp, TransportError> {
        self.virtual_queue_pair_with(&self.settings, depth)
    }

    /// A queue pair over all rails that repairs itself in a way of its own: evidence, limits, silence
    /// and standings are of these settings, and the memory is that of the domain.
    ///
    /// # Errors
    /// As for [`Self::virtual_queue_pair`].
    ///
    /// # Panics
    /// There is not a standing for each rail.
    pub fn virtual_queue_pair_with(
        &self,
        settings: &VirtualSettings,
        depth: Depth,
    ) -> Result<VirtualQp, TransportError> {
        assert_eq!(settings.standings.len(), self.domains.len(), "a standing for each rail");
        let entries = if settings.evidence == Evidence::Log { depth.sends } else { 0 };
        let layout = Layout::new(self.domains.len(), entries);
        let memory = layout.allocate()?;
        let access = Access { remote_write: true, remote_read: true, remote_atomic: false };
        let mut rails = Vec::with_capacity(self.domains.len());
        for (index, domain) in self.domains.iter().enumerate() {
            let region = domain.lock().register(&memory, access)?;
            rails.push(RailEnd::new(index, domain.clone(), region, layout));
        }
        let client = self.shared.next_client()?;
        VirtualQp::new(rails, Arc::clone(&self.shared), client, (settings, depth))
    }

    /// A queue pair of the default device alone, in the same memory: it ends with its rail.
    ///
    /// # Errors
    /// The device refused.
    pub fn plain_queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        self.domains[0].lock().queue_pair(depth)
    }
}

impl Domain for VirtualDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        keys::register(&self.shared.keys, &self.domains, memory, access)
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(Box::new(self.virtual_queue_pair(depth)?))
    }
}

/// How deep the queue pair of a rail must be: a request and its entry in the log are two.
fn device_depth(depth: Depth) -> Depth {
    let sends = 2 * depth.sends + MANAGEMENT_DEPTH;
    Depth { sends, receives: depth.receives + 1 }
}
