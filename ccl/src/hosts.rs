//! Which host this is, and which NICs it has.
//!
//! Two ranks with the same [`HostIdentity`] can share memory. [`nics`] gives the interfaces that
//! carry data between hosts; the decision is [`select`], a pure function of what exists.

pub(crate) mod caches;
pub(crate) mod reach;

use std::fmt;
use std::fs;
use std::net::IpAddr;

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_transport::place::Sysfs;
use nix::net::if_::InterfaceFlags;

/// Assumed where the kernel does not know the speed of a link: 10 Gbit/s.
pub const UNKNOWN_SPEED_BYTES_PER_SECOND: u64 = 1_250_000_000;

/// In the kernel's unit of speeds.
pub(crate) const BYTES_PER_MEGABIT: u64 = 125_000;

/// Prefixes of interfaces that lead to containers and virtual machines of the same host.
const BRIDGES: &[&str] = &["docker", "br-", "virbr", "cni", "lxc", "podman"];

/// Equal for two processes exactly if they run on the same booted system, in the same network and
/// process namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIdentity(String);

impl HostIdentity {
    /// The identity of this process' host, or what the settings say it is.
    #[must_use]
    pub fn of_this_process(settings: &Settings) -> Self {
        settings.host_identity.as_ref().map_or_else(Self::observed, |text| Self(text.clone()))
    }

    /// The identity of this process' host, whatever the settings say.
    #[must_use]
    pub fn observed() -> Self {
        let boot = booted_system();
        let (net, pid) = (namespace("self/ns/net"), namespace("self/ns/pid"));
        Self(format!("{}/{}/{net}/{pid}", boot, host_name()))
    }

    /// The identity as text, to be sent to other ranks.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Equal for two processes that share processors, whatever namespaces they are in and whichever hosts
/// they pretend to be.
#[must_use]
pub fn booted_system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Equal for two threads between which loopback leads: on the same booted system, in the same network
/// namespace.
#[must_use]
pub(crate) fn network() -> String {
    format!("{}/{}", booted_system(), namespace("thread-self/ns/net"))
}

fn namespace(link: &str) -> String {
    fs::read_link(format!("/proc/{link}"))
        .map_or_else(|_| "?".to_owned(), |target| target.to_string_lossy().into_owned())
}

/// The name of this host, for messages.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A NIC that carries data between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name for messages: the interface, or the address where addresses were given.
    pub name: String,
    /// Local address to bind connections to.
    pub address: IpAddr,
    /// The kernel's name of the interface.
    pub interface: String,
    /// Speed of the link.
    pub speed_bytes_per_second: u64,
    /// It is off, or has no carrier.
    pub is_broken: bool,
}

/// One address of one interface, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The kernel's name of the interface.
    pub interface: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Whether it is up and running.
    pub up: bool,
    /// Whether it leads back to this host.
    pub loopback: bool,
}

/// The NICs of this host that the settings admit, at least one.
///
/// # Errors
/// [`Error::InvalidUsage`] if the settings match nothing: it names the setting and lists what exists.
/// [`Error::System`] if the kernel does not list its interfaces.
pub fn nics(settings: &Settings) -> Result<Vec<Nic>, Error> {
    nics_among(&interface_addresses()?, settings)
}

/// The same of the interfaces that were listed before.
///
/// # Errors
/// [`Error::InvalidUsage`] as for [`nics`].
pub(crate) fn nics_among(
    existing: &[InterfaceAddress],
    settings: &Settings,
) -> Result<Vec<Nic>, Error> {
    Ok(named(select(existing, settings)?, settings))
}

/// What was chosen, with names and speeds.
fn named(chosen: Vec<InterfaceAddress>, settings: &Settings) -> Vec<Nic> {
    let nic = |InterfaceAddress { interface, address, up, .. }| Nic {
        name: if settings.rails.is_empty() { interface.clone() } else { address.to_string() },
        address,
        speed_bytes_per_second: speed_bytes_per_second(&interface),
        interface,
        is_broken: !up,
    };
    chosen.into_iter().map(nic).collect()
}

/// Tells the log where the rails of this rank are.
pub(crate) fn tell(rank: Rank, rails: &[Nic]) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    for (rail, nic) in rails.iter().enumerate() {
        let place = Sysfs::default().interface(&nic.interface);
        tracing::info!(
            rank = rank.0,
            rail,
            name = nic.name,
            interface = nic.interface,
            pci = place.address(),
            numa_node = place.numa_node(),
            megabits_per_second = nic.speed_bytes_per_second / BYTES_PER_MEGABIT,
            "a rail of this rank"
        );
    }
}

/// The interfaces of this host at one moment.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    /// All addresses.
    addresses: Vec<InterfaceAddress>,
    /// All interfaces, those without an address too.
    all: Vec<Interface>,
}

/// One interface, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    /// Whether somebody has switched it on.
    is_on: bool,
    /// Whether it has a carrier.
    is_running: bool,
    is_loopback: bool,
}

/// The addresses of all interfaces, up or not.
///
/// # Errors
/// [`Error::System`] if the kernel does not list them.
pub(crate) fn interface_addresses() -> Result<Vec<InterfaceAddress>, Error> {
    Ok(interfaces()?.addresses)
}

/// All interfaces and their addresses.
///
/// # Errors
/// [`Error::System`] if the kernel does not list them.
fn interfaces() -> Result<Interfaces, Error> {
    let listed = nix::ifaddrs::getifaddrs().map_err(|cause| Error::system("getifaddrs", cause))?;
    let mut interfaces = Interfaces::default();
    for entry in listed {
        let has = |flag| entry.flags.contains(flag);
        let interface = Interface {
            name: entry.interface_name.clone(),
            is_on: has(InterfaceFlags::IFF_UP),
            is_running: has(InterfaceFlags::IFF_RUNNING),
            is_loopback: has(InterfaceFlags::IFF_LOOPBACK),
        };
        let v4 = || Some(IpAddr::V4(entry.address?.as_sockaddr_in()?.ip()));
        let v6 = || Some(IpAddr::V6(entry.address?.as_sockaddr_in6()?.ip()));
        let address = v4().or_else(v6).map(|address| InterfaceAddress {
            interface: entry.interface_name.clone(),
            address,
            up: interface.is_on && interface.is_running,
            loopback: interface.is_loopback,
        });
        interfaces.addresses.extend(address);
        if !interfaces.all.iter().any(|known| known.name == interface.name) {
            interfaces.all.push(interface);
        }
    }
    Ok(interfaces)
}

/// Chooses the NICs among `existing`, at most one address for each interface.
///
/// # Errors
/// [`Error::InvalidUsage`] as for [`nics`].
pub fn select(
    existing: &[InterfaceAddress],
    settings: &Settings,
) -> Result<Vec<InterfaceAddress>, Error> {
    if !settings.rails.is_empty() {
        return settings.rails.iter().map(|address| owner(*address, existing)).collect();
    }
    let filter = &settings.interfaces;
    let admitted: Vec<_> =
        usable(existing).into_iter().filter(|entry| filter.admits(&entry.interface)).collect();
    let chosen = if filter.names_what_it_wants() { admitted } else { preferred(admitted) };
    if chosen.is_empty() {
        return Err(Error::InvalidUsage(format!(
            "R2CCL_NIC={filter} matches no interface that is up; there are {}",
            listing(existing)
        )));
    }
    Ok(chosen)
}

/// The interface with `address`. Linux answers to all of 127.0.0.0/8 without listing it.
fn owner(address: IpAddr, existing: &[InterfaceAddress]) -> Result<InterfaceAddress, Error> {
    let listed = existing.iter().find(|entry| entry.address == address);
    let implied = || address.is_loopback().then(|| existing.iter().find(|entry| entry.loopback));
    listed
        .or_else(|| implied().flatten())
        .map(|entry| InterfaceAddress { address, ..entry.clone() })
        .ok_or_else(|| {
            Error::InvalidUsage(format!(
                "R2CCL_RAILS: {address} is not an address of this host; there are {}",
                listing(existing)
            ))
        })
}

/// One address for each interface that is up, IPv4 if it has one, in the kernel's order.
fn usable(existing: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let mut chosen: Vec<InterfaceAddress> = Vec::new();
    for entry in existing.iter().filter(|entry| entry.up && is_routable(entry.address)) {
        match chosen.iter_mut().find(|earlier| earlier.interface == entry.interface) {
            None => chosen.push(entry.clone()),
            Some(earlier) if earlier.address.is_ipv6() && entry.address.is_ipv4() => {
                *earlier = entry.clone();
            }
            Some(_) => {}
        }
    }
    chosen
}

/// Link-local IPv6 addresses mean nothing without the interface, which the peer does not know.
fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_multicast(),
    }
}

/// Real interfaces if there are any, else bridges, else loopback.
fn preferred(admitted: Vec<InterfaceAddress>) -> Vec<InterfaceAddress> {
    let class = |entry: &InterfaceAddress| (entry.loopback, is_bridge(&entry.interface));
    let best = admitted.iter().map(class).min();
    admitted.into_iter().filter(|entry| Some(class(entry)) == best).collect()
}

fn is_bridge(interface: &str) -> bool {
    BRIDGES.iter().any(|prefix| interface.starts_with(prefix))
}

fn listing(existing: &[InterfaceAddress]) -> String {
    let entries: Vec<_> = existing
        .iter()
        .map(|entry| {
            let state = if entry.up { "" } else { ", down" };
            format!("{} ({}{state})", entry.interface, entry.address)
        })
        .collect();
    if entries.is_empty() { "none".to_owned() } else { entries.join(", ") }
}

/// How many connections it takes to fill this NIC, as far as the kernel tells.
pub(crate) fn flows(nic: &Nic) -> usize {
    Sysfs::default().flows(&nic.interface)
}

fn speed_bytes_per_second(interface: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/speed")).unwrap_or_default();
    parse_speed(&text)
}

/// The kernel writes megabits per second, and -1 or an error where it does not know.
fn parse_speed(text: &str) -> u64 {
    match text.trim().parse::<u64>() {
        Ok(megabits @ 1..=100_000_000) => megabits * BYTES_PER_MEGABIT,
        Ok(_) | Err(_) => UNKNOWN_SPEED_BYTES_PER_SECOND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(interface: &str, address: &str, up: bool) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            up,
            loopback: interface == "lo",
        }
    }

    fn host() -> Vec<InterfaceAddress> {
        vec![
            entry("lo", "127.0.0.1", true),
            entry("eth0", "fe80::1", true),
            entry("eth0", "2001:db8::1", true),
            entry("eth0", "10.0.0.1", true),
            entry("eth0", "10.0.0.2", true),
            entry("eth1", "2001:db8::2", true),
            entry("eth2", "10.0.2.1", false),
            entry("docker0", "172.17.0.1", true),
        ]
    }

    fn chosen(existing: &[InterfaceAddress], name: &str, value: &str) -> Result<String, Error> {
        let settings = Settings::parse([(name, value)]).unwrap().settings;
        let chosen = select(existing, &settings)?;
        let text: Vec<_> =
            chosen.iter().map(|entry| format!("{}={}", entry.interface, entry.address)).collect();
        Ok(text.join(" "))
    }

    #[test]
    fn interfaces_are_chosen_as_nccl_does() {
        let cases = [
            ("", "eth0=10.0.0.1 eth1=2001:db8::2"),
            ("eth", "eth0=10.0.0.1 eth1=2001:db8::2"),
            ("=eth1", "eth1=2001:db8::2"),
            ("^eth1", "eth0=10.0.0.1"),
            ("^eth", "docker0=172.17.0.1"),
            ("docker,lo", "lo=127.0.0.1 docker0=172.17.0.1"),
        ];
        for (filter, expected) in cases {
            assert_eq!(chosen(&host(), "R2CCL_NIC", filter).unwrap(), expected, "{filter}");
        }
        assert_eq!(chosen(&host()[..1], "R2CCL_NIC", "").unwrap(), "lo=127.0.0.1");
    }

    #[test]
    fn a_filter_that_matches_nothing_lists_what_exists() {
        for filter in ["ib", "=eth2"] {
            let message = chosen(&host(), "R2CCL_NIC", filter).unwrap_err().to_string();
            assert!(message.contains(&format!("R2CCL_NIC={filter} ")), "{message}");
            assert!(message.contains("eth2 (10.0.2.1, down)"), "{message}");
        }
    }

    #[test]
    fn rails_are_addresses_of_this_host() {
        let rails = |value: &str| chosen(&host(), "R2CCL_RAILS", value);
        assert_eq!(rails("127.0.0.7,10.0.0.2").unwrap(), "lo=127.0.0.7 eth0=10.0.0.2");
        let message = rails("10.9.9.9").unwrap_err().to_string();
        assert!(message.contains("10.9.9.9") && message.contains("eth0 (10.0.0.2)"), "{message}");
    }

    #[test]
    fn unknown_speeds_have_a_default() {
        assert_eq!(parse_speed("100000\n"), 12_500_000_000);
        for text in ["-1\n", "", "0", "fast", "4294967295"] {
            assert_eq!(parse_speed(text), UNKNOWN_SPEED_BYTES_PER_SECOND, "{text}");
        }
    }

    #[test]
    fn this_host_has_a_nic_and_an_identity() {
        let settings = Settings::default();
        assert!(!nics(&settings).unwrap().is_empty());
        assert_eq!(HostIdentity::of_this_process(&settings), HostIdentity::observed());
        assert!(HostIdentity::observed().as_str().contains(&host_name()));
        let named = Settings::parse([("R2CCL_HOST_ID", "b")]).unwrap().settings;
        assert_eq!(HostIdentity::of_this_process(&named).as_str(), "b");
    }
}
