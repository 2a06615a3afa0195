//! A dynamic end, of mlx5: an initiator that sends, and a target with a shared receive queue that is sent to.
//!
//! Neither belongs to a peer, so both are ready before there is one: what leads to the target is part of every
//! request. Requests of one initiator to one target are executed in their order, as those of a reliable queue
//! pair are.
//!
//! **The fence.** A target has no error state. It is destroyed: from when that returns nothing is executed, and
//! packets that are still under way find nobody, or somebody with another key: those are drawn anew each time,
//! numbers need not be. But libmlx5 throws away what a queue pair had completed when it is destroyed, and a message that arrives between the last poll
//! and that moment has been confirmed to its sender. So whoever sends a message writes behind it, in the same
//! list, an entry into the *ledger* of the peer's end, and the message completes when that has. Entries that
//! are there after the target is gone say which receives were filled whose completions were thrown away.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::super::super::{Access, Depth, Memory};
use super::abi;
use super::abi::mlx5::{Builders, ExtendedPair, Mlx5Pair};
use super::context::Gid;
use super::endpoint::{LIST, Path, TargetAddress};
use super::ledger::{ENTRY_BYTES, Entry};
use super::objects::{Handle, Queue, Shared};
use super::pair::{INLINE_BYTES, Kind, Pair, blank, errno};
use super::protection::{ProtectionDomain, Registration};
use super::reliable::{
    RECEIVER_NOT_READY_RETRIES, RECEIVER_NOT_READY_TIMER, RETRIES, TIMEOUT, initialise, way,
};
use super::work::{Outcome, Post, Reported, Source, What, inline_segment, reported, segment};
use crate::TransportError;

/// Requests with it in their number are entries of the ledger.
const ENTRY: u64 = 1 << 62;
/// Reads and atomics under way: as many as UCX lets initiators ask for, since the driver does not tell how many a
/// target answers.
const READS: u8 = 4;

/// Where an end is in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Place {
    pub(in super::super) port: u8,
    /// Row of its address, where addresses are used.
    pub(in super::super) gid_index: Option<u8>,
    pub(in super::super) gid: Gid,
    pub(in super::super) lid: u16,
    pub(in super::super) mtu: u8,
}

/// An initiator and a target, and what they need. Fields are dropped in this order.
pub(in super::super) struct Dynamic {
    pub(super) initiator: Pair,
    inline_bytes: usize,
    pub(super) place: Place,
    state: Mutex<State>,
    shared: Shared,
    pub(super) queue: Queue,
    ledger: Memory,
    _registered: Registration,
    pub(super) address: TargetAddress,
    peer: OnceLock<(Handle, TargetAddress)>,
}

/// What has been posted and taken.
struct State {
    /// None after the fence.
    target: Option<Pair>,
    /// Receives that are posted, oldest first, and how many were filled before them.
    receives: VecDeque<u64>,
    filled: u64,
    /// Messages sent.
    messages: u64,
    /// The last request that is known to have failed.
    failed: Option<u64>,
    /// To be reported.
    left: Vec<Reported>,
}

impl Dynamic {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        place: Place,
        depth: Depth,
        has_atomics: bool,
    ) -> Result<Self, TransportError> {
        let context = domain.context();
        if context.mlx5().is_none() {
            let call = format!("make a dynamic end of {}", context.name());
            return Err(TransportError::system(call, "it is not a device of mlx5"));
        }
        let (sends, entries) = (2 * depth.sends.max(1), depth.receives.max(1));
        let queue = Queue::new(context, sends + entries)?;
        let shared = Shared::new(domain, entries)?;
        let ledger = Memory::allocate(entries * ENTRY_BYTES)?;
        let registered = domain.register(&ledger, Access::WRITE)?;
        let key = random()?;
        let (initiator, inline_bytes) =
            Pair::new(domain, &queue, Kind::Initiator { has_atomics }, (sends, 0))?;
        if inline_bytes < ENTRY_BYTES {
            let call = format!("make a dynamic end of {}", context.name());
            return Err(TransportError::system(call, "its requests carry too few bytes"));
        }
        enable_initiator(&initiator, place)?;
        let (target, _) = Pair::new(domain, &queue, Kind::Target { shared: &shared, key }, (0, 0))?;
        enable_target(&target, place, has_atomics)?;
        let address = TargetAddress {
            number: target.number(),
            key,
            ledger: registered.keys().1,
            entries: u32::try_from(entries).unwrap_or(u32::MAX),
        };
        let state = State {
            target: Some(target),
            receives: VecDeque::with_capacity(entries),
            filled: 0,
            messages: 0,
            failed: None,
            left: Vec::new(),
        };
        Ok(Self {
            initiator,
            inline_bytes,
            place,
            state: Mutex::new(state),
            shared,
            queue,
            ledger,
            _registered: registered,
            address,
            peer: OnceLock::new(),
        })
    }

    /// Learns how the peer's target is reached.
    pub(super) fn enable_send(&self, path: &Path) -> Result<(), TransportError> {
        let Some(target) = path.target else {
            return Err(TransportError::system("connect a dynamic end", "the peer has no target"));
        };
        let way = way(path.port, path.gid_index, (path.lid, path.gid));
        let handle = Handle::new(&self.initiator.domain, way)?;
        // Whoever connects it twice goes on with the first.
        let _ = self.peer.set((handle, target));
        Ok(())
    }

    pub(super) fn fail(&self) -> Result<(), TransportError> {
        let outcome = self.initiator.fail();
        let mut state = self.lock();
        let Some(target) = state.target.take() else { return outcome };
        let polled = self.take_completions(&mut state);
        drop(target);
        self.settle(&mut state);
        let cause = |cause| TransportError::system("poll a dynamic end", cause);
        outcome.and(polled.map_err(cause))
    }

    /// Everything that was executed is, and nothing else will be: what of it is in the ledger only has filled
    /// receives, and all others come back.
    fn settle(&self, state: &mut State) {
        while let Some(entry) = Entry::read(&self.ledger, state.filled)
            && let Some(id) = state.receives.pop_front()
        {
            state.filled += 1;
            let (bytes, immediate) = (entry.bytes as usize, entry.immediate);
            state.left.push(Reported { id, outcome: Outcome::Success, bytes, immediate });
        }
        for id in state.receives.drain(..) {
            let (outcome, bytes, immediate) = (Outcome::Flushed, 0, None);
            state.left.push(Reported { id, outcome, bytes, immediate });
        }
    }

    pub(super) fn poll(&self, into: &mut Vec<Reported>) -> io::Result<()> {
        let mut state = self.lock();
        let polled = self.take_completions(&mut state);
        into.append(&mut state.left);
        polled
    }

    fn take_completions(&self, state: &mut State) -> io::Result<()> {
        let library = self.initiator.domain.context().library();
        self.queue.poll(|found| {
            let found = reported(library, found);
            let known = if state.receives.front() == Some(&found.id) {
                state.receives.pop_front();
                state.filled += 1;
                Some(found)
            } else {
                state.sent(found)
            };
            state.left.extend(known);
        })
    }

    pub(super) fn post_receive(&self, id: u64, target: Option<&Source<'_>>) -> io::Result<()> {
        let mut list = target.filter(|target| target.bytes > 0).map(segment);
        let num_sge = i32::from(list.is_some());
        let sg_list = list.as_mut().map_or(std::ptr::null_mut(), |segment| &raw mut *segment);
        let next = std::ptr::null_mut();
        let mut request = abi::ReceiveRequest { wr_id: id, next, sg_list, num_sge };
        let mut refused = std::ptr::null_mut();
        let mut state = self.lock();
        let post = self.initiator.operations().post_srq_recv;
        // SAFETY: the request and its list are valid for the call; the memory is used through the device
        // only, which uses registered memory only.
        errno(unsafe { post(self.shared.pointer.as_ptr(), &raw mut request, &raw mut refused) })?;
        state.receives.push_back(id);
        Ok(())
    }

    pub(super) fn post_send(&self, posts: &[Post<'_>]) -> (usize, io::Result<()>) {
        let Some((handle, peer)) = self.peer.get() else {
            return (0, Err(io::Error::other("it is not connected")));
        };
        let posts = &posts[..posts.len().min(LIST)];
        let mut state = self.lock();
        let mut messages = state.messages;
        let list = match List::begin(&self.initiator, (handle, *peer)) {
            Ok(list) => list,
            Err(cause) => return (0, Err(cause)),
        };
        for post in posts {
            list.operation(post, self.inline_bytes);
            if let Some(immediate) = post.what.message() {
                let bytes = post.source.as_ref().map_or(0, |source| source.bytes);
                list.entry(post, Entry { bytes, immediate }, messages);
                messages += 1;
            }
        }
        let outcome = list.end();
        if outcome.is_err() {
            return (0, outcome);
        }
        state.messages = messages;
        (posts.len(), outcome)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What a completion of the initiator says about a request: a message is executed when its entry is, and
    /// fails once if both do.
    fn sent(&mut self, found: Reported) -> Option<Reported> {
        let id = found.id & !ENTRY;
        let has_failed = found.outcome != Outcome::Success;
        if has_failed && self.failed.replace(id) == Some(id) {
            return None;
        }
        Some(Reported { id, ..found })
    }
}

/// Requests that are being built.
struct List<'a> {
    pair: NonNull<ExtendedPair>,
    mlx5: NonNull<Mlx5Pair>,
    calls: Builders,
    handle: &'a Handle,
    peer: TargetAddress,
}

impl<'a> List<'a> {
    fn begin(initiator: &Pair, (handle, peer): (&'a Handle, TargetAddress)) -> io::Result<Self> {
        let lacking = || io::Error::other("libmlx5 does not know its own queue pair");
        let context = initiator.domain.context();
        let functions = &context.library().functions;
        // SAFETY: it was made with operations that are built by calls.
        let pair = unsafe { (functions.ibv_qp_to_qp_ex)(initiator.pointer.as_ptr()) };
        let pair = NonNull::new(pair).ok_or_else(lacking)?;
        let mlx5 = context.mlx5().ok_or_else(lacking)?;
        // SAFETY: it is a queue pair of mlx5.
        let mlx5 = unsafe { (mlx5.mlx5dv_qp_ex_from_ibv_qp_ex)(pair.as_ptr()) };
        let mlx5 = NonNull::new(mlx5).ok_or_else(lacking)?;
        // SAFETY: the functions do not change.
        let calls = unsafe { (*pair.as_ptr()).calls };
        // SAFETY: requests of a queue pair are built by its only owner, one list at a time.
        unsafe { (calls.wr_start)(pair.as_ptr()) };
        Ok(Self { pair, mlx5, calls, handle, peer })
    }

    fn label(&self, id: u64, is_reported: bool) {
        let flags = if is_reported { abi::IBV_SEND_SIGNALED } else { 0 };
        // SAFETY: the fields are for whoever builds requests.
        unsafe { (*self.pair.as_ptr()).wr_id = id };
        // SAFETY: as above.
        unsafe { (*self.pair.as_ptr()).wr_flags = flags };
    }

    fn operation(&self, post: &Post<'_>, inline_bytes: usize) {
        // A message is reported when its entry is.
        self.label(post.id, post.is_reported && post.what.message().is_none());
        let (pair, key, address) = (self.pair.as_ptr(), post.target.key, post.target.address);
        let calls = &self.calls;
        match post.what {
            // SAFETY: a list was begun. The same holds for the others.
            What::Send => unsafe { (calls.wr_send)(pair) },
            // SAFETY: as above.
            What::Write => unsafe { (calls.wr_rdma_write)(pair, key, address) },
            What::WriteWithImmediate(word) => {
                // SAFETY: as above.
                unsafe { (calls.wr_rdma_write_imm)(pair, key, address, word.to_be()) }
            }
            // SAFETY: as above.
            What::Read => unsafe { (calls.wr_rdma_read)(pair, key, address) },
            What::CompareAndSwap { expected, new } => {
                // SAFETY: as above.
                unsafe { (calls.wr_atomic_cmp_swp)(pair, key, address, expected, new) }
            }
            What::FetchAdd { addend } => {
                // SAFETY: as above.
                unsafe { (calls.wr_atomic_fetch_add)(pair, key, address, addend) }
            }
        }
        self.set_target();
        match &post.source {
            Some(source) if post.is_inline(source, inline_bytes) => {
                let mut room = [0; INLINE_BYTES as usize];
                let bytes = inline_segment(source, &mut room).length as usize;
                self.set_inline(&mut room[..bytes]);
            }
            Some(source) => {
                let abi::ScatterGather { addr, length, lkey } = segment(source);
                // SAFETY: a request was begun; the memory is used through the device only.
                unsafe { (calls.wr_set_sge)(pair, lkey, addr, length) };
            }
            None => self.set_inline(&mut []),
        }
    }

    /// What is written behind a message: its number, length and immediate.
    fn entry(&self, post: &Post<'_>, entry: Entry, number: u64) {
        self.label(post.id | ENTRY, post.is_reported);
        // A ledger begins at a page, and so at address 0.
        let address = Entry::offset(number, self.peer.entries) as u64;
        let (pair, key) = (self.pair.as_ptr(), self.peer.ledger);
        // SAFETY: a list was begun.
        unsafe { (self.calls.wr_rdma_write)(pair, key, address) };
        self.set_target();
        self.set_inline(&mut entry.encode(number));
    }

    fn set_target(&self) {
        let TargetAddress { number, key, .. } = self.peer;
        let (mlx5, handle) = (self.mlx5.as_ptr(), self.handle.pointer.as_ptr());
        // SAFETY: the call does not change while the queue pair lives.
        let call = unsafe { (*mlx5).wr_set_dc_addr };
        // SAFETY: a request was begun, and the handle is of the same domain.
        unsafe { call(mlx5, handle, number, key) };
    }

    /// The bytes are copied by the call.
    fn set_inline(&self, bytes: &mut [u8]) {
        let start = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: a request was begun, and the bytes are there.
        unsafe { (self.calls.wr_set_inline_data)(self.pair.as_ptr(), start, bytes.len()) };
    }

    /// Rings the doorbell. All of it is posted, or nothing.
    fn end(self) -> io::Result<()> {
        // SAFETY: a list was begun, and every request in it is complete.
        errno(unsafe { (self.calls.wr_complete)(self.pair.as_ptr()) })
    }
}

fn enable_initiator(initiator: &Pair, place: Place) -> Result<(), TransportError> {
    let mut attributes = blank();
    attributes.qp_state = abi::IBV_QPS_INIT;
    attributes.port_num = place.port;
    let mask = abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
    initiator.modify(attributes, mask, "initialise")?;
    attributes.qp_state = abi::IBV_QPS_RTR;
    attributes.path_mtu = u32::from(place.mtu);
    initiator.modify(attributes, abi::IBV_QP_STATE | abi::IBV_QP_PATH_MTU, "connect")?;
    attributes.qp_state = abi::IBV_QPS_RTS;
    attributes.timeout = TIMEOUT;
    attributes.retry_cnt = RETRIES;
    attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
    attributes.max_rd_atomic = READS;
    let mask = abi::IBV_QP_STATE
        | abi::IBV_QP_SQ_PSN
        | abi::IBV_QP_TIMEOUT
        | abi::IBV_QP_RETRY_CNT
        | abi::IBV_QP_RNR_RETRY
        | abi::IBV_QP_MAX_QP_RD_ATOMIC;
    initiator.modify(attributes, mask, "enable")
}

fn enable_target(target: &Pair, place: Place, has_atomics: bool) -> Result<(), TransportError> {
    initialise(target, place.port, has_atomics)?;
    let mut attributes = blank();
    attributes.qp_state = abi::IBV_QPS_RTR;
    attributes.path_mtu = u32::from(place.mtu);
    attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
    // Of a target it is the own address, from which it answers.
    attributes.ah_attr = way(place.port, place.gid_index, (place.lid, place.gid));
    let mask =
        abi::IBV_QP_STATE | abi::IBV_QP_AV | abi::IBV_QP_PATH_MTU | abi::IBV_QP_MIN_RNR_TIMER;
    target.modify(attributes, mask, "connect")
}

fn random() -> Result<u64, TransportError> {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.map_err(|cause| TransportError::system("draw a random number", cause))?;
    Ok(u64::from_le_bytes(bytes))
}

impl fmt::Debug for Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dynamic({:?}, {:?})", self.initiator, self.address)
    }
}
