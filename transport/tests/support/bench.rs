//! Virtual queue pairs between two places of this process, over rails that can be cut.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ccl_transport::TransportError;
use ccl_transport::verbs::fault::{Faulty, Script};
use ccl_transport::verbs::soft::SoftDevice;
use ccl_transport::verbs::virtual_qp::{VirtualDevice, VirtualDomain, VirtualQp, VirtualSettings};
use ccl_transport::verbs::{
    Access, Completion, Connection, Depth, Device, Domain, Landings, Memory, MemoryRegion,
    PostError, QueuePair, ReceiveRequest, Silence, State, Status, WorkId, WorkRequest,
};

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Rails of a place, at most.
const MOST_RAILS: usize = 4;

/// What goes wrong with the rails of a place, for all of them at once.
#[derive(Debug, Default)]
pub(super) struct Weather {
    /// Seed of how slowly operations start; 0 for not slowly.
    slowness: AtomicU64,
    /// Acknowledgements are lost.
    pub(super) is_deaf: AtomicBool,
    /// A bit for each rail that does nothing any more and does not say so.
    pub(super) frozen: AtomicU64,
    /// What has failed is not given back yet.
    pub(super) is_kept: AtomicBool,
    /// A bit for each rail whose device says that it has something to do.
    pub(super) restless: AtomicU64,
    /// How often each rail has been polled.
    polls: [AtomicU64; MOST_RAILS],
}

impl Weather {
    #[allow(dead_code, reason = "not every test counts polls")]
    pub(super) fn polls(&self, rail: usize) -> u64 {
        self.polls[rail].load(Ordering::Relaxed)
    }
}

/// A device whose rails have the weather of their place.
#[derive(Debug)]
struct Outdoors {
    device: SoftDevice,
    rail: usize,
    weather: Arc<Weather>,
}

#[derive(Debug)]
struct OutdoorDomain {
    domain: Box<dyn Domain>,
    rail: usize,
    weather: Arc<Weather>,
}

impl Device for Outdoors {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn address(&self) -> std::net::IpAddr {
        self.device.address()
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        let domain = self.device.domain()?;
        let weather = Arc::clone(&self.weather);
        Ok(Box::new(OutdoorDomain { domain, rail: self.rail, weather }))
    }
}

impl Domain for OutdoorDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        self.domain.register(memory, access)
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        let mut inner = self.domain.queue_pair(depth)?;
        let seed = self.weather.slowness.load(Ordering::Relaxed);
        if seed > 0 {
            self.weather.slowness.fetch_add(1, Ordering::Relaxed);
            let bytes_per_poll = Some(8 << Random(seed).below(9));
            let script = Script { seed, bytes_per_poll, ..Script::default() };
            inner = Box::new(Faulty::new(inner, depth.sends, script));
        }
        let weather = Arc::clone(&self.weather);
        Ok(Box::new(Deaf { inner, weather, unheard: Vec::new(), rail: self.rail }))
    }
}

/// A queue pair that hears nothing of what its peer has executed while the weather is so. What it has
/// not heard of is flushed when it fails.
#[derive(Debug)]
struct Deaf {
    inner: Box<dyn QueuePair>,
    weather: Arc<Weather>,
    unheard: Vec<Completion>,
    rail: usize,
}

impl Deaf {
    fn is_frozen(&self) -> bool {
        self.weather.frozen.load(Ordering::Relaxed) >> self.rail & 1 == 1
    }

    fn is_lost(&self, completion: &Completion) -> bool {
        use ccl_transport::verbs::Opcode::{Receive, ReceiveWriteWithImmediate};
        let is_receive = matches!(completion.opcode, Receive | ReceiveWriteWithImmediate);
        self.weather.is_deaf.load(Ordering::Relaxed) && !is_receive
    }
}

impl QueuePair for Deaf {
    fn state(&self) -> State {
        self.inner.state()
    }

    fn fault(&self) -> Option<&TransportError> {
        self.inner.fault()
    }

    fn initialise(&mut self) -> Result<(), PostError> {
        self.inner.initialise()
    }

    fn connect(&mut self, connection: Connection) -> Result<(), TransportError> {
        self.inner.connect(connection)
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.inner.post_send(request)
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        self.inner.post_receive(request)
    }

    fn poll_into(&mut self, completions: &mut Vec<Completion>, _: &mut dyn Landings) -> bool {
        self.weather.polls[self.rail].fetch_add(1, Ordering::Relaxed);
        if self.is_frozen() && self.inner.state() == State::ReadyToSend {
            return false;
        }
        if self.weather.is_kept.load(Ordering::Relaxed) && self.inner.state() == State::Error {
            return false;
        }
        let mut arrived = Vec::new();
        let moved = self.inner.poll(&mut arrived);
        if self.inner.state() == State::Error {
            let flushed = |heard: Completion| Completion { status: Status::Flushed, ..heard };
            completions.extend(self.unheard.drain(..).map(flushed));
        }
        for completion in arrived {
            if self.inner.state() != State::Error && self.is_lost(&completion) {
                self.unheard.push(completion);
            } else {
                completions.push(completion);
            }
        }
        moved
    }

    fn fail(&mut self) {
        self.inner.fail();
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.unheard.clear();
    }

    fn flushed(&self) -> bool {
        self.inner.flushed()
    }

    fn in_flight(&self) -> bool {
        self.inner.in_flight()
    }

    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.inner.descriptor()
    }

    fn needs_poll(&self) -> bool {
        let is_restless = self.weather.restless.load(Ordering::Relaxed) >> self.rail & 1 == 1;
        is_restless || self.inner.needs_poll()
    }

    fn silence(&self) -> Option<Silence> {
        self.is_frozen().then_some(Silence::of(Duration::MAX))
    }
}

/// A domain over several rails, and one region of memory in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) domain: VirtualDomain,
    pub(super) region: MemoryRegion,
    pub(super) weather: Arc<Weather>,
}

impl Place {
    /// Rails are slow from a seed, or not at all if that is 0.
    pub(super) fn new(settings: &VirtualSettings, bytes: usize, slowness: u64) -> Self {
        let weather = Arc::new(Weather::default());
        weather.slowness.store(slowness, Ordering::Relaxed);
        let rails = (0..settings.standings.len()).map(|rail| {
            let device = SoftDevice::new(format!("rail {rail}"), "127.0.0.1".parse().unwrap());
            Arc::new(Outdoors { device, rail, weather: Arc::clone(&weather) }) as Arc<dyn Device>
        });
        let domain = VirtualDevice::new(rails.collect(), settings.clone()).virtual_domain();
        let domain = domain.unwrap();
        let region = domain.register(&Memory::allocate(bytes).unwrap(), Access::ALL).unwrap();
        Self { domain, region, weather }
    }

    pub(super) fn memory(&self) -> &Memory {
        self.region.memory()
    }
}

/// Both ends of a queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) near: VirtualQp,
    pub(super) far: VirtualQp,
    pub(super) near_done: Vec<Completion>,
    pub(super) far_done: Vec<Completion>,
    listener: TcpListener,
}

impl Pair {
    /// Connected over the default rail only.
    pub(super) fn new(near: &Place, far: &Place, depth: Depth) -> Self {
        let make = |place: &Place| place.domain.virtual_queue_pair(depth).unwrap();
        let (mut near, mut far) = (make(near), make(far));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = streams(&listener);
        for (end, stream) in [(&mut near, one), (&mut far, other)] {
            end.initialise().unwrap();
            end.connect(Connection::Stream(stream)).unwrap();
        }
        Self { near, far, near_done: Vec::new(), far_done: Vec::new(), listener }
    }

    /// Connects every rail that both ends want.
    pub(super) fn attach(&mut self, rails: impl Iterator<Item = usize>) {
        for rail in rails {
            if self.near.wants(rail) && self.far.wants(rail) {
                let (one, other) = streams(&self.listener);
                self.near.attach(rail, Connection::Stream(one)).unwrap();
                self.far.attach(rail, Connection::Stream(other)).unwrap();
            }
        }
    }

    pub(super) fn poll(&mut self) -> bool {
        self.near.poll(&mut self.near_done) | self.far.poll(&mut self.far_done)
    }

    pub(super) fn post(&mut self, id: u64, operation: ccl_transport::verbs::Operation) {
        let request = WorkRequest { id: WorkId(id), operation, signalled: true };
        self.near.post_send(request).unwrap();
    }
}

pub(super) fn streams(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}
