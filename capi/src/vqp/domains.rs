//! Devices and memory.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};

use ccl::vqp::{Access, Domain, DomainConfig, Error, Memory, MemoryRegion, Segment};

use super::abi::{DomainHandle, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, RegionHandle};
use super::{entry, invalid, key, tell, text};
use crate::arguments::{Slot, null};
use crate::handles::{Table, locked};
use crate::outcome::Status;

/// The domains of C programs.
pub(super) static DOMAINS: Table<Domain> = Table::new("domain");
/// Their regions.
pub(super) static REGIONS: Table<Region> = Table::new("region");

/// Memory, and its registration until that is taken back.
#[derive(Debug)]
pub(super) struct Region {
    memory: Memory,
    is_borrowed: bool,
    registered: Mutex<Option<MemoryRegion>>,
}

impl Region {
    /// Does something with the registration.
    pub(super) fn with<R>(&self, body: impl FnOnce(&MemoryRegion) -> R) -> Result<R, Error> {
        let registered = locked(&self.registered);
        let gone = || Error::InvalidUsage("the region is being taken back".into());
        registered.as_ref().map(body).ok_or_else(gone)
    }

    /// Part of it.
    pub(super) fn segment(&self, offset: usize, bytes: usize) -> Result<Segment, Error> {
        self.with(|region| region.segment(offset, bytes))
    }
}

/// See the header.
///
/// # Safety
///
/// `capacity` bytes may be written at `text`; `needed` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_devices(
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    entry("ccl_vqp_get_devices", || {
        let names = ccl::vqp::devices()?.join(",");
        // SAFETY: the caller's promise.
        unsafe { tell(&names, text, capacity, needed) }
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` bytes may be written at `text`; `needed` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_rdma_devices(
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    entry("ccl_vqp_get_rdma_devices", || {
        let names = ccl::vqp::rdma_devices()?.join(",");
        // SAFETY: the caller's promise.
        unsafe { tell(&names, text, capacity, needed) }
    })
}

/// See the header.
///
/// # Safety
///
/// `domain` is null or may be written to; the texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_domain_open(
    domain: *mut DomainHandle,
    devices: *const c_char,
    faults: *const c_char,
    phrase: *const c_char,
) -> c_int {
    entry("ccl_vqp_domain_open", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { Slot::at("domain", domain) }?;
        domain.put(null_mut());
        ccl::log::to_standard_error()?;
        let mut config = DomainConfig::from_environment()?;
        // SAFETY: the caller's promise.
        if let Some(devices) = unsafe { text("devices", devices) }? {
            config.devices = devices;
        }
        // SAFETY: the caller's promise.
        if let Some(faults) = unsafe { text("faults", faults) }? {
            config = config.with_faults(&faults)?;
        }
        // SAFETY: the caller's promise.
        let opened = Domain::open(&config, &unsafe { key(phrase) }?)?;
        domain.put(without_provenance_mut(DOMAINS.insert(Arc::new(opened))));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_domain_close(domain: DomainHandle) -> c_int {
    entry("ccl_vqp_domain_close", || {
        if !domain.is_null() {
            DOMAINS.remove(domain.addr())?;
        }
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `region` is null or may be written to, and so is `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_allocate(
    domain: DomainHandle,
    bytes: usize,
    access: c_int,
    region: *mut RegionHandle,
    address: *mut *mut c_void,
) -> c_int {
    entry("ccl_vqp_allocate", || {
        // SAFETY: the caller's promise.
        let region = unsafe { Slot::at("region", region) }?;
        region.put(null_mut());
        let registered = DOMAINS.get(domain.addr())?.allocate(bytes, granted(access)?)?;
        if !address.is_null() {
            let start = registered.memory().start().as_ptr().cast();
            // SAFETY: not null, and the caller's promise.
            unsafe { address.write(start) };
        }
        Ok(keep(&region, registered, false))
    })
}

/// See the header.
///
/// # Safety
///
/// `region` is null or may be written to. `bytes` bytes may be read and written at `address` until the
/// registration was taken back, and the program uses none of them while an operation does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_register(
    domain: DomainHandle,
    address: *mut c_void,
    bytes: usize,
    access: c_int,
    region: *mut RegionHandle,
) -> c_int {
    entry("ccl_vqp_register", || {
        // SAFETY: the caller's promise.
        let region = unsafe { Slot::at("region", region) }?;
        region.put(null_mut());
        let start = NonNull::new(address.cast::<u8>()).ok_or_else(|| null("address"))?;
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(invalid(format!("a region of {bytes} bytes")));
        }
        let (domain, access) = (DOMAINS.get(domain.addr())?, granted(access)?);
        // SAFETY: the caller's promise; `ccl_vqp_deregister` succeeds when the last clone is gone.
        let memory = unsafe { Memory::lent(start, bytes) };
        Ok(keep(&region, domain.register(&memory, access)?, true))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_deregister(region: RegionHandle) -> c_int {
    entry("ccl_vqp_deregister", || {
        if region.is_null() {
            return Ok(Status::Done);
        }
        let known = REGIONS.get(region.addr())?;
        drop(locked(&known.registered).take());
        if known.is_borrowed && known.memory.is_shared() {
            let text =
                "an operation still uses the memory: poll its queue pair or destroy it first";
            return Err(Error::InvalidUsage(text.into()));
        }
        REGIONS.remove(region.addr())?;
        Ok(Status::Done)
    })
}

fn keep(slot: &Slot<RegionHandle>, registered: MemoryRegion, is_borrowed: bool) -> Status {
    let memory = registered.memory().clone();
    let region = Region { memory, is_borrowed, registered: Mutex::new(Some(registered)) };
    slot.put(without_provenance_mut(REGIONS.insert(Arc::new(region))));
    Status::Done
}

/// The access that a sum of `ccl_vqp_access_t` stands for.
fn granted(access: c_int) -> Result<Access, Error> {
    if !(0..=REMOTE_WRITE + REMOTE_READ + REMOTE_ATOMIC).contains(&access) {
        return Err(invalid(format!("access is {access}, no sum of ccl_vqp_access_t")));
    }
    Ok(Access {
        remote_write: access & REMOTE_WRITE != 0,
        remote_read: access & REMOTE_READ != 0,
        remote_atomic: access & REMOTE_ATOMIC != 0,
    })
}
