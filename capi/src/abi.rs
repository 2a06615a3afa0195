//! The types of the header, as C lays them out.
//!
//! Enumerations arrive as `c_int`: a C program may pass any number, and a Rust enumeration with an
//! unknown number is undefined behaviour.

use std::ffi::{c_char, c_int, c_uint};

use ccl::{Error, UniqueId};

/// What `ccl_comm_t` points to: nothing that exists.
#[derive(Debug)]
#[repr(C)]
pub struct OpaqueCommunicator {
    _nothing: [u8; 0],
}

/// What `ccl_request_t` points to: nothing that exists.
#[derive(Debug)]
#[repr(C)]
pub struct OpaqueRequest {
    _nothing: [u8; 0],
}

/// What `ccl_window_t` points to: nothing that exists.
#[derive(Debug)]
#[repr(C)]
pub struct OpaqueWindow {
    _nothing: [u8; 0],
}

/// `ccl_comm_t`.
pub type CommHandle = *mut OpaqueCommunicator;

/// `ccl_request_t`.
pub type RequestHandle = *mut OpaqueRequest;

/// `ccl_window_t`.
pub type WindowHandle = *mut OpaqueWindow;

/// `CCL_WIN_DEFAULT`.
pub const WINDOW_DEFAULT: c_int = 0;

/// `CCL_WIN_COLL_SYMMETRIC`.
pub const WINDOW_SYMMETRIC: c_int = 1;

/// `CCL_UNIQUE_ID_BYTES`.
pub const UNIQUE_ID_BYTES: usize = 128;

/// `CCL_CONFIG_MAGIC`.
pub const CONFIG_MAGIC: c_uint = 0x7232_6363;

/// `CCL_CONFIG_UNDEF_INT`.
pub const CONFIG_UNDEF_INT: c_int = c_int::MIN;

/// `CCL_SPLIT_NOCOLOR`.
pub const SPLIT_NO_COLOR: c_int = -1;

/// `CCL_SHRINK_DEFAULT`.
pub const SHRINK_DEFAULT: c_int = 0;

/// `CCL_SHRINK_ABORT`.
pub const SHRINK_ABORT: c_int = 1;

/// The rank that `ccl_comm_grow` is told by those that have one already.
pub const GROW_OLD_RANK: c_int = -1;

/// `CCL_NUM_OPS`: the first number of an operation that the user made.
pub const FIRST_USER_OP: c_int = 5;

/// `ccl_unique_id_t`, which is passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UniqueIdRecord {
    /// The id.
    pub internal: [c_char; UNIQUE_ID_BYTES],
}

impl UniqueIdRecord {
    /// An id as C has it.
    pub(crate) fn of(id: &UniqueId) -> Self {
        Self { internal: id.to_bytes().map(u8::cast_signed) }
    }

    /// The id that C has.
    pub(crate) fn read(&self) -> Result<UniqueId, Error> {
        UniqueId::from_bytes(&self.internal.map(|byte| byte.to_ne_bytes()[0]))
    }
}

/// `CCL_SIM_INFO_MAGIC`.
pub const SIM_INFO_MAGIC: c_uint = 0x7232_7369;

/// `ccl_sim_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SimInfoRecord {
    /// `sizeof(ccl_sim_info_t)`.
    pub size: usize,
    /// [`SIM_INFO_MAGIC`].
    pub magic: c_uint,
    /// The version of the header.
    pub version: c_uint,
    /// Microseconds.
    pub estimated_time: f32,
}

/// `CCL_EVIDENCE_BYTES`.
pub const EVIDENCE_BYTES: usize = 256;

/// `CCL_NO_FAULT`.
pub const NO_FAULT: u64 = u64::MAX;

/// `ccl_rail_health_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RailHealthRecord {
    /// Whose rail.
    pub rank: c_int,
    /// Its number there.
    pub rail: c_int,
    /// A `ccl_rail_state_t`.
    pub state: c_int,
    /// A `ccl_rail_verdict_t`.
    pub verdict: c_int,
    /// What it carries in each direction.
    pub bytes_per_second: f64,
    /// Times it went down.
    pub faults: u64,
    /// Times it came back.
    pub returns: u64,
    /// Tiles sent on it.
    pub tiles: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Tiles sent again that had been sent on it.
    pub resent_tiles: u64,
    /// Their bytes.
    pub resent_bytes: u64,
    /// When it failed last, or [`NO_FAULT`].
    pub last_fault_ns: u64,
    /// What speaks for the verdict, ended by a NUL.
    pub evidence: [c_char; EVIDENCE_BYTES],
}

/// `ccl_config_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ConfigRecord {
    /// Size of the record in the program.
    pub size: usize,
    /// [`CONFIG_MAGIC`].
    pub magic: c_uint,
    /// `CCL_VERSION_CODE` of the program's header.
    pub version: c_uint,
    /// Whether calls return when they are done.
    pub blocking: c_int,
    /// Deadline of every call in milliseconds.
    pub timeout_ms: c_int,
    /// Name in messages and logs.
    pub comm_name: *const c_char,
    /// Accepted, without effect.
    pub split_share: c_int,
}

impl ConfigRecord {
    /// `CCL_CONFIG_INITIALIZER`.
    pub const INITIALIZER: Self = Self {
        size: size_of::<Self>(),
        magic: CONFIG_MAGIC,
        version: VERSION_CODE,
        blocking: CONFIG_UNDEF_INT,
        timeout_ms: CONFIG_UNDEF_INT,
        comm_name: std::ptr::null(),
        split_share: CONFIG_UNDEF_INT,
    };
}

/// `CCL_VERSION_CODE`.
pub const VERSION_CODE: c_uint = version_part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + version_part(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + version_part(env!("CARGO_PKG_VERSION_PATCH"));

const fn version_part(digits: &str) -> c_uint {
    match c_uint::from_str_radix(digits, 10) {
        Ok(part) => part,
        Err(_) => panic!("cargo's version numbers are numbers"),
    }
}
