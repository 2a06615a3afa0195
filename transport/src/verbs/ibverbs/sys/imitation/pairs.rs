//! How queue pairs are made, changed and destroyed.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use super::super::abi;
use super::super::abi::mlx5::ExtendedPair;
use super::ports::ROW;
use super::verbs::{none, refuse};
use super::world::{Kind, Pair, Receives};
use super::{Make, Network, behind, calls};

const INLINE_BYTES: u32 = 64;

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) kind: Kind,
    pub(super) domain: *mut abi::ProtectionDomain,
    pub(super) queues: [*mut abi::CompletionQueue; 2],
    pub(super) shared: *mut abi::SharedQueue,
    pub(super) cap: abi::Capacities,
    pub(super) scatters: bool,
}

/// A queue pair in its first state.
pub(super) fn make_pair(parts: &Parts) -> *mut abi::QueuePair {
    let (network, domain) = behind(parts.domain);
    let mut world = network.world();
    if parts.cap.max_inline_data > INLINE_BYTES {
        return none(libc::EINVAL);
    }
    let (context, device) = world.domains[&domain];
    let id = world.number();
    let receives = if parts.shared.is_null() {
        let capacity = parts.cap.max_recv_wr as usize;
        world.receives.insert(id, Receives { capacity, used: 0, waiting: VecDeque::new() });
        id
    } else {
        behind(parts.shared).1
    };
    // A target has its number when it receives.
    let number = match parts.kind {
        Kind::Reliable | Kind::Initiator => u32::try_from(id).expect("few numbers"),
        Kind::Target(_) => 0,
    };
    let pointer = calls::give_pair(&network, id, number);
    let pair = Pair {
        kind: parts.kind,
        device,
        context,
        domain,
        number,
        address: pointer.expose_provenance(),
        state: abi::IBV_QPS_RESET,
        sent: behind(parts.queues[0]).1,
        received: behind(parts.queues[1]).1,
        receives,
        capacity: parts.cap.max_send_wr as usize,
        inline_bytes: parts.cap.max_inline_data as usize,
        posted: 0,
        freed: 0,
        works: VecDeque::new(),
        access: 0,
        own: [0; 16],
        peer: None,
        mtu: 0,
        first_sent: 0,
        first_received: 0,
        patience_ns: 0,
        unanswered_since: None,
        scatters: parts.scatters,
    };
    world.pairs.insert(id, pair);
    pointer
}

pub(super) unsafe extern "C" fn create_qp(
    domain: *mut abi::ProtectionDomain,
    attributes: *mut abi::InitAttributes,
) -> *mut abi::QueuePair {
    // SAFETY: the caller has filled them in.
    let attributes = unsafe { &*attributes };
    if attributes.qp_type != abi::IBV_QPT_RC {
        return none(libc::EINVAL);
    }
    make_pair(&Parts {
        kind: Kind::Reliable,
        domain,
        queues: [attributes.send_cq, attributes.recv_cq],
        shared: attributes.srq,
        cap: attributes.cap,
        scatters: behind(domain).0.0.make != Make::Plain,
    })
}

/// What a change of state must name, and may name, for each kind of queue pair: as the kernel checks it.
fn expected(kind: Kind, from: c_uint, to: c_uint) -> Option<(c_uint, c_uint)> {
    use abi::{
        IBV_QP_ACCESS_FLAGS as ACCESS, IBV_QP_AV as AV, IBV_QP_DEST_QPN as DEST,
        IBV_QP_MAX_DEST_RD_ATOMIC as ANSWERED, IBV_QP_MAX_QP_RD_ATOMIC as ASKED,
        IBV_QP_MIN_RNR_TIMER as RNR_TIMER, IBV_QP_PATH_MTU as MTU, IBV_QP_PKEY_INDEX as PKEY,
        IBV_QP_PORT as PORT, IBV_QP_RETRY_CNT as RETRIES, IBV_QP_RNR_RETRY as RNR,
        IBV_QP_RQ_PSN as RQ_PSN, IBV_QP_SQ_PSN as SQ_PSN, IBV_QP_STATE as STATE,
        IBV_QP_TIMEOUT as TIMEOUT,
    };
    let sending = STATE | SQ_PSN | TIMEOUT | RETRIES | RNR | ASKED;
    match (kind, from, to) {
        (Kind::Reliable, abi::IBV_QPS_RESET, abi::IBV_QPS_INIT)
        | (Kind::Target(_), abi::IBV_QPS_RESET, abi::IBV_QPS_INIT) => {
            Some((STATE | PKEY | PORT | ACCESS, 0))
        }
        (Kind::Initiator, abi::IBV_QPS_RESET, abi::IBV_QPS_INIT) => Some((STATE | PKEY | PORT, 0)),
        (Kind::Reliable, abi::IBV_QPS_INIT, abi::IBV_QPS_RTR) => {
            Some((STATE | AV | MTU | DEST | RQ_PSN | ANSWERED | RNR_TIMER, PKEY | ACCESS))
        }
        (Kind::Target(_), abi::IBV_QPS_INIT, abi::IBV_QPS_RTR) => {
            Some((STATE | AV | MTU | RNR_TIMER, 0))
        }
        (Kind::Initiator, abi::IBV_QPS_INIT, abi::IBV_QPS_RTR) => Some((STATE | MTU, PKEY | AV)),
        (Kind::Reliable | Kind::Initiator, abi::IBV_QPS_RTR, abi::IBV_QPS_RTS) => {
            Some((sending, RNR_TIMER))
        }
        (Kind::Reliable, _, abi::IBV_QPS_ERR) => Some((STATE, 0)),
        (Kind::Initiator, from, abi::IBV_QPS_ERR) if from != abi::IBV_QPS_RESET => Some((STATE, 0)),
        _ => None,
    }
}

pub(super) unsafe extern "C" fn modify_qp(
    pointer: *mut abi::QueuePair,
    attributes: *mut abi::Attributes,
    mask: c_int,
) -> c_int {
    let (network, id) = behind_pair(pointer);
    // SAFETY: the caller has filled in what the mask names.
    let attributes = unsafe { *attributes };
    let mut world = network.world();
    let target_number = world.target_number();
    let device = world.pair(id).device;
    if let Some(reason) = world.refusal(device) {
        return refuse(reason);
    }
    let row = attributes.ah_attr.grh.sgid_index.checked_sub(ROW);
    let own = row.and_then(|row| world.ports[device].rows().nth(row.into()));
    let pair = world.pair(id);
    let Some((must, may)) = expected(pair.kind, pair.state, attributes.qp_state) else {
        return refuse(libc::EINVAL);
    };
    let mask = mask.cast_unsigned();
    if mask & must != must || mask & !(must | may) != 0 {
        return refuse(libc::EINVAL);
    }
    if attributes.qp_state == abi::IBV_QPS_ERR {
        world.break_down(id);
        return 0;
    }
    pair.state = attributes.qp_state;
    match pair.state {
        abi::IBV_QPS_INIT => pair.access = attributes.qp_access_flags,
        abi::IBV_QPS_RTR => {
            pair.mtu = attributes.path_mtu;
            if pair.kind == Kind::Reliable {
                let Some(own) = own else { return refuse(libc::EINVAL) };
                pair.own = own;
                pair.peer = Some((attributes.ah_attr.grh.dgid.raw, attributes.dest_qp_num));
                pair.first_received = attributes.rq_psn;
            }
            if let Kind::Target(_) = pair.kind {
                pair.number = target_number;
                // SAFETY: the queue pair exists, and its owner is in this call.
                unsafe { (*pointer).qp_num = pair.number };
            }
        }
        _ => {
            pair.first_sent = attributes.sq_psn;
            let once_ns = 4096u64 << attributes.timeout;
            pair.patience_ns = once_ns * (u64::from(attributes.retry_cnt) + 1);
        }
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(pointer: *mut abi::QueuePair) -> c_int {
    let (network, id) = behind_pair(pointer);
    let mut world = network.world();
    let device = world.pair(id).device;
    if let Some(reason) = world.refusal(device) {
        return refuse(reason);
    }
    world.remove(id);
    drop(world);
    calls::take_pair_back(pointer);
    0
}

pub(super) fn behind_pair(pair: *mut abi::QueuePair) -> (Network, usize) {
    behind(pair.cast::<ExtendedPair>())
}
