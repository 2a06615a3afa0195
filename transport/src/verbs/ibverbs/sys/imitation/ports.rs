//! What a device and its port say of themselves.

use std::ffi::{c_int, c_uint};

use super::super::abi;
use super::verbs::{device_of, refuse};
use super::{Make, Network, behind};

/// Bytes of an operation, at most.
pub(super) const LONGEST: u32 = 32 << 20;
/// First row of the table of addresses that is in use.
pub(super) const ROW: u8 = 3;

pub(super) unsafe extern "C" fn query_device(
    context: *mut abi::Context,
    attributes: *mut abi::DeviceAttributes,
) -> c_int {
    let (network, _) = behind(context);
    // SAFETY: the caller has room for them there, and has filled it with zeros.
    let attributes = unsafe { &mut *attributes };
    (attributes.vendor_id, attributes.vendor_part_id) = match network.0.make {
        Make::Plain => (1, 1),
        Make::Mlx5 | Make::Mlx5Alone => (0x02c9, 0x1017),
        Make::Hns => (0x19e5, 0xa222),
    };
    attributes.max_qp_wr = 1 << 14;
    attributes.max_cqe = 1 << 16;
    attributes.max_qp_rd_atom = 16;
    attributes.max_qp_init_rd_atom = 16;
    attributes.atomic_cap = c_uint::from(network.world().has_atomics);
    attributes.phys_port_cnt = 1;
    0
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    _: u8,
    attributes: *mut abi::PortAttributes,
) -> c_int {
    let (network, id) = behind(context);
    let world = network.world();
    let device = device_of(&world, id);
    if let Some(reason) = world.refusal(device) {
        return refuse(reason);
    }
    let port = &world.ports[device];
    // SAFETY: the caller has room for them there, and has filled it with zeros.
    let attributes = unsafe { &mut *attributes };
    attributes.state = if port.is_up { abi::IBV_PORT_ACTIVE } else { 1 };
    attributes.active_mtu = port.mtu;
    attributes.gid_tbl_len = 8;
    attributes.max_msg_sz = LONGEST;
    attributes.link_layer = 2;
    0
}

/// The rows that are in use.
fn rows(network: &Network, context: usize) -> Vec<abi::GidEntry> {
    let world = network.world();
    let addresses = world.ports[device_of(&world, context)].rows();
    let gid_type = abi::IBV_GID_TYPE_ROCE_V2;
    let row = |(gid_index, raw)| {
        let gid = abi::Gid { raw };
        abi::GidEntry { gid, gid_index, port_num: 1, gid_type, ndev_ifindex: 0 }
    };
    (u32::from(ROW)..).zip(addresses).map(row).collect()
}

pub(super) unsafe extern "C" fn query_gid(
    context: *mut abi::Context,
    _: u32,
    index: u32,
    entry: *mut abi::GidEntry,
    _: u32,
    _: usize,
) -> c_int {
    let (network, id) = behind(context);
    let Some(row) = rows(&network, id).into_iter().find(|row| row.gid_index == index) else {
        return refuse(libc::ENODATA);
    };
    // SAFETY: the caller has room for a row there.
    unsafe { *entry = row };
    0
}

pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut abi::Context,
    entries: *mut abi::GidEntry,
    _: usize,
    _: u32,
    _: usize,
) -> isize {
    let (network, id) = behind(context);
    let rows = rows(&network, id);
    for (index, row) in rows.iter().enumerate() {
        // SAFETY: the caller has room for some rows there.
        unsafe { *entries.wrapping_add(index) = *row };
    }
    isize::try_from(rows.len()).expect("few")
}
