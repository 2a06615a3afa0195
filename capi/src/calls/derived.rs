//! Communicators that are made of others.

use std::ffi::c_int;
use std::sync::Arc;

use ccl::{Config, Error, Ongoing, Rank};

use super::lifecycle::{cleared, discard, handle_of, join};
use super::{entry_in_group, natural};
use crate::abi::{
    CommHandle, ConfigRecord, GROW_OLD_RANK, SHRINK_ABORT, SHRINK_DEFAULT, SPLIT_NO_COLOR,
    UniqueIdRecord,
};
use crate::arguments::{Slot, ranks};
use crate::config::Choices;
use crate::group::perform;
use crate::member::Member;
use crate::outcome::{Outcome, Status, entry_on, on};

/// See the header.
///
/// # Safety
///
/// `newcomm` is null or may be written to; `config` is null or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_split(
    comm: CommHandle,
    color: c_int,
    key: c_int,
    newcomm: *mut CommHandle,
    config: *const ConfigRecord,
) -> c_int {
    const NAME: &str = "ccl_comm_split";
    let split = |member: &Arc<Member>| {
        // SAFETY: the caller's promise.
        let (newcomm, choices) = unsafe { wanted(newcomm, config) }?;
        let color = match color {
            SPLIT_NO_COLOR => None,
            color => Some(natural("color", color)?),
        };
        split(member, color, key, newcomm, choices)
    };
    entry_in_group(NAME, || on(NAME, comm, split))
}

/// See the header.
///
/// # Safety
///
/// `exclude_ranks` is null or `exclude_count` numbers can be read there; `newcomm` is null or may be written to; `config` is
/// null or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_shrink(
    comm: CommHandle,
    exclude_ranks: *const c_int,
    exclude_count: c_int,
    newcomm: *mut CommHandle,
    config: *const ConfigRecord,
    flags: c_int,
) -> c_int {
    const NAME: &str = "ccl_comm_shrink";
    let shrink = |member: &Arc<Member>| {
        // SAFETY: the caller's promise.
        let (newcomm, choices) = unsafe { wanted(newcomm, config) }?;
        let count = natural("exclude_count", exclude_count)?;
        // SAFETY: the caller's promise.
        let excluded = unsafe { ranks("exclude_ranks", exclude_ranks, count) }?;
        let ongoing = match flags {
            SHRINK_DEFAULT => Ongoing::Finish,
            SHRINK_ABORT => Ongoing::Abort,
            other => {
                let text = format!("flags is {other}; CCL_SHRINK_DEFAULT or CCL_SHRINK_ABORT");
                return Err(Error::InvalidArgument(text));
            }
        };
        shrink(member, &excluded, ongoing, newcomm, choices)
    };
    entry_in_group(NAME, || on(NAME, comm, shrink))
}

/// See the header.
///
/// # Safety
///
/// `id` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_get_unique_id(
    comm: CommHandle,
    id: *mut UniqueIdRecord,
) -> c_int {
    entry_on("ccl_comm_get_unique_id", comm, |member| {
        // SAFETY: the caller's promise.
        let id = unsafe { Slot::at("id", id) }?;
        id.put(UniqueIdRecord::of(&member.ready()?.growth_id()?));
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `id` is null or an id; `newcomm` is null or may be written to; `config` is null or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_comm_grow(
    comm: CommHandle,
    nranks: c_int,
    id: *const UniqueIdRecord,
    rank: c_int,
    newcomm: *mut CommHandle,
    config: *const ConfigRecord,
) -> c_int {
    const NAME: &str = "ccl_comm_grow";
    let grow = |member: &Arc<Member>| {
        // SAFETY: the caller's promise.
        let (newcomm, choices) = unsafe { wanted(newcomm, config) }?;
        let size = natural("nranks", nranks)?;
        if rank != GROW_OLD_RANK {
            let text = format!("rank is {rank}; a rank of comm keeps its number and says -1");
            return Err(Error::InvalidArgument(text));
        }
        grow(member, size, newcomm, choices)
    };
    let join_others = || {
        // SAFETY: the caller's promise.
        let (newcomm, choices) = unsafe { wanted(newcomm, config) }?;
        // SAFETY: null or an id, by the caller's promise.
        let id = unsafe { id.as_ref() }.ok_or_else(|| {
            Error::InvalidArgument("comm and id are null: a rank has the one or the other".into())
        })?;
        join(newcomm, choices.unwrap_or_default(), (rank, nranks), id)
    };
    entry_in_group(NAME, || if comm.is_null() { join_others() } else { on(NAME, comm, grow) })
}

fn split(
    member: &Arc<Member>,
    color: Option<u32>,
    key: i32,
    newcomm: &mut CommHandle,
    choices: Option<Choices>,
) -> Outcome {
    let communicator = member.ready()?.clone();
    let (config, child) = child_of(member, choices)?;
    if color.is_some() {
        *newcomm = handle_of(&child);
    }
    let work = move || match communicator.split(color, key, config.as_ref()) {
        Ok(Some(created)) => child.complete(Ok(created)),
        Ok(None) if color.is_none() => Ok(()),
        Ok(None) => child.complete(Err(Error::Internal("a split without a result".into()))),
        Err(error) => child.complete(Err(error)),
    };
    perform(member, work).inspect_err(|_| discard(newcomm))
}

fn shrink(
    member: &Arc<Member>,
    excluded: &[Rank],
    ongoing: Ongoing,
    newcomm: &mut CommHandle,
    choices: Option<Choices>,
) -> Outcome {
    let communicator = match ongoing {
        Ongoing::Finish => member.ready()?,
        // What it does in the background ends with the abort.
        Ongoing::Abort => member.unfinalized()?,
    };
    let (config, child) = child_of(member, choices)?;
    // In this thread, so that the later of two calls counts.
    let shrink = communicator.begin_shrink(excluded, ongoing)?;
    *newcomm = handle_of(&child);
    perform_on(member, move || child.complete(shrink.finish(config.as_ref())))
        .inspect_err(|_| discard(newcomm))
}

fn grow(
    member: &Arc<Member>,
    size: u32,
    newcomm: &mut CommHandle,
    choices: Option<Choices>,
) -> Outcome {
    let communicator = member.ready()?.clone();
    let (config, child) = child_of(member, choices)?;
    *newcomm = handle_of(&child);
    perform_on(member, move || child.complete(communicator.grow(size, config.as_ref())))
        .inspect_err(|_| discard(newcomm))
}

/// Where a new communicator goes, NULL at first, and its configuration if there is one.
///
/// # Safety
///
/// `newcomm` is null or may be written to during the call; `config` is null or a configuration.
unsafe fn wanted<'a>(
    newcomm: *mut CommHandle,
    config: *const ConfigRecord,
) -> Result<(&'a mut CommHandle, Option<Choices>), Error> {
    // SAFETY: the caller's promise.
    let newcomm = unsafe { cleared("newcomm", newcomm) }?;
    // SAFETY: the caller's promise.
    let choices = unsafe { Choices::read(config) }?;
    Ok((newcomm, choices))
}

/// A member that is to be made of another one, and its configuration if that is not the other's.
fn child_of(
    member: &Member,
    choices: Option<Choices>,
) -> Result<(Option<Config>, Arc<Member>), Error> {
    let blocking = choices.as_ref().and_then(|choices| choices.blocking);
    let config = choices.map(Choices::config).transpose()?;
    Ok((config, Member::starting(blocking.unwrap_or(member.blocking))))
}

/// Has another communicator made of `member`. What keeps ranks from meeting is no failure of this one.
fn perform_on(
    member: &Arc<Member>,
    create: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Outcome {
    let is_awaited = member.blocking;
    perform(member, move || if is_awaited { create() } else { create().or(Ok(())) })
}
