//! Creating and ending communicators.

use std::ffi::c_int;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Arc;

use ccl::{Communicator, Config, Error, UniqueId};

use super::{entry_in_group, natural};
use crate::abi::{CommHandle, ConfigRecord, SIM_INFO_MAGIC, SimInfoRecord, UniqueIdRecord};
use crate::arguments::{Slot, rank as checked_rank};
use crate::config::{Choices, milliseconds};
use crate::group::{self, perform, wait_for};
use crate::handles::locked;
use crate::member::{COMMUNICATORS, Member};
use crate::outcome::{Outcome, Status, entry, entry_on, on};

/// See the header.
///
/// # Safety
///
/// `id` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_get_unique_id(id: *mut UniqueIdRecord) -> c_int {
    entry("ccl_get_unique_id", || {
        // SAFETY: the caller's promise.
        let id = unsafe { Slot::at("id", id) }?;
        let created = UniqueId::create(&Config::from_environment()?.settings)?;
        id.put(UniqueIdRecord::of(&created));
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `comm` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_init_rank(
    comm: *mut CommHandle,
    nranks: c_int,
    id: UniqueIdRecord,
    rank: c_int,
) -> c_int {
    // SAFETY: the caller's promise; a null configuration is none.
    entry_in_group("ccl_comm_init_rank", || unsafe { init(comm, nranks, id, rank, null()) })
}

/// See the header.
///
/// # Safety
///
/// `comm` is null or may be written to; `config` is null or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_init_rank_config(
    comm: *mut CommHandle,
    nranks: c_int,
    id: UniqueIdRecord,
    rank: c_int,
    config: *const ConfigRecord,
) -> c_int {
    // SAFETY: the caller's promise.
    entry_in_group("ccl_comm_init_rank_config", || unsafe { init(comm, nranks, id, rank, config) })
}

/// See the header.
///
/// # Safety
///
/// `comms` is null or `nranks` handles may be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_init_all(comms: *mut CommHandle, nranks: c_int) -> c_int {
    entry_in_group("ccl_comm_init_all", || {
        let size = natural("nranks", nranks)?;
        if comms.is_null() || size == 0 {
            return Err(Error::InvalidArgument("there is no rank to create".into()));
        }
        // SAFETY: the caller's promise.
        let comms = unsafe { std::slice::from_raw_parts_mut(comms, size as usize) };
        comms.fill(null_mut());
        let id = UniqueId::create(&Config::from_environment()?.settings)?;
        let created = create_together(comms, id, size);
        if created.is_err() {
            comms.iter_mut().for_each(discard);
        }
        created
    })
}

/// See the header.
///
/// # Safety
///
/// `comm` is null or may be written to; `config` is null or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_init_from_environment(
    comm: *mut CommHandle,
    config: *const ConfigRecord,
) -> c_int {
    entry_in_group("ccl_comm_init_from_environment", || {
        // SAFETY: the caller's promise.
        let comm = unsafe { cleared("comm", comm) }?;
        // SAFETY: the caller's promise.
        let choices = unsafe { Choices::read(config) }?.unwrap_or_default();
        launch(comm, choices, Communicator::from_environment)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_comm_set_timeout(comm: CommHandle, timeout_ms: c_int) -> c_int {
    entry_on("ccl_comm_set_timeout", comm, |member| {
        let timeout = milliseconds("timeout_ms", timeout_ms)?;
        member.communicator()?.set_timeout(timeout).map(|()| Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_comm_finalize(comm: CommHandle) -> c_int {
    const NAME: &str = "ccl_comm_finalize";
    let finalize = |member: &Arc<Member>| {
        member.ready()?;
        if !member.begin_end() {
            return Err(Error::InvalidUsage("the communicator was finalized".into()));
        }
        let owner = Arc::clone(member);
        perform(member, move || owner.finalize())
    };
    entry_in_group(NAME, || on(NAME, comm, finalize))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_comm_destroy(comm: CommHandle) -> c_int {
    entry_in_group("ccl_comm_destroy", || {
        if comm.is_null() {
            return Ok(Status::Done);
        }
        let member = COMMUNICATORS.get(comm.addr())?;
        if member.state().is_none() {
            return Err(Error::InvalidUsage(
                "the previous call, or the creation, is in progress: poll ccl_comm_get_async_error, or give it up with \
                 ccl_comm_abort"
                    .into(),
            ));
        }
        end(&COMMUNICATORS.remove(comm.addr())?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_comm_abort(comm: CommHandle) -> c_int {
    entry("ccl_comm_abort", || {
        if !comm.is_null() {
            COMMUNICATORS.remove(comm.addr())?.abort();
        }
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_group_start() -> c_int {
    entry("ccl_group_start", || {
        group::start();
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_group_end() -> c_int {
    entry("ccl_group_end", group::end)
}

/// See the header.
///
/// # Safety
///
/// `info` is null, or leads to a `size_t` that says how many bytes can be read and written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_group_simulate_end(info: *mut SimInfoRecord) -> c_int {
    entry("ccl_group_simulate_end", || {
        let seconds = group::simulate_end();
        if info.is_null() {
            return Err(Error::InvalidArgument("info is null".into()));
        }
        // SAFETY: not null, and the caller's promise.
        let size = unsafe { info.cast::<usize>().read() };
        if size < size_of::<SimInfoRecord>() {
            let text = format!("info.size is {size}: use CCL_SIM_INFO_INITIALIZER");
            return Err(Error::InvalidArgument(text));
        }
        // SAFETY: as large as a record, by the caller's promise.
        let info = unsafe { &mut *info };
        if info.magic != SIM_INFO_MAGIC {
            let text = "info.magic is wrong: use CCL_SIM_INFO_INITIALIZER".to_owned();
            return Err(Error::InvalidArgument(text));
        }
        #[allow(clippy::cast_possible_truncation, reason = "a prediction")]
        let microseconds = (seconds? * 1e6) as f32;
        info.estimated_time = microseconds;
        Ok(Status::Done)
    })
}

/// # Safety
///
/// As for `ccl_comm_init_rank_config`.
unsafe fn init(
    comm: *mut CommHandle,
    nranks: c_int,
    id: UniqueIdRecord,
    rank: c_int,
    config: *const ConfigRecord,
) -> Outcome {
    // SAFETY: the caller's promise.
    let comm = unsafe { cleared("comm", comm) }?;
    // SAFETY: the caller's promise.
    let choices = unsafe { Choices::read(config) }?.unwrap_or_default();
    join(comm, choices, (rank, nranks), &id)
}

/// Has rank `rank` of `nranks` join the communicator of `id`.
pub(super) fn join(
    comm: &mut CommHandle,
    choices: Choices,
    (rank, nranks): (c_int, c_int),
    id: &UniqueIdRecord,
) -> Outcome {
    let size = natural("nranks", nranks)?;
    let rank = checked_rank("rank", rank, size)?.0;
    let id = id.read()?;
    launch(comm, choices, move |config| Communicator::create(&id, rank, size, config))
}

/// Makes a member for `comm` and has its communicator created.
fn launch(
    comm: &mut CommHandle,
    choices: Choices,
    create: impl FnOnce(&Config) -> Result<Communicator, Error> + Send + 'static,
) -> Outcome {
    let member = Member::starting(choices.blocking.unwrap_or(true));
    let config = choices.config()?;
    *comm = handle_of(&member);
    let creator = Arc::clone(&member);
    let launched = perform(&member, move || creator.complete(create(&config)));
    launched.inspect_err(|_| discard(comm))
}

/// All ranks of a communicator, each created by a thread.
fn create_together(comms: &mut [CommHandle], id: UniqueId, size: u32) -> Outcome {
    group::start();
    let mut started = Ok(Status::Done);
    for (rank, comm) in (0..size).zip(comms) {
        let create = move |config: &Config| Communicator::create(&id, rank, size, config);
        started = started.and(launch(comm, Choices::default(), create));
    }
    started.and(group::end())
}

/// Finalizes a member that is in no table any more.
fn end(member: &Arc<Member>) -> Outcome {
    let Ok(communicator) = member.communicator().cloned() else {
        return Ok(Status::Done);
    };
    for registration in std::mem::take(&mut *locked(&member.registrations)).into_values() {
        communicator.deregister(registration)?;
    }
    let is_first_end = member.begin_end();
    if !is_first_end && !member.device.is_used() {
        return Ok(Status::Done);
    }
    let owner = Arc::clone(member);
    let finish = move || {
        let finalized = if is_first_end { owner.finalize() } else { Ok(()) };
        owner.release_device();
        finalized
    };
    // Nobody could ask for the end of it in the background: the handle is gone.
    wait_for(member, finish)
}

/// A handle by which the program knows a member from now on.
pub(super) fn handle_of(member: &Arc<Member>) -> CommHandle {
    without_provenance_mut(COMMUNICATORS.insert(Arc::clone(member)))
}

/// Takes back a handle that the program shall not see.
pub(super) fn discard(comm: &mut CommHandle) {
    // A NULL or a handle that is gone already leaves nothing to do.
    let _ = COMMUNICATORS.remove(comm.addr());
    *comm = null_mut();
}

/// Where a handle goes, NULL at first.
///
/// # Safety
///
/// `place` is null or may be written to during the call.
pub(super) unsafe fn cleared<'a>(
    what: &str,
    place: *mut CommHandle,
) -> Result<&'a mut CommHandle, Error> {
    // SAFETY: the caller's promise.
    unsafe { Slot::at(what, place) }?.put(null_mut());
    // SAFETY: it is not null, else there was no slot; and it has a value now.
    Ok(unsafe { &mut *place })
}
