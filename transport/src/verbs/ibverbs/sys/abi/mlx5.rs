//! The part of the binary interface of libmlx5 that is used here, `infiniband/mlx5dv.h`, and that of
//! libibverbs that goes with it: requests that are built by calls.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

#[cfg(test)]
use super::layout;
use super::{
    AddressHandle, Capacities, CompletionQueue, ProtectionDomain, QueuePair, SharedQueue, Unused,
};

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
#[derive(Debug)]
pub(in super::super) struct ExtendedInitAttributes {
    pub(in super::super) qp_context: *mut c_void,
    pub(in super::super) send_cq: *mut CompletionQueue,
    pub(in super::super) recv_cq: *mut CompletionQueue,
    pub(in super::super) srq: *mut SharedQueue,
    pub(in super::super) cap: Capacities,
    pub(in super::super) qp_type: c_uint,
    pub(in super::super) sq_sig_all: c_int,
    pub(in super::super) comp_mask: u32,
    pub(in super::super) pd: *mut ProtectionDomain,
    pub(in super::super) xrcd: *mut c_void,
    pub(in super::super) create_flags: u32,
    pub(in super::super) max_tso_header: u16,
    pub(in super::super) rwq_ind_tbl: *mut c_void,
    pub(in super::super) rx_hash_conf: [u64; 3],
    pub(in super::super) source_qpn: u32,
    pub(in super::super) send_ops_flags: u64,
}

/// `struct mlx5dv_qp_init_attr`.
#[repr(C)]
#[derive(Debug, Default)]
pub(in super::super) struct Mlx5Attributes {
    pub(in super::super) comp_mask: u64,
    pub(in super::super) create_flags: u32,
    pub(in super::super) dc_init_attr: DynamicAttributes,
    pub(in super::super) send_ops_flags: u64,
}

/// `struct mlx5dv_dc_init_attr`, of whose union only the key is used.
#[repr(C)]
#[derive(Debug, Default)]
pub(in super::super) struct DynamicAttributes {
    pub(in super::super) dc_type: c_uint,
    pub(in super::super) dct_access_key: u64,
}

/// `struct ibv_qp_ex`: a queue pair whose requests are built by calls.
#[repr(C)]
#[derive(Debug)]
pub(in super::super) struct ExtendedPair {
    pub(in super::super) qp_base: QueuePair,
    pub(in super::super) _rest_of_base: MaybeUninit<RestOfPair>,
    pub(in super::super) comp_mask: u64,
    pub(in super::super) wr_id: u64,
    pub(in super::super) wr_flags: c_uint,
    pub(in super::super) calls: Builders,
}

/// What `struct ibv_qp` has behind [`QueuePair`]. Locks have sizes of their own on each architecture.
#[repr(C)]
pub(in super::super) struct RestOfPair {
    _state: c_uint,
    _qp_type: c_uint,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _events_completed: u32,
}

/// The functions of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Builders {
    pub(in super::super) wr_atomic_cmp_swp:
        unsafe extern "C" fn(*mut ExtendedPair, u32, u64, u64, u64),
    pub(in super::super) wr_atomic_fetch_add:
        unsafe extern "C" fn(*mut ExtendedPair, u32, u64, u64),
    pub(in super::super) _windows: [Unused; 2],
    pub(in super::super) wr_rdma_read: unsafe extern "C" fn(*mut ExtendedPair, u32, u64),
    pub(in super::super) wr_rdma_write: unsafe extern "C" fn(*mut ExtendedPair, u32, u64),
    /// The immediate is in network byte order.
    pub(in super::super) wr_rdma_write_imm: unsafe extern "C" fn(*mut ExtendedPair, u32, u64, u32),
    pub(in super::super) wr_send: unsafe extern "C" fn(*mut ExtendedPair),
    pub(in super::super) _other_sends: [Unused; 3],
    pub(in super::super) _other_addresses: [Unused; 2],
    pub(in super::super) wr_set_inline_data:
        unsafe extern "C" fn(*mut ExtendedPair, *mut c_void, usize),
    pub(in super::super) _inline_list: Unused,
    pub(in super::super) wr_set_sge: unsafe extern "C" fn(*mut ExtendedPair, u32, u64, u32),
    pub(in super::super) _sge_list: Unused,
    pub(in super::super) wr_start: unsafe extern "C" fn(*mut ExtendedPair),
    pub(in super::super) wr_complete: unsafe extern "C" fn(*mut ExtendedPair) -> c_int,
}

/// The beginning of `struct mlx5dv_qp_ex`.
#[repr(C)]
#[derive(Debug)]
pub(in super::super) struct Mlx5Pair {
    pub(in super::super) comp_mask: u64,
    /// How the target is reached, its number and its key.
    pub(in super::super) wr_set_dc_addr:
        unsafe extern "C" fn(*mut Self, *mut AddressHandle, u32, u64),
}

/// Where the header has what is described here.
#[cfg(test)]
pub(super) fn places() -> Vec<(String, usize)> {
    layout! {
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes;
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { srq };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { qp_type };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { comp_mask };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { pd };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { create_flags };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { rx_hash_conf };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { source_qpn };
        "struct ibv_qp_init_attr_ex" ExtendedInitAttributes { send_ops_flags };
        "struct mlx5dv_qp_init_attr" Mlx5Attributes;
        "struct mlx5dv_qp_init_attr" Mlx5Attributes { create_flags };
        "struct mlx5dv_qp_init_attr" Mlx5Attributes { dc_init_attr };
        "struct mlx5dv_qp_init_attr" Mlx5Attributes { send_ops_flags };
        "struct mlx5dv_dc_init_attr" DynamicAttributes;
        "struct mlx5dv_dc_init_attr" DynamicAttributes { dct_access_key };
        "struct ibv_qp_ex" ExtendedPair { comp_mask };
        "struct ibv_qp_ex" ExtendedPair { wr_id };
        "struct ibv_qp_ex" ExtendedPair { wr_flags };
        "struct mlx5dv_qp_ex" Mlx5Pair { wr_set_dc_addr };
    }
    .into_iter()
    .chain(calls())
    .collect()
}

#[cfg(test)]
fn calls() -> Vec<(String, usize)> {
    macro_rules! calls {
        ($($name:ident)*) => {
            [$((
                format!("offsetof(struct ibv_qp_ex, {})", stringify!($name)),
                std::mem::offset_of!(ExtendedPair, calls.$name),
            )),*]
        };
    }
    calls! {
        wr_atomic_cmp_swp wr_atomic_fetch_add wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send
        wr_set_inline_data wr_set_sge wr_start wr_complete
    }
    .into()
}
