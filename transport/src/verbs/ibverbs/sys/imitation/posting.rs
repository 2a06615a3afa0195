//! How requests and receives are posted.

use std::ffi::c_int;

use super::super::abi;
use super::super::work::What;
use super::behind;
use super::pairs::behind_pair;
use super::ports::LONGEST;
use super::verbs::refuse;
use super::world::{Data, Kind, Part, Receive, Work, World};

/// Requests of all queue pairs that are executed when one of them is posted to.
const STEPS_PER_POST: usize = 1;

pub(super) unsafe extern "C" fn post_send(
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

pub(super) unsafe extern "C" fn post_recv(
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

pub(super) unsafe extern "C" fn post_srq_recv(
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
    // SAFETY: a request has one segment, or none.
    let target = unsafe { data(request.sg_list, request.num_sge) };
    if target.is_some_and(|part| part.bytes > u64::from(LONGEST)) {
        return refuse(libc::EINVAL);
    }
    receives.used += 1;
    receives.waiting.push_back(Receive { id: request.wr_id, target });
    0
}
