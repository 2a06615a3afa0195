//! Which devices a domain is made over, by what the user calls them.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ccl_core::settings::{HcaFilter, Settings};
use ccl_transport::TransportError;
use ccl_transport::nics::Watched;
use ccl_transport::place::{Place, Sysfs};
use ccl_transport::verbs;
use ccl_transport::verbs::soft::SoftDevice;
use ccl_transport::verbs::soft::socket::Binding;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::hosts::{self, InterfaceAddress, Nic};
use crate::rdma::{Inventory, RdmaPort};

/// The name of all software devices.
pub const SOFT: &str = "soft";
/// The name of all RDMA devices.
pub const VERBS: &str = "verbs";

/// A device, and how its connections are made.
#[derive(Clone, Debug)]
pub(super) struct Port {
    hardware: Hardware,
    pub(super) nature: Nature,
    pub(super) binding: Binding,
    pub(super) bytes_per_second: u64,
    pub(super) place: Place,
}

/// What it is made of.
#[derive(Clone, Debug)]
enum Hardware {
    /// A NIC, over TCP.
    Soft(Nic),
    Rdma(Arc<dyn verbs::Device>),
}

/// What the other end of a rail has to know of its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nature {
    pub(super) name: String,
    pub(super) is_rdma: bool,
    pub(super) has_atomics: bool,
}

impl fmt::Display for Nature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_rdma { "RDMA" } else { "software" };
        write!(f, "the {kind} device {}", self.name)
    }
}

impl Port {
    fn soft(nic: Nic) -> Self {
        let nature = Nature { name: nic.name.clone(), is_rdma: false, has_atomics: true };
        let place = Sysfs::default().interface(&nic.interface);
        Self::new(Hardware::Soft(nic.clone()), nature, nic, place)
    }

    /// An RDMA device and the NIC that has its address.
    fn rdma(port: RdmaPort, nic: Nic) -> Self {
        let RdmaPort { device, has_atomics, .. } = port;
        let nature = Nature { name: device.name().to_owned(), is_rdma: true, has_atomics };
        let place = rdma_place(&Sysfs::default(), device.name(), &nic.interface);
        Self::new(Hardware::Rdma(device), nature, nic, place)
    }

    fn new(hardware: Hardware, nature: Nature, nic: Nic, place: Place) -> Self {
        let interface = (!nic.address.is_loopback()).then_some(nic.interface);
        let binding = Binding { address: nic.address, interface };
        Self { hardware, nature, binding, bytes_per_second: nic.speed_bytes_per_second, place }
    }

    /// The same place with another device.
    #[cfg(test)]
    pub(super) fn with_device(self, device: Arc<dyn verbs::Device>) -> Self {
        Self { hardware: Hardware::Rdma(device), ..self }
    }

    /// The device, which hears of its NIC from `watched` if nobody else tells it.
    pub(super) fn device(&self, watched: Watched) -> Arc<dyn verbs::Device> {
        match &self.hardware {
            Hardware::Soft(nic) => {
                Arc::new(SoftDevice::new(nic.name.clone(), nic.address).watched(watched))
            }
            Hardware::Rdma(device) => Arc::clone(device),
        }
    }
}

/// Where an RDMA device is: if it is one of software, where its interface is.
fn rdma_place(sysfs: &Sysfs, device: &str, interface: &str) -> Place {
    let place = sysfs.rdma_device(device);
    if place.is_unknown() { sysfs.interface(interface) } else { place }
}

/// The devices of this host that `text` names, in the order of the rails: the default one, then the
/// backups.
///
/// `soft` or nothing stands for one software device on every NIC that the settings admit (`R2CCL_NIC`,
/// `R2CCL_RAILS`), `verbs` for the RDMA devices that they admit (`R2CCL_IB_HCA`). Otherwise it is a list,
/// separated by commas, of interfaces or addresses, which get software devices, and of RDMA devices,
/// `mlx5_0` or `mlx5_0:1`; or a filter of interfaces as in `R2CCL_NIC`, which begins with `^` or `=`.
pub(super) fn ports(text: &str, settings: &Settings) -> Result<Vec<Port>, Error> {
    let host = Host {
        text: text.trim(),
        interfaces: hosts::interface_addresses()?,
        rdma: OnceCell::new(),
    };
    match host.text {
        "" | SOFT => Ok(soft(hosts::nics_among(&host.interfaces, settings)?)),
        VERBS => host.rdma(&settings.rdma_devices),
        filter if filter.starts_with(['^', '=']) => Ok(soft(host.named("R2CCL_NIC", filter)?)),
        list => {
            let names = list.split(',').map(str::trim);
            let found: Result<Vec<_>, _> = names.map(|name| host.one(name)).collect();
            Ok(found?.into_iter().flatten().collect())
        }
    }
}

/// What there is on this host, listed once for all names of `text`.
struct Host<'a> {
    text: &'a str,
    interfaces: Vec<InterfaceAddress>,
    /// Looked for when it is first needed.
    rdma: OnceCell<Result<Inventory, TransportError>>,
}

fn soft(nics: Vec<Nic>) -> Vec<Port> {
    nics.into_iter().map(Port::soft).collect()
}

impl Host<'_> {
    /// The NIC with this address, the interface of this name, or the RDMA device.
    fn one(&self, name: &str) -> Result<Vec<Port>, Error> {
        if name.is_empty() {
            return Err(self.wrong("a name is empty"));
        }
        if name.parse::<IpAddr>().is_ok() {
            return Ok(soft(self.named("R2CCL_RAILS", name)?));
        }
        if self.interfaces.iter().any(|entry| entry.interface == name) {
            return Ok(soft(self.named("R2CCL_NIC", &format!("={name}"))?));
        }
        let device = name.split_once(':').map_or(name, |(device, _)| device);
        let devices = self.inventory().map(Inventory::names);
        if devices.as_ref().is_ok_and(|devices| devices.iter().any(|one| one == device)) {
            let filter: Result<HcaFilter, String> = format!("={name}").parse();
            return self.rdma(&filter.map_err(|cause| self.wrong(cause))?);
        }
        let devices = devices.map_or_else(
            |cause| format!("no RDMA devices: {cause}"),
            |devices| format!("the RDMA devices {}", devices.join(", ")),
        );
        let interfaces = self.interfaces.iter().map(|entry| entry.interface.as_str());
        let interfaces: Vec<_> = interfaces.collect::<BTreeSet<_>>().into_iter().collect();
        let interfaces = interfaces.join(", ");
        Err(self.wrong(format!(
            "there is no interface and no RDMA device {name:?}; there are the interfaces {interfaces}, and \
             {devices}"
        )))
    }

    fn wrong(&self, what: impl fmt::Display) -> Error {
        Error::InvalidArgument(format!("devices {:?}: {what}", self.text))
    }

    fn inventory(&self) -> Result<&Inventory, TransportError> {
        self.rdma.get_or_init(Inventory::take).as_ref().map_err(TransportError::clone)
    }

    /// The RDMA devices that the filter takes, each with the NIC that has its address: connections of rails
    /// begin there.
    fn rdma(&self, filter: &HcaFilter) -> Result<Vec<Port>, Error> {
        let ports = self.inventory()?.ports(filter)?;
        ports.into_iter().map(|port| self.with_nic(port)).collect()
    }

    fn with_nic(&self, port: RdmaPort) -> Result<Port, Error> {
        let (name, address) = (port.device.name(), port.device.address());
        if address.is_unspecified() {
            return Err(self.wrong(format!(
                "{name} is on InfiniBand; queue pairs need devices on Ethernet (RoCE), or those of the IP \
                 interfaces: {SOFT}"
            )));
        }
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            let cause = format!(
                "its only address, {address}, means nothing beyond its network interface: give that an IP \
                 address (ip address)"
            );
            return Err(Error::system(format!("use the RDMA device {name}"), cause));
        }
        let nic = self.named("R2CCL_RAILS", &address.to_string())?.swap_remove(0);
        Ok(Port::rdma(port, nic))
    }

    /// What a setting of this value admits.
    fn named(&self, setting: &str, value: &str) -> Result<Vec<Nic>, Error> {
        let settings =
            Settings::parse([(setting, value)]).map_err(|cause| self.wrong(cause))?.settings;
        hosts::nics_among(&self.interfaces, &settings).map_err(|cause| self.wrong(cause))
    }
}

/// Names of the software devices of this host that the settings admit.
///
/// # Errors
/// The settings match nothing, or the kernel does not list its interfaces.
pub fn devices() -> Result<Vec<String>, Error> {
    named_by_settings(SOFT)
}

/// Names of the RDMA devices of this host that the settings admit and that can be used.
///
/// # Errors
/// There are none: it says why.
pub fn rdma_devices() -> Result<Vec<String>, Error> {
    named_by_settings(VERBS)
}

fn named_by_settings(all: &str) -> Result<Vec<String>, Error> {
    let settings = crate::environment::settings()?;
    Ok(ports(all, &settings)?.into_iter().map(|port| port.nature.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let rails = Settings::parse([("R2CCL_RAILS", "127.0.0.8,127.0.0.9")]).unwrap().settings;
        let found = ports(text, &rails).map_err(|cause| cause.to_string())?;
        Ok(found.iter().map(|port| port.binding.address.to_string()).collect())
    }

    #[test]
    fn devices_are_named_by_setting_interface_or_address() {
        assert_eq!(names("soft").unwrap(), ["127.0.0.8", "127.0.0.9"]);
        assert_eq!(names("").unwrap(), ["127.0.0.8", "127.0.0.9"]);
        assert_eq!(names("127.1.1.1, 127.1.1.2").unwrap(), ["127.1.1.1", "127.1.1.2"]);
        assert_eq!(names("lo,127.1.1.1").unwrap(), ["127.0.0.1", "127.1.1.1"]);
        assert_eq!(names("=lo").unwrap(), ["127.0.0.1"]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        for text in ["nonesuch0", "lo,nonesuch0", "nonesuch_0:1", "203.0.113.77", "lo,,lo"] {
            let error = names(text).unwrap_err();
            assert!(error.contains(&format!("devices {text:?}")), "{error}");
        }
        let error = names("nonesuch_0:1").unwrap_err();
        for named in ["interfaces", "lo", "RDMA devices"] {
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn an_rdma_device_of_software_is_where_its_interface_is() {
        let tree = tempfile::tempdir().unwrap();
        let (bus, class) = (tree.path().join("devices/pci0000:00"), tree.path().join("class"));
        for (name, device) in [("net/eth0", "0000:00:01.0"), ("infiniband/mlx5_0", "0000:00:02.0")]
        {
            std::fs::create_dir_all(bus.join(device)).unwrap();
            std::fs::create_dir_all(class.join(name)).unwrap();
            std::os::unix::fs::symlink(bus.join(device), class.join(name).join("device")).unwrap();
        }
        std::fs::create_dir(class.join("infiniband/rxe0")).unwrap();
        let address = |device| rdma_place(&Sysfs::at(tree.path()), device, "eth0").address();
        assert_eq!(address("mlx5_0:1").as_deref(), Some("0000:00:02.0"));
        assert_eq!(address("rxe0").as_deref(), Some("0000:00:01.0"));
    }

    /// A port without a NIC, as of another network namespace or of InfiniBand, has nowhere to be called
    /// from.
    #[test]
    fn all_rdma_devices_or_the_reason_why_there_are_none() {
        match (names(VERBS), Inventory::take().map(|found| found.names().to_vec())) {
            (Ok(found), Ok(names)) => assert!(!found.is_empty() && !names.is_empty()),
            (Ok(found), Err(cause)) => panic!("{found:?}, although {cause}"),
            (Err(error), Err(cause)) => assert!(error.contains(&cause.to_string()), "{error}"),
            (Err(error), Ok(_)) => println!("{error}"),
        }
    }
}
