//! How the rails of a communicator are, and which ranks it has lost.

use std::ffi::{c_char, c_int};

use ccl::{Error, RailHealth};

use super::inquiry::copy_text;
use crate::abi::{CommHandle, EVIDENCE_BYTES, NO_FAULT, RailHealthRecord};
use crate::arguments::null;
use crate::outcome::{Outcome, Status, entry_on};

/// See the header.
///
/// # Safety
///
/// `capacity` records of `record_size` bytes may be written at `rails`; `count` is null or may be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_get_health(
    comm: CommHandle,
    rails: *mut RailHealthRecord,
    record_size: usize,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    entry_on("ccl_comm_get_health", comm, |member| {
        let health = member.ready()?.health();
        if capacity > 0 && record_size < RECORD_BYTES {
            let text = format!(
                "record_size is {record_size}, a ccl_rail_health_t has {RECORD_BYTES} bytes: compile \
                 the program with the header of this library"
            );
            return Err(Error::InvalidArgument(text));
        }
        let records = health.iter().map(record);
        // SAFETY: a record is not larger than its place; else the caller's promise.
        unsafe { hand_out("rails", records, (rails, record_size), capacity, count) }
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` numbers may be written at `ranks`; `count` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_get_lost_ranks(
    comm: CommHandle,
    ranks: *mut c_int,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    entry_on("ccl_comm_get_lost_ranks", comm, |member| {
        let lost = member.communicator()?.lost_ranks();
        let numbers = lost.iter().map(|rank| rank.0.cast_signed());
        // SAFETY: the caller's promise.
        unsafe { hand_out("ranks", numbers, (ranks, size_of::<c_int>()), capacity, count) }
    })
}

/// Writes the first `capacity` values, so many bytes apart, and how many there are.
///
/// # Safety
///
/// `capacity` values may be written there, unless the pointer is null; `count` is null or may be written to.
unsafe fn hand_out<T>(
    what: &str,
    values: impl ExactSizeIterator<Item = T>,
    (start, bytes_apart): (*mut T, usize),
    capacity: usize,
    count: *mut usize,
) -> Outcome {
    if !count.is_null() {
        // SAFETY: not null, and the caller's promise.
        unsafe { count.write(values.len()) };
    }
    if start.is_null() && capacity > 0 {
        return Err(null(what));
    }
    for (index, value) in values.enumerate().take(capacity) {
        let place = start.wrapping_byte_add(index * bytes_apart);
        // SAFETY: not null, the index is below the capacity, and the caller's promise. A later header may have a record
        // whose size is no multiple of our alignment.
        unsafe { place.write_unaligned(value) };
    }
    Ok(Status::Done)
}

const RECORD_BYTES: usize = size_of::<RailHealthRecord>();

fn record(health: &RailHealth) -> RailHealthRecord {
    let RailHealth { rank, rail, state, bytes_per_second, verdict, counters, last_fault, .. } =
        health;
    let mut evidence: [c_char; EVIDENCE_BYTES] = [0; EVIDENCE_BYTES];
    // SAFETY: the array has as many bytes as are said to be there.
    unsafe { copy_text(&health.evidence, evidence.as_mut_ptr(), EVIDENCE_BYTES) };
    RailHealthRecord {
        rank: rank.0.cast_signed(),
        rail: c_int::from(rail.0),
        state: *state as c_int,
        verdict: *verdict as c_int,
        bytes_per_second: *bytes_per_second,
        faults: counters.faults,
        returns: counters.returns,
        tiles: counters.tiles,
        bytes: counters.bytes,
        resent_tiles: counters.resent_tiles,
        resent_bytes: counters.resent_bytes,
        last_fault_ns: last_fault.map_or(NO_FAULT, |at| at.0),
        evidence,
    }
}
