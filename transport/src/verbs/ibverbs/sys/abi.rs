//! The part of the binary interface of libibverbs that is used here: `infiniband/verbs.h` of rdma-core.
//!
//! Fields have the names of the header. Of what the library allocates only the beginning is described, up
//! to the last field that is read here; such types are made by the library and by its imitation only, and
//! looked at through pointers. That of libmlx5 is in [`mlx5`].

pub(super) mod mlx5;

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, of which only pointers exist.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Device {
    _opaque: [u8; 0],
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// A function that is not called this way.
pub(super) type Unused = *const c_void;

/// `struct ibv_context_ops`: what is called without the library, on the path of the data.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ContextOps {
    pub(super) _before_poll: [Unused; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int,
    pub(super) _before_shared: [Unused; 7],
    pub(super) post_srq_recv: unsafe extern "C" fn(
        *mut SharedQueue,
        *mut ReceiveRequest,
        *mut *mut ReceiveRequest,
    ) -> c_int,
    pub(super) _before_post: [Unused; 4],
    pub(super) post_send:
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(
        *mut QueuePair,
        *mut ReceiveRequest,
        *mut *mut ReceiveRequest,
    ) -> c_int,
    pub(super) _after: [Unused; 5],
}

/// `struct ibv_pd`, of which only pointers exist.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    _opaque: [u8; 0],
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct MemoryRegion {
    pub(super) context: *mut Context,
    pub(super) pd: *mut ProtectionDomain,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CompletionChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// `struct ibv_cq`, of which only pointers exist.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CompletionQueue {
    _opaque: [u8; 0],
}

/// `struct ibv_srq`, of which only pointers exist: receives that wait for whoever is attached to them.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SharedQueue {
    _opaque: [u8; 0],
}

/// `struct ibv_ah`, of which only pointers exist: how an address is reached.
#[repr(C)]
#[derive(Debug)]
pub(super) struct AddressHandle {
    _opaque: [u8; 0],
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ProtectionDomain,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedQueue,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct DeviceAttributes {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    pub(super) _later: [c_int; 14],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`, as far as the symbol `ibv_query_port` fills it in.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PortAttributes {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

/// `union ibv_gid`, aligned like its members.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Gid {
    pub(super) raw: [u8; 16],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AsyncEvent {
    pub(super) element: Element,
    pub(super) event_type: c_uint,
}

/// What an asynchronous event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Element {
    pub(super) qp: *mut QueuePair,
    pub(super) port_num: c_int,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacities {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct InitAttributes {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedQueue,
    pub(super) cap: Capacities,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SharedQueueAttributes {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressAttributes {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: Capacities,
    pub(super) ah_attr: AddressAttributes,
    pub(super) alt_ah_attr: AddressAttributes,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ScatterGather {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ScatterGather,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) wr: Remote,
    pub(super) qp_type: u64,
    /// A memory window, or segmentation.
    pub(super) unused: [u64; 6],
}

/// What a request names at the other end.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Remote {
    pub(super) rdma: RemotePlace,
    pub(super) atomic: RemoteWord,
}

/// `wr.rdma`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePlace {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// `wr.atomic`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteWord {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ReceiveRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ScatterGather,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

macro_rules! constants {
    ($($(#[$when:meta])? $name:ident = $value:expr;)*) => {
        $($(#[$when])? pub(super) const $name: c_uint = $value;)*
        #[cfg(test)]
        pub(super) const CONSTANTS: &[(&str, c_uint)] = &[$((stringify!($name), $value)),*];
    };
}

constants! {
    IBV_GID_TYPE_IB = 0;
    IBV_GID_TYPE_ROCE_V1 = 1;
    IBV_GID_TYPE_ROCE_V2 = 2;
    IBV_ATOMIC_NONE = 0;
    IBV_PORT_ACTIVE = 4;
    IBV_LINK_LAYER_ETHERNET = 2;
    IBV_EVENT_QP_FATAL = 1;
    IBV_EVENT_QP_REQ_ERR = 2;
    IBV_EVENT_QP_ACCESS_ERR = 3;
    IBV_EVENT_PATH_MIG_ERR = 7;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_PORT_ACTIVE = 9;
    IBV_EVENT_PORT_ERR = 10;
    IBV_EVENT_GID_CHANGE = 18;
    IBV_WC_SUCCESS = 0;
    IBV_WC_LOC_LEN_ERR = 1;
    IBV_WC_LOC_QP_OP_ERR = 2;
    IBV_WC_LOC_PROT_ERR = 4;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    #[cfg(test)] IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RECV_RDMA_WITH_IMM = 129;
    IBV_ACCESS_LOCAL_WRITE = 1;
    IBV_ACCESS_REMOTE_WRITE = 2;
    IBV_ACCESS_REMOTE_READ = 4;
    IBV_ACCESS_REMOTE_ATOMIC = 8;
    IBV_QPT_RC = 2;
    IBV_QPT_DRIVER = 255;
    IBV_QP_STATE = 1;
    IBV_QP_ACCESS_FLAGS = 8;
    IBV_QP_PKEY_INDEX = 16;
    IBV_QP_PORT = 32;
    IBV_QP_AV = 128;
    IBV_QP_PATH_MTU = 256;
    IBV_QP_TIMEOUT = 512;
    IBV_QP_RETRY_CNT = 1024;
    IBV_QP_RNR_RETRY = 2048;
    IBV_QP_RQ_PSN = 4096;
    IBV_QP_MAX_QP_RD_ATOMIC = 8192;
    IBV_QP_MIN_RNR_TIMER = 32768;
    IBV_QP_SQ_PSN = 65536;
    IBV_QP_MAX_DEST_RD_ATOMIC = 131_072;
    IBV_QP_DEST_QPN = 1_048_576;
    #[cfg(test)] IBV_QPS_RESET = 0;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
    IBV_QP_INIT_ATTR_PD = 1;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64;
    IBV_QP_EX_WITH_RDMA_WRITE = 1;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2;
    IBV_QP_EX_WITH_SEND = 4;
    IBV_QP_EX_WITH_RDMA_READ = 16;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64;
    IBV_SEND_SIGNALED = 2;
    IBV_SEND_INLINE = 8;
    MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1;
    MLX5DV_QP_INIT_ATTR_MASK_DC = 2;
    MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE = 8;
    MLX5DV_DCTYPE_DCT = 1;
    MLX5DV_DCTYPE_DCI = 2;
}

/// Expressions in C, and what they are here: offsets of fields, and sizes of what is made here or
/// filled in by the library.
#[cfg(test)]
macro_rules! layout {
    ($($c:literal $rust:ident $({ $($field:ident).+ })? ;)*) => {
        [$(layout!(@ $c, $rust $(, $($field).+)?)),*]
    };
    (@ $c:literal, $rust:ident) => {
        (format!("sizeof({})", $c), std::mem::size_of::<$rust>())
    };
    (@ $c:literal, $rust:ident, $($field:ident).+) => {
        (format!("offsetof({}, {})", $c, stringify!($($field).+)), std::mem::offset_of!($rust, $($field).+))
    };
}
#[cfg(test)]
use layout;

#[cfg(test)]
mod tests;
