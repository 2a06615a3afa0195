//! The RDMA devices of this host: those of the NICs between hosts for collectives, and by name for queue
//! pairs.
//!
//! A device belongs to the NICs whose addresses it carries in its GIDs: RoCE. Those may be several, of networks over
//! one cable. In collectives rails without one use TCP.

use std::sync::Arc;

use ccl_core::Error;
use ccl_core::settings::{HcaFilter, Network, Settings};
use ccl_transport::TransportError;
use ccl_transport::network::{RailAddress, RailDevice};
use ccl_transport::verbs::Device;

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub(crate) struct RdmaPort {
    pub(crate) device: Arc<dyn Device>,
    /// The same with each of its other addresses.
    pub(crate) others: Vec<Arc<dyn Device>>,
    pub(crate) has_atomics: bool,
}

/// The RDMA device of each rail, as far as the settings want them and there are any. Those that are broken may have lost
/// theirs.
///
/// # Errors
/// [`Error::System`] if the settings demand RDMA, and a rail that is whole has no device that can be used: it says why.
pub(crate) fn devices(
    settings: &Settings,
    rails: &[RailAddress],
    broken: &[bool],
) -> Result<Vec<RailDevice>, Error> {
    if settings.network == Network::Tcp {
        return Ok(vec![None; rails.len()]);
    }
    let found = ports(&settings.rdma_devices);
    if settings.network == Network::Auto {
        if let Err(cause) = &found {
            explain(&settings.rdma_devices, cause);
        }
        let devices = of_rails(found.as_deref().unwrap_or_default(), rails);
        if found.is_ok() {
            name_others(rails, &devices);
        }
        return Ok(devices);
    }
    let demanded = |cause| Error::system("use RDMA, as R2CCL_NET=verbs demands", cause);
    let found = found.map_err(|cause| demanded(cause.to_string()))?;
    let devices = of_rails(&found, rails);
    match lacking(rails, broken, &devices) {
        Some(RailAddress { name, address, .. }) => {
            Err(demanded(format!("no RDMA device has the address {address} of {name}")))
        }
        None => Ok(devices),
    }
}

/// A rail that is whole and has no device.
fn lacking<'a>(
    rails: &'a [RailAddress],
    broken: &[bool],
    devices: &[RailDevice],
) -> Option<&'a RailAddress> {
    let mut all = rails.iter().zip(broken).zip(devices);
    all.find(|((_, is_broken), device)| !**is_broken && device.is_none()).map(|((rail, _), _)| rail)
}

/// Who names devices wants some.
fn explain(filter: &HcaFilter, cause: &TransportError) {
    if *filter == HcaFilter::default() {
        tracing::debug!(%cause, "collectives use TCP");
    } else {
        tracing::warn!(%cause, "collectives use TCP");
    }
}

/// Rails that use TCP although others have RDMA devices.
fn name_others(rails: &[RailAddress], devices: &[RailDevice]) {
    for (rail, _) in rails.iter().zip(devices).filter(|(_, device)| device.is_none()) {
        let RailAddress { name, address, .. } = rail;
        tracing::info!(name, %address, "no RDMA device has the address of a rail, which uses TCP");
    }
}

fn of_rails(ports: &[RdmaPort], rails: &[RailAddress]) -> Vec<RailDevice> {
    let of = |rail: &RailAddress| {
        let mut devices =
            ports.iter().flat_map(|port| [&port.device].into_iter().chain(&port.others));
        devices.find(|device| device.address() == rail.address).map(Arc::clone)
    };
    rails.iter().map(of).collect()
}

/// Those of this host that the filter takes and that can be used.
///
/// # Errors
/// There are none: it says why.
fn ports(filter: &HcaFilter) -> Result<Vec<RdmaPort>, TransportError> {
    Inventory::take()?.ports(filter)
}

/// The RDMA devices of this host, listed once.
#[cfg(feature = "rdma")]
#[derive(Debug)]
pub(crate) struct Inventory(ccl_transport::verbs::ibverbs::Inventory);

#[cfg(feature = "rdma")]
impl Inventory {
    /// # Errors
    /// There are none: it says why.
    pub(crate) fn take() -> Result<Self, TransportError> {
        Ok(Self(ccl_transport::verbs::ibverbs::Inventory::take()?))
    }

    /// All, also those that cannot be used.
    pub(crate) fn names(&self) -> &[String] {
        self.0.names()
    }

    /// Those that the filter takes and that can be used.
    ///
    /// # Errors
    /// There are none: it says why.
    pub(crate) fn ports(&self, filter: &HcaFilter) -> Result<Vec<RdmaPort>, TransportError> {
        use ccl_transport::verbs::ibverbs::IbDevice;

        let port = |device: IbDevice| RdmaPort {
            has_atomics: device.has_atomics(),
            others: device.others().into_iter().map(|other| Arc::new(other) as _).collect(),
            device: Arc::new(device),
        };
        Ok(self.0.devices(filter)?.into_iter().map(port).collect())
    }
}

/// What this library is built without.
#[cfg(not(feature = "rdma"))]
#[derive(Debug)]
pub(crate) enum Inventory {}

#[cfg(not(feature = "rdma"))]
impl Inventory {
    pub(crate) fn take() -> Result<Self, TransportError> {
        Err(left_out())
    }

    pub(crate) fn names(&self) -> &[String] {
        match *self {}
    }

    pub(crate) fn ports(&self, _: &HcaFilter) -> Result<Vec<RdmaPort>, TransportError> {
        match *self {}
    }
}

#[cfg(not(feature = "rdma"))]
fn left_out() -> TransportError {
    let text = "this library was built without the feature rdma";
    TransportError::system("find an RDMA device", text)
}

#[cfg(test)]
mod tests {
    use ccl_transport::verbs::soft::SoftDevice;

    use super::*;

    fn rails() -> Vec<RailAddress> {
        let rail = |index: u8| RailAddress {
            name: format!("nic{index}"),
            address: [127, 0, 0, index].into(),
            interface: None,
            capacity: 1.0,
        };
        (1..=3).map(rail).collect()
    }

    #[test]
    fn devices_belong_to_the_nics_with_their_addresses() {
        let device = |index: u8, last: u8| {
            let name = format!("rdma{index}");
            Arc::new(SoftDevice::new(name, [127, 0, 0, last].into())) as Arc<dyn Device>
        };
        let port = |index, others: &[u8]| RdmaPort {
            device: device(index, index),
            others: others.iter().map(|&last| device(index, last)).collect(),
            has_atomics: true,
        };
        let found = of_rails(&[port(9, &[8]), port(3, &[]), port(1, &[])], &rails());
        let name = |device: &RailDevice| device.as_ref().map(|device| device.name().to_owned());
        let names: Vec<Option<String>> = found.iter().map(name).collect();
        assert_eq!(names, [Some("rdma1".to_owned()), None, Some("rdma3".to_owned())]);
        let found = of_rails(&[port(9, &[8, 3]), port(1, &[2])], &rails());
        let names: Vec<Option<String>> = found.iter().map(name).collect();
        assert_eq!(names, ["rdma1", "rdma1", "rdma9"].map(|name| Some(name.to_owned())));
        assert_eq!(found[1].as_ref().unwrap().address(), rails()[1].address);
    }

    #[test]
    fn rails_that_are_broken_need_no_device() {
        let device = SoftDevice::new("rdma1".into(), rails()[0].address);
        let devices = [Some(Arc::new(device) as Arc<dyn Device>), None, None];
        let lacking = |broken| lacking(&rails(), broken, &devices).cloned();
        assert_eq!(lacking(&[false, true, true]), None);
        assert_eq!(lacking(&[true, true, false]), Some(rails().remove(2)));
    }

    /// Nothing has the addresses of these rails, with libibverbs and without.
    #[test]
    fn rdma_that_is_demanded_and_missing_is_an_error() {
        let settings = |value| Settings::parse([("R2CCL_NET", value)]).unwrap().settings;
        for value in ["auto", "tcp"] {
            let devices = devices(&settings(value), &rails(), &[false; 3]).unwrap();
            assert!(devices.iter().all(Option::is_none), "{value}");
        }
        let error = devices(&settings("verbs"), &rails(), &[false; 3]).unwrap_err().to_string();
        assert!(error.contains("R2CCL_NET=verbs"), "{error}");
    }
}
