//! How a rank is connected with its neighbours.

use std::net::SocketAddr;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::{CudaNetwork, Network, Settings};
use ccl_kernels::cuda::gpu::Gpu;
use ccl_transport::auth::JobKey;
use serde::{Deserialize, Serialize};

use super::ring::{Inlet, Lane, Outlet, Ring, SLOTS, SPARE};
use super::script::GRAIN;
use super::slots::{Slots, refused};
use crate::vqp::{
    Access, Depth, Domain, Evidence, Limits, Listener, Meeting, PeerRegion, QueuePair, Rails,
    ReceiveRequest, Stage, Terms, WorkId,
};

/// Lanes at most.
const MOST_LANES: usize = 8;
/// Neighbours come at the same time; who does not come within this does not come.
const LIMIT: Duration = Duration::from_secs(20);
/// For so long a neighbour's host may confirm nothing: the kernel does that, or the NIC, whatever the rank is busy with.
/// Whoever is given up for a moment's trouble is taken back.
const SILENCE: Duration = Duration::from_millis(100);

/// What a rank has for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cuda) struct Means {
    /// NICs that can be used over TCP.
    pub(in crate::cuda) soft: usize,
    /// RDMA devices.
    pub(in crate::cuda) rdma: usize,
}

/// What all ranks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Shape {
    pub(in crate::cuda) is_rdma: bool,
    pub(in crate::cuda) lanes: usize,
    pub(in crate::cuda) slot_bytes: usize,
}

impl Means {
    /// What this rank has.
    ///
    /// # Errors
    /// Why it has nothing.
    pub(in crate::cuda) fn of(settings: &Settings, key: &JobKey) -> Result<Self, String> {
        if settings.cuda_network == CudaNetwork::Off {
            return Err("R2CCL_CUDA_NETWORK is 0".to_owned());
        }
        let count = |is_rdma| Rails::of(settings, is_rdma, key).map(|rails| rails.count());
        let (soft, rdma) = match settings.network {
            Network::Tcp => (count(false), Ok(0)),
            Network::Verbs => (Ok(0), count(true)),
            Network::Auto => (count(false), Ok(count(true).unwrap_or(0))),
        };
        let told =
            |count: Result<usize, crate::vqp::Error>| count.map_err(|cause| cause.to_string());
        Ok(Self { soft: told(soft)?, rdma: told(rdma)? })
    }
}

impl Shape {
    /// RDMA devices if all ranks have some, and as many as each has; `staging_bytes` are divided among the slots of all
    /// lanes.
    ///
    /// # Errors
    /// There are none.
    pub(in crate::cuda) fn of(means: &[Means], staging_bytes: usize) -> Result<Self, String> {
        let least = |count: fn(&Means) -> usize| means.iter().map(count).min().unwrap_or(0);
        let (soft, rdma) = (least(|means| means.soft), least(|means| means.rdma));
        let (is_rdma, lanes) = (rdma > 0, if rdma > 0 { rdma } else { soft }.min(MOST_LANES));
        if lanes == 0 {
            return Err("ranks have no devices of the same kind".to_owned());
        }
        let slot_bytes = staging_bytes / (SLOTS * lanes) / GRAIN * GRAIN;
        Ok(Self { is_rdma, lanes, slot_bytes: slot_bytes.max(GRAIN) })
    }
}

/// Where a rank is in the ring.
#[derive(Clone, Debug)]
pub(in crate::cuda) struct Place {
    pub(in crate::cuda) me: usize,
    /// The ranks of the ring, in its order.
    pub(in crate::cuda) members: Vec<Rank>,
    /// The default rail of the first lane; the others follow it.
    pub(in crate::cuda) first_rail: usize,
    /// A name that all ranks have, and nobody else.
    pub(in crate::cuda) name: String,
    /// Rehearsals between this rank and the next one, and between this and the previous one.
    pub(in crate::cuda) stages: [Option<Stage>; 2],
}

impl Place {
    pub(in crate::cuda) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Which rank has that place.
    pub(in crate::cuda) fn rank(&self, place: usize) -> Rank {
        self.members[place]
    }

    pub(in crate::cuda) fn next(&self) -> usize {
        (self.me + 1) % self.ranks()
    }

    pub(in crate::cuda) fn previous(&self) -> usize {
        (self.me + self.ranks() - 1) % self.ranks()
    }

    /// The default rail of a lane, of so many.
    fn rail(&self, lane: usize, lanes: usize) -> usize {
        (self.first_rail + lane) % lanes
    }

    /// What is said to whoever is at the other end of a connection from the rank with that place.
    fn greeting(&self, place: usize) -> Vec<u8> {
        format!("{} from {}", self.name, self.rank(place)).into_bytes()
    }
}

/// Everything that a rank has ready for its neighbours.
#[derive(Debug)]
pub(in crate::cuda) struct Offer {
    place: Place,
    listener: Listener,
    rails: Rails,
    terms: Terms,
    halves: Vec<[Half; 2]>,
    /// Why slots are in pinned memory; None if they are in memory of the device.
    pub(super) obstacle: Option<String>,
    pub(super) needs_flush: bool,
}

/// One direction of a lane.
#[derive(Debug)]
struct Half {
    domain: Domain,
    slots: Slots,
}

impl Offer {
    /// Makes slots, in memory of the device where it and all NICs allow that, and listens.
    ///
    /// # Errors
    /// What is in the way.
    pub(in crate::cuda) fn new(
        gpu: &Gpu,
        place: Place,
        shape: Shape,
        (settings, key): (&Settings, &JobKey),
    ) -> Result<Self, Error> {
        let rails = Rails::of(settings, shape.is_rdma, key).map_err(refused)?;
        let address = SocketAddr::new(rails.address(), 0).to_string();
        let listener = Listener::bind(&address, rails.key().clone()).map_err(refused)?;
        let all = |is_on_device| -> Result<Vec<_>, Error> {
            (0..shape.lanes)
                .map(|lane| halves(gpu, &place, shape, &rails, lane, is_on_device))
                .collect()
        };
        let (halves, obstacle) = match obstacle(gpu, settings) {
            Some(obstacle) => (all(false)?, Some(obstacle)),
            None => match all(true) {
                Ok(halves) => (halves, None),
                Err(error) => (all(false)?, Some(error.to_string())),
            },
        };
        let needs_flush = obstacle.is_none() && gpu.needs_flush().unwrap_or(true);
        let terms = terms(settings);
        Ok(Self { place, listener, rails, terms, halves, obstacle, needs_flush })
    }

    /// Where the previous rank finds this one.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(in crate::cuda) fn address(&self) -> Result<SocketAddr, Error> {
        self.listener.address().map_err(refused)
    }

    /// Connects this rank with the next one, which listens there, and with the previous one, which dials, unless that
    /// `is_over`.
    ///
    /// # Errors
    /// One of them does not come, or is somebody else.
    pub(super) fn connect(
        self,
        next: SocketAddr,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Ring, Error> {
        let Self { place, listener, rails, terms, halves, .. } = self;
        let (out, inward): (Vec<_>, Vec<_>) =
            halves.into_iter().map(|[out, inward]| (out, inward)).unzip();
        let (place, terms) = (&place, &terms);
        let (outlets, inlets) = std::thread::scope(|scope| {
            let dialled = scope.spawn(move || {
                let meeting = Meeting::connect(&next.to_string(), rails.key(), LIMIT);
                let meeting = meeting.map_err(refused)?;
                meet(meeting, place, place.next(), out, terms)
            });
            let accepted = listener
                .accept_unless(LIMIT, is_over)
                .map_err(refused)
                .and_then(|meeting| meet(meeting, place, place.previous(), inward, terms));
            let panicked = |_| Err(Error::Internal("a thread that connects ranks panicked".into()));
            (dialled.join().unwrap_or_else(panicked), accepted)
        });
        let (mut pairs, mut lanes) = (Vec::new(), Vec::new());
        for (out, inward) in outlets?.into_iter().zip(inlets?) {
            pairs.extend([out.pair, inward.pair]);
            let outlet = Outlet::new(out.half.slots, out.theirs);
            let inlet = Inlet::new(inward.half.slots, inward.theirs);
            lanes.push(Lane { outlet, inlet, _domains: [out.half.domain, inward.half.domain] });
        }
        let neighbours = [place.next(), place.previous()].map(|at| place.rank(at));
        Ok(Ring::new(pairs, lanes, neighbours))
    }
}

/// Why NICs cannot, or must not, use memory of the device.
fn obstacle(gpu: &Gpu, settings: &Settings) -> Option<String> {
    if settings.cuda_network == CudaNetwork::Pinned {
        return Some("R2CCL_CUDA_NETWORK is pinned".to_owned());
    }
    let found = gpu.nic_obstacle().map_err(|error| error.to_string());
    found.map_or_else(Some, |obstacle| obstacle.map(str::to_owned))
}

fn terms(settings: &Settings) -> Terms {
    let patience_ns = u64::try_from(settings.rail_patience.as_nanos()).unwrap_or(u64::MAX);
    let depth = Depth { sends: SLOTS + SPARE, receives: SLOTS + SPARE };
    let evidence = settings.hot_repair.then_some(Evidence::Handshake);
    let limits = Limits { patience_ns, ..Limits::default() };
    Terms { evidence, depth, silence: SILENCE, limits }
}

/// Both directions of a lane, whose default rail is another one for each lane.
fn halves(
    gpu: &Gpu,
    place: &Place,
    shape: Shape,
    rails: &Rails,
    lane: usize,
    is_on_device: bool,
) -> Result<[Half; 2], Error> {
    let half = |stage: &Option<Stage>, access: Access| -> Result<Half, Error> {
        let rail = place.rail(lane, shape.lanes);
        let domain = rails.domain(rail, shape.lanes, stage.as_ref()).map_err(refused)?;
        let slots = Slots::new(gpu, &domain, (SLOTS, shape.slot_bytes), (access, is_on_device))?;
        Ok(Half { domain, slots })
    };
    // Nothing is written where tiles leave.
    Ok([half(&place.stages[0], Access::LOCAL)?, half(&place.stages[1], Access::WRITE)?])
}

/// One direction of a lane that is connected.
struct Joined {
    half: Half,
    pair: QueuePair,
    theirs: PeerRegion,
}

/// Connects all lanes in one direction with the rank at place `peer`.
fn meet(
    mut meeting: Meeting,
    place: &Place,
    peer: usize,
    halves: Vec<Half>,
    terms: &Terms,
) -> Result<Vec<Joined>, Error> {
    let heard = meeting.exchange(&place.greeting(place.me), LIMIT).map_err(refused)?;
    if heard != place.greeting(peer) {
        return Err(refused(format!("somebody else has come than rank {}", place.rank(peer))));
    }
    let mut join = |half: Half| -> Result<Joined, Error> {
        let mut pair = half.domain.queue_pair(terms).map_err(refused)?;
        for _ in 0..terms.depth.receives {
            let receive = ReceiveRequest { id: WorkId(0), target: None };
            pair.post_receive(receive).map_err(refused)?;
        }
        pair.connect(&mut meeting, LIMIT).map_err(refused)?;
        let theirs = meeting.exchange_regions(half.slots.region(), LIMIT);
        let theirs = theirs.map_err(refused)?;
        if theirs.bytes != half.slots.region().memory().bytes() as u64 {
            let peer = place.rank(peer);
            return Err(refused(format!("rank {peer} has other slots than this one")));
        }
        Ok(Joined { half, pair, theirs })
    };
    halves.into_iter().map(&mut join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_use_what_all_have() {
        let shape = |means: &[(usize, usize)]| {
            let means = means.iter().map(|&(soft, rdma)| Means { soft, rdma });
            Shape::of(&means.collect::<Vec<_>>(), 8 << 20)
        };
        let told = |is_rdma, lanes, slot_bytes| Ok(Shape { is_rdma, lanes, slot_bytes });
        assert_eq!(shape(&[(2, 4), (3, 5)]), told(true, 4, 256 << 10));
        assert_eq!(shape(&[(2, 4), (3, 0)]), told(false, 2, 512 << 10));
        assert_eq!(shape(&[(20, 0), (30, 0)]), told(false, 8, 128 << 10));
        assert!(shape(&[(2, 0), (0, 2)]).is_err());
        assert_eq!(Shape::of(&[Means { soft: 3, rdma: 0 }], 4096).unwrap().slot_bytes, 160);
    }

    #[test]
    fn lanes_begin_with_the_first_rail_and_have_each_once() {
        let place = |first_rail| {
            let (members, stages) = (vec![Rank(0), Rank(1)], [None, None]);
            Place { me: 0, members, name: String::new(), first_rail, stages }
        };
        let rails = |first_rail| [0, 1, 2].map(|lane| place(first_rail).rail(lane, 3));
        assert_eq!([0, 1, 5].map(rails), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn settings_forbid_it() {
        let of = |variables: &[(&str, &str)]| {
            let settings = Settings::parse(variables.iter().copied()).unwrap().settings;
            Means::of(&settings, &JobKey::from_passphrase("means"))
        };
        let off = || Err("R2CCL_CUDA_NETWORK is 0".to_owned());
        assert_eq!(of(&[("R2CCL_CUDA_NETWORK", "0")]), off());
        assert_eq!(of(&[]), off(), "nobody has asked for it");
        let asked = ("R2CCL_CUDA_NETWORK", "1");
        let rails = ("R2CCL_RAILS", "127.0.0.8,127.0.0.9");
        let tcp = ("R2CCL_NET", "tcp");
        assert_eq!(of(&[asked, rails, tcp]), Ok(Means { soft: 2, rdma: 0 }));
    }
}
