//! The device of libibverbs: RDMA NICs, and soft-RoCE.
//!
//! The library is looked for when [`devices`] is called, so a program with this device builds and runs
//! where there is none. Its interface is described in `sys`, the only part with `unsafe`.
//!
//! A queue pair is a reliable connected one of the device, with a completion queue of its own. Three
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
//! Every operation completes at the device, also those of which only failures are reported: so it is
//! always known what is on its way, and the queue never fills with what nobody hears of. What is known
//! about soft-RoCE is in `docs/rdma.md`.

mod connect;
mod domain;
mod ending;
mod gid;
mod hello;
mod parley;
mod posted;
mod queue_pair;
mod sys;
#[cfg(test)]
mod tests;
mod watch;

use std::net::IpAddr;
use std::sync::Arc;

use ccl_core::settings::HcaFilter;

use super::{Device, Domain};
use crate::TransportError;
use domain::{IbDomain, look_up};
use sys::{Context, Library};

/// A port of an RDMA device.
#[derive(Debug)]
pub struct IbDevice {
    library: Arc<Library>,
    device: String,
    port: u8,
    /// `device:port`, or just the device if it has one port.
    name: String,
    address: IpAddr,
    has_atomics: bool,
}

impl IbDevice {
    /// Whether it executes atomics, and can have them executed.
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        self.has_atomics
    }
}

/// Names of the RDMA devices of this host, whether they can be used or not.
///
/// # Errors
/// There is no libibverbs, or no RDMA device.
pub fn names() -> Result<Vec<String>, TransportError> {
    Library::load()?.device_names()
}

/// The usable ports that the filter takes, in the order of the library. Ports that cannot be used are
/// left out, and the log says why.
///
/// # Errors
/// There is no libibverbs, no RDMA device, or no port that can be used: the text says why, for each.
pub fn devices(filter: &HcaFilter) -> Result<Vec<IbDevice>, TransportError> {
    let library = Library::load()?;
    let mut found = Vec::new();
    let mut reasons = Vec::new();
    let names = library.device_names()?;
    for name in &names {
        match ports(&library, name, filter) {
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
            reasons.push(format!("{filter} takes none of this host's, {}", names.join(", ")));
        }
        return Err(TransportError::system("find an RDMA device", reasons.join("; ")));
    }
    Ok(found)
}

/// The ports of a device that the filter takes, each as far as it can be used.
fn ports(
    library: &Arc<Library>,
    device: &str,
    filter: &HcaFilter,
) -> Result<Vec<Result<IbDevice, TransportError>>, TransportError> {
    // A device that no port of which can be wanted is not opened: it may not even be permitted.
    if !(1..=u8::MAX).any(|port| filter.takes(device, port)) {
        return Ok(Vec::new());
    }
    let context = Context::open(library, device)?;
    let limits = context.limits()?;
    let (count, has_atomics) = (limits.ports, limits.has_atomics);
    let wanted = (1..=count).filter(|&port| filter.takes(device, port));
    let found = wanted.map(|port| {
        let (_, gid) = look_up(&context, port)?;
        let unspecified = IpAddr::from([0u16; 8]);
        let address = gid.map_or(unspecified, |entry| gid::address(&entry.gid));
        let name = if count == 1 { device.to_owned() } else { format!("{device}:{port}") };
        let (library, device) = (Arc::clone(library), device.to_owned());
        Ok(IbDevice { library, device, port, name, address, has_atomics })
    });
    Ok(found.collect())
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
        let context = Context::open(&self.library, &self.device)?;
        let limits = context.limits()?;
        Ok(Box::new(IbDomain::new(&context, self.port, limits)?))
    }
}
