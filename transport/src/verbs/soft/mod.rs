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
use domain::SoftDomain;

/// A NIC, used through TCP.
#[derive(Debug)]
pub struct SoftDevice {
    name: String,
    address: IpAddr,
}

impl SoftDevice {
    /// The device called `name` on the NIC that has `address`.
    #[must_use]
    pub fn new(name: String, address: IpAddr) -> Self {
        Self { name, address }
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
        Ok(Box::new(SoftDomain::new(Arc::default())))
    }
}
