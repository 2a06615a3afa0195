//! The bed itself: hosts, switches and the cables between them, which can be cut and healed.
//!
//! ```text
//!   host0            switches (a namespace of their own)           host1
//!   rail0 ─────────── port ─ bridge of rail 0 ─ port ─────────── rail0
//!   rail1 ─────────── port ─ bridge of rail 1 ─ port ─────────── rail1
//!   manage0 ───────── port ─ bridge of management ─ port ─────── manage0
//! ```
//!
//! Both ends of a cable limit what leaves them. The management network is neither limited nor ever
//! broken: jobs meet over it, and what they see of faults is what their rails show.

use std::collections::BTreeMap;
use std::io;

use super::clock;
use super::failure::{Failure, Outcome};
use super::fault::{Action, Condition, End, Queue, Step, steps};
use super::namespace::Namespace;
use super::netlink::{Index, Netlink, Place};
use super::shape::{Cable, Rate, Shape, host_name, management_address, rail_address, rail_name};

/// The first number of a device that is not loopback.
const FIRST_DEVICE: u32 = 2;

/// The first number of a network card that is put in later; those of a bed are smaller.
const FIRST_INSERTED: u32 = 1 << 20;

/// Name of the network card for management, on every host.
const MANAGEMENT_NAME: &str = "manage0";

/// A bed. It exists as long as this value, and as long as processes that were started in it.
#[derive(Debug)]
pub struct Bed {
    shape: Shape,
    switches: Netlink,
    hosts: Vec<Host>,
    conditions: BTreeMap<Cable, Condition>,
    /// Numbers of network cards that were put in later.
    inserted: BTreeMap<Cable, Index>,
    _switch_place: Namespace,
}

#[derive(Debug)]
struct Host {
    place: Namespace,
    netlink: Netlink,
}

/// When an action took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Just before the kernel was asked, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// When the kernel had done it. What it does shows between the two.
    pub ended_ns: u64,
}

impl Bed {
    /// Makes the hosts and connects them.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] says what this machine does not allow or know.
    pub fn build(shape: Shape) -> Outcome<Self> {
        let (switch_place, switches) = Namespace::create("switches")?;
        let mut bed = Self {
            shape,
            switches,
            hosts: Vec::new(),
            conditions: BTreeMap::new(),
            inserted: BTreeMap::new(),
            _switch_place: switch_place,
        };
        for network in 0..=shape.rails {
            let failed = |cause| Failure::making(format!("making switch {network}"), cause);
            let index = bed.bridge(network);
            bed.switches.add_bridge(index, &format!("bridge{network}")).map_err(failed)?;
            bed.switches.power(index, true).map_err(failed)?;
        }
        for host in 0..shape.hosts {
            bed.add_host(host)?;
        }
        Ok(bed)
    }

    /// Its size.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Does `work` on a host: sockets that it opens and processes that it starts belong there.
    ///
    /// # Errors
    /// There is no such host, or the kernel does not let this thread in.
    pub fn on_host<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> Outcome<T> {
        let host = self.hosts.get(host).ok_or_else(|| Failure::Input(format!("no host {host}")))?;
        host.place.inside(work)
    }

    /// Cuts or heals a cable, and says when.
    ///
    /// # Errors
    /// There is no such cable, or the kernel refused.
    pub fn apply(&mut self, action: Action) -> Outcome<Moment> {
        let Action { turn, fault, cable } = action;
        self.shape.check(cable).map_err(Failure::Input)?;
        let before = self.conditions.get(&cable).cloned().unwrap_or_default();
        let after = before.clone().after(turn, fault);
        let began_ns = clock::now_ns();
        for step in steps(&before, &after, self.shape.rate) {
            self.take(cable, step).map_err(|cause| Failure::system(action.to_string(), cause))?;
        }
        let ended_ns = clock::now_ns();
        self.conditions.insert(cable, after);
        Ok(Moment { began_ns, ended_ns })
    }

    /// Puts in a network card in place of one that was removed, as `ip link del` does, together with its cable. It
    /// has the name and the addresses of that one, in the network and in hardware, and another number.
    ///
    /// # Errors
    /// There is no such card, it is still there, or the kernel refused.
    pub fn insert(&mut self, cable: Cable) -> Outcome<()> {
        self.shape.check(cable).map_err(Failure::Input)?;
        let index = self.inserted.values().max().map_or(FIRST_INSERTED, |last| last + 1);
        self.inserted.insert(cable, index);
        self.conditions.remove(&cable);
        self.connect(cable.host, cable.rail)
            .map_err(|cause| Failure::system(format!("inserting a network card, {cable}"), cause))
    }

    fn add_host(&mut self, number: usize) -> Outcome<()> {
        let (place, netlink) = Namespace::create(&host_name(number))?;
        self.hosts.push(Host { place, netlink });
        for network in 0..=self.shape.rails {
            self.connect(number, network).map_err(|cause| {
                Failure::making(format!("connecting host {number} with switch {network}"), cause)
            })?;
        }
        Ok(())
    }

    /// Connects a host with the switch of a rail, or with that of management.
    fn connect(&mut self, number: usize, network: usize) -> io::Result<()> {
        let is_rail = network < self.shape.rails;
        let (name, address, rate) = if is_rail {
            let cable = Cable { host: number, rail: network };
            (rail_name(network), rail_address(cable), self.shape.rate)
        } else {
            (MANAGEMENT_NAME.to_owned(), management_address(number), Rate::Unlimited)
        };
        let card = self.card(Cable { host: number, rail: network });
        let (port, bridge) = (self.port(number, network), self.bridge(network));
        let host = &mut self.hosts[number];
        let hardware = hardware_address(number, network);
        let there = Place { index: card, name, hardware, namespace: host.place.network() };
        self.switches.add_cable((port, &format!("port{number}.{network}")), &there)?;
        self.switches.attach(port, Some(bridge))?;
        host.netlink.add_address(card, address)?;
        if rate != Rate::Unlimited {
            host.netlink.segment(card, rate)?;
            host.netlink.queue(card, Queue::Shaped(rate))?;
            self.switches.queue(port, Queue::Shaped(rate))?;
        }
        self.switches.power(port, true)?;
        host.netlink.power(card, true)
    }

    fn take(&mut self, cable: Cable, step: Step) -> io::Result<()> {
        let port = self.port(cable.host, cable.rail);
        let bridge = self.bridge(cable.rail);
        let card = self.card(cable);
        let host = &mut self.hosts[cable.host].netlink;
        match step {
            Step::Power(End::Host, on) => host.power(card, on),
            Step::Power(End::Switch, on) => self.switches.power(port, on),
            Step::Attached(attached) => self.switches.attach(port, attached.then_some(bridge)),
            Step::Queue(End::Host, queue) => host.queue(card, queue),
            Step::Queue(End::Switch, queue) => self.switches.queue(port, queue),
        }
    }

    /// Number of a network card on its host.
    fn card(&self, cable: Cable) -> Index {
        let built = || FIRST_DEVICE + number(cable.rail);
        self.inserted.get(&cable).copied().unwrap_or_else(built)
    }

    fn bridge(&self, network: usize) -> Index {
        FIRST_DEVICE + number(network)
    }

    /// Ports follow the bridges, by host.
    fn port(&self, host: usize, network: usize) -> Index {
        let networks = self.shape.rails + 1;
        FIRST_DEVICE + number(networks * (host + 1) + network)
    }
}

/// A card that is put in again keeps it, as real ones do: others remember it for half a minute.
fn hardware_address(host: usize, network: usize) -> [u8; 6] {
    let byte = |number: usize| u8::try_from(number).expect("a bed is small");
    // Administered locally, and of one card.
    [2, 0, 0, 0, byte(network), byte(host + 1)]
}

fn number(small: usize) -> Index {
    Index::try_from(small).expect("a bed is small")
}
