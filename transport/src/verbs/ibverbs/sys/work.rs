//! What an endpoint is told to do, and what it reports.

use rustix::param::page_size;

use super::super::super::Memory;
use super::abi;
use super::library::{Library, text};

/// An operation to post.
#[derive(Debug)]
pub(in super::super) struct Post<'a> {
    pub(in super::super) id: u64,
    /// Whether it completes also if it succeeds.
    pub(in super::super) is_reported: bool,
    pub(in super::super) what: What,
    pub(in super::super) source: Option<Source<'a>>,
    pub(in super::super) target: Target,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum What {
    Send,
    Write,
    WriteWithImmediate(u32),
    Read,
    CompareAndSwap { expected: u64, new: u64 },
    FetchAdd { addend: u64 },
}

/// Memory at this end.
#[derive(Debug)]
pub(in super::super) struct Source<'a> {
    pub(in super::super) key: u32,
    pub(in super::super) memory: &'a Memory,
    pub(in super::super) offset: usize,
    pub(in super::super) bytes: u32,
}

/// Memory at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Target {
    pub(in super::super) address: u64,
    pub(in super::super) key: u32,
}

/// A completion, as the device reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Reported {
    pub(in super::super) id: u64,
    pub(in super::super) outcome: Outcome,
    pub(in super::super) bytes: usize,
    pub(in super::super) immediate: Option<u32>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    Success,
    LocalLength,
    LocalOperation,
    LocalProtection,
    Flushed,
    RemoteInvalidRequest,
    RemoteAccess,
    /// Everything else is a connection that is lost, for the reason that the library gives.
    Lost(String),
}

impl What {
    /// Of what takes a receive of the peer, its immediate if it has one.
    pub(super) fn message(self) -> Option<Option<u32>> {
        match self {
            Self::Send => Some(None),
            Self::WriteWithImmediate(word) => Some(Some(word)),
            Self::Write | Self::Read | Self::CompareAndSwap { .. } | Self::FetchAdd { .. } => None,
        }
    }
}

impl Post<'_> {
    /// Whether the bytes travel in the request, which has room for so many.
    pub(super) fn is_inline(&self, source: &Source<'_>, room: usize) -> bool {
        let carries = match self.what {
            What::Send | What::Write | What::WriteWithImmediate(_) => true,
            What::Read | What::CompareAndSwap { .. } | What::FetchAdd { .. } => false,
        };
        // Bytes of another device are not there to be copied.
        let is_here = source.memory.dmabuf().is_none();
        carries && is_here && source.bytes as usize <= room
    }
}

/// What a completion says.
pub(super) fn reported(library: &Library, found: &abi::Completion) -> Reported {
    let outcome = match found.status {
        abi::IBV_WC_SUCCESS => Outcome::Success,
        abi::IBV_WC_LOC_LEN_ERR => Outcome::LocalLength,
        abi::IBV_WC_LOC_QP_OP_ERR => Outcome::LocalOperation,
        abi::IBV_WC_LOC_PROT_ERR => Outcome::LocalProtection,
        abi::IBV_WC_WR_FLUSH_ERR => Outcome::Flushed,
        abi::IBV_WC_REM_INV_REQ_ERR | abi::IBV_WC_REM_OP_ERR => Outcome::RemoteInvalidRequest,
        abi::IBV_WC_REM_ACCESS_ERR => Outcome::RemoteAccess,
        status => {
            // SAFETY: it returns a constant text for every number.
            let name = unsafe { (library.functions.ibv_wc_status_str)(status) };
            Outcome::Lost(text(name))
        }
    };
    // Only a success says what it was.
    let is_immediate =
        outcome == Outcome::Success && found.opcode == abi::IBV_WC_RECV_RDMA_WITH_IMM;
    let immediate = is_immediate.then(|| u32::from_be(found.imm_data));
    Reported { id: found.wr_id, outcome, bytes: found.byte_len as usize, immediate }
}

/// By which address devices know the first byte of memory: its place in its page. The kernel registers memory at
/// addresses only that are where they were in a page, and that is all that a peer learns of an address of this process.
pub(super) fn first_address(memory: &Memory) -> u64 {
    if memory.dmabuf().is_some() {
        return 0;
    }
    (memory.start().addr().get() % page_size()) as u64
}

pub(super) fn segment(source: &Source<'_>) -> abi::ScatterGather {
    let addr = first_address(source.memory) + source.offset as u64;
    abi::ScatterGather { addr, length: source.bytes, lkey: source.key }
}

/// What is inline is copied by this process.
///
/// # Panics
/// It is not inside of the memory, or too long.
pub(super) fn inline_segment(source: &Source<'_>, room: &mut [u8]) -> abi::ScatterGather {
    let bytes = &mut room[..source.bytes as usize];
    source.memory.read(source.offset, bytes);
    let start = bytes.as_ptr().expose_provenance();
    abi::ScatterGather { addr: start as u64, length: source.bytes, lkey: 0 }
}
