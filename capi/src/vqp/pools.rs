//! Backups that queue pairs share.

use std::ffi::c_int;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use ccl::vqp::Pool;

use super::abi::{DomainHandle, MeetingHandle, PairHandle, PoolHandle};
use super::domains::DOMAINS;
use super::meetings::MEETINGS;
use super::pairs::PAIRS;
use super::{entry, invalid, timeout};
use crate::arguments::Slot;
use crate::handles::{Table, locked};
use crate::outcome::Status;

static POOLS: Table<Pool> = Table::new("pool");

/// See the header.
///
/// # Safety
///
/// `pool` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_pool_open(
    pool: *mut PoolHandle,
    domain: DomainHandle,
    meeting: MeetingHandle,
    spares: c_int,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_pool_open", || {
        // SAFETY: the caller's promise.
        let pool = unsafe { Slot::at("pool", pool) }?;
        pool.put(null_mut());
        let (domain, meeting) = (DOMAINS.get(domain.addr())?, MEETINGS.get(meeting.addr())?);
        let limit = timeout(timeout_ms)?;
        let spares = usize::try_from(spares).map_err(|_| invalid(format!("spares is {spares}")))?;
        let opened = domain.pool(&mut locked(&meeting), spares, limit)?;
        pool.put(without_provenance_mut(POOLS.insert(Arc::new(opened))));
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `spares` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_pool_get_spares(pool: PoolHandle, spares: *mut c_int) -> c_int {
    entry("ccl_vqp_pool_get_spares", || {
        // SAFETY: the caller's promise.
        let spares = unsafe { Slot::at("spares", spares) }?;
        let count = POOLS.get(pool.addr())?.spares();
        spares.put(c_int::try_from(count).unwrap_or(c_int::MAX));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_connect_pooled(
    vqp: PairHandle,
    meeting: MeetingHandle,
    pool: PoolHandle,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_connect_pooled", || {
        let (pair, meeting) = (PAIRS.get(vqp.addr())?, MEETINGS.get(meeting.addr())?);
        let (pool, limit) = (POOLS.get(pool.addr())?, timeout(timeout_ms)?);
        locked(&pair).pair.connect_pooled(&mut locked(&meeting), &pool, limit)?;
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_pool_close(pool: PoolHandle) -> c_int {
    entry("ccl_vqp_pool_close", || {
        if !pool.is_null() {
            POOLS.remove(pool.addr())?;
        }
        Ok(Status::Done)
    })
}
