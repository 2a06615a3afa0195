//! The device of libibverbs: RDMA NICs, and soft-RoCE.
//!
//! The library is looked for when [`devices`] is called, so a program with this device builds and runs
//! where there is none. Its interface is described in `sys`, the only part with `unsafe`.
//!
//! A queue pair is a reliable connected one of the device, with a completion queue of its own; or, for a connection of
//! a pool and where both devices are of mlx5, a dynamic initiator and target that were made before (`stock`). Three
//! things are added to it:
//!
//! - **A connection beside it** (`hello`, `parley`): over it the two ends tell each other where to send,
//!   when they are ready, and why they stop. A reliable connection without traffic does not notice that
//!   its peer is gone; the end of this one says so.
//! - **A fence that holds.** The device is asked to give everything back, and when it has, or after a
//!   second, the queue pair is destroyed. Only then is the last completion handed out, so whoever has
//!   all knows that nothing is executed at this end any more. [`reset`](super::QueuePair::reset) makes
//!   a new one, with a number that late packets do not have.
//! - **Events of the device** (`watch`): a port without link, or a device that is gone, ends its queue
//!   pairs at once, long before retransmissions do.
//!
//! The last operation of a list completes at the device also if only its failure is reported: so it is
//! always known what is on its way, and the queue never fills with what nobody hears of. Of the others those that are
//! signalled do. What is known about soft-RoCE is in `docs/rdma.md`.

mod connect;
mod domain;
mod ending;
mod gid;
mod hello;
#[cfg(test)]
pub(super) mod imitated;
mod parley;
mod posted;
mod queue_pair;
mod reports;
mod stock;
mod sys;
#[cfg(test)]
mod tests;
mod watch;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_core::settings::HcaFilter;

use super::{Device, Domain};
use crate::TransportError;
use domain::{IbDomain, look_up};
use sys::{Context, DeviceList, Library};

/// A port of an RDMA device.
#[derive(Debug)]
pub struct IbDevice {
    list: Arc<DeviceList>,
    device: String,
    port: u8,
    /// `device:port`, or just the device if it has one port.
    name: String,
    address: IpAddr,
    /// Whether no other address will do.
    is_pinned: bool,
    /// The further addresses of the port.
    others: Vec<IpAddr>,
    has_atomics: bool,
    /// Opened to see whether it can be used: the first domain goes on with it.
    context: Mutex<Option<Arc<Context>>>,
}

impl IbDevice {
    /// Whether it executes atomics, and can have them executed.
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// The same port with each of the further addresses that it had when it was found, as on further networks over
    /// its cable (VLAN). Each is used with that address only.
    #[must_use]
    pub fn others(&self) -> Vec<Self> {
        let with = |&address: &IpAddr| Self {
            list: Arc::clone(&self.list),
            device: self.device.clone(),
            port: self.port,
            name: self.name.clone(),
            address,
            is_pinned: true,
            others: Vec::new(),
            has_atomics: self.has_atomics,
            context: Mutex::default(),
        };
        self.others.iter().map(with).collect()
    }
}

/// The RDMA devices of this host, listed once.
#[derive(Debug)]
pub struct Inventory {
    list: Arc<DeviceList>,
    names: Vec<String>,
}

impl Inventory {
    /// Looks for libibverbs, and asks it.
    ///
    /// # Errors
    /// There is no libibverbs, or no RDMA device.
    pub fn take() -> Result<Self, TransportError> {
        let library = Library::load()?;
        if let Some(reason) = library.lacks_mlx5() {
            tracing::debug!(%reason, "no dynamic queue pairs");
        }
        Ok(Self::of(DeviceList::new(library)?))
    }

    fn of(list: DeviceList) -> Self {
        Self { names: list.names(), list: Arc::new(list) }
    }

    /// Names of all devices, whether they can be used or not.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The usable ports that the filter takes, in the order of the library. Ports that cannot be used are
    /// left out, and the log says why.
    ///
    /// # Errors
    /// There is no port that can be used: the text says why, for each.
    pub fn devices(&self, filter: &HcaFilter) -> Result<Vec<IbDevice>, TransportError> {
        let mut found = Vec::new();
        let mut reasons = Vec::new();
        for name in &self.names {
            match self.ports(name, filter) {
                Ok(outcomes) => {
                    for outcome in outcomes {
                        match outcome {
                            Ok(device) => found.push(device),
                            Err(reason) => reasons.push(reason.to_string()),
                        }
                    }
                }
                Err(reason) => reasons.push(reason.to_string()),
            }
        }
        for reason in &reasons {
            tracing::debug!(reason, "an RDMA port is not used");
        }
        if found.is_empty() {
            if reasons.is_empty() {
                let all = self.names.join(", ");
                reasons.push(format!("{filter} takes none of this host's, {all}"));
            }
            return Err(TransportError::system("find an RDMA device", reasons.join("; ")));
        }
        Ok(found)
    }

    /// The ports of a device that the filter takes, each as far as it can be used.
    fn ports(
        &self,
        device: &str,
        filter: &HcaFilter,
    ) -> Result<Vec<Result<IbDevice, TransportError>>, TransportError> {
        // A device that no port of which can be wanted is not opened: it may not even be permitted.
        if !(1..=u8::MAX).any(|port| filter.takes(device, port)) {
            return Ok(Vec::new());
        }
        let context = Context::open(&self.list, device)?;
        let limits = context.limits()?;
        let (count, has_atomics) = (limits.ports, limits.has_atomics);
        // A context has one queue of events, so it is for one domain.
        let mut first = Some(Arc::clone(&context));
        let wanted = (1..=count).filter(|&port| filter.takes(device, port));
        let found = wanted.map(|port| {
            let (state, gid) = look_up(&context, port, None)?;
            let rows = context.gids(port, state.gids);
            let others = gid.map(|best| gid::others(&rows, &best.gid)).unwrap_or_default();
            let unspecified = IpAddr::from([0u16; 8]);
            let address = gid.map_or(unspecified, |entry| gid::address(&entry.gid));
            let name = if count == 1 { device.to_owned() } else { format!("{device}:{port}") };
            let (list, device) = (Arc::clone(&self.list), device.to_owned());
            let context = Mutex::new(first.take());
            let is_pinned = false;
            Ok(IbDevice {
                list,
                device,
                port,
                name,
                address,
                is_pinned,
                others,
                has_atomics,
                context,
            })
        });
        Ok(found.collect())
    }
}

/// As [`Inventory::devices`], of an inventory that is taken for it.
///
/// # Errors
/// There is no libibverbs, no RDMA device, or no port that can be used: the text says why, for each.
pub fn devices(filter: &HcaFilter) -> Result<Vec<IbDevice>, TransportError> {
    Inventory::take()?.devices(filter)
}

impl Device for IbDevice {
    fn name(&self) -> &str {
        &self.name
    }

    /// The address in the GID of a port on Ethernet, when it was found; unspecified on InfiniBand.
    fn address(&self) -> IpAddr {
        self.address
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        let opened = self.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        let context = match opened {
            Some(context) => context,
            None => Context::open(&self.list, &self.device)?,
        };
        let limits = context.limits()?;
        let wanted = self.is_pinned.then_some(self.address);
        Ok(Box::new(IbDomain::new(&context, self.port, wanted, limits)?))
    }
}
