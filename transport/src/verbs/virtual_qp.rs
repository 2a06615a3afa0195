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
mod glances;
mod ground;
mod inspect;
mod keys;
mod post;
mod queue_pair;
mod rail;
mod readiness;
mod shadow;
mod spare;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::failover::queue::atomic::MAX_CLIENTS;
pub use ccl_core::failover::queue::{
    Cause, Counters, Evidence, Limits, ReceiveState, SendState, Standing,
};

use super::{Access, Depth, Device, Domain, Memory, MemoryRegion, QueuePair};
use crate::TransportError;
use control::{Layout, WORD};
use ground::Shared;
pub use inspect::Footprint;
use keys::Keys;
pub use keys::MAX_REGIONS;
pub use queue_pair::VirtualQp;
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

    /// A domain over all devices, of which the default one is opened.
    ///
    /// # Errors
    /// It refused.
    pub fn virtual_domain(&self) -> Result<VirtualDomain, TransportError> {
        let settings = self.settings.clone();
        let clients = (settings.clients as u64).clamp(1, MAX_CLIENTS);
        let shared = Arc::new(Shared::new(&self.rails, clients)?);
        Ok(VirtualDomain { settings, shared })
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

/// A domain over several devices: what is registered here is registered with all of them. The default one
/// is opened with it, the others when they are first needed: see [`Self::open_backups`]. A clone is the same domain.
#[derive(Clone, Debug)]
pub struct VirtualDomain {
    settings: VirtualSettings,
    shared: Arc<Shared>,
}

impl VirtualDomain {
    /// Opens the devices of all backups and registers with them what is registered. Without it the device of
    /// a backup is opened when the first connection of its rail is made: by a [`Shadow`] in the background, or
    /// by [`VirtualQp::attach`], which then takes that long.
    ///
    /// # Errors
    /// A device refused; the others are open.
    pub fn open_backups(&self) -> Result<(), TransportError> {
        let opened = (1..self.shared.rails()).map(|rail| self.shared.open(rail));
        opened.fold(Ok(()), Result::and)
    }

    /// Has the device of each backup keep so many ends ready for connections of a [`SparePool`], for queue pairs
    /// of this depth and evidence: dynamic ones of mlx5, which are made before it is known
    /// whom they are for. It opens devices that are not open. To be called again when some have been taken, as
    /// by whoever fills a pool.
    ///
    /// Returns how many the backup has that has fewest: 0 where a device makes none. Spares then get queue pairs
    /// that are made when they are needed.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub fn keep_ready(
        &self,
        depth: Depth,
        evidence: Evidence,
        count: usize,
    ) -> Result<usize, TransportError> {
        self.open_backups()?;
        let depth = device_depth(depth, evidence == Evidence::Log);
        let rails = (1..self.shared.rails()).map(|rail| self.shared.opened(rail));
        // One at a time: a queue pair that has lost its rail may want the domain meanwhile.
        let ready = rails.map(|opened| {
            let there = |wanted| opened.domain().keep_ready(depth, wanted);
            (1..count).find(|&wanted| there(wanted) < wanted).map_or_else(|| there(count), there)
        });
        Ok(ready.min().unwrap_or(0))
    }

    /// Why backups cannot be used, as of the last attempt to open them: a rail that stands here is down, and
    /// tried again as long as a queue pair wants it.
    #[must_use]
    pub fn obstacles(&self) -> BTreeMap<usize, TransportError> {
        self.shared.obstacles()
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
        let rails = self.shared.rails();
        assert_eq!(settings.standings.len(), rails, "a standing for each rail");
        let entries = if settings.evidence == Evidence::Log { depth.sends } else { 0 };
        let layout = Layout::new(rails, entries);
        let control = layout.allocate()?;
        let end = |rail| RailEnd::new(rail, Arc::clone(&self.shared), control.clone(), layout);
        let mut rails: Vec<_> = (0..rails).map(end).collect();
        rails[0].register()?;
        let client = self.shared.next_client()?;
        VirtualQp::new(rails, Arc::clone(&self.shared), client, (settings, depth))
    }

    /// A queue pair of the default device alone, in the same memory: it ends with its rail.
    ///
    /// # Errors
    /// The device refused.
    pub fn plain_queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        self.shared.opened(0).domain().queue_pair(depth)
    }
}

impl Domain for VirtualDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        self.shared.register(memory, access)
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(Box::new(self.virtual_queue_pair(depth)?))
    }
}

/// How deep the queue pair of a rail must be: a request and its entry in the log, if there is one, are two.
fn device_depth(depth: Depth, has_log: bool) -> Depth {
    let sends = depth.sends * (1 + usize::from(has_log)) + MANAGEMENT_DEPTH;
    Depth { sends, receives: depth.receives + 1 }
}
