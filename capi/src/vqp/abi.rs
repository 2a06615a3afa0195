//! The types of the header for queue pairs, as C lays them out.

use std::ffi::{c_int, c_uint};

use ccl::vqp::{EventKind, Evidence, Opcode, State, Status};

use crate::abi::{CONFIG_UNDEF_INT, VERSION_CODE};

/// What handles point to: nothing that exists.
macro_rules! handles {
    ($($opaque:ident, $handle:ident, $name:literal;)*) => {$(
        #[doc = concat!("What `", $name, "` points to: nothing that exists.")]
        #[derive(Debug)]
        #[repr(C)]
        pub struct $opaque {
            _nothing: [u8; 0],
        }

        #[doc = concat!("`", $name, "`.")]
        pub type $handle = *mut $opaque;
    )*};
}

handles! {
    OpaqueDomain, DomainHandle, "ccl_vqp_domain_t";
    OpaqueRegion, RegionHandle, "ccl_vqp_region_t";
    OpaqueListener, ListenerHandle, "ccl_vqp_listener_t";
    OpaqueMeeting, MeetingHandle, "ccl_vqp_meeting_t";
    OpaquePool, PoolHandle, "ccl_vqp_pool_t";
    OpaquePair, PairHandle, "ccl_vqp_t";
}

/// `ccl_vqp_evidence_t`, by number.
pub const EVIDENCES: [Option<Evidence>; 4] =
    [None, Some(Evidence::Resend), Some(Evidence::Handshake), Some(Evidence::Log)];

/// `ccl_vqp_opcode_t`, by number.
pub const OPCODES: [Opcode; 7] = [
    Opcode::Send,
    Opcode::Write,
    Opcode::Read,
    Opcode::CompareAndSwap,
    Opcode::FetchAdd,
    Opcode::Receive,
    Opcode::ReceiveWriteWithImmediate,
];

/// `ccl_vqp_status_t`, by number.
pub const STATUSES: [Status; 7] = [
    Status::Success,
    Status::LocalLength,
    Status::LocalProtection,
    Status::Flushed,
    Status::RemoteInvalidRequest,
    Status::RemoteAccess,
    Status::RetryExceeded,
];

/// `ccl_vqp_state_t`, by number.
pub const STATES: [State; 5] =
    [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::Error];

/// `ccl_vqp_event_kind_t`, by number.
pub const EVENT_KINDS: [EventKind; 4] =
    [EventKind::Interrupted, EventKind::Resumed, EventKind::Returned, EventKind::Failed];

/// `ccl_vqp_operation_t`, by number.
pub const OPERATIONS: [&str; 6] =
    ["SEND", "WRITE", "WRITE_WITH_IMMEDIATE", "READ", "COMPARE_AND_SWAP", "FETCH_ADD"];

/// `CCL_VQP_ACCESS_REMOTE_WRITE`.
pub const REMOTE_WRITE: c_int = 1;
/// `CCL_VQP_ACCESS_REMOTE_READ`.
pub const REMOTE_READ: c_int = 2;
/// `CCL_VQP_ACCESS_REMOTE_ATOMIC`.
pub const REMOTE_ATOMIC: c_int = 4;

/// `CCL_VQP_CONFIG_MAGIC`.
pub const CONFIG_MAGIC: c_uint = 0x7232_7170;

/// `ccl_vqp_config_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ConfigRecord {
    /// Size of the record in the program.
    pub size: usize,
    /// [`CONFIG_MAGIC`].
    pub magic: c_uint,
    /// `CCL_VERSION_CODE` of the program's header.
    pub version: c_uint,
    /// A number of [`EVIDENCES`].
    pub evidence: c_int,
    /// Requests outstanding, at most.
    pub sends: c_int,
    /// Receives outstanding, at most.
    pub receives: c_int,
    /// Until a silent rail is given up.
    pub silence_ms: c_int,
    /// For a rail to come back when none is left.
    pub patience_ms: c_int,
    /// Until the first rail is used again.
    pub settle_ms: c_int,
}

impl ConfigRecord {
    /// `CCL_VQP_CONFIG_INITIALIZER`.
    pub const INITIALIZER: Self = Self {
        size: size_of::<Self>(),
        magic: CONFIG_MAGIC,
        version: VERSION_CODE,
        evidence: CONFIG_UNDEF_INT,
        sends: CONFIG_UNDEF_INT,
        receives: CONFIG_UNDEF_INT,
        silence_ms: CONFIG_UNDEF_INT,
        patience_ms: CONFIG_UNDEF_INT,
        settle_ms: CONFIG_UNDEF_INT,
    };
}

/// `ccl_vqp_remote_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RemoteRecord {
    /// Of its first byte.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Its key.
    pub key: u32,
    /// 0.
    pub reserved: u32,
}

/// `ccl_vqp_request_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RequestRecord {
    /// Names it in its completion.
    pub id: u64,
    /// A number of [`OPERATIONS`].
    pub operation: c_int,
    /// Whether success is reported too.
    pub signalled: c_int,
    /// Own memory.
    pub region: RegionHandle,
    /// In it.
    pub offset: usize,
    /// How much of it.
    pub bytes: usize,
    /// Memory of the peer.
    pub remote_address: u64,
    /// Its key.
    pub remote_key: u32,
    /// What the completion at the peer carries.
    pub immediate: u32,
    /// Compare-and-swap: replaced only if it is this.
    pub expected: u64,
    /// The replacement, or what is added.
    pub operand: u64,
}

/// `ccl_vqp_completion_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CompletionRecord {
    /// Of the request or receive.
    pub id: u64,
    /// A number of [`STATUSES`].
    pub status: c_int,
    /// A number of [`OPCODES`].
    pub opcode: c_int,
    /// Bytes moved.
    pub bytes: u64,
    /// What the peer's write carried.
    pub immediate: u32,
    /// Whether it carried something.
    pub has_immediate: c_int,
}

/// `ccl_vqp_event_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EventRecord {
    /// When.
    pub at_ns: u64,
    /// Which rail.
    pub rail: c_int,
    /// A number of [`EVENT_KINDS`].
    pub kind: c_int,
}

/// `ccl_vqp_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InfoRecord {
    /// A number of [`STATES`].
    pub state: c_int,
    /// How many there are.
    pub rails: c_int,
    /// How many it could use.
    pub connected_rails: c_int,
    /// The one in use.
    pub active_rail: c_int,
    /// Whether requests flow.
    pub is_running: c_int,
    /// A number of [`EVIDENCES`].
    pub evidence: c_int,
    /// Times that requests flowed again.
    pub repairs: u64,
    /// Requests posted again.
    pub resent: u64,
    /// Their bytes.
    pub resent_bytes: u64,
    /// Requests that had been executed although no completion said so.
    pub spared: u64,
    /// Atomics whose result was found out later.
    pub recovered: u64,
    /// Returns to the first rail.
    pub returns: u64,
}

/// The number of a value in one of these tables.
pub(super) fn number<T: PartialEq>(table: &[T], value: &T) -> c_int {
    let index = table.iter().position(|one| one == value);
    index.and_then(|index| c_int::try_from(index).ok()).unwrap_or(-1)
}
