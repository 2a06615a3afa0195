//! Which devices a domain is made over, by what the user calls them.

use std::sync::Arc;

use ccl_core::settings::Settings;
use ccl_transport::verbs;
use ccl_transport::verbs::soft::SoftDevice;
use ccl_transport::verbs::soft::socket::Binding;

use super::Error;
use crate::hosts::{self, Nic};

/// The name of all software devices.
pub const SOFT: &str = "soft";

/// A device, and how its connections are made.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) device: Arc<dyn verbs::Device>,
    pub(super) binding: Binding,
    pub(super) bytes_per_second: u64,
}

impl Port {
    fn soft(nic: Nic) -> Self {
        let device = Arc::new(SoftDevice::new(nic.name, nic.address));
        let interface = (!nic.address.is_loopback()).then_some(nic.interface);
        let binding = Binding { address: nic.address, interface };
        Self { device, binding, bytes_per_second: nic.speed_bytes_per_second }
    }
}

/// The devices of this host that `text` names, in the order of the rails: the default one, then the
/// backups.
///
/// `soft` or nothing stands for one software device on every NIC that the settings admit (`R2CCL_NIC`,
/// `R2CCL_RAILS`). Otherwise it is a list of interfaces or of addresses, separated by commas, or a
/// filter of interfaces as in `R2CCL_NIC`, which begins with `^` or `=`.
pub(super) fn ports(text: &str, settings: &Settings) -> Result<Vec<Port>, Error> {
    let nics = match text.trim() {
        "" | SOFT => hosts::nics(settings)?,
        filter if filter.starts_with(['^', '=']) => named(filter, "R2CCL_NIC", filter)?,
        list => {
            let names = list.split(',').map(str::trim);
            let found: Result<Vec<_>, _> = names.map(|name| one(list, name)).collect();
            found?.into_iter().flatten().collect()
        }
    };
    Ok(nics.into_iter().map(Port::soft).collect())
}

/// The NIC with this address, or the interface of this name.
fn one(list: &str, name: &str) -> Result<Vec<Nic>, Error> {
    if name.is_empty() {
        return Err(Error::InvalidArgument(format!("devices {list:?}: a name is empty")));
    }
    match name.parse::<std::net::IpAddr>() {
        Ok(_) => named(list, "R2CCL_RAILS", name),
        Err(_) => named(list, "R2CCL_NIC", &format!("={name}")),
    }
}

/// What a setting of this value admits.
fn named(text: &str, setting: &str, value: &str) -> Result<Vec<Nic>, Error> {
    let unknown =
        |cause: ccl_core::Error| Error::InvalidArgument(format!("devices {text:?}: {cause}"));
    let settings = Settings::parse([(setting, value)]).map_err(unknown)?.settings;
    hosts::nics(&settings).map_err(unknown)
}

/// Names of the devices of this host that the settings admit.
///
/// # Errors
/// The settings match nothing, or the kernel does not list its interfaces.
pub fn devices() -> Result<Vec<String>, Error> {
    let settings = crate::environment::settings()?;
    let name = |port: &Port| port.device.name().to_owned();
    Ok(ports(SOFT, &settings)?.iter().map(name).collect())
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
        for text in ["nonesuch0", "lo,nonesuch0", "203.0.113.77", "lo,,lo"] {
            let error = names(text).unwrap_err();
            assert!(error.contains(&format!("devices {text:?}")), "{error}");
        }
    }
}
