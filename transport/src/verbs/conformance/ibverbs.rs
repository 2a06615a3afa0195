//! The suite over RDMA devices: those of half the host against those of the other half.

use std::io::Write;
use std::sync::Arc;

use ccl_core::settings::HcaFilter;

use super::super::ibverbs::imitated::{self, Make, Spares, Unaligned};
use super::super::ibverbs::{IbDevice, devices};
use super::*;

/// The devices of the two ends, one for each rail; a single device is that of both.
fn halves() -> Option<[Vec<IbDevice>; 2]> {
    let find = || devices(&HcaFilter::default()).ok();
    let mut left = find()?;
    let right = if left.len() > 1 { left.split_off(left.len() / 2) } else { find()? };
    Some([left, right])
}

pub(super) fn plain() -> Devices {
    Some(halves()?.map(|mut half| Box::new(half.swap_remove(0)) as Box<dyn Device>))
}

/// Two devices of the imitation, of no maker in particular or of mlx5.
pub(super) fn imitation(make: Make) -> [Box<dyn Device>; 2] {
    let hosts = imitated::hosts(1, make);
    hosts.map(|mut host| Box::new(host.swap_remove(0)) as Box<dyn Device>)
}

/// Two devices of the imitation with dynamic queue pairs, or one such and one that has none.
pub(super) fn dynamic(right: Make) -> [Box<dyn Device>; 2] {
    let [left, other] = imitated::hosts(1, Make::Mlx5).map(|mut host| host.swap_remove(0));
    let other: Box<dyn Device> = match right {
        Make::Mlx5 => Box::new(Spares(other)),
        Make::Plain | Make::Mlx5Alone | Make::Hns => Box::new(other),
    };
    [Box::new(Spares(left)), other]
}

/// Two devices of the imitation with memory that does not begin at a page.
pub(super) fn unaligned() -> [Box<dyn Device>; 2] {
    let hosts = imitated::hosts(1, Make::Mlx5);
    hosts.map(|mut host| Box::new(Unaligned(host.swap_remove(0))) as Box<dyn Device>)
}

/// The same with dynamic queue pairs.
pub(super) fn dynamic_unaligned() -> [Box<dyn Device>; 2] {
    let hosts = imitated::hosts(1, Make::Mlx5);
    hosts.map(|mut host| Box::new(Unaligned(Spares(host.swap_remove(0)))) as Box<dyn Device>)
}

/// Virtual devices over two rails of the imitation.
pub(super) fn imitated_rails(evidence: Evidence) -> [Box<dyn Device>; 2] {
    both_virtual(imitated::hosts(2, Make::Mlx5), evidence)
}

/// The same over dynamic queue pairs.
pub(super) fn dynamic_rails(evidence: Evidence) -> [Box<dyn Device>; 2] {
    imitated::hosts(2, Make::Mlx5).map(|host| {
        let rails = host.into_iter().map(|device| Arc::new(Spares(device)) as Arc<dyn Device>);
        virtual_over(rails.collect(), evidence)
    })
}

/// Virtual devices over two rails, or over one twice.
pub(super) fn rails(evidence: Evidence) -> Devices {
    Some(both_virtual(halves()?, evidence))
}

fn both_virtual(halves: [Vec<IbDevice>; 2], evidence: Evidence) -> [Box<dyn Device>; 2] {
    halves.map(|half| {
        let half: Vec<Arc<dyn Device>> =
            half.into_iter().map(|device| Arc::new(device) as _).collect();
        let rails = half.iter().cycle().take(2).cloned().collect();
        virtual_over(rails, evidence)
    })
}

/// Where there are devices each of them can be opened; where there are none it is said why.
#[test]
fn devices_can_be_opened_or_are_reported_missing() {
    match devices(&HcaFilter::default()) {
        Ok(found) => {
            for device in found {
                assert!(device.domain().is_ok(), "{device:?}");
                assert!(!device.name().is_empty());
            }
        }
        Err(reason) => {
            let TransportError::System { call, .. } = &reason else { panic!("{reason}") };
            let calls = ["load libibverbs", "list the RDMA devices", "find an RDMA device"];
            assert!(calls.contains(&call.as_str()), "{reason}");
            let line = format!("skip: queue pairs over ibverbs: {reason}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
    }
}
