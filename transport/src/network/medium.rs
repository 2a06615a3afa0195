//! What carries the tiles of a connection: TCP, or the verbs of an RDMA device of the same NIC.
//!
//! Verbs are taken where both ends have them. The connection that was authenticated is then the one
//! beside the queue pair. Where a connection over verbs fails before a single tile could be sent over it,
//! the next one is over TCP: it is the last resort, and the one after that tries verbs again.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

use super::{Connected, Instrument, RailAddress, detect};
use crate::TransportError;
use crate::verbs::soft::{SoftDevice, socket};
use crate::verbs::{Connection, Depth, Device};

/// The RDMA device of a rail, if it has one.
pub type RailDevice = Option<Arc<dyn Device>>;

/// What carries the tiles of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Tcp,
    Verbs,
}

impl Medium {
    /// The better one of those that both ends have.
    pub(super) fn of(both_have_verbs: bool) -> Self {
        if both_have_verbs { Self::Verbs } else { Self::Tcp }
    }

    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Tcp => 0,
            Self::Verbs => 1,
        }
    }

    pub(super) fn decode(word: u32) -> Option<Self> {
        [Self::Tcp, Self::Verbs].into_iter().find(|medium| medium.encode() == word)
    }
}

/// The media of the connections of one path, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    best: Medium,
    latest: Medium,
    was_usable: bool,
}

impl Choice {
    /// A path whose first connection is over the best medium that both ends have.
    pub(super) fn new(best: Medium) -> Self {
        Self { best, latest: best, was_usable: false }
    }

    /// Whether a connection over `medium` is possible at all.
    pub(super) fn admits(&self, medium: Medium) -> bool {
        medium == Medium::Tcp || medium == self.best
    }

    /// What the next connection should be over.
    pub(super) fn next(&self) -> Medium {
        match self.latest {
            Medium::Verbs if !self.was_usable => Medium::Tcp,
            Medium::Verbs | Medium::Tcp => self.best,
        }
    }

    /// A connection is being made.
    pub(super) fn begun(&mut self, medium: Medium) {
        (self.latest, self.was_usable) = (medium, false);
    }

    /// Tiles can be sent over the latest connection.
    pub(super) fn usable(&mut self) {
        self.was_usable = true;
    }
}

/// Makes the queue pairs of all rails of this rank.
pub(super) struct Media {
    devices: Vec<RailDevice>,
    instrument: Instrument,
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Media").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Media {
    /// Only TCP, on so many rails.
    pub(super) fn tcp(rails: usize) -> Self {
        Self { devices: vec![None; rails], instrument: Box::new(|_, pair, _| pair) }
    }

    /// The same with these RDMA devices.
    pub(super) fn with_devices(self, devices: Vec<RailDevice>) -> Self {
        Self { devices, ..self }
    }

    /// The same with something around every queue pair.
    pub(super) fn with_instrument(self, instrument: Instrument) -> Self {
        Self { instrument, ..self }
    }

    /// Which rails have an RDMA device.
    pub(super) fn verbs(&self) -> Vec<bool> {
        self.devices.iter().map(Option::is_some).collect()
    }

    /// A queue pair over an authenticated connection of a rail.
    ///
    /// # Errors
    /// The device refused, or there is none.
    pub(super) fn connect(
        &self,
        address: &RailAddress,
        (rail, depth): (usize, Depth),
        (stream, medium): (TcpStream, Medium),
    ) -> Result<Connected, TransportError> {
        detect::hasten(&stream);
        socket::keep_asking(&stream, detect::QUESTIONS)?;
        let domain = match (medium, &self.devices[rail]) {
            (Medium::Tcp, _) => SoftDevice::new(address.name.clone(), address.address).domain()?,
            (Medium::Verbs, Some(device)) => device.domain()?,
            (Medium::Verbs, None) => {
                let text = format!("rail {} has no RDMA device", address.name);
                return Err(TransportError::Refused(text));
            }
        };
        let mut pair = (self.instrument)(rail, domain.queue_pair(depth)?, depth);
        pair.initialise().expect("a new queue pair can be initialised");
        pair.connect(Connection::Stream(stream))?;
        Ok((domain, pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_stands_in_for_verbs_that_nobody_could_use() {
        let mut choice = Choice::new(Medium::Verbs);
        assert_eq!(choice.next(), Medium::Tcp, "the first connection died before it was used");
        choice.usable();
        assert_eq!(choice.next(), Medium::Verbs);
        choice.begun(Medium::Verbs);
        assert_eq!(choice.next(), Medium::Tcp);
        choice.begun(Medium::Tcp);
        assert_eq!(choice.next(), Medium::Verbs);
        choice.usable();
        assert_eq!(choice.next(), Medium::Verbs, "TCP is never stayed with");
        assert!(choice.admits(Medium::Tcp) && choice.admits(Medium::Verbs));
    }

    #[test]
    fn without_verbs_there_is_only_tcp() {
        let mut choice = Choice::new(Medium::of(false));
        for _ in 0..3 {
            assert_eq!(choice.next(), Medium::Tcp);
            choice.begun(Medium::Tcp);
        }
        assert!(choice.admits(Medium::Tcp) && !choice.admits(Medium::Verbs));
    }

    #[test]
    fn media_survive_the_wire() {
        for medium in [Medium::Tcp, Medium::Verbs] {
            assert_eq!(Medium::decode(medium.encode()), Some(medium));
        }
        assert_eq!(Medium::decode(2), None);
    }
}
