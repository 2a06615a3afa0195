//! Queue pairs of the device.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi;
use super::abi::mlx5::{DynamicAttributes, ExtendedInitAttributes, Mlx5Attributes};
use super::context::{error, warn_unless_closed};
use super::library::Mlx5Functions;
use super::objects::{Queue, Shared, refused};
use super::protection::ProtectionDomain;
use crate::TransportError;

/// Bytes that a small write may carry in the request itself, if the device can.
pub(super) const INLINE_BYTES: u32 = 64;
/// What every initiator can be told to do.
const OPERATIONS: c_uint = abi::IBV_QP_EX_WITH_RDMA_WRITE
    | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND
    | abi::IBV_QP_EX_WITH_RDMA_READ;
/// And those of devices with atomics.
const ATOMICS: c_uint =
    abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// A queue pair of the device.
pub(super) struct Pair {
    pub(super) pointer: NonNull<abi::QueuePair>,
    pub(super) domain: Arc<ProtectionDomain>,
}

/// What a queue pair is for.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    Reliable,
    /// Sends to dynamic targets.
    Initiator {
        has_atomics: bool,
    },
    /// Takes, for these receives, what initiators send that know the key.
    Target {
        shared: &'a Shared,
        key: u64,
    },
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Pair {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Pair {}

impl Pair {
    /// A queue pair that completes in `queue`, which is dropped after it, and how many bytes its requests
    /// carry themselves.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        queue: &Queue,
        kind: Kind<'_>,
        (sends, receives): (usize, usize),
    ) -> Result<(Self, usize), TransportError> {
        let count = |entries: usize| u32::try_from(entries).unwrap_or(u32::MAX);
        let inline_bytes = if matches!(kind, Kind::Target { .. }) { 0 } else { INLINE_BYTES };
        let cap = abi::Capacities {
            max_send_wr: count(sends),
            max_recv_wr: count(receives),
            max_send_sge: u32::from(sends > 0),
            max_recv_sge: u32::from(receives > 0),
            max_inline_data: inline_bytes,
        };
        let make = |cap| match domain.context().mlx5() {
            Some(mlx5) => Self::make_mlx5(mlx5, domain, queue, kind, cap),
            None => Self::make(domain, queue, cap),
        };
        let made = make(cap).or_else(|| make(abi::Capacities { max_inline_data: 0, ..cap }));
        let (pointer, inline_bytes) = made.ok_or_else(|| {
            refused(
                domain.context(),
                &format!("make {kind} for {sends} sends, {receives} receives"),
            )
        })?;
        Ok((Self { pointer, domain: Arc::clone(domain) }, inline_bytes as usize))
    }

    /// A reliable one.
    fn make(
        domain: &ProtectionDomain,
        queue: &Queue,
        cap: abi::Capacities,
    ) -> Option<(NonNull<abi::QueuePair>, u32)> {
        let mut attributes = abi::InitAttributes {
            qp_context: null_mut(),
            send_cq: queue.pointer.as_ptr(),
            recv_cq: queue.pointer.as_ptr(),
            srq: null_mut(),
            cap,
            qp_type: abi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let functions = &domain.context().library().functions;
        // SAFETY: the domain and the queue are of the same context.
        let pointer = unsafe { (functions.ibv_create_qp)(domain.pointer(), &raw mut attributes) };
        // What was granted may be more than was asked for.
        let inline_bytes = attributes.cap.max_inline_data.min(cap.max_inline_data);
        Some((NonNull::new(pointer)?, inline_bytes))
    }

    /// Of any kind, by libmlx5. It puts small messages that arrive into the completion, and copies them from
    /// there to where the receive says: but our addresses begin within the first page, and are none of this process.
    fn make_mlx5(
        mlx5: &Mlx5Functions,
        domain: &ProtectionDomain,
        queue: &Queue,
        kind: Kind<'_>,
        cap: abi::Capacities,
    ) -> Option<(NonNull<abi::QueuePair>, u32)> {
        let (srq, dc_type, dct_access_key) = match kind {
            Kind::Reliable => (null_mut(), 0, 0),
            Kind::Initiator { .. } => (null_mut(), abi::MLX5DV_DCTYPE_DCI, 0),
            Kind::Target { shared, key } => (shared.pointer.as_ptr(), abi::MLX5DV_DCTYPE_DCT, key),
        };
        let is_dynamic = dc_type != 0;
        let of = |flag, is_set| if is_set { flag } else { 0 };
        let builds = match kind {
            Kind::Initiator { has_atomics } => OPERATIONS | of(ATOMICS, has_atomics),
            Kind::Reliable | Kind::Target { .. } => 0,
        };
        let mut attributes = ExtendedInitAttributes {
            qp_context: null_mut(),
            send_cq: queue.pointer.as_ptr(),
            recv_cq: queue.pointer.as_ptr(),
            srq,
            cap,
            qp_type: if is_dynamic { abi::IBV_QPT_DRIVER } else { abi::IBV_QPT_RC },
            sq_sig_all: 0,
            comp_mask: abi::IBV_QP_INIT_ATTR_PD
                | of(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, builds != 0),
            pd: domain.pointer(),
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: u64::from(builds),
        };
        let mask = abi::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
            | of(abi::MLX5DV_QP_INIT_ATTR_MASK_DC, is_dynamic);
        let mut own = Mlx5Attributes {
            comp_mask: u64::from(mask),
            create_flags: abi::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            dc_init_attr: DynamicAttributes { dc_type, dct_access_key },
            send_ops_flags: 0,
        };
        let context = domain.context().pointer();
        // SAFETY: the device is one of mlx5, and everything named is of the same context.
        let pointer =
            unsafe { (mlx5.mlx5dv_create_qp)(context, &raw mut attributes, &raw mut own) };
        let inline_bytes = attributes.cap.max_inline_data.min(cap.max_inline_data);
        Some((NonNull::new(pointer)?, inline_bytes))
    }

    /// The number by which peers address it; that of a target is known when it receives.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the library made the queue pair; nobody else writes its number.
        unsafe { (*self.pointer.as_ptr()).qp_num }
    }

    /// Changes what the mask names.
    ///
    /// # Errors
    /// The device refused, or the address of a peer cannot be resolved: the second is
    /// [`TransportError::TimedOut`].
    pub(super) fn modify(
        &self,
        mut attributes: abi::Attributes,
        mask: c_uint,
        verb: &str,
    ) -> Result<(), TransportError> {
        let context = self.domain.context();
        let functions = &context.library().functions;
        // SAFETY: the queue pair exists, and what the mask names is filled in.
        let result = unsafe {
            (functions.ibv_modify_qp)(
                self.pointer.as_ptr(),
                &raw mut attributes,
                mask.cast_signed(),
            )
        };
        if result == 0 {
            return Ok(());
        }
        let (cause, call) = (error(result), format!("{verb} a queue pair of {}", context.name()));
        if cause.kind() == io::ErrorKind::TimedOut {
            return Err(TransportError::TimedOut(format!("{call}: {cause}")));
        }
        Err(TransportError::system(call, cause))
    }

    /// Takes it to the error state, where it gives everything back.
    ///
    /// # Errors
    /// The device refused: it may be gone.
    pub(super) fn fail(&self) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_ERR;
        self.modify(attributes, abi::IBV_QP_STATE, "fail")
    }

    /// What is called without the library, on the path of the data.
    pub(super) fn operations(&self) -> &abi::ContextOps {
        self.domain.context().operations()
    }
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reliable => "a queue pair",
            Self::Initiator { .. } => "a dynamic initiator",
            Self::Target { .. } => "a dynamic target",
        })
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({:?})", self.pointer)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let functions = &self.domain.context().library().functions;
        // SAFETY: the queue pair exists, and nobody has its pointer any more. When this returns the device
        // does not execute anything for it.
        let closed = unsafe { (functions.ibv_destroy_qp)(self.pointer.as_ptr()) };
        warn_unless_closed(closed, "queue pair");
    }
}

pub(super) fn errno(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(error(result)) }
}

/// Attributes of which none is set.
pub(super) fn blank() -> abi::Attributes {
    let grh = abi::GlobalRoute {
        dgid: abi::Gid { raw: [0; 16] },
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    };
    let address = abi::AddressAttributes {
        grh,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 0,
    };
    abi::Attributes {
        qp_state: 0,
        cur_qp_state: 0,
        path_mtu: 0,
        path_mig_state: 0,
        qkey: 0,
        rq_psn: 0,
        sq_psn: 0,
        dest_qp_num: 0,
        qp_access_flags: 0,
        cap: abi::Capacities::default(),
        ah_attr: address,
        alt_ah_attr: address,
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        port_num: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}
