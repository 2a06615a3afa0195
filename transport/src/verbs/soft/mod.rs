//! The software device: verbs over TCP.
//!
//! One queue pair is one TCP connection bound to the address of one NIC. Operations are frames of a
//! fixed header and, where there is one, a payload; a frame leaves with one vectored write, and a
//! payload is read from the socket straight into the region it is meant for. TCP keeps the order, the
//! receiving end executes frame by frame, and every frame carries how many operations of the other
//! end have been executed. When nothing goes the other way for a while, that count gets a frame of
//! its own: after a number of operations or bytes, or when polling finds nothing to do.
//!
//! Addresses of regions start at 0: a peer never learns an address of this process.

mod domain;
mod executed;
mod frame;
mod inbox;
mod intake;
mod outgoing;
mod queue_pair;
mod requests;
mod responder;
mod silence;
pub mod socket;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use super::{Device, Domain};
use crate::TransportError;
use crate::nics::Watched;
use domain::SoftDomain;

/// A NIC, used through TCP.
#[derive(Debug)]
pub struct SoftDevice {
    name: String,
    address: IpAddr,
    nic: Option<Watched>,
}

impl SoftDevice {
    /// The device called `name` on the NIC that has `address`.
    #[must_use]
    pub fn new(name: String, address: IpAddr) -> Self {
        Self { name, address, nic: None }
    }

    /// The same device, whose queue pairs end when its NIC does not work any more: it has lost its carrier or
    /// its address, is off, or is gone. Polls in vain find that out
    /// ([`look_at_nic`](super::QueuePair::look_at_nic)); who sleeps is woken by the
    /// [descriptor of the lookout](crate::nics::Lookout::descriptor).
    #[must_use]
    pub fn watched(self, nic: Watched) -> Self {
        Self { nic: Some(nic), ..self }
    }
}

impl Device for SoftDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        Ok(Box::new(SoftDomain::new(Arc::default(), self.nic.clone())))
    }
}
