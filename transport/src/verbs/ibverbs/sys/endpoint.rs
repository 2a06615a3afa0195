//! A queue pair with a completion queue of its own and the channel that announces completions.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use super::super::super::Depth;
use super::abi;
use super::context::{Gid, ProtectionDomain, error};
use super::objects::{INLINE_BYTES, Pair, Queue};
use super::work::{Post, Reported, Source, Target, What, inline_segment, reported, segment};
use crate::TransportError;

/// Operations posted at once.
pub(in super::super) const LIST: usize = 8;
/// Completions taken at once.
const BATCH: usize = 16;
/// How long a peer waits that has been told that there is no receive: 0.64 ms.
const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// As often as it takes: the peer may post its receives late.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// A packet is sent again after 4.096 µs times two to the power of this, 67 ms. Less gives up on hosts
/// that are just busy.
const TIMEOUT: u8 = 14;
/// So often. In soft-RoCE 7 means for ever, although the standard says seven times.
const RETRIES: u8 = 6;
const HOPS: u8 = 64;

/// The three objects, made together and destroyed together.
#[derive(Debug)]
pub(in super::super) struct Endpoint {
    pair: Pair,
    inline_bytes: usize,
}

/// What leads to the peer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Path {
    /// Port of this end.
    pub(in super::super) port: u8,
    /// Row of the address of this end, where addresses are used.
    pub(in super::super) gid_index: Option<u8>,
    pub(in super::super) gid: Gid,
    pub(in super::super) lid: u16,
    pub(in super::super) number: u32,
    pub(in super::super) mtu: u8,
    /// Where the peer begins to count packets, and where this end does.
    pub(in super::super) peer_packet: u32,
    pub(in super::super) own_packet: u32,
    /// Reads and atomics under way that this end answers, and that it asks for.
    pub(in super::super) reads_answered: u8,
    pub(in super::super) reads_asked: u8,
}

impl Endpoint {
    /// A queue pair in `Init` on `port`.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn new(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        depth: Depth,
        has_atomics: bool,
    ) -> Result<Self, TransportError> {
        let queue = Queue::new(domain.context(), depth.sends + depth.receives)?;
        let (pair, inline_bytes) = Pair::new(domain, queue, depth)?;
        let endpoint = Self { pair, inline_bytes };
        endpoint.initialise(port, has_atomics)?;
        Ok(endpoint)
    }

    /// The number by which the peer addresses it.
    pub(in super::super) fn number(&self) -> u32 {
        // SAFETY: the library made the queue pair, and does not change its number.
        unsafe { (*self.pair.pointer.as_ptr()).qp_num }
    }

    /// Readable when completions have been announced.
    pub(in super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pair.queue.channel.descriptor()
    }

    fn initialise(&self, port: u8, has_atomics: bool) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.qp_access_flags = abi::IBV_ACCESS_REMOTE_WRITE | abi::IBV_ACCESS_REMOTE_READ;
        if has_atomics {
            attributes.qp_access_flags |= abi::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_PKEY_INDEX
            | abi::IBV_QP_PORT
            | abi::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask, "initialise")
    }

    /// Lets it take what the peer sends. This may wait for the address of the peer to be resolved.
    ///
    /// # Errors
    /// The device refused, or the peer's address cannot be resolved: [`TransportError::TimedOut`].
    pub(in super::super) fn enable_receive(&self, path: &Path) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_RTR;
        attributes.path_mtu = c_uint::from(path.mtu);
        attributes.dest_qp_num = path.number;
        attributes.rq_psn = path.peer_packet;
        attributes.max_dest_rd_atomic = path.reads_answered;
        attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        attributes.ah_attr.dlid = path.lid;
        attributes.ah_attr.port_num = path.port;
        if let Some(index) = path.gid_index {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid = abi::Gid { raw: path.gid };
            attributes.ah_attr.grh.sgid_index = index;
            attributes.ah_attr.grh.hop_limit = HOPS;
        }
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, mask, "connect")
    }

    /// Lets it send.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn enable_send(&self, path: &Path) -> Result<(), TransportError> {
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
        self.modify(attributes, mask, "enable")
    }

    /// Takes it to the error state, where it gives everything back.
    ///
    /// # Errors
    /// The device refused: it may be gone.
    pub(in super::super) fn fail(&self) -> Result<(), TransportError> {
        let mut attributes = blank();
        attributes.qp_state = abi::IBV_QPS_ERR;
        self.modify(attributes, abi::IBV_QP_STATE, "fail")
    }

    fn modify(
        &self,
        mut attributes: abi::Attributes,
        mask: c_uint,
        verb: &str,
    ) -> Result<(), TransportError> {
        let context = self.pair.domain.context();
        let functions = &context.library().functions;
        // SAFETY: the queue pair exists, and what the mask names is filled in.
        let result = unsafe {
            (functions.ibv_modify_qp)(
                self.pair.pointer.as_ptr(),
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

    /// Posts a list of operations, with one doorbell. At most [`LIST`] are taken at
    /// once: returns how many.
    ///
    /// # Errors
    /// The device refused the operation behind those that it took, although no more is posted than it was
    /// made for.
    pub(in super::super) fn post_send(&self, posts: &[Post<'_>]) -> (usize, io::Result<()>) {
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
        let (pair, post_send) = (self.pair.pointer.as_ptr(), self.operations().post_send);
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
    pub(in super::super) fn post_receive(
        &self,
        id: u64,
        target: Option<&Source<'_>>,
    ) -> io::Result<()> {
        let mut list = target.map(segment);
        let (sg_list, num_sge) = match &mut list {
            Some(segment) if segment.length > 0 => (&raw mut *segment, 1),
            Some(_) | None => (null_mut(), 0),
        };
        let mut request = abi::ReceiveRequest { wr_id: id, next: null_mut(), sg_list, num_sge };
        let mut refused = null_mut();
        let (pair, post_recv) = (self.pair.pointer.as_ptr(), self.operations().post_recv);
        // SAFETY: the request and its list are valid for the call; the memory is used through the device
        // only, which uses registered memory only.
        errno(unsafe { post_recv(pair, &raw mut request, &raw mut refused) })
    }

    /// Appends what has completed; tells whether anything had.
    ///
    /// # Errors
    /// The completion queue is broken.
    pub(in super::super) fn poll(&self, into: &mut Vec<Reported>) -> io::Result<bool> {
        let mut found = [abi::Completion::default(); BATCH];
        let poll_cq = self.operations().poll_cq;
        let before = into.len();
        loop {
            let queue = self.pair.queue.pointer.as_ptr();
            // SAFETY: the queue exists, and there is room for as many completions as it is told.
            let count = unsafe { poll_cq(queue, BATCH as c_int, found.as_mut_ptr()) };
            let count = usize::try_from(count)
                .map_err(|_| io::Error::other("the completion queue cannot be polled"))?;
            let library = self.pair.domain.context().library();
            into.extend(found[..count.min(BATCH)].iter().map(|found| reported(library, found)));
            if count < BATCH {
                return Ok(into.len() > before);
            }
        }
    }

    /// Asks to be told of the next completion through the descriptor.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn arm(&self) -> io::Result<()> {
        let request = self.operations().req_notify_cq;
        // SAFETY: the queue exists.
        errno(unsafe { request(self.pair.queue.pointer.as_ptr(), 0) })
    }

    /// Takes what the descriptor announced; tells whether anything was.
    pub(in super::super) fn take_announcement(&self) -> bool {
        self.pair.queue.take_announcement()
    }

    fn operations(&self) -> &abi::ContextOps {
        let context = self.pair.domain.context().pointer();
        // SAFETY: the library made the context, which lives as long as this queue pair, and its table of
        // functions is not changed after that.
        unsafe { &(*context).ops }
    }
}

fn errno(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(error(result)) }
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

fn blank() -> abi::Attributes {
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
