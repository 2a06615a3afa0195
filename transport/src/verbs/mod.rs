//! Devices with the semantics of RDMA verbs, reliable connected (RC) service.
//!
//! # The contract
//!
//! A [`Device`] is one network port. A [`Domain`] of it ties together registered memory and queue
//! pairs: a peer reaches, through a queue pair, the memory of that queue pair's domain and nothing
//! else. A [`QueuePair`] is one end of a reliable connection:
//!
//! 1. **In order.** The peer's end executes the operations of one queue pair in the order in which
//!    they were posted, and completions come in that order.
//! 2. **Completed means executed.** A successful completion of a send, write or atomic says that the
//!    peer's end has executed it: the bytes are in the peer's memory. Until then the source memory
//!    belongs to the operation; until its completion so does the memory a read or receive fills.
//! 3. **One-sided.** Writes, reads and atomics name the peer's memory by address and key and do not
//!    show on the peer, except that [`Operation::WriteWithImmediate`] consumes a receive there and
//!    completes it, after its bytes have been written.
//! 4. **Receives are posted ahead.** An operation that needs a receive waits until one is posted,
//!    and everything behind it waits with it.
//! 5. **Nothing blocks.** Posting and polling return at once; [`QueuePair::poll`] does the work.
//! 6. **What the peer sends is checked.** A key or a range that is not registered for that access is
//!    answered with [`Status::RemoteAccess`] and both ends go to the error state; nothing outside a
//!    registered region is ever read or written.
//! 7. **An error ends it.** The operation that failed completes with the reason, everything else
//!    outstanding completes as [`Status::Flushed`], and the queue pair stays in [`State::Error`]
//!    until [`QueuePair::reset`]. `Flushed` says nothing about whether the operation was executed.
//!
//! An unsignalled operation completes only when it fails. The limits are in [`Depth`]: a full queue
//! is [`PostError::QueueFull`], which is back-pressure.
//!
//! Every device passes `conformance`, plain and wrapped in the benign faults of [`fault`].

pub mod fault;
#[cfg(feature = "rdma")]
pub mod ibverbs;
pub mod landings;
pub mod region;
pub mod soft;
pub mod state;
pub mod unstaged;
pub mod virtual_qp;

#[cfg(test)]
mod conformance;

use std::fmt;
use std::net::{IpAddr, TcpStream};
use std::os::fd::RawFd;
use std::time::Duration;

use crate::TransportError;

pub use landings::{Landings, Nowhere, Place};
pub use region::{Access, DmaBuf, Memory, MemoryRegion};
pub use state::{State, Transition};
pub use unstaged::Unstaged;

/// One network port.
pub trait Device: Send + Sync + fmt::Debug {
    /// What the operator calls it.
    fn name(&self) -> &str;

    /// The address of the port on the network.
    fn address(&self) -> IpAddr;

    /// A new, empty protection domain.
    ///
    /// # Errors
    /// The device refused.
    fn domain(&self) -> Result<Box<dyn Domain>, TransportError>;
}

/// Memory and queue pairs that may touch each other.
pub trait Domain: Send + fmt::Debug {
    /// Makes `memory` known to the queue pairs of this domain, until the region is dropped.
    ///
    /// # Errors
    /// The device refused, as one does that cannot use memory of other devices (dma-buf), or not this one.
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError>;

    /// A queue pair in [`State::Reset`].
    ///
    /// # Errors
    /// The device refused.
    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError>;

    /// A queue pair for a connection that is a spare: of what the device keeps ready, if it keeps any
    /// ([`Self::keep_ready`]). Otherwise one as every other.
    ///
    /// # Errors
    /// The device refused.
    fn spare_queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        self.queue_pair(depth)
    }

    /// Has so many ends for queue pairs of this depth ready, before it is known whom they are for; tells how
    /// many there are. A device that can make none without knowing the peer has none.
    fn keep_ready(&self, _depth: Depth, _count: usize) -> usize {
        0
    }
}

/// How many operations a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Operations posted and not completed.
    pub sends: usize,
    /// Receives posted and not completed.
    pub receives: usize,
}

/// One end of a reliable connection; see the module for the contract.
pub trait QueuePair: Send + fmt::Debug {
    /// Where it is in its life.
    fn state(&self) -> State;

    /// Why it went to the error state.
    fn fault(&self) -> Option<&TransportError>;

    /// Takes it from `Reset` to `Init`, where receives may be posted.
    ///
    /// # Errors
    /// It is in another state.
    fn initialise(&mut self) -> Result<(), PostError>;

    /// Takes it from `Init` to `ReadyToSend`, connected to the peer's end.
    ///
    /// # Errors
    /// It is in another state, or the connection cannot be used.
    fn connect(&mut self, connection: Connection) -> Result<(), TransportError>;

    /// Queues an operation and starts it if it can start.
    ///
    /// # Errors
    /// The queue is full, or the state is before `ReadyToSend`. In `Error` it is accepted and
    /// flushed.
    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError>;

    /// Queues operations in their order, and starts them together where a device can: as one list of
    /// `ibv_post_send`, with one doorbell. It means what posting them one after the other means.
    ///
    /// # Errors
    /// How many were queued, and why the next one was not.
    fn post_send_list(&mut self, requests: &[WorkRequest]) -> Result<(), (usize, PostError)> {
        for (index, request) in requests.iter().enumerate() {
            self.post_send(*request).map_err(|cause| (index, cause))?;
        }
        Ok(())
    }

    /// Lets operations on much memory wait for the next poll, until so many bytes have come together: fewer and larger calls of
    /// the kernel, where a device needs them for each. With none, as at first, they start when they are posted.
    fn cork(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Whether [`Self::post_unstaged`] may post anything.
    fn sends_unstaged(&self) -> bool {
        false
    }

    /// As [`Self::post_send_list`], of operations whose memory is not filled to its end: what is missing is lent for the call
    /// only, and goes to the network from where it is. What the network does not take at once is stored in that memory.
    /// Returns of how many of the first operations the memory is still not filled, or only in part; `None` if nothing was
    /// posted, because not all could be, or not so.
    ///
    /// It is for devices by which the kernel copies what is sent: it does so before the call returns.
    fn post_unstaged(&mut self, operations: &[Unstaged<'_>]) -> Option<usize> {
        let _ = operations;
        None
    }

    /// Queues memory for one message of the peer.
    ///
    /// # Errors
    /// The queue is full, or the state is `Reset`. In `Error` it is accepted and flushed.
    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError>;

    /// Does what can be done without waiting, appends what has completed, and tells whether
    /// anything happened.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> bool {
        self.poll_into(completions, &mut Nowhere)
    }

    /// As [`Self::poll`]; a device that copies what arrives may put writes with an immediate where `landings` says.
    fn poll_into(&mut self, completions: &mut Vec<Completion>, landings: &mut dyn Landings)
    -> bool;

    /// Tells the peer what was executed, where a device lets that wait for something else to send.
    fn acknowledge(&mut self) {}

    /// Goes to `Error` and flushes everything outstanding. Nothing posted earlier is executed at this
    /// end afterwards, and nothing more leaves it.
    fn fail(&mut self);

    /// As [`Self::fail`], because the peer has given this queue pair up: what has come, and was not executed, must not be any
    /// more. It may have come again elsewhere, and what replaces it too.
    fn discard(&mut self) {
        self.fail();
    }

    /// Goes to `Reset`: forgets everything, completions not yet polled included.
    fn reset(&mut self);

    /// Whether nothing waits in this process to be handed to the network.
    fn flushed(&self) -> bool;

    /// Whether bytes that left this process may still be lost if it exits now.
    fn in_flight(&self) -> bool;

    /// That of the peer's host while bytes are on the way to it; `None` when nothing is on the way, or when
    /// the device cannot tell.
    fn silence(&self) -> Option<Silence> {
        None
    }

    /// Has the device find out whether its NIC works, if it has nobody who tells it: for whoever has polled in
    /// vain, or is about to sleep. A poll acts on what was found.
    fn look_at_nic(&self) {}

    /// Whether operations complete without the peer's process, as long as it has posted receives. Then one
    /// that does not complete is a sign that nothing arrives, where [`Self::silence`] cannot tell.
    fn confirms_alone(&self) -> bool {
        false
    }

    /// Readable when a poll is worthwhile. Without one, only polling tells.
    fn descriptor(&self) -> Option<RawFd>;

    /// Whether a poll is worthwhile although the descriptor is not readable.
    fn needs_poll(&self) -> bool;
}

/// What is heard of a peer's host that has bytes to confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Silence {
    /// For how long nothing was confirmed. Counted from when somebody first asked, so never more than the
    /// truth.
    pub lasts: Duration,
    /// How long a confirmation takes on this path as a rule: where queues are long, that is many times what it
    /// takes elsewhere.
    pub usual: Duration,
    /// Something was confirmed since somebody asked before, with bytes on the way then as now.
    pub is_broken: bool,
}

impl Silence {
    /// One on a path where confirmations take no time.
    #[must_use]
    pub fn of(lasts: Duration) -> Self {
        Self { lasts, ..Self::default() }
    }

    /// How much longer it lasts than a confirmation takes if the first attempt is lost, as is usual where
    /// queues are full.
    #[must_use]
    pub fn beyond_repetition(&self) -> Duration {
        self.lasts.saturating_sub(2 * self.usual)
    }
}

/// What [`QueuePair::connect`] needs to reach the peer's end. A device that is set up otherwise adds
/// its own way.
#[derive(Debug)]
#[non_exhaustive]
pub enum Connection {
    /// An authenticated connection over the NIC of the device: the software device sends everything
    /// over it.
    Stream(TcpStream),
    /// The same, of a pool that many queue pairs share.
    Spare(TcpStream),
}

impl Connection {
    /// Whether it is one of a pool.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        match self {
            Self::Stream(_) => false,
            Self::Spare(_) => true,
        }
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        match self {
            Self::Stream(stream) | Self::Spare(stream) => stream,
        }
    }
}

/// Names an operation in its completion; chosen by whoever posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// Key of a registered region for operations posted at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalKey(pub u32);

/// Key of a registered region for operations of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteKey(pub u32);

/// Part of a region at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The region.
    pub key: LocalKey,
    /// First byte, counted from the start of the region.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The region.
    pub key: RemoteKey,
    /// The address as the owner of the region announced it.
    pub address: u64,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the oldest receive of the peer.
    Send {
        /// What is sent.
        source: Segment,
    },
    /// Writes into the peer's memory.
    Write {
        /// What is written.
        source: Segment,
        /// Where to.
        target: RemoteAddress,
    },
    /// Writes into the peer's memory, then completes its oldest receive.
    WriteWithImmediate {
        /// What is written.
        source: Segment,
        /// Where to.
        target: RemoteAddress,
        /// What the completion carries.
        immediate: u32,
    },
    /// Reads the peer's memory.
    Read {
        /// Where the bytes go.
        target: Segment,
        /// Where they are.
        source: RemoteAddress,
    },
    /// Replaces a little-endian 64-bit word if it has the expected value.
    CompareAndSwap {
        /// Eight bytes that get the word as it was.
        result: Segment,
        /// The word, aligned to eight bytes.
        target: RemoteAddress,
        /// Replaced only if it is this.
        expected: u64,
        /// The replacement.
        new: u64,
    },
    /// Adds to a little-endian 64-bit word, wrapping.
    FetchAdd {
        /// Eight bytes that get the word as it was.
        result: Segment,
        /// The word, aligned to eight bytes.
        target: RemoteAddress,
        /// What is added.
        addend: u64,
    },
}

impl Operation {
    /// What its completion says was done.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        match self {
            Self::Send { .. } => Opcode::Send,
            Self::Write { .. } | Self::WriteWithImmediate { .. } => Opcode::Write,
            Self::Read { .. } => Opcode::Read,
            Self::CompareAndSwap { .. } => Opcode::CompareAndSwap,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
        }
    }

    /// The memory it uses at this end.
    #[must_use]
    pub fn segment(&self) -> Segment {
        match *self {
            Self::Send { source }
            | Self::Write { source, .. }
            | Self::WriteWithImmediate { source, .. } => source,
            Self::Read { target, .. } => target,
            Self::CompareAndSwap { result, .. } | Self::FetchAdd { result, .. } => result,
        }
    }
}

/// An operation to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Names it in its completion.
    pub id: WorkId,
    /// What to do.
    pub operation: Operation,
    /// Whether success is reported too.
    pub signalled: bool,
}

/// A receive to post. Without memory it takes only empty messages and immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Names it in its completion.
    pub id: WorkId,
    /// Where a message goes.
    pub target: Option<Segment>,
}

/// What a completion reports (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// `IBV_WC_SEND`
    Send,
    /// `IBV_WC_RDMA_WRITE`, with or without immediate.
    Write,
    /// `IBV_WC_RDMA_READ`
    Read,
    /// `IBV_WC_COMP_SWAP`
    CompareAndSwap,
    /// `IBV_WC_FETCH_ADD`
    FetchAdd,
    /// `IBV_WC_RECV`
    Receive,
    /// `IBV_WC_RECV_RDMA_WITH_IMM`
    ReceiveWriteWithImmediate,
}

/// How an operation ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `IBV_WC_SUCCESS`
    Success,
    /// `IBV_WC_LOC_LEN_ERR`: the message is longer than the receive, or the operation than the port takes.
    LocalLength,
    /// `IBV_WC_LOC_PROT_ERR`: the local memory is not registered.
    LocalProtection,
    /// `IBV_WC_WR_FLUSH_ERR`: given up because the queue pair is in error.
    Flushed,
    /// `IBV_WC_REM_INV_REQ_ERR`: the peer cannot take this message.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`: the peer's memory is not registered for this.
    RemoteAccess,
    /// `IBV_WC_RETRY_EXC_ERR`: the connection is lost.
    RetryExceeded,
}

/// An operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation.
    pub id: WorkId,
    /// How it ended.
    pub status: Status,
    /// What it was. Of a flushed receive, `Receive`.
    pub opcode: Opcode,
    /// Bytes moved.
    pub bytes: usize,
    /// What the peer's write carried.
    pub immediate: Option<u32>,
}

impl Completion {
    /// Of a request, which moved all its bytes if it succeeded.
    pub(crate) fn of(request: &WorkRequest, status: Status) -> Self {
        let (opcode, bytes) = (request.operation.opcode(), request.operation.segment().bytes);
        Self { id: request.id, status, opcode, bytes, immediate: None }
    }

    /// Of a receive that no message will fill.
    pub(crate) fn flushed_receive(id: WorkId) -> Self {
        let (status, opcode) = (Status::Flushed, Opcode::Receive);
        Self { id, status, opcode, bytes: 0, immediate: None }
    }
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Back-pressure: poll, and try again.
    #[error("the queue is full")]
    QueueFull,
    /// Not in this state.
    #[error("impossible in the state {0}")]
    WrongState(State),
}
