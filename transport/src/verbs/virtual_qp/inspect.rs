//! How a virtual queue pair is.

use super::super::{ReceiveRequest, State, WorkRequest};
use super::queue_pair::VirtualQp;
use super::rail::{Condition, RailEnd};
use super::{Counters, SendState};

/// The memory of one end of a virtual queue pair, as far as this library can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The end itself, and its rings of requests and receives.
    pub ring_bytes: usize,
    /// Registered memory through which the ends manage each other, the log included.
    pub control_bytes: usize,
    /// Queue pairs of devices, each with the depth of this one.
    pub queue_pairs: usize,
}

impl VirtualQp {
    /// What it has gone through.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.machine.counters()
    }

    /// The rail in use; 0 is the default one.
    #[must_use]
    pub fn active(&self) -> usize {
        self.machine.active().index()
    }

    /// Where requests go.
    #[must_use]
    pub fn send_state(&self) -> SendState {
        self.machine.send_state()
    }

    /// Whether requests flow, rather than wait for the peer or for a repair.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::ReadyToSend && self.machine.is_running()
    }

    /// Its number. The peer learns it when the first rail is connected.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// The number of the peer, once it has introduced itself.
    #[must_use]
    pub fn peer(&self) -> Option<u64> {
        self.peer
    }

    /// Whether this end chooses rails, once that is known.
    #[must_use]
    pub fn leads(&self) -> Option<bool> {
        self.peer.map(|peer| self.identity > peer)
    }

    /// What it occupies now. A rail without a connection has no queue pair until it is given one.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let requests = self.requests.capacity() * size_of::<WorkRequest>();
        let receives = self.receives.capacity() * size_of::<ReceiveRequest>();
        let rails = self.rails.capacity() * size_of::<RailEnd>();
        Footprint {
            ring_bytes: size_of::<Self>() + requests + receives + rails,
            control_bytes: self.rails[0].control.bytes(),
            queue_pairs: self.rails.iter().filter(|rail| rail.pair.is_some()).count(),
        }
    }

    /// Whether a rail is connected.
    ///
    /// # Panics
    /// There is no such rail.
    #[must_use]
    pub fn is_attached(&self, rail: usize) -> bool {
        self.rails[rail].condition == Condition::Attached
    }

    /// How many connections its rails were given: where it has grown, [`Self::descriptors`] gives others.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections
    }
}
