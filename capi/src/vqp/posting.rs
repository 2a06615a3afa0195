//! What is posted on queue pairs.

use std::ffi::c_int;

use ccl::vqp::{
    Error, MAX_DEPTH, Operation, ReceiveRequest, RemoteAddress, RemoteKey, WorkId, WorkRequest,
};

use super::abi::{PairHandle, RegionHandle, RequestRecord};
use super::domains::REGIONS;
use super::pairs::PAIRS;
use super::{check_size, entry, invalid};
use crate::arguments::null;
use crate::handles::locked;
use crate::outcome::Status;

/// Bytes of the word of an atomic.
const WORD_BYTES: usize = 8;

/// See the header.
///
/// # Safety
///
/// `request` is null or a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_post_send(
    vqp: PairHandle,
    request: *const RequestRecord,
) -> c_int {
    entry("ccl_vqp_post_send", || {
        let pair = PAIRS.get(vqp.addr())?;
        if request.is_null() {
            return Err(null("request").into());
        }
        // SAFETY: not null, and the caller's promise.
        let request = work(&unsafe { request.read() })?;
        posted(locked(&pair).pair.post_send(request))
    })
}

/// See the header.
///
/// # Safety
///
/// `count` records of `record_size` bytes can be read at `requests`; `accepted` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_post_send_list(
    vqp: PairHandle,
    requests: *const RequestRecord,
    record_size: usize,
    count: usize,
    accepted: *mut usize,
) -> c_int {
    entry("ccl_vqp_post_send_list", || {
        let tell = |number: usize| {
            if !accepted.is_null() {
                // SAFETY: not null, and the caller's promise.
                unsafe { accepted.write(number) };
            }
        };
        tell(0);
        check_size::<RequestRecord>("ccl_vqp_request_t", record_size)?;
        let pair = PAIRS.get(vqp.addr())?;
        if requests.is_null() && count > 0 {
            return Err(null("requests").into());
        }
        let record = |index: usize| {
            let place = requests.wrapping_byte_add(index * record_size);
            // SAFETY: the caller's promise; a later header may have a record whose size is no multiple of our
            // alignment.
            unsafe { place.read_unaligned() }
        };
        let mut list = Vec::with_capacity(count.min(MAX_DEPTH));
        let sound = (0..count).try_for_each(|index| work(&record(index)).map(|one| list.push(one)));
        let outcome = match locked(&pair).pair.post_send_list(&list) {
            Ok(()) => sound.map_err(|flaw| (list.len(), flaw)),
            Err(refused) => Err(refused),
        };
        tell(outcome.as_ref().map_or_else(|(number, _)| *number, |()| count));
        posted(outcome.map_err(|(_, cause)| cause))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_post_receive(
    vqp: PairHandle,
    id: u64,
    region: RegionHandle,
    offset: usize,
    bytes: usize,
) -> c_int {
    entry("ccl_vqp_post_receive", || {
        let pair = PAIRS.get(vqp.addr())?;
        let target = match region.is_null() {
            true => None,
            false => Some(REGIONS.get(region.addr())?.segment(offset, bytes)?),
        };
        posted(locked(&pair).pair.post_receive(ReceiveRequest { id: WorkId(id), target }))
    })
}

/// Back-pressure is no failure.
fn posted(outcome: Result<(), Error>) -> Result<Status, Error> {
    match outcome {
        Ok(()) => Ok(Status::Done),
        Err(Error::QueueFull) => Ok(Status::InProgress),
        Err(error) => Err(error),
    }
}

/// The request that a record stands for.
fn work(record: &RequestRecord) -> Result<WorkRequest, Error> {
    let (id, signalled) = (WorkId(record.id), record.signalled != 0);
    Ok(WorkRequest { id, operation: operation(record)?, signalled })
}

/// The operation that a request stands for.
fn operation(record: &RequestRecord) -> Result<Operation, Error> {
    let region = REGIONS.get(record.region.addr())?;
    let own = region.segment(record.offset, record.bytes)?;
    let word = region.segment(record.offset, WORD_BYTES)?;
    let key = RemoteKey(record.remote_key);
    let theirs = RemoteAddress { key, address: record.remote_address };
    let RequestRecord { immediate, expected, operand, .. } = *record;
    Ok(match record.operation {
        0 => Operation::Send { source: own },
        1 => Operation::Write { source: own, target: theirs },
        2 => Operation::WriteWithImmediate { source: own, target: theirs, immediate },
        3 => Operation::Read { target: own, source: theirs },
        4 => Operation::CompareAndSwap { result: word, target: theirs, expected, new: operand },
        5 => Operation::FetchAdd { result: word, target: theirs, addend: operand },
        other => return Err(invalid(format!("{other} is not a ccl_vqp_operation_t"))),
    })
}
