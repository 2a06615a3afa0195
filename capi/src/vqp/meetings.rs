//! Where two processes meet.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};

use ccl::vqp::{Listener, Meeting};

use super::abi::{ListenerHandle, MeetingHandle, RegionHandle, RemoteRecord};
use super::domains::REGIONS;
use super::{entry, key, needed_text, tell, timeout};
use crate::arguments::{Slot, null};
use crate::handles::{Table, locked};
use crate::outcome::Status;

static LISTENERS: Table<Listener> = Table::new("listener");
/// The meetings of C programs.
pub(super) static MEETINGS: Table<Mutex<Meeting>> = Table::new("meeting");

/// See the header.
///
/// # Safety
///
/// `listener` is null or may be written to; the texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_listen(
    listener: *mut ListenerHandle,
    address: *const c_char,
    phrase: *const c_char,
) -> c_int {
    entry("ccl_vqp_listen", || {
        // SAFETY: the caller's promise.
        let listener = unsafe { Slot::at("listener", listener) }?;
        listener.put(null_mut());
        ccl::log::to_standard_error()?;
        // SAFETY: the caller's promise.
        let address = unsafe { needed_text("address", address) }?;
        // SAFETY: the caller's promise.
        let bound = Listener::bind(&address, unsafe { key(phrase) }?)?;
        listener.put(without_provenance_mut(LISTENERS.insert(Arc::new(bound))));
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` bytes may be written at `text`; `needed` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_address(
    listener: ListenerHandle,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    entry("ccl_vqp_get_address", || {
        let address = LISTENERS.get(listener.addr())?.address()?.to_string();
        // SAFETY: the caller's promise.
        unsafe { tell(&address, text, capacity, needed) }
    })
}

/// See the header.
///
/// # Safety
///
/// `meeting` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_accept(
    listener: ListenerHandle,
    meeting: *mut MeetingHandle,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_accept", || {
        // SAFETY: the caller's promise.
        let meeting = unsafe { Slot::at("meeting", meeting) }?;
        meeting.put(null_mut());
        let met = LISTENERS.get(listener.addr())?.accept(timeout(timeout_ms)?)?;
        meeting.put(without_provenance_mut(MEETINGS.insert(Arc::new(Mutex::new(met)))));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_listener_close(listener: ListenerHandle) -> c_int {
    entry("ccl_vqp_listener_close", || {
        if !listener.is_null() {
            LISTENERS.remove(listener.addr())?;
        }
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `meeting` is null or may be written to; the texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_meet(
    meeting: *mut MeetingHandle,
    address: *const c_char,
    phrase: *const c_char,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_meet", || {
        // SAFETY: the caller's promise.
        let meeting = unsafe { Slot::at("meeting", meeting) }?;
        meeting.put(null_mut());
        ccl::log::to_standard_error()?;
        // SAFETY: the caller's promise.
        let address = unsafe { needed_text("address", address) }?;
        // SAFETY: the caller's promise.
        let met = Meeting::connect(&address, &unsafe { key(phrase) }?, timeout(timeout_ms)?)?;
        meeting.put(without_provenance_mut(MEETINGS.insert(Arc::new(Mutex::new(met)))));
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `bytes` bytes may be read at `message`, and `capacity` bytes written at `answer`; `answer_bytes` is
/// null or may be written to.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
pub unsafe extern "C" fn ccl_vqp_exchange(
    meeting: MeetingHandle,
    message: *const c_void,
    bytes: usize,
    answer: *mut c_void,
    capacity: usize,
    answer_bytes: *mut usize,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_exchange", || {
        let known = MEETINGS.get(meeting.addr())?;
        if (message.is_null() && bytes > 0) || (answer.is_null() && capacity > 0) {
            return Err(null("message or answer").into());
        }
        let said = match bytes {
            0 => &[][..],
            // SAFETY: not null, and the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(message.cast::<u8>(), bytes) },
        };
        let heard = locked(&known).exchange(said, timeout(timeout_ms)?)?;
        if !answer_bytes.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { answer_bytes.write(heard.len()) };
        }
        let fitting = heard.len().min(capacity);
        if fitting > 0 {
            // SAFETY: not null as `capacity` is not 0, the caller's promise, and other memory.
            unsafe { answer.cast::<u8>().copy_from_nonoverlapping(heard.as_ptr(), fitting) };
        }
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `remote` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_exchange_region(
    meeting: MeetingHandle,
    region: RegionHandle,
    remote: *mut RemoteRecord,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_exchange_region", || {
        // SAFETY: the caller's promise.
        let remote = unsafe { Slot::at("remote", remote) }?;
        let (known, region) = (MEETINGS.get(meeting.addr())?, REGIONS.get(region.addr())?);
        let limit = timeout(timeout_ms)?;
        let theirs = region.with(|region| locked(&known).exchange_regions(region, limit))??;
        let (address, key) = (theirs.start.address, theirs.start.key.0);
        remote.put(RemoteRecord { address, bytes: theirs.bytes, key, reserved: 0 });
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `has` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_has_message(meeting: MeetingHandle, has: *mut c_int) -> c_int {
    entry("ccl_vqp_has_message", || {
        // SAFETY: the caller's promise.
        let has = unsafe { Slot::at("has", has) }?;
        has.put(c_int::from(locked(&*MEETINGS.get(meeting.addr())?).has_message()));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_meeting_close(meeting: MeetingHandle) -> c_int {
    entry("ccl_vqp_meeting_close", || {
        if !meeting.is_null() {
            MEETINGS.remove(meeting.addr())?;
        }
        Ok(Status::Done)
    })
}
