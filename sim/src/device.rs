//! The device: queue pairs and domains of the simulated network, behind the contract of verbs.

use std::os::fd::RawFd;
use std::time::Duration;

use ccl_transport::TransportError;
use ccl_transport::verbs::{
    Access, Completion, Connection, Depth, Domain, Landings, LocalKey, Memory, MemoryRegion,
    PostError, QueuePair, ReceiveRequest, RemoteKey, Silence, State, Unstaged, WorkRequest,
};

use crate::network::{EndId, Network, Shared};
use crate::scenario::Execution;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct SimulatedDomain {
    network: Shared,
    number: u32,
}

impl SimulatedDomain {
    pub(crate) fn new(network: Shared, number: u32) -> Self {
        Self { network, number }
    }
}

/// Ends a registration when it is dropped.
#[derive(Debug)]
struct Registration {
    network: Shared,
    region: u32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.network.lock().deregister(self.region);
    }
}

impl Domain for SimulatedDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        let region = self.network.lock().register(self.number, memory.clone(), access);
        let registration = Registration { network: self.network.clone(), region };
        let keys = (LocalKey(region), RemoteKey(region));
        let address = Network::address(region);
        Ok(MemoryRegion::new(memory.clone(), keys, address, Box::new(registration)))
    }

    /// Simulated queue pairs come connected, from their keeper.
    fn queue_pair(&self, _: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Err(TransportError::Refused("simulated queue pairs come from their keeper".into()))
    }
}

/// A queue pair. What it knows of its state it has learnt when it was last polled.
#[derive(Debug)]
pub(crate) struct SimulatedPair {
    network: Shared,
    end: EndId,
    state: State,
    fault: Option<TransportError>,
}

impl SimulatedPair {
    pub(crate) fn new(network: Shared, end: EndId) -> Self {
        Self { network, end, state: State::ReadyToSend, fault: None }
    }

    fn look(&mut self, network: &Network) {
        let (state, fault) = network.end(self.end);
        if state != self.state {
            self.state = state;
            self.fault = fault.cloned();
        }
    }
}

impl Drop for SimulatedPair {
    fn drop(&mut self) {
        self.network.lock().drop_end(self.end);
    }
}

impl QueuePair for SimulatedPair {
    fn state(&self) -> State {
        self.state
    }

    fn fault(&self) -> Option<&TransportError> {
        self.fault.as_ref()
    }

    fn initialise(&mut self) -> Result<(), PostError> {
        Err(PostError::WrongState(self.state))
    }

    fn connect(&mut self, _: Connection) -> Result<(), TransportError> {
        Err(TransportError::Refused("simulated queue pairs are connected by their keeper".into()))
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.network.lock().post_send(self.end, request)
    }

    fn sends_unstaged(&self) -> bool {
        self.network.lock().physics.unstaged
    }

    fn post_unstaged(&mut self, operations: &[Unstaged<'_>]) -> Option<usize> {
        self.network.lock().post_unstaged(self.end, operations)
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        self.network.lock().post_receive(self.end, request)
    }

    fn poll_into(
        &mut self,
        completions: &mut Vec<Completion>,
        landings: &mut dyn Landings,
    ) -> bool {
        let network = self.network.clone();
        let mut network = network.lock();
        let moved = network.poll(self.end, completions, landings);
        self.look(&network);
        moved
    }

    fn fail(&mut self) {
        let network = self.network.clone();
        let mut network = network.lock();
        network.fail(self.end);
        self.look(&network);
    }

    fn discard(&mut self) {
        let network = self.network.clone();
        let mut network = network.lock();
        network.discard(self.end);
        self.look(&network);
    }

    fn reset(&mut self) {
        let network = self.network.clone();
        let mut network = network.lock();
        network.reset(self.end);
        self.look(&network);
    }

    fn flushed(&self) -> bool {
        true
    }

    fn in_flight(&self) -> bool {
        self.network.lock().in_flight(self.end)
    }

    fn confirms_alone(&self) -> bool {
        self.network.lock().physics.execution == Execution::AtArrival
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn needs_poll(&self) -> bool {
        true
    }

    fn silence(&self) -> Option<Silence> {
        self.network.lock().silence(self.end).map(Duration::from_nanos).map(Silence::of)
    }
}
