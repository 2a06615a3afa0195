//! Makes the network and the ranks of a scenario.

use std::sync::Arc;

use ccl::simulation::Player;
use ccl_core::ids::Rank;
use ccl_core::program::Port;
use ccl_transport::memory;
use ccl_transport::network::{LinkShape, Terms, Wire, assemble};
use ccl_transport::ring::RingShape;
use ccl_transport::verbs::Depth;
use ccl_transport::{Link, TransportError};

use crate::actor::Actor;
use crate::device::{SimulatedDomain, SimulatedPair};
use crate::keeper::SimulatedKeeper;
use crate::network::{EndId, LinkState, Network, Nic, Shared};
use crate::scenario::Scenario;
use crate::watched::{Journal, Watched};
use crate::witness::SimulatedWitness;

/// Links by [`Port::index`], for every rank.
type Links = Vec<Vec<Option<Box<dyn Link>>>>;

/// The network of a scenario, without links.
pub(crate) fn network(scenario: &Scenario) -> Shared {
    let nics = scenario.hosts.iter().enumerate();
    let nics = nics.flat_map(|(host, shape)| (0..shape.rails).map(move |_| Nic::new(host)));
    let (seed, hosts) = (scenario.seed, scenario.hosts.len());
    let mut network = Network::new(seed, scenario.physics, nics.collect(), hosts, &scenario.faults);
    network.tile_bytes = scenario.shape.tile_bytes as u64;
    Shared::new(network)
}

/// The ranks of a scenario, connected.
pub(crate) fn actors(scenario: &Scenario, network: &Shared) -> Result<Vec<Actor>, TransportError> {
    let ranks = scenario.host_of.len();
    let mut links: Links = (0..ranks).map(|_| (0..2 * ranks).map(|_| None).collect()).collect();
    let mut numbers: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for low in 0..ranks {
        for high in low + 1..ranks {
            let ends = if scenario.host_of[low] == scenario.host_of[high] {
                near(scenario)
            } else {
                let (number, ends) = far(scenario, network, [low, high])?;
                numbers[low].push(number);
                numbers[high].push(number);
                ends
            };
            for ((rank, peer), end) in [(low, high), (high, low)].into_iter().zip(ends) {
                links[rank][port(peer, ranks)] = Some(end);
            }
        }
    }
    share(scenario, &mut links);
    let actor = |(rank, (links, numbers)): (usize, (_, Vec<usize>))| {
        let player = Player::new(Rank(u32::try_from(rank).unwrap_or(0)), links);
        let mut actor = Actor::new(rank, scenario.host_of[rank], scenario.calls.len(), player);
        actor.links = numbers;
        actor
    };
    Ok(links.into_iter().zip(numbers).enumerate().map(actor).collect())
}

fn port(peer: usize, ranks: usize) -> usize {
    Port::Pair(Rank(u32::try_from(peer).unwrap_or(0))).index(ranks)
}

fn ring(scenario: &Scenario) -> RingShape {
    let slots = scenario.shape.slots;
    RingShape { tile_bytes: 192, slots, tiles: slots }
}

/// A link inside a host.
fn near(scenario: &Scenario) -> [Box<dyn Link>; 2] {
    let (one, other) = memory::pair(ring(scenario));
    [Box::new(one), Box::new(other)]
}

/// The links on which a rank sends to all others of its host.
fn share(scenario: &Scenario, links: &mut Links) {
    let ranks = links.len();
    for source in 0..ranks {
        let host = scenario.host_of[source];
        let others: Vec<usize> =
            (0..ranks).filter(|rank| *rank != source && scenario.host_of[*rank] == host).collect();
        if others.is_empty() {
            continue;
        }
        let (writer, readers) = memory::multicast(ring(scenario), others.len());
        links[source][ranks + source] = Some(Box::new(writer));
        for (rank, reader) in others.into_iter().zip(readers) {
            links[rank][ranks + source] = Some(Box::new(reader));
        }
    }
}

/// A link between hosts: pair `i` of rails is rail `i` of both, modulo their number.
fn far(
    scenario: &Scenario,
    network: &Shared,
    ranks: [usize; 2],
) -> Result<(usize, [Box<dyn Link>; 2]), TransportError> {
    let hosts = ranks.map(|rank| scenario.host_of[rank]);
    let rails = hosts.map(|host| scenario.hosts[host].rails);
    let first = |host: usize| scenario.hosts[..host].iter().map(|shape| shape.rails).sum::<usize>();
    let nic = |side: usize, path: usize| first(hosts[side]) + path % rails[side];
    let paths = rails[0].max(rails[1]);
    let nics: Vec<[usize; 2]> = (0..paths).map(|path| [nic(0, path), nic(1, path)]).collect();
    let LinkShape { slots, .. } = scenario.shape;
    let depth = Depth { sends: 4 * slots + 256, receives: 2 * slots + 256 };
    let state = LinkState::new(ranks, &nics, depth, slots);
    let (number, ends) = network.lock().add_link(state);
    let (forth, back) = (Journal::default(), Journal::default());
    let end = |side: usize| -> Result<Box<dyn Link>, TransportError> {
        let wires = ends.iter().enumerate();
        let wire = |(path, ends): (usize, &[EndId; 2])| {
            wire(network, ends[side], path, path % rails[side])
        };
        let witness = SimulatedWitness::new(network.clone(), number, side);
        let terms = Terms { witness: Arc::new(witness), ..Terms::default() };
        let keeper = SimulatedKeeper::new(network.clone(), number, side);
        let link = assemble(wires.map(wire).collect(), scenario.shape, terms, Box::new(keeper))?;
        let journals = match side {
            0 => [Arc::clone(&forth), Arc::clone(&back)],
            _ => [Arc::clone(&back), Arc::clone(&forth)],
        };
        Ok(Box::new(Watched::new(link, network.clone(), (number, side), journals)))
    };
    Ok((number, [end(0)?, end(1)?]))
}

fn wire(network: &Shared, end: EndId, path: usize, rail: usize) -> Wire {
    let domain = network.lock().domain_of(end);
    Wire {
        name: format!("path {path}"),
        rail,
        capacity: 1e9,
        domain: Box::new(SimulatedDomain::new(network.clone(), domain)),
        pair: Box::new(SimulatedPair::new(network.clone(), end)),
    }
}
