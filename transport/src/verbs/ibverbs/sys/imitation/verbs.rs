//! The functions of libibverbs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::{null, null_mut};

use super::super::abi;
use super::super::abi::mlx5::ExtendedPair;
use super::super::library::Functions;
use super::super::work::What;
use super::calls;
use super::world::{
    Completions, Data, Events, Kind, Pair, Part, Receive, Receives, Region, Subject, Work, World,
    bell,
};
use super::{Network, behind, give, take_back};

pub(super) const FUNCTIONS: Functions = Functions {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_name: get_device_name,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_device: query_device,
    ibv_query_port: query_port,
    _ibv_query_gid_ex: query_gid,
    _ibv_query_gid_table: query_gid_table,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr_iova: reg_mr,
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_channel,
    ibv_destroy_comp_channel: destroy_channel,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_destroy_qp: destroy_qp,
    ibv_create_srq: create_srq,
    ibv_destroy_srq: destroy_srq,
    ibv_create_ah: create_ah,
    ibv_destroy_ah: destroy_ah,
    ibv_qp_to_qp_ex: calls::extended,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_event_type_str: event_name,
    ibv_wc_status_str: status_name,
};

/// Requests of all queue pairs that are executed when one of them is posted to, and when anybody polls.
const STEPS_PER_POST: usize = 1;
const STEPS_PER_POLL: usize = 3;
const INLINE_BYTES: u32 = 64;
/// 1024 bytes.
const MTU: c_uint = 3;
/// Row of the table of addresses that is in use.
const ROW: u32 = 3;

thread_local! {
    /// The network whose devices this thread lists next.
    static ANNOUNCED: RefCell<Option<Network>> = const { RefCell::new(None) };
}

pub(super) fn announce(network: &Network) {
    ANNOUNCED.set(Some(network.clone()));
}

/// Fails, as functions do that return a number.
pub(super) fn refuse(reason: c_int) -> c_int {
    reason
}

/// Fails, as functions do that return a pointer.
pub(super) fn none<T>(reason: c_int) -> *mut T {
    // SAFETY: it returns the address of a number of this thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = reason };
    null_mut()
}

fn behind_pair(pair: *mut abi::QueuePair) -> (Network, usize) {
    behind(pair.cast::<ExtendedPair>())
}

fn fail(reason: c_int) -> c_int {
    none::<c_void>(reason);
    -1
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let network = ANNOUNCED.take().expect("a network was announced");
    let devices = network.0.names.len();
    let list: Vec<_> =
        (0..devices).map(|index| give::<abi::Device>(None, &network, index)).collect();
    // SAFETY: the caller has room for a number there.
    unsafe { *count = c_int::try_from(devices).expect("few devices") };
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: a list is of one device at least.
    let first = unsafe { *list };
    let (network, _) = behind(first);
    let devices = network.0.names.len();
    let list = std::ptr::slice_from_raw_parts_mut(list, devices);
    // SAFETY: it was leaked when it was made.
    for device in unsafe { Box::from_raw(list) } {
        take_back(device);
    }
}

unsafe extern "C" fn get_device_name(device: *mut abi::Device) -> *const c_char {
    let (network, index) = behind(device);
    // The names live as long as the network, of which the device has a share.
    network.0.names[index].as_ptr()
}

unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    let (network, index) = behind(device);
    let events = Events { device: index, bell: bell(), waiting: VecDeque::new() };
    let ops = abi::ContextOps {
        _before_poll: [null(); 11],
        poll_cq,
        req_notify_cq,
        _before_shared: [null(); 7],
        post_srq_recv,
        _before_post: [null(); 4],
        post_send,
        post_recv,
        _after: [null(); 5],
    };
    let async_fd = events.bell.as_raw_fd();
    let mut world = network.world();
    let id = world.number();
    world.contexts.insert(id, events);
    drop(world);
    // Asked about by libmlx5 only.
    let device = null_mut();
    give(Some(abi::Context { device, ops, cmd_fd: -1, async_fd }), &network, id)
}

unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    let (network, id) = behind(context);
    network.world().contexts.remove(&id);
    take_back(context);
    0
}

unsafe extern "C" fn query_device(
    _: *mut abi::Context,
    attributes: *mut abi::DeviceAttributes,
) -> c_int {
    // SAFETY: the caller has room for them there, and has filled it with zeros.
    let attributes = unsafe { &mut *attributes };
    attributes.max_qp_wr = 1 << 14;
    attributes.max_cqe = 1 << 16;
    attributes.max_qp_rd_atom = 16;
    attributes.max_qp_init_rd_atom = 16;
    attributes.atomic_cap = 1;
    attributes.phys_port_cnt = 1;
    0
}

/// The device of a context.
pub(super) fn device_of(world: &World, context: usize) -> usize {
    world.contexts[&context].device
}

unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    _: u8,
    attributes: *mut abi::PortAttributes,
) -> c_int {
    let (network, id) = behind(context);
    let world = network.world();
    let port = &world.ports[device_of(&world, id)];
    // SAFETY: the caller has room for them there, and has filled it with zeros.
    let attributes = unsafe { &mut *attributes };
    attributes.state = if port.is_up { abi::IBV_PORT_ACTIVE } else { 1 };
    attributes.active_mtu = MTU;
    attributes.gid_tbl_len = 8;
    attributes.link_layer = 2;
    0
}

fn row(network: &Network, context: usize) -> abi::GidEntry {
    let world = network.world();
    let gid = abi::Gid { raw: world.ports[device_of(&world, context)].gid };
    let gid_type = abi::IBV_GID_TYPE_ROCE_V2;
    abi::GidEntry { gid, gid_index: ROW, port_num: 1, gid_type, ndev_ifindex: 0 }
}

unsafe extern "C" fn query_gid(
    context: *mut abi::Context,
    _: u32,
    index: u32,
    entry: *mut abi::GidEntry,
    _: u32,
    _: usize,
) -> c_int {
    let (network, id) = behind(context);
    if index != ROW {
        return refuse(libc::ENODATA);
    }
    // SAFETY: the caller has room for a row there.
    unsafe { *entry = row(&network, id) };
    0
}

unsafe extern "C" fn query_gid_table(
    context: *mut abi::Context,
    entries: *mut abi::GidEntry,
    _: usize,
    _: u32,
    _: usize,
) -> isize {
    let (network, id) = behind(context);
    // SAFETY: the caller has room for some rows there.
    unsafe { *entries = row(&network, id) };
    1
}

unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::ProtectionDomain {
    let (network, id) = behind(context);
    let mut world = network.world();
    let number = world.number();
    let device = device_of(&world, id);
    world.domains.insert(number, (id, device));
    drop(world);
    give(None, &network, number)
}

unsafe extern "C" fn dealloc_pd(domain: *mut abi::ProtectionDomain) -> c_int {
    let (network, id) = behind(domain);
    network.world().domains.remove(&id);
    take_back(domain);
    0
}

unsafe extern "C" fn reg_mr(
    domain: *mut abi::ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    address: u64,
    access: c_int,
) -> *mut abi::MemoryRegion {
    let (network, id) = behind(domain);
    let mut world = network.world();
    let key = u32::try_from(world.number()).expect("few numbers");
    let start = addr.expose_provenance();
    let access = access.cast_unsigned();
    let region = Region { domain: id, start, bytes: length as u64, address, access };
    world.regions.insert(key, region);
    drop(world);
    let (context, handle) = (null_mut(), key);
    let (lkey, rkey) = (key, key);
    let region = abi::MemoryRegion { context, pd: domain, addr, length, handle, lkey, rkey };
    give(Some(region), &network, key as usize)
}

unsafe extern "C" fn dereg_mr(region: *mut abi::MemoryRegion) -> c_int {
    let (network, id) = behind(region);
    network.world().regions.remove(&u32::try_from(id).expect("a key"));
    take_back(region);
    0
}

unsafe extern "C" fn create_channel(context: *mut abi::Context) -> *mut abi::CompletionChannel {
    let (network, _) = behind(context);
    let bell = bell();
    let fd = bell.as_raw_fd();
    let mut world = network.world();
    let id = world.number();
    world.channels.insert(id, bell);
    drop(world);
    give(Some(abi::CompletionChannel { context, fd, refcnt: 0 }), &network, id)
}

unsafe extern "C" fn destroy_channel(channel: *mut abi::CompletionChannel) -> c_int {
    let (network, id) = behind(channel);
    network.world().channels.remove(&id);
    take_back(channel);
    0
}

unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut abi::CompletionChannel,
    _: c_int,
) -> *mut abi::CompletionQueue {
    let (network, _) = behind(context);
    let mut world = network.world();
    let bell: Option<OwnedFd> = (!channel.is_null()).then(|| {
        let bell = &world.channels[&behind(channel).1];
        bell.try_clone().expect("a descriptor more")
    });
    let capacity = usize::try_from(entries).expect("a number of entries");
    let id = world.number();
    let queue = Completions { capacity, bell, is_armed: false, entries: VecDeque::new() };
    world.queues.insert(id, queue);
    drop(world);
    give(None, &network, id)
}

unsafe extern "C" fn destroy_cq(queue: *mut abi::CompletionQueue) -> c_int {
    let (network, id) = behind(queue);
    let mut world = network.world();
    if world.pairs.values().any(|pair| pair.sent == id || pair.received == id) {
        return refuse(libc::EBUSY);
    }
    world.queues.remove(&id);
    drop(world);
    take_back(queue);
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompletionChannel,
    _: *mut *mut abi::CompletionQueue,
    _: *mut *mut c_void,
) -> c_int {
    let (network, id) = behind(channel);
    let world = network.world();
    match rustix::io::read(&world.channels[&id], &mut [0; 8]) {
        Ok(_) => 0,
        Err(reason) => fail(reason.raw_os_error()),
    }
}

unsafe extern "C" fn ack_cq_events(_: *mut abi::CompletionQueue, _: c_uint) {}

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

unsafe extern "C" fn create_qp(
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
        scatters: behind(domain).0.0.is_mlx5,
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

unsafe extern "C" fn modify_qp(
    pointer: *mut abi::QueuePair,
    attributes: *mut abi::Attributes,
    mask: c_int,
) -> c_int {
    let (network, id) = behind_pair(pointer);
    // SAFETY: the caller has filled in what the mask names.
    let attributes = unsafe { *attributes };
    let mut world = network.world();
    let target_number = world.target_number();
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

unsafe extern "C" fn destroy_qp(pointer: *mut abi::QueuePair) -> c_int {
    let (network, id) = behind_pair(pointer);
    network.world().remove(id);
    calls::take_pair_back(pointer);
    0
}

unsafe extern "C" fn create_srq(
    domain: *mut abi::ProtectionDomain,
    attributes: *mut abi::SharedQueueAttributes,
) -> *mut abi::SharedQueue {
    let (network, _) = behind(domain);
    // SAFETY: the caller has filled them in.
    let capacity = unsafe { (*attributes).max_wr } as usize;
    let mut world = network.world();
    let id = world.number();
    world.receives.insert(id, Receives { capacity, used: 0, waiting: VecDeque::new() });
    drop(world);
    give(None, &network, id)
}

unsafe extern "C" fn destroy_srq(shared: *mut abi::SharedQueue) -> c_int {
    let (network, id) = behind(shared);
    let mut world = network.world();
    if world.pairs.values().any(|pair| pair.receives == id) {
        return refuse(libc::EBUSY);
    }
    world.receives.remove(&id);
    drop(world);
    take_back(shared);
    0
}

unsafe extern "C" fn create_ah(
    domain: *mut abi::ProtectionDomain,
    attributes: *mut abi::AddressAttributes,
) -> *mut abi::AddressHandle {
    let (network, _) = behind(domain);
    // SAFETY: the caller has filled them in.
    let attributes = unsafe { *attributes };
    if attributes.port_num != 1 || attributes.is_global != 1 {
        return none(libc::EINVAL);
    }
    let mut world = network.world();
    let id = world.number();
    world.handles.insert(id, attributes.grh.dgid.raw);
    drop(world);
    give(None, &network, id)
}

unsafe extern "C" fn destroy_ah(handle: *mut abi::AddressHandle) -> c_int {
    let (network, id) = behind(handle);
    network.world().handles.remove(&id);
    take_back(handle);
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    let (network, id) = behind(context);
    let mut world = network.world();
    let events = world.contexts.get_mut(&id).expect("an open device");
    if let Err(reason) = rustix::io::read(&events.bell, &mut [0; 8]) {
        return fail(reason.raw_os_error());
    }
    let Some((subject, event_type)) = events.waiting.pop_front() else { return fail(libc::EAGAIN) };
    let element = match subject {
        Subject::Port => abi::Element { port_num: 1 },
        Subject::Pair(address) => {
            // One that is gone is none any more.
            if !world.pairs.values().any(|pair| pair.address == address) {
                return fail(libc::EAGAIN);
            }
            abi::Element { qp: std::ptr::with_exposed_provenance_mut(address) }
        }
    };
    // SAFETY: the caller has room for an event there.
    unsafe { *event = abi::AsyncEvent { element, event_type } };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut abi::AsyncEvent) {}

unsafe extern "C" fn event_name(_: c_uint) -> *const c_char {
    c"an event of the imitation".as_ptr()
}

unsafe extern "C" fn status_name(status: c_uint) -> *const c_char {
    let text = match status {
        abi::IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        _ => c"a status of the imitation",
    };
    text.as_ptr()
}

unsafe extern "C" fn poll_cq(
    queue: *mut abi::CompletionQueue,
    count: c_int,
    into: *mut abi::Completion,
) -> c_int {
    let (network, id) = behind(queue);
    let mut world = network.world();
    world.progress(STEPS_PER_POLL);
    let found = world.poll(id, usize::try_from(count).expect("a number of entries"));
    for (index, completion) in found.iter().enumerate() {
        let place = into.wrapping_add(index);
        // SAFETY: the caller has room for so many.
        unsafe { *place = *completion };
    }
    c_int::try_from(found.len()).expect("not more than were asked for")
}

unsafe extern "C" fn req_notify_cq(queue: *mut abi::CompletionQueue, _: c_int) -> c_int {
    let (network, id) = behind(queue);
    network.world().queues.get_mut(&id).expect("a queue that exists").is_armed = true;
    0
}

unsafe extern "C" fn post_send(
    pair: *mut abi::QueuePair,
    first: *mut abi::SendRequest,
    refused: *mut *mut abi::SendRequest,
) -> c_int {
    let (network, id) = behind_pair(pair);
    let mut world = network.world();
    if world.pair(id).kind != Kind::Reliable {
        return refuse(libc::EINVAL);
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller has made a list of requests that are valid for the call.
        let request = unsafe { &*next };
        let posted = post(&mut world, id, work_of(request));
        if let Err(reason) = posted {
            // SAFETY: the caller has room for a pointer there.
            unsafe { *refused = next };
            return refuse(reason);
        }
        next = request.next;
    }
    world.progress(STEPS_PER_POST);
    0
}

fn work_of(request: &abi::SendRequest) -> Work {
    // SAFETY: requests of every kind have a place there, and every bit pattern is one.
    let atomic = unsafe { request.wr.atomic };
    // SAFETY: as above.
    let rdma = unsafe { request.wr.rdma };
    let place = (rdma.rkey, rdma.remote_addr);
    let word = (atomic.rkey, atomic.remote_addr);
    let (what, remote) = match request.opcode {
        abi::IBV_WR_SEND => (What::Send, (0, 0)),
        abi::IBV_WR_RDMA_WRITE => (What::Write, place),
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => {
            (What::WriteWithImmediate(u32::from_be(request.imm_data)), place)
        }
        abi::IBV_WR_RDMA_READ => (What::Read, place),
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (expected, new) = (atomic.compare_add, atomic.swap);
            (What::CompareAndSwap { expected, new }, word)
        }
        _ => (What::FetchAdd { addend: atomic.compare_add }, word),
    };
    // SAFETY: a request has one segment, or none.
    let data = unsafe { data(request.sg_list, request.num_sge) };
    let data = match data {
        Some(part) if request.send_flags & abi::IBV_SEND_INLINE != 0 => Data::Inline(inline(part)),
        Some(part) => Data::Part(part),
        None => Data::Nothing,
    };
    let is_signalled = request.send_flags & abi::IBV_SEND_SIGNALED != 0;
    Work { number: 0, id: request.wr_id, is_signalled, what, data, remote, target: None }
}

/// The only segment of a list.
///
/// # Safety
/// It has as many as it says.
unsafe fn data(list: *mut abi::ScatterGather, count: c_int) -> Option<Part> {
    (count > 0).then(|| {
        // SAFETY: the caller says that there is one.
        let segment = unsafe { &*list };
        Part { key: segment.lkey, address: segment.addr, bytes: u64::from(segment.length) }
    })
}

/// What is inline is taken from this process.
pub(super) fn inline(part: Part) -> Vec<u8> {
    let start = std::ptr::with_exposed_provenance::<u8>(
        usize::try_from(part.address).expect("an address of this process"),
    );
    let bytes = usize::try_from(part.bytes).expect("64 bits");
    // SAFETY: whoever posts it says that these bytes are there.
    unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec()
}

/// Queues a request where there is room.
pub(super) fn post(world: &mut World, id: usize, work: Work) -> Result<(), c_int> {
    let pair = world.pair(id);
    let used = usize::try_from(pair.posted - pair.freed).expect("few");
    let is_error = pair.state == abi::IBV_QPS_ERR;
    if pair.state != abi::IBV_QPS_RTS && !is_error {
        return Err(libc::EINVAL);
    }
    if used >= pair.capacity {
        return Err(libc::ENOMEM);
    }
    if matches!(&work.data, Data::Inline(bytes) if bytes.len() > pair.inline_bytes) {
        return Err(libc::EINVAL);
    }
    pair.works.push_back(Work { number: pair.posted, ..work });
    pair.posted += 1;
    if is_error {
        world.break_down(id);
    }
    Ok(())
}

unsafe extern "C" fn post_recv(
    pair: *mut abi::QueuePair,
    request: *mut abi::ReceiveRequest,
    _: *mut *mut abi::ReceiveRequest,
) -> c_int {
    let (network, id) = behind_pair(pair);
    let mut world = network.world();
    let (state, receives) = (world.pair(id).state, world.pair(id).receives);
    if state == abi::IBV_QPS_RESET {
        return refuse(libc::EINVAL);
    }
    // SAFETY: the caller has made it, for the call.
    let result = unsafe { receive(&mut world, receives, request) };
    if state == abi::IBV_QPS_ERR {
        world.break_down(id);
    }
    result
}

unsafe extern "C" fn post_srq_recv(
    shared: *mut abi::SharedQueue,
    request: *mut abi::ReceiveRequest,
    _: *mut *mut abi::ReceiveRequest,
) -> c_int {
    let (network, id) = behind(shared);
    // SAFETY: the caller has made it, for the call.
    unsafe { receive(&mut network.world(), id, request) }
}

/// # Safety
/// The request is valid.
unsafe fn receive(world: &mut World, id: usize, request: *mut abi::ReceiveRequest) -> c_int {
    // SAFETY: the caller says that it is valid.
    let request = unsafe { &*request };
    let receives = world.receives.get_mut(&id).expect("a queue that exists");
    if receives.used >= receives.capacity {
        return refuse(libc::ENOMEM);
    }
    receives.used += 1;
    // SAFETY: a request has one segment, or none.
    let target = unsafe { data(request.sg_list, request.num_sge) };
    receives.waiting.push_back(Receive { id: request.wr_id, target });
    0
}
