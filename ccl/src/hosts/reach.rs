//! Whether the NICs of a rank lead to other hosts, and waiting for those that are about to.
//!
//! A NIC may come up a moment after the program starts: the cable is still being negotiated, the address is
//! still being asked for, or the kernel has not said yet what is true already. A rank that looks in that
//! moment finds nothing but loopback. Whether that matters is known once all ranks have told where they are:
//!
//! ```text
//! look ─▶ all ranks tell what they offer ─▶ somebody has too little, and something may come?
//!                 ▲                              │ yes: that rank waits, the others for it
//!                 └──────────────────────────────┘ no: loopback between hosts is an error, on all ranks
//! ```
//!
//! All ranks decide alike, because all decide about the same offers.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_transport::clock;
use serde::{Deserialize, Serialize};

use super::{Interface, InterfaceAddress, Interfaces, Nic};

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// NICs of a host come up together, but not at once: how long the first one waits for those that may follow.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Where the best NIC of a rank leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// There is none that is up.
    Nowhere,
    /// Not beyond this host.
    Loopback,
    /// To a bridge that nobody has named; mostly not beyond this host either.
    Bridge,
    /// To other hosts.
    Hosts,
}

/// An interface that would do, if it had what it lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanting {
    interface: String,
    lack: Lack,
    /// It has these already.
    addresses: Vec<IpAddr>,
}

/// What an interface lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Lack {
    /// Nobody has switched it on.
    Power,
    Carrier,
    Address,
}

impl Lack {
    /// Whether it may come without anybody doing anything.
    fn may_pass(self) -> bool {
        match self {
            Self::Power => false,
            Self::Carrier | Self::Address => true,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Power => "is off",
            Self::Carrier => "has no carrier",
            Self::Address => "has no address",
        }
    }
}

/// What a rank tells the others about its ways to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// As of [`network`](super::network).
    network: String,
    host: String,
    reach: Reach,
    wanting: Vec<Wanting>,
    /// The setting that made the choice, or nothing.
    setting: String,
    /// For how long it has waited, in seconds.
    waited: Option<f64>,
}

/// The NICs of this rank at one moment.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) nics: Vec<Nic>,
    pub(crate) offer: Offer,
    /// Why there is no NIC, if there is none but one may come.
    pub(crate) refusal: Option<Error>,
}

/// A rank, for decisions about all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party<'a> {
    pub(crate) offer: &'a Offer,
    /// The host whose memory it shares, if it shares any.
    pub(crate) memory: Option<&'a str>,
}

/// The NICs that the settings admit now.
///
/// # Errors
/// As [`nics`](super::nics), unless something may come that they admit.
pub(crate) fn look(settings: &Settings) -> Result<Look, Error> {
    let interfaces = super::interfaces()?;
    let chosen = super::select(&interfaces.addresses, settings);
    let wanting = wanting(&interfaces, settings);
    let may_come = wanting.iter().any(|interface| interface.lack.may_pass());
    let (chosen, refusal) = match chosen {
        Ok(chosen) => (chosen, None),
        Err(refusal) if may_come => (Vec::new(), Some(refusal)),
        Err(refusal) => return Err(refusal),
    };
    let offer = Offer {
        network: super::network(),
        host: super::host_name(),
        reach: reach(&chosen, settings),
        wanting,
        setting: setting(settings),
        waited: None,
    };
    Ok(Look { nics: super::named(chosen, settings), offer, refusal })
}

/// Addresses at which this host is, or will be when an interface has its carrier.
///
/// # Errors
/// As [`nics`](super::nics), after having waited if something may come.
pub(crate) fn addresses(settings: &Settings) -> Result<Vec<IpAddr>, Error> {
    let mut look = look(settings)?;
    if look.refusal.is_some() && look.offer.coming().next().is_none() {
        look = look.wait(settings, clock::now() + settings.nic_wait, || false)?;
    }
    let mut addresses: Vec<IpAddr> = look.nics.iter().map(|nic| nic.address).collect();
    if look.offer.reach < Reach::Hosts && look.offer.coming().next().is_some() {
        // There other hosts find this one as soon as the NIC is up, and this host at once.
        addresses.retain(|address| !address.is_loopback());
        addresses.splice(0..0, look.offer.coming());
    }
    match look.refusal {
        Some(refusal) if addresses.is_empty() => Err(refusal),
        Some(_) | None => Ok(addresses),
    }
}

/// Returns when this host may reach one of `places`: when it is itself there, or has a NIC that is up.
///
/// # Errors
/// [`Error::System`] if it has nothing but loopback, at once or when `R2CCL_NIC_WAIT` is over.
pub(crate) fn await_way(
    places: &[SocketAddr],
    settings: &Settings,
    deadline: Instant,
) -> Result<(), Error> {
    let start = clock::now();
    let limit = deadline.min(start + settings.nic_wait);
    let mut was_told = false;
    loop {
        let interfaces = super::interfaces()?;
        if has_way(&interfaces, places) {
            return Ok(());
        }
        let wanting = wanting(&interfaces, &Settings::default());
        if clock::now() >= limit || !wanting.iter().any(|interface| interface.lack.may_pass()) {
            let waited = clock::now().saturating_duration_since(start).as_secs_f64();
            return Err(no_way(places, &wanting, waited));
        }
        if !std::mem::replace(&mut was_told, true) {
            tell(&wanting, settings);
        }
        clock::sleep(LOOK_PAUSE);
    }
}

fn no_way(places: &[SocketAddr], wanting: &[Wanting], waited: f64) -> Error {
    let places: Vec<_> = places.iter().map(SocketAddr::to_string).collect();
    let (host, interfaces) = (super::host_name(), listing(wanting, Some(waited)));
    Error::system(
        format!("look for the store at {}", places.join(", ")),
        format!("no interface of {host} is up but loopback: {interfaces}"),
    )
}

fn tell(wanting: &[Wanting], settings: &Settings) {
    tracing::warn!(
        host = super::host_name(),
        interfaces = listing(wanting, None),
        seconds = settings.nic_wait.as_secs_f64(),
        "waiting for a NIC that leads to other hosts"
    );
}

fn has_way(interfaces: &Interfaces, places: &[SocketAddr]) -> bool {
    let is_here = |place: &SocketAddr| {
        let mut own = interfaces.addresses.iter();
        place.ip().is_loopback() || own.any(|entry| entry.address == place.ip())
    };
    let leads_away = |entry: &InterfaceAddress| entry.up && !entry.loopback;
    places.iter().any(is_here) || super::usable(&interfaces.addresses).iter().any(leads_away)
}

impl Look {
    /// With these interfaces too, though they are broken, and as fast as it is said.
    ///
    /// # Errors
    /// As [`look`].
    pub(crate) fn with_broken(
        self,
        settings: &Settings,
        broken: &BTreeMap<&str, u64>,
    ) -> Result<Self, Error> {
        self.with_broken_among(&super::interface_addresses()?, settings, broken)
    }

    /// Unchanged, if they were preferred to what it has: nothing that works is given up for them.
    fn with_broken_among(
        self,
        existing: &[InterfaceAddress],
        settings: &Settings,
        broken: &BTreeMap<&str, u64>,
    ) -> Result<Self, Error> {
        let is_broken =
            |entry: &InterfaceAddress| !entry.up && broken.contains_key(&*entry.interface);
        let as_if = |entry: &InterfaceAddress| InterfaceAddress {
            up: entry.up || is_broken(entry),
            ..entry.clone()
        };
        let as_if: Vec<InterfaceAddress> = existing.iter().map(as_if).collect();
        let mut nics = super::named(super::select(&as_if, settings)?, settings);
        for nic in &mut nics {
            let is_its = |entry: &&InterfaceAddress| entry.address == nic.address;
            nic.is_broken = existing.iter().find(is_its).is_some_and(|entry| !entry.up);
            if let Some(speed) = broken.get(&*nic.interface).filter(|_| nic.is_broken) {
                nic.speed_bytes_per_second = *speed;
            }
        }
        let is_kept = |nic: &Nic| nics.iter().any(|other| other.interface == nic.interface);
        Ok(if self.nics.iter().all(is_kept) { Self { nics, ..self } } else { self })
    }

    /// Looks until this rank has a NIC that leads to other hosts, or none may come, or the time is over.
    ///
    /// # Errors
    /// As [`look`].
    pub(crate) fn wait(
        self,
        settings: &Settings,
        deadline: Instant,
        is_over: impl Fn() -> bool,
    ) -> Result<Self, Error> {
        let start = clock::now();
        let mut limit = deadline.min(start + settings.nic_wait);
        let mut is_settling = false;
        let mut current = self;
        tell(&current.offer.wanting, settings);
        while current.offer.may_come() && clock::now() < limit && !is_over() {
            clock::sleep(LOOK_PAUSE);
            current = look(settings)?;
            if current.offer.reach == Reach::Hosts && !is_settling {
                is_settling = true;
                limit = limit.min(clock::now() + SETTLE_TIME);
            }
        }
        let waited = clock::now().saturating_duration_since(start).as_secs_f64();
        current.offer.waited = Some(waited);
        tracing::info!(host = current.offer.host, seconds = waited, "waited for a NIC");
        Ok(current)
    }
}

impl Offer {
    /// Whether an interface may come up by itself.
    fn may_come(&self) -> bool {
        self.wanting.iter().any(|interface| interface.lack.may_pass())
    }

    /// Interfaces that have an address, and are off or have no carrier.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &str> {
        let broken = self.wanting.iter().filter(|interface| interface.lack != Lack::Address);
        let broken = broken.filter(|interface| !interface.addresses.is_empty());
        broken.map(|interface| interface.interface.as_str())
    }

    /// Addresses of interfaces that only lack the carrier.
    fn coming(&self) -> impl Iterator<Item = IpAddr> {
        let coming = self.wanting.iter().filter(|interface| interface.lack == Lack::Carrier);
        coming.filter_map(|interface| interface.addresses.first().copied())
    }
}

impl Party<'_> {
    /// Whether bytes between the two have to leave the host.
    pub(crate) fn is_apart(self, other: Self) -> bool {
        let shares_memory = self.memory.is_some() && self.memory == other.memory;
        self.offer.network != other.offer.network && !shares_memory
    }
}

/// Whether this rank waits for a NIC before anything is decided.
pub(crate) fn waits(me: Rank, parties: &[Party<'_>]) -> bool {
    let own = parties[me.index()];
    own.offer.reach < Reach::Hosts
        && own.offer.may_come()
        && parties.iter().any(|other| own.is_apart(*other))
}

/// Whether any rank does, so that all tell again what they offer.
pub(crate) fn anybody_waits(parties: &[Party<'_>]) -> bool {
    (0..).map(Rank).take(parties.len()).any(|rank| waits(rank, parties))
}

/// Whether every rank leads where the others are. The same on all ranks.
///
/// # Errors
/// [`Error::System`] if an interface has to be mended, [`Error::InvalidUsage`] if another one has to be named.
pub(crate) fn check(parties: &[Party<'_>]) -> Result<(), Error> {
    let stuck = |own: &Party<'_>| {
        let is_here = own.offer.reach <= Reach::Loopback;
        parties.iter().position(|other| is_here && own.is_apart(*other))
    };
    let all: Vec<(usize, usize)> = parties
        .iter()
        .enumerate()
        .filter_map(|(rank, own)| stuck(own).map(|other| (rank, other)))
        .collect();
    match all.first() {
        Some(&(rank, other)) => Err(complaint(parties, rank, other, all.len() - 1)),
        None => Ok(()),
    }
}

fn complaint(parties: &[Party<'_>], rank: usize, other: usize, more: usize) -> Error {
    let (own, peer) = (parties[rank].offer, parties[other].offer);
    let more = if more == 0 { String::new() } else { format!(" ({more} other ranks neither)") };
    let text = format!(
        "rank {rank} on {} has no NIC that leads to rank {other} on {}{more}",
        own.host, peer.host
    );
    if own.wanting.is_empty() {
        let because = match own.setting.as_str() {
            "" => "it has loopback only".to_owned(),
            setting => format!("{setting} leaves it loopback only"),
        };
        return Error::InvalidUsage(format!("{text}: {because}"));
    }
    let interfaces = listing(&own.wanting, own.waited);
    Error::system(
        "reach ranks on other hosts",
        format!(
            "{text}: {interfaces}; mend that, name another with R2CCL_NIC, or set R2CCL_NIC_WAIT"
        ),
    )
}

fn listing(wanting: &[Wanting], waited: Option<f64>) -> String {
    let text = |interface: &Wanting| {
        let waited = waited.filter(|_| interface.lack.may_pass());
        let waited =
            waited.map_or_else(String::new, |seconds| format!(" (waited {seconds:.1} s for it)"));
        format!("{} {}{waited}", interface.interface, interface.lack.text())
    };
    let texts: Vec<_> = wanting.iter().map(text).collect();
    if texts.is_empty() { "there is no other".to_owned() } else { texts.join(", ") }
}

fn setting(settings: &Settings) -> String {
    if !settings.rails.is_empty() {
        let rails: Vec<_> = settings.rails.iter().map(IpAddr::to_string).collect();
        return format!("R2CCL_RAILS={}", rails.join(","));
    }
    match settings.interfaces.to_string() {
        filter if filter.is_empty() => filter,
        filter => format!("R2CCL_NIC={filter}"),
    }
}

/// Where the best of these leads.
fn reach(chosen: &[InterfaceAddress], settings: &Settings) -> Reach {
    let of = |entry: &InterfaceAddress| match entry {
        InterfaceAddress { loopback: true, .. } => Reach::Loopback,
        InterfaceAddress { up: false, .. } => Reach::Nowhere,
        InterfaceAddress { interface, .. } if is_spurned(interface, settings) => Reach::Bridge,
        InterfaceAddress { .. } => Reach::Hosts,
    };
    chosen.iter().map(of).max().unwrap_or(Reach::Nowhere)
}

/// A bridge is taken for a NIC only if it is named, or there is nothing else.
fn is_spurned(interface: &str, settings: &Settings) -> bool {
    let is_named = settings.interfaces.names_what_it_wants() || !settings.rails.is_empty();
    !is_named && super::is_bridge(interface)
}

/// The interfaces that the settings admit and that cannot be used now.
fn wanting(interfaces: &Interfaces, settings: &Settings) -> Vec<Wanting> {
    let is_admitted = |interface: &&Interface| {
        let name = &interface.name;
        let mut own = interfaces.addresses.iter().filter(|entry| entry.interface == *name);
        let is_asked_for = match settings.rails.as_slice() {
            [] => settings.interfaces.admits(name),
            rails => own.any(|entry| rails.contains(&entry.address)),
        };
        is_asked_for && !interface.is_loopback && !is_spurned(name, settings) && !is_part(name)
    };
    let wanting = |interface: &Interface| {
        let own = interfaces.addresses.iter().filter(|entry| entry.interface == interface.name);
        let routable =
            own.map(|entry| entry.address).filter(|address| super::is_routable(*address));
        let addresses: Vec<IpAddr> = routable.collect();
        let lack = match interface {
            Interface { is_on: false, .. } => Lack::Power,
            Interface { is_running: false, .. } => Lack::Carrier,
            Interface { .. } if addresses.is_empty() => Lack::Address,
            Interface { .. } => return None,
        };
        Some(Wanting { interface: interface.name.clone(), lack, addresses })
    };
    interfaces.all.iter().filter(is_admitted).filter_map(wanting).collect()
}

/// Whether an interface is part of a bridge or a bond, which has the address in its place.
fn is_part(interface: &str) -> bool {
    fs::symlink_metadata(format!("/sys/class/net/{interface}/master")).is_ok()
}

#[cfg(test)]
pub(crate) mod tests;
