//! Links between hosts, over all rails at once.
//!
//! A rail is a pair of NICs, one on each host, with one queue pair over it. Every tile is written with
//! one one-sided write, whose immediate announces it, into the slot of the receiver's ring that its
//! sequence number gives; which rail carries it is decided tile by tile, in proportion to capacity
//! ([`split`]). Tiles of different rails overtake each other on the way and are delivered in order of
//! their sequence. The receiver hands slots back by telling how many tiles it has consumed: in the
//! header of every tile that goes the other way, and when none does, by writing the count into the
//! sender's memory.
//!
//! ```text
//!   sender                                                receiver
//!   staging slot ── write with immediate, some rail ──▶  slot `sequence % slots`
//!   tile stays staged until ...                          peek, release
//!   credit word  ◀── write, some rail ─────────────────  consumed, every half window
//! ```
//!
//! A tile stays in the sender's staging slot until the receiver has consumed it, so it can be sent
//! again over another rail; the receiver ignores what it has already. Large tiles may leave from the
//! memory of the application, which has to give their bytes once more if a rail loses them, and go right
//! to where their receiver wants them (`landing`). How a link survives the death of
//! a rail, and takes it back when it returns, is in [`repair`].

mod announce;
mod carrier;
mod census;
mod detect;
pub mod events;
mod inbound;
pub mod keeper;
mod landing;
mod layout;
mod link;
mod looks;
mod medium;
mod meet;
mod meter;
pub mod rehearsal;
mod repair;
pub mod split;
pub mod survey;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ccl_core::ids::{Rank, Timestamp};

use crate::auth::JobKey;
use crate::verbs::soft::socket::{self, Binding};
use crate::verbs::{Depth, Domain, QueuePair};
use crate::{Link, TransportError, clock};
use census::Carried;
use events::Evidence;
pub use keeper::Directory;
use keeper::Keeper;
use keeper::rails::{Identity, Outside, RailKeeper};
use layout::Geometry;
use link::NetworkLink;
use medium::{Media, Medium};
use meet::{Contact, Meeting, Met, PeerPlan};
use rehearsal::Part;

use carrier::Unmet;
pub use carrier::Wire;
pub use link::LINGER;
pub use medium::RailDevice;
pub use repair::Terms;

/// Most rails of one rank; a hello carries the number in one byte.
pub const MAX_RAILS: usize = 64;

/// One NIC of this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RailAddress {
    /// What the operator calls it.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its interface: traffic goes through it even where the routes say otherwise.
    pub interface: Option<String>,
    /// Bytes per second; only the proportions matter.
    pub capacity: f64,
}

/// Where a peer listens.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerAddresses {
    /// Who.
    pub rank: Rank,
    /// Its listeners, in the order of its rails.
    pub addresses: Vec<SocketAddr>,
    /// The capacities of its rails, in the same order.
    pub capacities: Vec<f64>,
    /// Which of its rails have an RDMA device, in the same order.
    pub verbs: Vec<bool>,
    /// Which of its rails are known to be broken, in the same order.
    pub broken: Vec<bool>,
}

/// The size of the rings. All ranks must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Largest payload of a tile.
    pub tile_bytes: usize,
    /// Tiles that may be on the way in one direction.
    pub slots: usize,
}

/// What left through one rail, to all peers together.
#[derive(Debug)]
pub struct RailTraffic {
    /// When the time of the links begins.
    start: Instant,
    tiles: AtomicU64,
    bytes: AtomicU64,
    /// What has arrived, how long something was on the way, and until when.
    arrived_bytes: AtomicU64,
    busy_ns: AtomicU64,
    busy_until: AtomicU64,
}

impl Default for RailTraffic {
    fn default() -> Self {
        let [tiles, bytes, arrived_bytes, busy_ns, busy_until] =
            std::array::from_fn(|_| AtomicU64::new(0));
        Self { start: clock::now(), tiles, bytes, arrived_bytes, busy_ns, busy_until }
    }
}

impl RailTraffic {
    /// Tiles posted.
    #[must_use]
    pub fn tiles(&self) -> u64 {
        self.tiles.load(Ordering::Relaxed)
    }

    /// Their payload and headers, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn posted(&self, bytes: usize) {
        self.tiles.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes have arrived, with which a link was busy from `since` until now.
    fn arrived(&self, bytes: usize, since: Timestamp, now: Timestamp) {
        let until = self.busy_until.fetch_max(now.0, Ordering::Relaxed);
        self.arrived_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.busy_ns.fetch_add(now.0.saturating_sub(since.0.max(until)), Ordering::Relaxed);
    }

    fn carried(&self) -> Carried {
        let [bytes, busy_ns] = [&self.arrived_bytes, &self.busy_ns];
        Carried { bytes: bytes.load(Ordering::Relaxed), busy_ns: busy_ns.load(Ordering::Relaxed) }
    }
}

/// A queue pair in `ReadyToSend`, and what its memory is registered with.
pub(crate) type Connected = (Box<dyn Domain>, Box<dyn QueuePair>);

/// A peer, and this rank's end of the link with it.
pub type PeerLink = (Rank, Box<dyn Link>);

/// Puts something around every queue pair; see [`Endpoint::instrument`].
pub type Instrument = Box<dyn Fn(usize, Box<dyn QueuePair>, Depth) -> Box<dyn QueuePair> + Send>;

/// The listeners of one rank, one per rail, bound before addresses are exchanged.
pub struct Endpoint {
    rails: Vec<RailAddress>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    key: JobKey,
    traffic: Arc<[RailTraffic]>,
    media: Media,
    terms: Terms,
    directory: Directory,
    part: Option<Arc<Part>>,
    broken: Vec<bool>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("rails", &self.rails).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Listens on every rail, on ports of the system's choice.
    ///
    /// # Errors
    /// `System` that names the rail whose address or interface does not exist, or whose capacity is not
    /// a positive number; also if there are no rails, or too many.
    pub fn bind(rails: Vec<RailAddress>, key: JobKey) -> Result<Self, TransportError> {
        if rails.is_empty() || rails.len() > MAX_RAILS {
            let cause = format!("{} rails; 1 to {MAX_RAILS} are possible", rails.len());
            return Err(TransportError::system("bind the rails", cause));
        }
        let listeners = rails.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<Result<_, _>>()
            .map_err(|cause| TransportError::system("read the address of a listener", cause))?;
        let traffic = rails.iter().map(|_| RailTraffic::default()).collect();
        let (media, terms) = (Media::tcp(rails.len()), Terms::default());
        let (directory, part, broken) = (Directory::default(), None, vec![false; rails.len()]);
        Ok(Self {
            rails,
            listeners,
            addresses,
            key,
            traffic,
            media,
            terms,
            directory,
            part,
            broken,
        })
    }

    /// Puts `instrument` around every queue pair: it gets the rail, the queue pair and its depth. For
    /// faults on purpose ([`crate::verbs::fault`]) and recorders.
    #[must_use]
    pub fn instrument(mut self, instrument: Instrument) -> Self {
        self.media = self.media.with_instrument(instrument);
        self
    }

    /// Uses the RDMA devices of the rails, in their order, where the peer has one too.
    ///
    /// # Panics
    /// There is not one entry for each rail.
    #[must_use]
    pub fn devices(mut self, devices: Vec<RailDevice>) -> Self {
        assert_eq!(devices.len(), self.rails.len(), "one entry for each rail");
        self.media = self.media.with_devices(devices);
        self
    }

    /// Begins without these of its rails, in their order, which are used when they are whole again; unless no other one leads
    /// to a peer. Without repair, here or at the peer, no rail can be used later, so none may be left out.
    ///
    /// # Panics
    /// There is not one entry for each rail.
    #[must_use]
    pub fn without(mut self, broken: Vec<bool>) -> Self {
        assert_eq!(broken.len(), self.rails.len(), "one entry for each rail");
        self.broken = broken;
        self
    }

    /// Which rails have an RDMA device.
    #[must_use]
    pub fn verbs(&self) -> Vec<bool> {
        self.media.verbs()
    }

    /// Takes part in a rehearsal of faults.
    #[must_use]
    pub fn rehearse(mut self, part: Arc<Part>) -> Self {
        self.part = Some(part);
        self
    }

    /// How the links survive the death of a rail.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Where the listeners are, in the order of the rails.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Where to say that a peer listens elsewhere, as [`Witness::moved`](events::Witness::moved) told
    /// it. It outlives the endpoint.
    #[must_use]
    pub fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// Counters of the rails, in their order. They outlive the endpoint and count on.
    #[must_use]
    pub fn traffic(&self) -> Arc<[RailTraffic]> {
        Arc::clone(&self.traffic)
    }

    /// Connects to every peer over every rail: as many queue pairs as the one of the two with more
    /// rails has, pair `i` from this rank's rail `i` to the peer's, both modulo their number. All ranks
    /// call it at about the same time; the higher rank connects, the lower one accepts. With every peer one rail is
    /// enough, if nobody comes over the others for five seconds: they are used when they are whole.
    ///
    /// # Errors
    /// `TimedOut` that names the ranks that did not come by `deadline`, over no rail, or over some without repair; `Refused` if a peer
    /// has another key; `Protocol` if a peer has another shape.
    ///
    /// # Panics
    /// The shape is empty, or this rank is its own peer.
    pub fn connect(
        self,
        me: Rank,
        communicator: u64,
        peers: &[PeerAddresses],
        shape: LinkShape,
        deadline: Instant,
    ) -> Result<Vec<PeerLink>, TransportError> {
        self.connect_unless(me, communicator, peers, shape, (deadline, &|| false))
    }

    /// As [`Self::connect`], but nobody waits any more when `is_over`.
    ///
    /// # Errors
    /// As [`Self::connect`]; `PeerGone` when `is_over`.
    ///
    /// # Panics
    /// As [`Self::connect`].
    pub fn connect_unless(
        self,
        me: Rank,
        communicator: u64,
        peers: &[PeerAddresses],
        shape: LinkShape,
        (deadline, is_over): (Instant, &dyn Fn() -> bool),
    ) -> Result<Vec<PeerLink>, TransportError> {
        assert!(shape.slots > 0 && shape.tile_bytes > 0, "{shape:?} carries nothing");
        assert!(peers.iter().all(|peer| peer.rank != me), "rank {me} is not its own peer");
        let plans = peers.iter().map(|peer| self.plan(me, peer)).collect::<Result<Vec<_>, _>>()?;
        let is_repaired = self.terms.enabled;
        let meeting = Meeting::new(me, communicator, &self.key, &plans, deadline);
        let mut met = meeting.completely(!is_repaired).hold(&self.listeners, is_over)?;
        let identity = Identity { me, communicator, key: self.key.clone() };
        let depth = |rails| Geometry { rails, shape }.depth();
        let mut keeper = RailKeeper::new(identity, plans.clone(), depth)?;
        keeper.enter(&self.directory);
        let mut links = Vec::new();
        for (peer, plan) in peers.iter().zip(&plans) {
            let geometry = Geometry { rails: plan.connections.len(), shape };
            let wires = self.wires(me, peer, plan, geometry.depth(), &mut met)?;
            let (terms, keeper) = (self.terms.clone(), keeper.keeper_for(peer.rank));
            let mut link = NetworkLink::open(geometry, wires, &self.traffic, terms, keeper)?;
            link.split.begin_with(me.index() + peer.rank.index());
            links.push((peer.rank, link));
        }
        let (media, witness, part) = (self.media, self.terms.witness, self.part);
        keeper.begin(self.rails, self.listeners, Outside { media, witness, part })?;
        announce::announce(&mut links, deadline, is_repaired, is_over)?;
        Ok(links.into_iter().map(|(rank, link)| -> PeerLink { (rank, Box::new(link)) }).collect())
    }

    /// The connections with one peer.
    fn plan(&self, me: Rank, peer: &PeerAddresses) -> Result<PeerPlan, TransportError> {
        let theirs = peer.addresses.len();
        let valid = peer.capacities.iter().all(|&capacity| is_capacity(capacity));
        let lengths = [peer.capacities.len(), peer.verbs.len(), peer.broken.len()];
        let is_complete = lengths == [theirs; 3];
        if theirs == 0 || theirs > MAX_RAILS || !is_complete || !valid {
            let text = format!("rank {} announced impossible rails: {peer:?}", peer.rank);
            return Err(TransportError::Protocol(text));
        }
        let verbs = self.media.verbs();
        let connections = (0..self.rails.len().max(theirs)).map(|index| {
            let (here, there) = (index % self.rails.len(), index % theirs);
            let rail = &self.rails[here];
            let interface = rail.interface.clone();
            Contact {
                binding: Binding { address: rail.address, interface },
                address: peer.addresses[there],
                medium: Medium::of(verbs[here] && peer.verbs[there]),
                is_broken: self.broken[here] || peer.broken[there],
            }
        });
        let mut connections: Vec<Contact> = connections.collect();
        if connections.iter().all(|contact| contact.is_broken) {
            connections.iter_mut().for_each(|contact| contact.is_broken = false);
        }
        Ok(PeerPlan { rank: peer.rank, dials: me > peer.rank, peer_rails: theirs, connections })
    }

    /// The rails to one peer, connected or not.
    fn wires(
        &self,
        me: Rank,
        peer: &PeerAddresses,
        plan: &PeerPlan,
        depth: Depth,
        met: &mut Met,
    ) -> Result<Vec<Result<Wire, Unmet>>, TransportError> {
        let count = plan.connections.len();
        let mut wires = Vec::new();
        for index in 0..count {
            let (mine, theirs) = (index % self.rails.len(), index % peer.addresses.len());
            let rail = &self.rails[mine];
            let here = rail.capacity / uses(count, self.rails.len(), mine);
            let there = peer.capacities[theirs] / uses(count, peer.addresses.len(), theirs);
            let capacity = here.min(there);
            let near = format!("rank {me} rail {mine} ({})", rail.name);
            let name = format!("{near} to rank {} rail {theirs}", peer.rank);
            let seat = (plan.rank, index);
            let Some(stream) = met.streams.remove(&seat) else {
                let (evidence, cause) = match plan.connections[index].is_broken {
                    true if self.broken[mine] => {
                        (Evidence::Carrier, "the NIC was broken when the ranks met".to_owned())
                    }
                    true => {
                        let cause = "the peer's NIC was broken when the ranks met";
                        (Evidence::PeerCarrier, cause.to_owned())
                    }
                    false => (Evidence::Device, met.reason(seat)),
                };
                wires.push(Err(Unmet { name, rail: mine, capacity, evidence, cause }));
                continue;
            };
            let medium = plan.connections[index].medium;
            let (domain, mut pair) = self.media.connect(rail, (mine, depth), (stream, medium))?;
            if let Some(part) = &self.part {
                pair = part.around(pair, (mine, peer.rank, theirs), depth);
            }
            wires.push(Ok(Wire { name, rail: mine, capacity, domain, pair }));
        }
        Ok(wires)
    }
}

/// A link over queue pairs that are connected already, in the order of its paths; both ends do this.
///
/// # Errors
/// There is no memory for its rings, or the queue pairs cannot be used.
///
/// # Panics
/// There are no wires, or the shape is empty.
pub fn assemble(
    wires: Vec<Wire>,
    shape: LinkShape,
    terms: Terms,
    keeper: Box<dyn Keeper>,
) -> Result<Box<dyn Link>, TransportError> {
    assert!(!wires.is_empty() && shape.slots > 0 && shape.tile_bytes > 0, "{shape:?}, {wires:?}");
    let rails = 1 + wires.iter().map(|wire| wire.rail).max().unwrap_or_default();
    let traffic = (0..rails).map(|_| RailTraffic::default()).collect();
    let geometry = Geometry { rails: wires.len(), shape };
    let wires = wires.into_iter().map(Ok).collect();
    Ok(Box::new(NetworkLink::open(geometry, wires, &traffic, terms, keeper)?))
}

fn listen(rail: &RailAddress) -> Result<TcpListener, TransportError> {
    if !is_capacity(rail.capacity) {
        let cause = format!("{} bytes per second is not a capacity", rail.capacity);
        return Err(TransportError::system(format!("bind rail {}", rail.name), cause));
    }
    let binding = Binding { address: rail.address, interface: rail.interface.clone() };
    socket::listen(&binding)
        .map_err(|cause| TransportError::system(format!("bind rail {}", rail.name), cause))
}

fn is_capacity(capacity: f64) -> bool {
    capacity.is_finite() && capacity > 0.0
}

/// How many of `count` connections use rail `rail` of `rails`.
fn uses(count: usize, rails: usize, rail: usize) -> f64 {
    (rail..count).step_by(rails).count() as f64
}
