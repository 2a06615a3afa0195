//! The simulated network: cards, queue pairs, packets on their way, and what breaks.
//!
//! Nothing happens in it but by [`Network::advance`], which the world calls while no rank is
//! running, and by what queue pairs are told to do. So the memory of a link changes only when no
//! slice of it is lent, as on a real card the protocol has to see to it.
//!
//! Packets of one queue pair arrive in order. A path that does not work *holds* what is on it: real
//! connections send again what was lost, so it arrives when the path works again, unless the
//! receiving end has gone to the error state by then. That is how a write can land long after its
//! sender has given the queue pair up.

mod agenda;
mod end;
mod falsify;
mod link;
mod trouble;
mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::random::Random;
use ccl_transport::TransportError;
use ccl_transport::verbs::{Access, Memory};

use self::agenda::{Agenda, Event};
pub(crate) use self::end::{End, EndId, Place};
pub(crate) use self::link::{LinkState, NewsItem};
pub(crate) use self::trouble::Nic;
use crate::Nanos;
use crate::mutation::Mutation;
use crate::scenario::{Fault, Physics};
use crate::tally::Tally;

/// Addresses of registered memory begin at multiples of this.
const REGION_STRIDE: u64 = 1 << 32;

/// Everybody who uses the network holds it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Network>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub(crate) fn new(network: Network) -> Self {
        Self(Arc::new(Mutex::new(network)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Network> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that a domain knows.
struct Region {
    domain: u32,
    memory: Memory,
    access: Access,
    registered: bool,
}

/// All of it.
pub(crate) struct Network {
    pub(crate) now: Nanos,
    pub(crate) physics: Physics,
    random: Random,
    agenda: Agenda,
    nics: Vec<Nic>,
    ends: Vec<End>,
    regions: Vec<Region>,
    domains: u32,
    /// Payload of a tile on links between hosts.
    pub(crate) tile_bytes: u64,
    links: Vec<LinkState>,
    faults: Vec<Fault>,
    /// Faults that wait for their packet, the next one last.
    armed: Vec<usize>,
    /// Cables that do not pass packets, by their cards.
    cut_paths: Vec<(usize, usize)>,
    /// Hosts whose processes stand still.
    frozen: Vec<u8>,
    /// When the last fault that has begun ends.
    pub(crate) troubled_until: Nanos,
    /// When parts of tiles began to keep what follows them waiting, and for how long.
    delays: Vec<(Nanos, Nanos)>,
    /// Packets that have arrived.
    arrived: u64,
    /// Paths that each rank has given up.
    pub(crate) given_up: Vec<u64>,
    /// Ranks that have something to look at, as bits.
    wakes: u32,
    /// What the protocol must never do, and did.
    pub(crate) violation: Option<String>,
    pub(crate) tally: Tally,
    /// What happens is written down here, if anybody wants to read it.
    pub(crate) log: Option<Vec<String>>,
    mutation: Option<Mutation>,
    /// The world is over: nobody waits for anything.
    pub(crate) over: bool,
}

impl Network {
    /// A network of cards, by the host of each, in which these faults will happen.
    pub(crate) fn new(
        seed: u64,
        physics: Physics,
        nics: Vec<Nic>,
        hosts: usize,
        faults: &[Fault],
    ) -> Self {
        let mut armed: Vec<usize> = (0..faults.len()).collect();
        armed.sort_by_key(|index| std::cmp::Reverse(faults[*index].packets));
        let mut network = Self {
            now: 0,
            physics,
            random: Random::new(!seed),
            agenda: Agenda::default(),
            nics,
            ends: Vec::new(),
            regions: Vec::new(),
            domains: 0,
            tile_bytes: 0,
            links: Vec::new(),
            faults: faults.to_vec(),
            armed,
            cut_paths: Vec::new(),
            frozen: vec![0; hosts],
            troubled_until: 0,
            delays: Vec::new(),
            arrived: 0,
            given_up: vec![0; u32::BITS as usize],
            wakes: 0,
            violation: None,
            tally: Tally::default(),
            log: None,
            mutation: None,
            over: false,
        };
        network.trip();
        network
    }

    pub(crate) fn mutate(&mut self, mutation: Option<Mutation>) {
        self.mutation = mutation;
    }

    fn is_mutant(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// For how long parts of tiles that came since then have kept what follows them waiting, all together.
    pub(crate) fn delayed_since(&self, time: Nanos) -> Nanos {
        self.delays.iter().filter(|(began, late)| began + late > time).map(|(_, late)| late).sum()
    }

    /// When something happens next.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.agenda.next()
    }

    /// Lets everything happen that is due at `now`.
    pub(crate) fn advance(&mut self, now: Nanos) {
        while let Some((at, event)) = self.agenda.take(now) {
            self.now = at;
            self.happen(event);
        }
        self.now = now;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(end) => self.arrive(end),
            Event::Acknowledge(end) => self.acknowledge(end),
            Event::Notice(end) => self.notice(end),
            Event::GiveUp(end) => self.give_up(end),
            Event::Break(end) => {
                self.lose(end, TransportError::system("send", "the connection broke"));
            }
            Event::Wake(rank) => self.wake(rank),
            Event::FaultBegins(fault) => self.begin_fault(fault),
            Event::FaultEnds(fault) => self.end_fault(fault),
            Event::News { link, side, item } => self.deliver_news(link, side, item),
            Event::Attempt { link, path } => self.attempt(link, path),
        }
    }

    /// The ranks that have something to look at since the last time, as bits.
    pub(crate) fn take_wakes(&mut self) -> u32 {
        std::mem::take(&mut self.wakes)
    }

    fn wake(&mut self, rank: usize) {
        self.wakes |= 1 << rank;
    }

    pub(crate) fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.log.is_some() {
            let (microseconds, rest) = (self.now / 1000, self.now % 1000);
            let line = format!("{microseconds:>9}.{rest:03} {}", text(self));
            self.log.get_or_insert_default().push(line);
        }
    }

    /// Writes down what must not happen; only the first counts.
    pub(crate) fn violate(&mut self, text: String) {
        if self.over {
            return;
        }
        self.note(|_| format!("VIOLATION {text}"));
        self.violation.get_or_insert(text);
    }

    pub(crate) fn new_domain(&mut self) -> u32 {
        self.domains += 1;
        self.domains
    }

    /// Makes memory known to a domain; returns the number of the region.
    pub(crate) fn register(&mut self, domain: u32, memory: Memory, access: Access) -> u32 {
        self.regions.push(Region { domain, memory, access, registered: true });
        u32::try_from(self.regions.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn deregister(&mut self, region: u32) {
        self.regions[region as usize - 1].registered = false;
    }

    /// Where a region begins, as peers see it.
    pub(crate) fn address(region: u32) -> u64 {
        u64::from(region) * REGION_STRIDE
    }

    /// Some latency, and what is added to it now and then.
    fn travel(&mut self) -> Nanos {
        self.physics.latency + self.random.below(self.physics.jitter + 1)
    }
}
