//! The RDMA devices of the NICs between hosts.
//!
//! A device belongs to the NIC whose address it carries in its GIDs: RoCE. Rails without one use TCP.

use ccl_core::Error;
use ccl_core::settings::{HcaFilter, Network, Settings};
use ccl_transport::network::{RailAddress, RailDevice};

/// The RDMA device of each rail, as far as the settings want them and there are any.
///
/// # Errors
/// [`Error::System`] if the settings demand RDMA, and a rail has no device that can be used: it says why.
pub(crate) fn devices(
    settings: &Settings,
    rails: &[RailAddress],
) -> Result<Vec<RailDevice>, Error> {
    if settings.network == Network::Tcp {
        return Ok(vec![None; rails.len()]);
    }
    let found = present(&settings.rdma_devices);
    if settings.network == Network::Auto {
        return Ok(of_rails(&found.unwrap_or_default(), rails));
    }
    let demanded = |cause| Error::system("use RDMA, as R2CCL_NET=verbs demands", cause);
    let devices = of_rails(&found.map_err(demanded)?, rails);
    match rails.iter().zip(&devices).find(|(_, device)| device.is_none()) {
        Some((rail, _)) => {
            let RailAddress { name, address, .. } = rail;
            Err(demanded(format!("no RDMA device has the address {address} of {name}")))
        }
        None => Ok(devices),
    }
}

fn of_rails(present: &[RailDevice], rails: &[RailAddress]) -> Vec<RailDevice> {
    let is_of = |rail: &RailAddress, device: &&RailDevice| {
        device.as_ref().is_some_and(|device| device.address() == rail.address)
    };
    rails.iter().map(|rail| present.iter().find(|device| is_of(rail, device))?.clone()).collect()
}

/// Those of this host that the filter takes, or why there are none.
#[cfg(feature = "rdma")]
fn present(filter: &HcaFilter) -> Result<Vec<RailDevice>, String> {
    use std::sync::Arc;

    use ccl_transport::verbs::ibverbs;

    let found = ibverbs::devices(filter).map_err(|cause| cause.to_string());
    match &found {
        // Who names devices wants some.
        Err(cause) if *filter != HcaFilter::default() => {
            tracing::warn!(cause, "collectives use TCP");
        }
        Err(cause) => tracing::debug!(cause, "collectives use TCP"),
        Ok(_) => {}
    }
    Ok(found?.into_iter().map(|device| -> RailDevice { Some(Arc::new(device)) }).collect())
}

#[cfg(not(feature = "rdma"))]
fn present(_: &HcaFilter) -> Result<Vec<RailDevice>, String> {
    Err("this library was built without the feature rdma".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
    fn devices_belong_to_the_nic_with_their_address() {
        let device = |index: u8| -> RailDevice {
            let name = format!("rdma{index}");
            Some(Arc::new(SoftDevice::new(name, [127, 0, 0, index].into())))
        };
        let found = of_rails(&[device(9), device(3), device(1)], &rails());
        let name = |device: &RailDevice| device.as_ref().map(|device| device.name().to_owned());
        let names: Vec<Option<String>> = found.iter().map(name).collect();
        assert_eq!(names, [Some("rdma1".to_owned()), None, Some("rdma3".to_owned())]);
    }

    /// Nothing has the addresses of these rails, with libibverbs and without.
    #[test]
    fn rdma_that_is_demanded_and_missing_is_an_error() {
        let settings = |value| Settings::parse([("R2CCL_NET", value)]).unwrap().settings;
        for value in ["auto", "tcp"] {
            let devices = devices(&settings(value), &rails()).unwrap();
            assert!(devices.iter().all(Option::is_none), "{value}");
        }
        let error = devices(&settings("verbs"), &rails()).unwrap_err().to_string();
        assert!(error.contains("R2CCL_NET=verbs"), "{error}");
    }
}
