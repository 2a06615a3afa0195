//! How the rails of a communicator are, and which ranks it has lost.

use std::ffi::{c_char, c_int};

use ccl::{Error, RailHealth};

use super::inquiry::copy_text;
use crate::abi::{CommHandle, EVIDENCE_BYTES, NO_FAULT, RailHealthRecord};
use crate::arguments::null;
use crate::outcome::{Status, entry_on};

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
        if !count.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { count.write(health.len()) };
        }
        if rails.is_null() && capacity > 0 {
            return Err(null("rails"));
        }
        if capacity > 0 && record_size < RECORD_BYTES {
            let text = format!(
                "record_size is {record_size}, a ccl_rail_health_t has {RECORD_BYTES} bytes: compile \
                 the program with the header of this library"
            );
            return Err(Error::InvalidArgument(text));
        }
        for (index, health) in health.iter().enumerate().take(capacity) {
            let place = rails.wrapping_byte_add(index * record_size);
            // SAFETY: the index is below the capacity, and the record fits into its place. A later
            // header may have a record whose size is no multiple of our alignment.
            unsafe { place.write_unaligned(record(health)) };
        }
        Ok(Status::Done)
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
        if !count.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { count.write(lost.len()) };
        }
        if ranks.is_null() && capacity > 0 {
            return Err(null("ranks"));
        }
        for (index, rank) in lost.iter().enumerate().take(capacity) {
            let place = ranks.wrapping_add(index);
            // SAFETY: not null, the index is below the capacity, and the caller's promise.
            unsafe { place.write(rank.0.cast_signed()) };
        }
        Ok(Status::Done)
    })
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
