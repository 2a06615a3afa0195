//! Version, errors and the properties of communicators.

use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;

use ccl::{Collective, Error, ResultCode};

use super::place;
use crate::abi::{CommHandle, VERSION_CODE};
use crate::arguments::{Call, Slot, null};
use crate::member::COMMUNICATORS;
use crate::outcome::{Status, entry, entry_on, last_in_thread, message, sentence, show};

/// See the header.
///
/// # Safety
///
/// `version` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_get_version(version: *mut c_int) -> c_int {
    entry("ccl_get_version", || {
        // SAFETY: the caller's promise.
        unsafe { Slot::at("version", version) }?.put(VERSION_CODE.cast_signed());
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_get_error_string(result: c_int) -> *const c_char {
    sentence(result).as_ptr()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_get_last_error(comm: CommHandle) -> *const c_char {
    catch_unwind(|| show(last_error(comm))).unwrap_or(c"".as_ptr())
}

fn last_error(comm: CommHandle) -> String {
    let Ok(member) = COMMUNICATORS.get(comm.addr()) else {
        return last_in_thread();
    };
    let remembered = member.last_error();
    match member.state() {
        Some(Err(error)) if remembered.is_empty() => message("communicator", &error),
        _ => remembered,
    }
}

/// See the header.
///
/// # Safety
///
/// `async_error` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_get_async_error(
    comm: CommHandle,
    async_error: *mut c_int,
) -> c_int {
    const NAME: &str = "ccl_comm_get_async_error";
    entry_on(NAME, comm, |member| {
        let code = match member.state() {
            None => ResultCode::InProgress,
            Some(Ok(())) => ResultCode::Success,
            Some(Err(error)) => {
                member.remember(message(NAME, &error));
                error.code()
            }
        };
        // SAFETY: the caller's promise.
        unsafe { Slot::at("async_error", async_error) }?.put(code as c_int);
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `count` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_count(comm: CommHandle, count: *mut c_int) -> c_int {
    entry_on("ccl_comm_count", comm, |member| {
        let size = member.communicator()?.size().cast_signed();
        // SAFETY: the caller's promise.
        unsafe { Slot::at("count", count) }?.put(size);
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `rank` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_user_rank(comm: CommHandle, rank: *mut c_int) -> c_int {
    entry_on("ccl_comm_user_rank", comm, |member| {
        let number = member.communicator()?.rank().0.cast_signed();
        // SAFETY: the caller's promise.
        unsafe { Slot::at("rank", rank) }?.put(number);
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` bytes may be written at `text`; `needed` is null or may be written to.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
pub unsafe extern "C" fn ccl_comm_explain(
    comm: CommHandle,
    collective: c_int,
    count: usize,
    datatype: c_int,
    op: c_int,
    root: c_int,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    entry_on("ccl_comm_explain", comm, |member| {
        let communicator = member.ready()?;
        let call = Call::new(explicable(collective)?, count, datatype).op(op).root(root);
        let request = call.request(place(member, communicator))?;
        let explanation = communicator.explain(&request)?.replace('\0', " ");
        if !needed.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { needed.write(explanation.len() + 1) };
        }
        if text.is_null() && capacity > 0 {
            return Err(null("text"));
        }
        // SAFETY: the caller's promise.
        unsafe { copy_text(&explanation, text, capacity) };
        Ok(Status::Done)
    })
}

/// The collective with a number of `ccl_collective_t`.
fn explicable(number: c_int) -> Result<Collective, Error> {
    let collective = u8::try_from(number).ok().and_then(Collective::from_number);
    collective
        .filter(|collective| *collective != Collective::PointToPoint)
        .ok_or_else(|| Error::InvalidArgument(format!("{number} is not a ccl_collective_t")))
}

/// Copies as much of `text` as fits, and a NUL.
///
/// # Safety
///
/// `capacity` bytes may be written at `target`.
pub(crate) unsafe fn copy_text(text: &str, target: *mut c_char, capacity: usize) {
    let Some(room) = capacity.checked_sub(1) else { return };
    let bytes = text.len().min(room);
    // SAFETY: `bytes` is less than `capacity`, and the text is other memory.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), bytes) };
    let end = target.wrapping_add(bytes);
    // SAFETY: `bytes` is less than `capacity`.
    unsafe { end.write(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_its_room() {
        for (capacity, expected) in [(0, "xxxxxx"), (1, "\0xxxxx"), (4, "abc\0xx"), (6, "abcd\0x")]
        {
            let mut room = *b"xxxxxx";
            // SAFETY: `room` has at least `capacity` bytes.
            unsafe { copy_text("abcd", room.as_mut_ptr().cast(), capacity) };
            assert_eq!(std::str::from_utf8(&room), Ok(expected));
        }
    }

    #[test]
    fn every_collective_but_send_and_receive_can_be_explained() {
        assert_eq!(explicable(9), Ok(Collective::Barrier));
        for number in [-1, 10, 11, 256] {
            assert!(matches!(explicable(number), Err(Error::InvalidArgument(_))), "{number}");
        }
    }
}
