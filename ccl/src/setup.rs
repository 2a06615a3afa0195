//! Connects a rank to its peers: shared memory to those on its host, all NICs to the others.

mod findings;
mod introduction;
mod sizes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_core::failover::watch::Limits;
use ccl_core::ids::Rank;
use ccl_core::program::Port;
use ccl_core::settings::Settings;
use ccl_core::topology::Topology;
use ccl_transport::bell::Bell;
use ccl_transport::network::rehearsal::Part;
use ccl_transport::network::{Endpoint, LinkShape, MAX_RAILS, PeerAddresses, RailAddress, Terms};
use ccl_transport::ring::RingShape;
use ccl_transport::shm::{Segment, SegmentAddress};
use ccl_transport::{TransportError, auth::JobKey};
use serde::{Deserialize, Serialize};

use crate::bootstrap::{Control, Reunion};
use crate::executor::Links;
use crate::health::{HealthBoard, Judge, Surroundings};
use crate::hosts::reach::{self, Look};
use crate::hosts::{self, Nic, caches};
use crate::rdma;
use crate::rehearsal::{self, Member};
use crate::stores::Caches;
use crate::timeline::Timeline;
use introduction::{Introduction, parties, paths, topology, usable_processors};
use sizes::Sizes;

/// Small tiles on the way between two ranks of a host, unless there are so many ranks that the headers
/// of all rings together would need more memory than a part of that of the rings.
const TILES_ON_THE_WAY: usize = 64;
const HEADERS_OF_A_HOST: usize = 1 << 19;

/// Everything a communicator needs to know about itself before it can be built.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) links: Links,
    pub(crate) topology: Topology,
    /// The rails of every rank, in bytes per second.
    pub(crate) rails: Vec<Vec<f64>>,
    /// Where this rank's rails are reported.
    pub(crate) board: Arc<HealthBoard>,
    /// What this rank shares.
    pub(crate) machine: Machine,
    /// What peers on this host ring when they have sent something.
    pub(crate) bell: Option<Bell>,
    /// Where ranks meet to go on without others, unless there are none.
    pub(crate) reunion: Option<Reunion>,
    /// What happens to the rails.
    pub(crate) timeline: Arc<Timeline>,
    /// If faults are rehearsed.
    pub(crate) part: Option<Arc<Part>>,
}

/// Processors, and who shares them: ranks that pretend to be on other hosts do, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// All that share them.
    pub(crate) ranks: usize,
    /// How many processors these may use.
    pub(crate) cores: usize,
    /// The last caches.
    pub(crate) caches: Caches,
}

/// Where a rank can be reached.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Whereabouts {
    segment: Option<(u32, i32, [u8; 16])>,
    rails: Vec<SocketAddr>,
    /// Which of the rails have an RDMA device.
    verbs: Vec<bool>,
}

impl Whereabouts {
    fn of(segment: Option<&Segment>, endpoint: Option<&Endpoint>) -> Self {
        let address = |segment: &Segment| {
            let SegmentAddress { pid, descriptor, cookie } = segment.address();
            (pid, descriptor, cookie)
        };
        Self {
            segment: segment.map(address),
            rails: endpoint.map(Endpoint::addresses).unwrap_or_default(),
            verbs: endpoint.map(Endpoint::verbs).unwrap_or_default(),
        }
    }
}

/// The ranks of a group as one of them sees them.
struct Group<'a> {
    control: &'a Control,
    me: Rank,
    communicator: u64,
    key: &'a JobKey,
    settings: &'a Settings,
    deadline: Instant,
}

/// Exchanges addresses with every rank and connects to all of them.
///
/// # Errors
/// A NIC, the shared memory or a peer is not there, or the deadline passes.
pub(crate) fn connect(
    control: &Control,
    me: Rank,
    communicator: u64,
    key: &JobKey,
    settings: &Settings,
    deadline: Instant,
) -> Result<Connected, Error> {
    Group { control, me, communicator, key, settings, deadline }.connect()
}

impl Group<'_> {
    /// This rank's rails, and what all ranks tell about themselves, when every rank has NICs that lead to the
    /// others.
    fn introductions(&self) -> Result<(Vec<Nic>, Vec<Introduction>), Error> {
        let mut look = reach::look(self.settings)?;
        let (mut rails, mut introductions) = self.introduce("introduction", &look)?;
        if reach::anybody_waits(&parties(&introductions)) {
            if reach::waits(self.me, &parties(&introductions)) {
                let is_over = || self.control.fault().is_some();
                look = look.wait(self.settings, self.deadline, is_over)?;
            }
            (rails, introductions) = self.introduce("introduction after a wait", &look)?;
        }
        let ranks = 0..introductions.len();
        if ranks.into_iter().any(|rank| !introduction::broken(&introductions, rank).is_empty()) {
            let broken = introduction::broken(&introductions, self.me.index());
            if !broken.is_empty() {
                look = look.with_broken(self.settings, &broken)?;
                let rails = look.nics.iter().filter(|nic| nic.is_broken);
                let interfaces: Vec<&str> = rails.map(|nic| &*nic.interface).collect();
                if !interfaces.is_empty() {
                    tracing::info!(rank = self.me.0, ?interfaces, "rails are broken");
                }
            }
            (rails, introductions) = self.introduce("introduction with broken rails", &look)?;
        }
        reach::check(&parties(&introductions))?;
        introduction::need_broken_rails(&mut introductions);
        look.refusal.map_or(Ok((rails, introductions)), Err)
    }

    fn introduce(&self, name: &str, look: &Look) -> Result<(Vec<Nic>, Vec<Introduction>), Error> {
        let rails = match self.settings.net_connections {
            0 => {
                let most = (MAX_RAILS / look.nics.len().max(1)).max(1);
                connections(&look.nics, |nic| hosts::flows(nic).min(most))?
            }
            each => connections(&look.nics, |_| each)?,
        };
        let introduction = Introduction::new(self.settings, &rails, look);
        let introductions = self.exchange(name, &introduction)?;
        Ok((rails, introductions))
    }

    fn connect(&self) -> Result<Connected, Error> {
        let (rails, introductions) = self.introductions()?;
        let part = self.part(&introductions)?;
        let topology = topology(&introductions);
        let sizes: Vec<Sizes> = introductions.iter().map(|rank| rank.sizes).collect();
        let most_rails = introductions.iter().map(|rank| rank.rails.len()).max().unwrap_or(0);
        sizes::check(&sizes, &topology, most_rails)?;
        let board = Arc::new(HealthBoard::new(&introductions[self.me.index()].rails));
        let here = topology.ranks_of(topology.node_of(self.me)).to_vec();
        let remote = (0..topology.ranks()).map(Rank).filter(|rank| !here.contains(rank));
        let remote: Vec<Rank> = remote.collect();
        let paths = paths(&introductions, &topology, self.me, &remote);
        let timeline = Arc::new(Timeline::new(Judge::new(Arc::clone(&board), paths)));

        let segment = match here.len() {
            1 => None,
            count => Some(self.segment(count).map_err(from_transport)?),
        };
        if !remote.is_empty() {
            hosts::tell(self.me, &rails);
        }
        let broken = introductions[self.me.index()].broken.clone();
        let rails = addresses(rails);
        let endpoint = match remote.is_empty() {
            true => None,
            false => Some(self.bind(rails.clone(), broken, &timeline, part.as_ref())?),
        };
        let own = Whereabouts::of(segment.as_ref(), endpoint.as_ref());
        let whereabouts = self.exchange("whereabouts", &own)?;

        let mut links: Links = (0..2 * topology.ranks()).map(|_| None).collect();
        if let Some(segment) = &segment {
            self.link_host(segment, &here, &whereabouts, &mut links)?;
        }
        if let Some(endpoint) = endpoint {
            let hosts = one_of_each_host(&topology, &remote)
                .map(|rank| (rank, whereabouts[rank.index()].rails.clone()))
                .filter(|(_, rails)| !rails.is_empty());
            let (hosts, moves) = (hosts.collect(), Arc::clone(board.moves()));
            timeline.surround(Surroundings { rails, hosts, moves, part: part.clone() });
            board.moves().tell(endpoint.directory());
            let peer = |rank: &Rank| PeerAddresses {
                rank: *rank,
                addresses: whereabouts[rank.index()].rails.clone(),
                capacities: introductions[rank.index()].rails.clone(),
                verbs: whereabouts[rank.index()].verbs.clone(),
                broken: introductions[rank.index()].broken.clone(),
            };
            board.read_traffic(endpoint.traffic());
            let peers = (most_rails, remote.iter().map(peer).collect());
            self.link_network(endpoint, peers, &mut links)?;
        }
        // Nobody goes on before all are connected, and nobody who has told so stays behind.
        self.control.stand_alone()?;
        let doors = |own: &Vec<u8>| self.exchange("connected", own);
        let reunion = match topology.ranks() {
            1 => None,
            _ => Some(Reunion::prepare(self.settings, doors)?),
        };
        let machine = self.machine(&introductions);
        let rails = introductions.into_iter().map(|rank| rank.rails).collect();
        let bell = segment.as_ref().map(Segment::bell);
        Ok(Connected { links, topology, rails, board, machine, bell, reunion, timeline, part })
    }

    fn machine(&self, introductions: &[Introduction]) -> Machine {
        let own = &introductions[self.me.index()].machine;
        let here = || introductions.iter().filter(|other| other.machine == *own);
        let (ranks, cores) = (here().count(), usable_processors(here()) as usize);
        let all = caches::last_level_bytes().unwrap_or(usize::MAX);
        Machine { ranks, cores, caches: Caches { share: all / ranks, all } }
    }

    /// This rank's part in a rehearsal of faults, if there is one.
    fn part(&self, introductions: &[Introduction]) -> Result<Option<Arc<Part>>, Error> {
        let Some(plan) = &self.settings.rehearsal else { return Ok(None) };
        let ranks = introductions.iter();
        let members: Vec<Member<'_>> =
            ranks.map(|rank| Member { host: &rank.host, rails: rank.rails.len() }).collect();
        rehearsal::part(plan, self.me, &members).map(Some)
    }

    /// Listens on every NIC.
    fn bind(
        &self,
        rails: Vec<RailAddress>,
        broken: Vec<bool>,
        timeline: &Arc<Timeline>,
        part: Option<&Arc<Part>>,
    ) -> Result<Endpoint, Error> {
        let devices = rdma::devices(self.settings, &rails, &broken)?;
        let endpoint = Endpoint::bind(rails, self.key.clone()).map_err(from_transport)?;
        let endpoint = endpoint.devices(devices).without(broken).terms(self.terms(timeline));
        Ok(match part {
            Some(part) => endpoint.rehearse(Arc::clone(part)),
            None => endpoint,
        })
    }

    /// How the links survive the death of a rail.
    fn terms(&self, timeline: &Arc<Timeline>) -> Terms {
        let nanoseconds =
            |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let limits = Limits {
            suspicion_ns: nanoseconds(self.settings.rail_suspicion),
            grace_ns: nanoseconds(self.settings.rail_grace),
            last_ns: nanoseconds(self.settings.rail_last),
            ..Limits::default()
        };
        Terms {
            witness: Arc::clone(timeline) as _,
            limits,
            patience: self.settings.rail_patience,
            hold: self.settings.rail_hold,
            enabled: self.settings.hot_repair,
        }
    }

    fn link_network(
        &self,
        endpoint: Endpoint,
        (rails, peers): (usize, Vec<PeerAddresses>),
        links: &mut Links,
    ) -> Result<(), Error> {
        let shape = LinkShape {
            tile_bytes: self.settings.net_tile_bytes,
            slots: sizes::net_slots(self.settings.net_slots, rails),
        };
        let is_over = || self.control.fault().is_some();
        let (me, deadline) = (self.me, self.deadline);
        let connected = endpoint
            .connect_unless(me, self.communicator, &peers, shape, (deadline, &is_over))
            .map_err(|cause| self.unconnected(cause))?;
        let ranks = links.len() / 2;
        for (rank, link) in connected {
            links[Port::Pair(rank).index(ranks)] = Some(link);
        }
        Ok(())
    }

    fn unconnected(&self, cause: TransportError) -> Error {
        let error = unconnected(cause, self.settings.bootstrap_timeout);
        match (&error, self.control.fault()) {
            (_, Some(fault)) => Error::clone(fault),
            (Error::Deadline { .. }, None) => error,
            _ => self.control.fault_soon().unwrap_or(error),
        }
    }

    fn link_host(
        &self,
        segment: &Segment,
        here: &[Rank],
        whereabouts: &[Whereabouts],
        links: &mut Links,
    ) -> Result<(), Error> {
        let ranks = links.len() / 2;
        let index_of = |rank| here.iter().position(|other| *other == rank).unwrap_or(0);
        let me = index_of(self.me);
        let mut neighbours = Vec::new();
        for &peer in here.iter().filter(|peer| **peer != self.me) {
            let Some((pid, descriptor, cookie)) = whereabouts[peer.index()].segment else {
                return Err(Error::Internal(format!("rank {peer} announced no shared memory")));
            };
            let address = SegmentAddress { pid, descriptor, cookie };
            let failed = |cause| {
                let call = format!("shared memory of rank {peer} (R2CCL_SHM=0 avoids it)");
                self.control.fault_soon().unwrap_or_else(|| Error::system(call, cause))
            };
            let neighbour = segment.open(index_of(peer), &address).map_err(failed)?;
            links[Port::Pair(peer).index(ranks)] = Some(segment.link(me, &neighbour));
            links[Port::Multicast(peer).index(ranks)] = Some(segment.listen(me, &neighbour));
            neighbours.push(neighbour);
        }
        links[Port::Multicast(self.me).index(ranks)] = Some(segment.multicast(&neighbours));
        Ok(())
    }

    /// The memory through which one of the `ranks` of a host sends to the others.
    fn segment(&self, ranks: usize) -> Result<Segment, TransportError> {
        let (settings, slots) = (&self.settings, self.settings.pair_slots(ranks));
        let tiles = HEADERS_OF_A_HOST / (ranks * ranks).max(1);
        let tiles = TILES_ON_THE_WAY.min(tiles).max(slots);
        let pair = RingShape { tile_bytes: settings.pair_tile_bytes(ranks), slots, tiles };
        let (tile_bytes, slots) =
            (settings.multicast_tile_bytes(ranks), settings.multicast_slots());
        Segment::create(ranks, pair, RingShape { tile_bytes, slots, tiles: 4 * tiles })
    }

    /// Everybody's value, in order of rank.
    fn exchange<T: Serialize + for<'de> Deserialize<'de>>(
        &self,
        name: &str,
        own: &T,
    ) -> Result<Vec<T>, Error> {
        let internal = |cause: postcard::Error| Error::Internal(format!("{name}: {cause}"));
        let blob = postcard::to_allocvec(own).map_err(internal)?;
        let blobs = self.control.all_gather(name, &blob, self.deadline)?;
        blobs.iter().map(|blob| postcard::from_bytes(blob).map_err(internal)).collect()
    }
}

/// As many rails over each NIC as there are to be connections, each with its part of the speed. Two hosts that differ
/// in this or in their NICs pair rails by number: so a NIC comes again only after all others.
///
/// # Errors
/// [`Error::InvalidUsage`]: these are more rails than a rank can have.
fn connections(nics: &[Nic], each: impl Fn(&Nic) -> usize) -> Result<Vec<Nic>, Error> {
    let counts: Vec<usize> = nics.iter().map(each).collect();
    let (count, rails) = (nics.len(), counts.iter().sum::<usize>());
    let most = counts.iter().copied().max().unwrap_or(1);
    if most > 1 && rails > MAX_RAILS {
        return Err(Error::InvalidUsage(format!(
            "R2CCL_NET_CONNECTIONS={most} over {count} NICs makes {rails} rails; {MAX_RAILS} are possible"
        )));
    }
    let part = |connection: usize, nic: &Nic, of: usize| Nic {
        name: if of == 1 { nic.name.clone() } else { format!("{}/{connection}", nic.name) },
        speed_bytes_per_second: nic.speed_bytes_per_second / of as u64,
        ..nic.clone()
    };
    let of_all = |connection| {
        let has = move |(_, of): &(&Nic, &usize)| connection < **of;
        nics.iter().zip(&counts).filter(has).map(move |(nic, of)| part(connection, nic, *of))
    };
    Ok((0..most).flat_map(of_all).collect())
}

/// The rails of this rank, as the transport knows them.
fn addresses(nics: Vec<Nic>) -> Vec<RailAddress> {
    let address = |nic: Nic| RailAddress {
        name: nic.name,
        address: nic.address,
        interface: Some(nic.interface),
        #[allow(clippy::cast_precision_loss, reason = "speeds are approximate")]
        capacity: nic.speed_bytes_per_second as f64,
    };
    nics.into_iter().map(address).collect()
}

/// The lowest of these ranks on every host.
fn one_of_each_host<'a>(
    topology: &'a Topology,
    ranks: &'a [Rank],
) -> impl Iterator<Item = Rank> + 'a {
    let is_first = |rank: &&Rank| topology.leader(topology.node_of(**rank)) == **rank;
    ranks.iter().filter(is_first).copied()
}

/// Why peers are not connected, who had so long to come.
fn unconnected(cause: TransportError, limit: Duration) -> Error {
    if let TransportError::TimedOut(waiting) = cause {
        let (call, seconds) = ("connect to the peers".to_owned(), limit.as_secs_f64());
        return Error::Deadline { call, seconds, waiting };
    }
    from_transport(cause)
}

fn from_transport(cause: TransportError) -> Error {
    match cause {
        TransportError::System { call, cause } => Error::System { call, cause },
        TransportError::TimedOut(_)
        | TransportError::PeerGone(_)
        | TransportError::Severed(_)
        | TransportError::Unrepaired(_)
        | TransportError::Protocol(_)
        | TransportError::Refused(_) => Error::system("connect to the peers", cause),
    }
}

#[cfg(test)]
mod tests {
    use ccl_transport::clock;

    use super::*;
    use crate::bootstrap::{ControlEvent, UniqueId};

    #[test]
    fn who_is_waited_for_until_the_deadline_is_no_fault_of_the_system() {
        let waiting = "no connection with rank 1 rails [0]";
        let error = unconnected(TransportError::TimedOut(waiting.into()), Duration::from_secs(7));
        let call = "connect to the peers".to_owned();
        assert_eq!(error, Error::Deadline { call, seconds: 7.0, waiting: waiting.into() });
        let refused = TransportError::Refused("another key".into());
        assert!(matches!(unconnected(refused, Duration::ZERO), Error::System { .. }));
    }

    #[test]
    fn who_is_connected_stands_alone() {
        let settings = Settings::default();
        let deadline = clock::now() + Duration::from_secs(60);
        let ids = [(); 2].map(|()| UniqueId::create(&settings).unwrap());
        let group = Control::join(&ids[0], Rank(0), 1, deadline).unwrap();
        let part = group.tie(Rank(0));
        let control = part.join(&ids[1], 1, deadline).unwrap();
        let (number, key) = (ids[1].communicator(), ids[1].key());
        connect(&control, Rank(0), number, &key, &settings, deadline).unwrap();
        let abort = ControlEvent::Aborted { rank: Rank(0), reason: "enough".into() };
        group.announce(&abort).unwrap();
        assert!(group.fault().is_some() && control.fault().is_none());
    }

    #[test]
    fn a_nic_comes_again_after_all_others_and_shares_its_speed() {
        let nic = |name: &str| Nic {
            name: name.into(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            interface: name.into(),
            speed_bytes_per_second: 900,
            is_broken: false,
        };
        let nics = [nic("a"), nic("b")];
        assert_eq!(connections(&nics, |_| 1).unwrap(), nics);
        let rails = connections(&nics, |_| 3).unwrap();
        let names: Vec<&str> = rails.iter().map(|rail| rail.name.as_str()).collect();
        assert_eq!(names, ["a/0", "b/0", "a/1", "b/1", "a/2", "b/2"]);
        assert!(rails.iter().all(|rail| rail.speed_bytes_per_second == 300));
        assert_eq!([&*rails[4].interface, &*rails[5].interface], ["a", "b"]);
        let refused = connections(&vec![nic("a"); 9], |_| 8).unwrap_err().to_string();
        assert!(
            refused.contains("R2CCL_NET_CONNECTIONS=8 over 9 NICs makes 72 rails"),
            "{refused}"
        );
        let unlike = connections(&nics, |nic| if nic.name == "a" { 1 } else { 2 }).unwrap();
        let rails = unlike.iter().map(|rail| (&*rail.name, rail.speed_bytes_per_second));
        assert!(rails.eq([("a", 900), ("b/0", 450), ("b/1", 450)]));
    }
}
