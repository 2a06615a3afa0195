//! Devices of the imitation, for tests.

use ccl_core::settings::HcaFilter;

use super::sys::imitation::{Make, Network};
use super::{IbDevice, Inventory};

/// So many devices that reach each other.
pub(in super::super) fn devices(count: usize, make: Make) -> (Network, Vec<IbDevice>) {
    let network = Network::new("imitated", count, make);
    let devices = Inventory::of(network.list()).devices(&HcaFilter::default());
    (network, devices.expect("all of them can be used"))
}

/// The devices of two hosts, one for each rail.
pub(in super::super) fn hosts(rails: usize, is_mlx5: bool) -> [Vec<IbDevice>; 2] {
    let make = if is_mlx5 { Make::Mlx5 } else { Make::Plain };
    let (_, mut left) = devices(2 * rails, make);
    let right = left.split_off(rails);
    [left, right]
}
