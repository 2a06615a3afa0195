//! The functions of libibverbs, but for those of queue pairs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::super::abi;
use super::super::library::Functions;
use super::bell::Bell;
use super::world::{Channel, Completions, Events, Receives, Region, Subject, World};
use super::{Network, behind, calls, give, pairs, ports, posting, take_back};

pub(super) const FUNCTIONS: Functions = Functions {
    ibv_fork_init: fork_init,
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_name: get_device_name,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_device: ports::query_device,
    ibv_query_port: ports::query_port,
    _ibv_query_gid_ex: ports::query_gid,
    _ibv_query_gid_table: ports::query_gid_table,
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
    ibv_create_qp: pairs::create_qp,
    ibv_modify_qp: pairs::modify_qp,
    ibv_destroy_qp: pairs::destroy_qp,
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

/// Requests of all queue pairs that are executed when anybody polls.
const STEPS_PER_POLL: usize = 3;

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

fn fail(reason: c_int) -> c_int {
    none::<c_void>(reason);
    -1
}

unsafe extern "C" fn fork_init() -> c_int {
    ANNOUNCED.with_borrow(|network| {
        network.as_ref().expect("a network was announced").world().may_fork = true;
    });
    0
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
    let events = Events { device: index, bell: Bell::new(), waiting: VecDeque::new() };
    let ops = abi::ContextOps {
        _before_poll: [null(); 11],
        poll_cq,
        req_notify_cq,
        _before_shared: [null(); 7],
        post_srq_recv: posting::post_srq_recv,
        _before_post: [null(); 4],
        post_send: posting::post_send,
        post_recv: posting::post_recv,
        _after: [null(); 5],
    };
    let async_fd = events.bell.descriptor();
    let mut world = network.world();
    if world.refusal(index).is_some() {
        return none(libc::ENODEV);
    }
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

/// The device of a context.
pub(super) fn device_of(world: &World, context: usize) -> usize {
    world.contexts[&context].device
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
    let mut world = network.world();
    let (_, device) = world.domains[&id];
    if let Some(reason) = world.refusal(device) {
        return refuse(reason);
    }
    world.domains.remove(&id);
    drop(world);
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
    assert!(world.may_fork, "a fork would spoil this memory");
    let (_, device) = world.domains[&id];
    if let Some(reason) = world.refusal(device) {
        return none(reason);
    }
    let start = addr.expose_provenance();
    let page = rustix::param::page_size();
    if start % page != usize::try_from(address).expect("64 bits") % page {
        return none(libc::EINVAL);
    }
    let key = u32::try_from(world.number()).expect("few numbers");
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
    let mut world = network.world();
    let key = u32::try_from(id).expect("a key");
    let (_, device) = world.domains[&world.regions[&key].domain];
    if let Some(reason) = world.refusal(device) {
        return refuse(reason);
    }
    world.regions.remove(&key);
    drop(world);
    take_back(region);
    0
}

unsafe extern "C" fn create_channel(context: *mut abi::Context) -> *mut abi::CompletionChannel {
    let (network, context_id) = behind(context);
    let mut world = network.world();
    let device = device_of(&world, context_id);
    if let Some(reason) = world.refusal(device) {
        return none(reason);
    }
    let bell = Arc::new(Bell::new());
    let (id, fd) = (world.number(), bell.descriptor());
    world.channels.insert(id, Channel { device, bell });
    drop(world);
    give(Some(abi::CompletionChannel { context, fd, refcnt: 0 }), &network, id)
}

unsafe extern "C" fn destroy_channel(channel: *mut abi::CompletionChannel) -> c_int {
    let (network, id) = behind(channel);
    let mut world = network.world();
    // Its completion queue has not been taken back.
    if world.refusal(world.channels[&id].device).is_some() {
        return refuse(libc::EBUSY);
    }
    world.channels.remove(&id);
    drop(world);
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
    let (network, context) = behind(context);
    let mut world = network.world();
    let device = device_of(&world, context);
    let bell = (!channel.is_null()).then(|| Arc::clone(&world.channels[&behind(channel).1].bell));
    let capacity = usize::try_from(entries).expect("a number of entries");
    let id = world.number();
    let entries = VecDeque::new();
    let queue = Completions { device, capacity, bell, is_armed: false, entries };
    world.queues.insert(id, queue);
    drop(world);
    give(None, &network, id)
}

unsafe extern "C" fn destroy_cq(queue: *mut abi::CompletionQueue) -> c_int {
    let (network, id) = behind(queue);
    let mut world = network.world();
    if let Some(reason) = world.refusal(world.queues[&id].device) {
        return refuse(reason);
    }
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
    match world.channels[&id].bell.hear() {
        Ok(()) => 0,
        Err(reason) => fail(reason),
    }
}

unsafe extern "C" fn ack_cq_events(_: *mut abi::CompletionQueue, _: c_uint) {}

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
    if let Err(reason) = events.bell.hear() {
        return fail(reason);
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
