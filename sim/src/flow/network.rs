//! The links, the NICs below them, and what happens on both.

use std::collections::BTreeSet;

use ccl_core::ids::{Node, Rank};
use ccl_core::program::{Port as Link, Program};
use ccl_core::topology::Topology;
use ccl_transport::HEADER_BYTES;

use super::agenda::{Agenda, Event};
use super::gauge::{Gauge, Held};
use super::parcel::{Load, Parcel};
use super::port::Port;
use super::wire::{Paths, Wire};
use super::{HostLoad, Impossible, NicLoad, Physics, Picos, picos, seconds};

/// Directions of a NIC.
const OUT: usize = 0;
const IN: usize = 1;

/// Everything between the ranks.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Picos,
    pub(super) physics: Physics,
    alpha: Picos,
    agenda: Agenda,
    ranks: usize,
    host_of: Vec<usize>,
    /// By [`Network::index`]; only those that programs use.
    wires: Vec<Option<Wire>>,
    /// By host, rail and direction.
    ports: Vec<Port>,
    /// NICs per host.
    rails: usize,
    /// By host.
    gauges: Vec<Gauge>,
    /// By rank: when it will look at its links, and until when it does something else.
    wakes: Vec<Option<Picos>>,
    busy_until: Vec<Picos>,
    pub(super) tiles: u64,
}

impl Network {
    /// The links that `programs` use.
    pub(super) fn new(
        programs: &[Program],
        topology: &Topology,
        physics: Physics,
    ) -> Result<Self, Impossible> {
        let ranks = programs.len();
        let host = |rank| topology.node_of(rank).index();
        let nodes = || (0..topology.nodes()).map(Node);
        let rails = nodes().map(|node| topology.rails(node).len()).max().unwrap_or(0);
        let gauge = |node| Gauge::new(topology.capacity(node), topology.ranks_of(node).len());
        let mut network = Self {
            now: 0,
            physics,
            alpha: picos(physics.alpha),
            agenda: Agenda::default(),
            ranks,
            host_of: (0..topology.ranks()).map(|rank| host(Rank(rank))).collect(),
            wires: Vec::new(),
            ports: nodes().flat_map(|node| ports(topology, node, rails)).collect(),
            rails,
            gauges: nodes().map(gauge).collect(),
            wakes: vec![None; ranks],
            busy_until: vec![0; ranks],
            tiles: 0,
        };
        network.wires.resize_with(ranks * ranks, || None);
        for (source, link) in used(programs) {
            network.connect(source, link, topology)?;
        }
        for (source, program) in programs.iter().enumerate() {
            for (peer, proportions) in &program.rails {
                let wire = network.index(source, Link::Pair(*peer));
                if let Some(paths) = network.paths(wire) {
                    paths.divide(proportions);
                }
            }
        }
        Ok(network)
    }

    /// Makes the wire on which `source` sends, and between hosts the one in the other direction.
    fn connect(
        &mut self,
        source: usize,
        link: Link,
        topology: &Topology,
    ) -> Result<(), Impossible> {
        let wire = self.index(source, link);
        let me = Rank(u32::try_from(source).unwrap_or(u32::MAX));
        let local = (self.physics.local_slots, self.physics.local_tile_bytes);
        match link {
            Link::Multicast(_) => {
                let host = topology.ranks_of(topology.node_of(me)).iter();
                let readers = host.filter(|rank| **rank != me).map(|rank| rank.index());
                self.wires[wire] = Some(Wire::new(source, readers.collect(), local, None));
            }
            Link::Pair(peer) if topology.together(me, peer) => {
                self.wires[wire] = Some(Wire::new(source, vec![peer.index()], local, None));
            }
            Link::Pair(peer) => {
                let back = self.index(peer.index(), Link::Pair(me));
                let ends = [topology.node_of(me), topology.node_of(peer)];
                let mut rails = common(topology, ends);
                if rails.is_empty() {
                    return Err(Impossible::NoCommonRail(ends[0], ends[1]));
                }
                if self.physics.spread_rails {
                    let first = (source + peer.index()) % rails.len();
                    rails.rotate_left(first);
                }
                let shape = (self.physics.slots, self.physics.tile_bytes);
                let window = shape.0 * (shape.1 + HEADER_BYTES);
                for (wire, back, source, reader) in
                    [(wire, back, source, peer.index()), (back, wire, peer.index(), source)]
                {
                    let paths = Paths::new(back, &rails, window);
                    self.wires[wire] = Some(Wire::new(source, vec![reader], shape, Some(paths)));
                }
            }
        }
        Ok(())
    }

    /// The number of the wire on which `source` sends.
    pub(super) fn index(&self, source: usize, link: Link) -> usize {
        match link {
            Link::Pair(peer) => source * self.ranks + peer.index(),
            Link::Multicast(_) => source * self.ranks + source,
        }
    }

    /// The wire and the inbox in which `reader` finds what arrives on a link.
    pub(super) fn inbox_of(&self, reader: usize, link: Link) -> Option<(usize, usize)> {
        let wire = match link {
            Link::Pair(peer) => peer.index() * self.ranks + reader,
            Link::Multicast(source) => source.index() * self.ranks + source.index(),
        };
        let inboxes = &self.wires[wire].as_ref()?.inboxes;
        Some((wire, inboxes.iter().position(|inbox| inbox.reader == reader)?))
    }

    pub(super) fn wire(&mut self, wire: usize) -> &mut Wire {
        let Some(wire) = &mut self.wires[wire] else { unreachable!("programs use known wires") };
        wire
    }

    fn paths(&mut self, wire: usize) -> Option<&mut Paths> {
        self.wires[wire].as_mut()?.paths.as_mut()
    }

    /// For how long a processor is busy with a tile that it sends. Inside a host that is the copy.
    pub(super) fn price_of_sending(&mut self, wire: usize, bytes: usize) -> Picos {
        match self.paths(wire) {
            Some(_) => picos(self.physics.overhead),
            None => picos(bytes as f64 / self.physics.local_bytes_per_second),
        }
    }

    /// For how long a processor is busy with a tile that it receives.
    pub(super) fn price_of_receiving(&mut self, wire: usize) -> Picos {
        let overhead = self.physics.overhead;
        self.paths(wire).map_or(0, |_| picos(overhead))
    }

    /// Sends a tile, which leaves the processor at `at`.
    pub(super) fn send(&mut self, wire: usize, payload: usize, at: Picos) {
        self.tiles += 1;
        let opposite = self.paths(wire).map(|paths| paths.opposite);
        let Some(opposite) = opposite else {
            let (sequence, path) = self.wire(wire).post(payload, at);
            self.wire(wire).land(sequence, path);
            let load = Load::Tile { sequence, payload };
            let parcel = Parcel { wire, path, load, consumed: 0, tail: at };
            return self.agenda.plan(at, Event::Deliver(parcel));
        };
        let consumed = self.wire(opposite).inboxes[0].credit();
        let (sequence, path) = self.wire(wire).post(HEADER_BYTES + payload, at);
        let load = Load::Tile { sequence, payload };
        self.agenda.plan(at, Event::Post(Parcel { wire, path, load, consumed, tail: 0 }));
    }

    /// Tells the sender at `at` how many tiles of `wire` were used up, if these are `batch` more than it
    /// knows of. It is told on the wire in the other direction, behind what is posted there.
    pub(super) fn post_credit(&mut self, wire: usize, batch: usize, at: Picos) {
        let Some(opposite) = self.paths(wire).map(|paths| paths.opposite) else { return };
        if !self.wire(wire).inboxes[0].owes(batch) {
            return;
        }
        let consumed = self.wire(wire).inboxes[0].credit();
        let path = self.paths(opposite).map_or(0, |paths| paths.choose(0));
        let parcel = Parcel { wire: opposite, path, load: Load::Credit, consumed, tail: 0 };
        self.agenda.plan(at, Event::Post(parcel));
    }

    /// Uses up bytes of the oldest tile in an inbox, at `at`; tells whether it was the rest of it.
    pub(super) fn use_up(
        &mut self,
        (wire, inbox): (usize, usize),
        bytes: usize,
        at: Picos,
    ) -> bool {
        if !self.wire(wire).inboxes[inbox].use_up(bytes) {
            return false;
        }
        if self.paths(wire).is_some() {
            self.post_credit(wire, self.physics.slots * 3 / 4, at);
        } else {
            self.wire(wire).free_local(at);
            let source = self.wire(wire).source;
            self.wake(source, at);
        }
        true
    }

    /// Lets a rank look at its links at `at`, or when it has time.
    pub(super) fn wake(&mut self, rank: usize, at: Picos) {
        let at = at.max(self.busy_until[rank]);
        if self.wakes[rank].is_none_or(|planned| planned > at) {
            self.wakes[rank] = Some(at);
            self.agenda.plan(at, Event::Wake(rank));
        }
    }

    /// A rank is busy until `until`, and holds its lanes for these reasons.
    pub(super) fn occupy(&mut self, rank: usize, place: usize, until: Picos, held: Held) {
        self.busy_until[rank] = until;
        self.gauges[self.host_of[rank]].hold(self.now, place, held);
    }

    /// Lets time pass until a rank wakes; none if nothing happens any more.
    pub(super) fn next_wake(&mut self) -> Option<usize> {
        while let Some((now, event)) = self.agenda.take() {
            self.now = now;
            match event {
                Event::Wake(rank) if self.wakes[rank] == Some(now) => {
                    self.wakes[rank] = None;
                    return Some(rank);
                }
                Event::Wake(_) => {}
                Event::Post(parcel) => self.queue(parcel, OUT),
                Event::Reach(parcel) => self.queue(parcel, IN),
                Event::Sent(port) | Event::Taken(port) => self.finish(port),
                Event::Deliver(parcel) => self.deliver(parcel),
            }
        }
        None
    }

    /// What went through the NICs of every host until now.
    pub(super) fn loads(&mut self) -> Vec<HostLoad> {
        let total = seconds(self.now.max(1));
        let nic = |pair: &[Port]| NicLoad {
            sent_bytes: pair[OUT].bytes,
            received_bytes: pair[IN].bytes,
            sending: seconds(pair[OUT].busy) / total,
            receiving: seconds(pair[IN].busy) / total,
        };
        let (width, now) = (2 * self.rails, self.now);
        let nics = |host: usize| self.ports[host * width..(host + 1) * width].chunks(2).map(nic);
        let hosts = self.gauges.iter_mut().enumerate();
        hosts
            .map(|(host, gauge)| HostLoad { nics: nics(host).collect(), idle: gauge.read(now) })
            .collect()
    }

    fn queue(&mut self, parcel: Parcel, direction: usize) {
        let Some(wire) = &self.wires[parcel.wire] else { return };
        let Some(paths) = &wire.paths else { return };
        let rank = if direction == OUT { wire.source } else { wire.inboxes[0].reader };
        let port = (self.host_of[rank] * self.rails + paths.rails[parcel.path]) * 2 + direction;
        self.ports[port].queue(parcel);
        self.begin(port);
    }

    fn finish(&mut self, port: usize) {
        self.ports[port].finish();
        if port % 2 == OUT {
            let speed = self.ports[port].bytes_per_second;
            self.gauges[port / 2 / self.rails].end(self.now, speed);
        }
        self.begin(port);
    }

    fn begin(&mut self, port: usize) {
        let Some((parcel, duration)) = self.ports[port].begin() else { return };
        let end = self.now + duration;
        if port % 2 == OUT {
            let speed = self.ports[port].bytes_per_second;
            self.gauges[port / 2 / self.rails].begin(self.now, speed);
            self.agenda.plan(end, Event::Sent(port));
            let parcel = Parcel { tail: end + self.alpha, ..parcel };
            self.agenda.plan(self.now + self.alpha, Event::Reach(parcel));
        } else {
            self.agenda.plan(end, Event::Taken(port));
            self.agenda.plan(end.max(parcel.tail), Event::Deliver(parcel));
        }
    }

    fn deliver(&mut self, parcel: Parcel) {
        let (now, alpha) = (self.now, self.alpha);
        let wire = self.wire(parcel.wire);
        if let Load::Tile { sequence, payload } = parcel.load {
            wire.inboxes.iter_mut().for_each(|inbox| inbox.deliver(sequence, payload));
            if let Some(paths) = &mut wire.paths {
                paths.confirm(now + alpha, sequence, parcel.path);
            }
        }
        let readers: Vec<usize> = wire.inboxes.iter().map(|inbox| inbox.reader).collect();
        if let Some(opposite) = wire.paths.as_ref().map(|paths| paths.opposite) {
            self.wire(opposite).free(parcel.consumed, now);
        }
        readers.into_iter().for_each(|reader| self.wake(reader, now));
    }
}

/// The links on which somebody sends, with the sender.
fn used(programs: &[Program]) -> BTreeSet<(usize, Link)> {
    let of = |(rank, program): (usize, &Program)| {
        let links: Vec<_> = program.sends.iter().map(|lane| (rank, lane.port)).collect();
        links
    };
    programs.iter().enumerate().flat_map(of).collect()
}

fn ports(topology: &Topology, node: Node, rails: usize) -> Vec<Port> {
    let speed = |rail: usize| {
        let rail = topology.rails(node).get(rail).filter(|rail| rail.up);
        rail.map_or(0.0, |rail| rail.bytes_per_second)
    };
    (0..rails).flat_map(|rail| [Port::new(speed(rail)), Port::new(speed(rail))]).collect()
}

/// The rails that work at both ends, and how fast the slower end is.
fn common(topology: &Topology, [one, other]: [Node; 2]) -> Vec<(usize, f64)> {
    let both = topology.rails(one).iter().zip(topology.rails(other)).enumerate();
    let working = both.filter(|(_, (one, other))| one.up && other.up);
    let speed = working.map(|(rail, (a, b))| (rail, a.bytes_per_second.min(b.bytes_per_second)));
    speed.filter(|(_, speed)| *speed > 0.0).collect()
}
