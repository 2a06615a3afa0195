//! A reliable queue pair with a completion queue of its own and the channel that announces completions.

use std::ffi::c_uint;
use std::fmt;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use super::super::super::Depth;
use super::abi;
use super::context::Gid;
use super::endpoint::{LIST, Path};
use super::objects::Queue;
use super::pair::{INLINE_BYTES, Kind, Pair, blank, errno};
use super::protection::ProtectionDomain;
use super::work::{Post, Source, Target, What, inline_segment, segment};
use crate::TransportError;

/// How long a peer waits that has been told that there is no receive: 0.64 ms.
pub(super) const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// As often as it takes: the peer may post its receives late.
pub(super) const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// A packet is sent again after 4.096 µs times two to the power of this, 67 ms. Less gives up on hosts
/// that are just busy.
pub(super) const TIMEOUT: u8 = 14;
/// So often. In soft-RoCE 7 means for ever, although the standard says seven times.
pub(super) const RETRIES: u8 = 6;
pub(super) const HOPS: u8 = 64;

/// The three objects, made together and destroyed together.
pub(in super::super) struct Reliable {
    pub(super) pair: Pair,
    pub(super) queue: Queue,
    inline_bytes: usize,
}

impl Reliable {
    /// A queue pair in `Init` on `port`.
    ///
    /// # Errors
    /// The device refused.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        depth: Depth,
        has_atomics: bool,
    ) -> Result<Self, TransportError> {
        let queue = Queue::new(domain.context(), depth.sends + depth.receives)?;
        let entries = (depth.sends.max(1), depth.receives.max(1));
        let (pair, inline_bytes) = Pair::new(domain, &queue, Kind::Reliable, entries)?;
        let endpoint = Self { pair, queue, inline_bytes };
        initialise(&endpoint.pair, port, has_atomics)?;
        Ok(endpoint)
    }

    /// Lets it take what the peer sends. This may wait for the address of the peer to be resolved.
    ///
    /// # Errors
    /// The device refused, or the peer's address cannot be resolved: [`TransportError::TimedOut`].
    pub(super) fn enable_receive(&self, path: &Path) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_RTR;
        attributes.path_mtu = c_uint::from(path.mtu);
        attributes.dest_qp_num = path.number;
        attributes.rq_psn = path.peer_packet;
        attributes.max_dest_rd_atomic = path.reads_answered;
        attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        attributes.ah_attr = way(path.port, path.gid_index, (path.lid, path.gid));
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        self.pair.modify(attributes, mask, "connect")
    }

    /// Lets it send.
    ///
    /// # Errors
    /// The device refused.
    pub(super) fn enable_send(&self, path: &Path) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_RTS;
        attributes.sq_psn = path.own_packet;
        attributes.timeout = TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        attributes.max_rd_atomic = path.reads_asked;
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.pair.modify(attributes, mask, "enable")
    }

    /// Posts a list of operations, with one doorbell. At most [`LIST`] are taken at
    /// once: returns how many.
    ///
    /// # Errors
    /// The device refused the operation behind those that it took, although no more is posted than it was
    /// made for.
    pub(super) fn post_send(&self, posts: &[Post<'_>]) -> (usize, io::Result<()>) {
        let count = posts.len().min(LIST);
        let mut inline = [[0; INLINE_BYTES as usize]; LIST];
        let mut segments: [_; LIST] =
            std::array::from_fn(|_| abi::ScatterGather { addr: 0, length: 0, lkey: 0 });
        let mut requests: [abi::SendRequest; LIST] = std::array::from_fn(|_| blank_request());
        for (index, post) in posts[..count].iter().enumerate() {
            let request = &mut requests[index];
            *request = send_request(post);
            let Some(source) = &post.source else { continue };
            segments[index] = segment(source);
            if post.is_inline(source, self.inline_bytes) {
                segments[index] = inline_segment(source, &mut inline[index]);
                request.send_flags |= abi::IBV_SEND_INLINE;
            }
            request.num_sge = i32::from(source.bytes > 0);
        }
        let mut first = null_mut();
        let pairs = requests[..count].iter_mut().zip(&mut segments[..count]);
        for (request, segment) in pairs.rev() {
            (request.sg_list, request.next) = (&raw mut *segment, first);
            first = &raw mut *request;
        }
        let mut refused = null_mut();
        let (pair, post_send) = (self.pair.pointer.as_ptr(), self.pair.operations().post_send);
        // SAFETY: the list is valid for the call. What is inline was copied to memory that is valid for the
        // call too; everything else is only read by the device, through registered memory.
        let outcome = errno(unsafe { post_send(pair, first, &raw mut refused) });
        if outcome.is_ok() {
            return (count, outcome);
        }
        let of_list = requests[..count].iter().position(|request| std::ptr::eq(request, refused));
        (of_list.unwrap_or(0), outcome)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The device refused, although no more is posted than it was made for.
    pub(super) fn post_receive(&self, id: u64, target: Option<&Source<'_>>) -> io::Result<()> {
        let mut list = target.map(segment);
        let (sg_list, num_sge) = match &mut list {
            Some(segment) if segment.length > 0 => (&raw mut *segment, 1),
            Some(_) | None => (null_mut(), 0),
        };
        let mut request = abi::ReceiveRequest { wr_id: id, next: null_mut(), sg_list, num_sge };
        let mut refused = null_mut();
        let (pair, post_recv) = (self.pair.pointer.as_ptr(), self.pair.operations().post_recv);
        // SAFETY: the request and its list are valid for the call; the memory is used through the device
        // only, which uses registered memory only.
        errno(unsafe { post_recv(pair, &raw mut request, &raw mut refused) })
    }
}

impl fmt::Debug for Reliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reliable({:?})", self.pair)
    }
}

/// The way from a port to an address, from its row of the table where addresses are used.
pub(super) fn way(
    port_num: u8,
    row: Option<u8>,
    (dlid, gid): (u16, Gid),
) -> abi::AddressAttributes {
    let mut way = blank().ah_attr;
    (way.dlid, way.port_num) = (dlid, port_num);
    if let Some(sgid_index) = row {
        way.is_global = 1;
        way.grh.dgid = abi::Gid { raw: gid };
        (way.grh.sgid_index, way.grh.hop_limit) = (sgid_index, HOPS);
    }
    way
}

/// Takes it to `Init` on a port: the peer may write and read what is registered for that.
pub(super) fn initialise(pair: &Pair, port: u8, has_atomics: bool) -> Result<(), TransportError> {
    let mut attributes = blank();
    attributes.qp_state = abi::IBV_QPS_INIT;
    attributes.port_num = port;
    attributes.qp_access_flags = abi::IBV_ACCESS_REMOTE_WRITE | abi::IBV_ACCESS_REMOTE_READ;
    if has_atomics {
        attributes.qp_access_flags |= abi::IBV_ACCESS_REMOTE_ATOMIC;
    }
    let mask =
        abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
    pair.modify(attributes, mask, "initialise")
}

fn blank_request() -> abi::SendRequest {
    let target = Target::default();
    send_request(&Post { id: 0, is_reported: true, what: What::Send, source: None, target })
}

fn send_request(post: &Post<'_>) -> abi::SendRequest {
    let Target { address: remote_addr, key: rkey } = post.target;
    let rdma = abi::Remote { rdma: abi::RemotePlace { remote_addr, rkey } };
    let atomic = |compare_add, swap| abi::Remote {
        atomic: abi::RemoteWord { remote_addr, compare_add, swap, rkey },
    };
    let (opcode, wr, imm_data) = match post.what {
        What::Send => (abi::IBV_WR_SEND, rdma, 0),
        What::Write => (abi::IBV_WR_RDMA_WRITE, rdma, 0),
        What::WriteWithImmediate(word) => (abi::IBV_WR_RDMA_WRITE_WITH_IMM, rdma, word.to_be()),
        What::Read => (abi::IBV_WR_RDMA_READ, rdma, 0),
        What::CompareAndSwap { expected, new } => {
            (abi::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(expected, new), 0)
        }
        What::FetchAdd { addend } => (abi::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(addend, 0), 0),
    };
    abi::SendRequest {
        wr_id: post.id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags: if post.is_reported { abi::IBV_SEND_SIGNALED } else { 0 },
        imm_data,
        wr,
        qp_type: 0,
        unused: [0; 6],
    }
}
