//! Requests that are built by calls, as those of initiators.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::super::abi;
use super::super::abi::mlx5::{Builders, ExtendedPair, Mlx5Pair};
use super::super::ledger::{ENTRY_BYTES, LENGTH};
use super::super::work::What;
use super::Network;
use super::posting::{inline, post};
use super::verbs::refuse;
use super::world::{Data, Kind, Part, Work};
use super::{Object, behind};

/// A queue pair, as all that a program can have of it.
#[repr(C)]
struct PairObject {
    object: Object<ExtendedPair>,
    mlx5: Mlx5Pair,
    built: RefCell<Vec<Work>>,
}

const CALLS: Builders = Builders {
    wr_atomic_cmp_swp: compare_and_swap,
    wr_atomic_fetch_add: fetch_add,
    _windows: [null(); 2],
    wr_rdma_read: read,
    wr_rdma_write: write,
    wr_rdma_write_imm: write_with_immediate,
    wr_send: send,
    _other_sends: [null(); 3],
    _other_addresses: [null(); 2],
    wr_set_inline_data: set_inline,
    _inline_list: null(),
    wr_set_sge: set_segment,
    _sge_list: null(),
    wr_start: start,
    wr_complete: complete,
};

/// Gives out a queue pair.
pub(super) fn give_pair(network: &Network, id: usize, number: u32) -> *mut abi::QueuePair {
    let qp_base = abi::QueuePair {
        context: null_mut(),
        qp_context: null_mut(),
        pd: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        handle: 0,
        qp_num: number,
    };
    let visible = ExtendedPair {
        qp_base,
        _rest_of_base: MaybeUninit::uninit(),
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        calls: CALLS,
    };
    let visible = MaybeUninit::new(visible);
    let object = Object { visible, network: network.clone(), id };
    let mlx5 = Mlx5Pair { comp_mask: 0, wr_set_dc_addr: set_target };
    Box::into_raw(Box::new(PairObject { object, mlx5, built: RefCell::default() })).cast()
}

pub(super) fn take_pair_back(pair: *mut abi::QueuePair) {
    // SAFETY: the library gave it out, and whoever gives it back does not use it any more.
    drop(unsafe { Box::from_raw(pair.cast::<PairObject>()) });
}

/// `ibv_qp_to_qp_ex`
pub(super) unsafe extern "C" fn extended(pair: *mut abi::QueuePair) -> *mut ExtendedPair {
    pair.cast()
}

/// `mlx5dv_qp_ex_from_ibv_qp_ex`
pub(super) unsafe extern "C" fn of_mlx5(pair: *mut ExtendedPair) -> *mut Mlx5Pair {
    let pair = pair.cast::<PairObject>();
    // SAFETY: the library gave it out.
    unsafe { &raw mut (*pair).mlx5 }
}

fn built<R>(pair: *mut ExtendedPair, change: impl FnOnce(&mut Vec<Work>) -> R) -> R {
    let pair = pair.cast::<PairObject>();
    // SAFETY: the library gave it out, and one thread at a time builds requests.
    let built = unsafe { &(*pair).built };
    change(&mut built.borrow_mut())
}

fn last(pair: *mut ExtendedPair, change: impl FnOnce(&mut Work)) {
    built(pair, |works| change(works.last_mut().expect("a request was begun")));
}

unsafe extern "C" fn start(pair: *mut ExtendedPair) {
    built(pair, Vec::clear);
}

fn begin(pair: *mut ExtendedPair, what: What, remote: (u32, u64)) {
    // SAFETY: the library gave it out, and its owner is in this call.
    let id = unsafe { (*pair).wr_id };
    // SAFETY: as above.
    let flags = unsafe { (*pair).wr_flags };
    let is_signalled = flags & abi::IBV_SEND_SIGNALED != 0;
    let data = Data::Nothing;
    let work = Work { number: 0, id, is_signalled, what, data, remote, target: None };
    built(pair, |works| works.push(work));
}

unsafe extern "C" fn send(pair: *mut ExtendedPair) {
    begin(pair, What::Send, (0, 0));
}

unsafe extern "C" fn write(pair: *mut ExtendedPair, key: u32, address: u64) {
    begin(pair, What::Write, (key, address));
}

unsafe extern "C" fn write_with_immediate(
    pair: *mut ExtendedPair,
    key: u32,
    address: u64,
    immediate: u32,
) {
    begin(pair, What::WriteWithImmediate(u32::from_be(immediate)), (key, address));
}

unsafe extern "C" fn read(pair: *mut ExtendedPair, key: u32, address: u64) {
    begin(pair, What::Read, (key, address));
}

unsafe extern "C" fn compare_and_swap(
    pair: *mut ExtendedPair,
    key: u32,
    address: u64,
    expected: u64,
    new: u64,
) {
    begin(pair, What::CompareAndSwap { expected, new }, (key, address));
}

unsafe extern "C" fn fetch_add(pair: *mut ExtendedPair, key: u32, address: u64, addend: u64) {
    begin(pair, What::FetchAdd { addend }, (key, address));
}

unsafe extern "C" fn set_inline(pair: *mut ExtendedPair, start: *mut c_void, bytes: usize) {
    let address = start.expose_provenance() as u64;
    let bytes = inline(Part { key: 0, address, bytes: bytes as u64 });
    last(pair, |work| work.data = Data::Inline(bytes));
}

unsafe extern "C" fn set_segment(pair: *mut ExtendedPair, key: u32, address: u64, bytes: u32) {
    let part = Part { key, address, bytes: u64::from(bytes) };
    last(pair, |work| work.data = if bytes > 0 { Data::Part(part) } else { Data::Nothing });
}

unsafe extern "C" fn set_target(
    pair: *mut Mlx5Pair,
    handle: *mut abi::AddressHandle,
    number: u32,
    key: u64,
) {
    let pair = pair.wrapping_byte_sub(std::mem::offset_of!(PairObject, mlx5)).cast();
    let (network, id) = behind(handle);
    let gid = network.world().handles[&id];
    last(pair, |work| work.target = Some((gid, number, key)));
}

/// An entry of a ledger says that its message is longer than any is.
fn forge(work: &mut Work) {
    if let (What::Write, Data::Inline(bytes)) = (work.what, &mut work.data)
        && bytes.len() == ENTRY_BYTES
    {
        bytes[LENGTH].fill(0xff);
    }
}

unsafe extern "C" fn complete(pair: *mut ExtendedPair) -> c_int {
    let (network, id) = behind(pair);
    let works = built(pair, std::mem::take);
    let mut world = network.world();
    let own = world.pair(id);
    let room = own.capacity as u64 - (own.posted - own.freed);
    if own.kind != Kind::Initiator || works.iter().any(|work| work.target.is_none()) {
        return refuse(libc::EINVAL);
    }
    // All of them or none.
    if works.len() as u64 > room {
        return refuse(libc::ENOMEM);
    }
    for mut work in works {
        if world.forges {
            forge(&mut work);
        }
        if let Err(reason) = post(&mut world, id, work) {
            return refuse(reason);
        }
    }
    world.progress(1);
    0
}
