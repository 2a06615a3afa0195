//! Moves tiles between ranks.
//!
//! # The contract
//!
//! A [`Link`] is one rank's end of a connection to one peer: a pair of bounded first-in first-out
//! queues of *tiles*, one in each direction. A tile is at most [`Link::tile_bytes`] bytes and
//! carries a [`Stamp`] that says which call it belongs to.
//!
//! 1. **In order, exactly once.** The peer sees every committed tile once, in the order of the
//!    commits, whatever happens to the rails below.
//! 2. **Staged, as a rule.** A tile is written into a slot that belongs to the link, and read
//!    from one. The application's buffer is never referenced after [`Link::commit`], so a tile can
//!    be sent again after a fault although the buffer has changed since. A link may send large tiles
//!    [unstaged](Link::send_unstaged); then whoever sends has to supply them again after a fault.
//! 3. **Bounded.** [`Link::reserve`] returns `None` while the peer has not released enough tiles;
//!    that is back-pressure, not an error.
//! 4. **Nothing blocks.** Every call returns at once. Work that needs a push (sockets) is done by
//!    [`Link::progress`]; a link whose `progress` returns `false` found nothing to do. It may have looked at a
//!    part of its rails, and has looked at all of them after a few such calls.
//! 5. **Received in place.** [`Link::peek`] lends the oldest tile until [`Link::release`]. Large tiles may go right to where
//!    [their receiver](Link::progress_into) wants them.
//! 6. **Errors are final.** After an error the link stays in error; it names what failed.
//!
//! Every implementation passes `conformance`, plain and wrapped in the fault injector.

mod allocation;
pub mod attach;
pub mod auth;
pub mod bell;
pub mod biased;
pub mod clock;
pub mod descriptors;
pub mod fence;
pub mod memory;
pub mod network;
pub mod nics;
mod origin;
pub mod place;
pub mod ring;
pub mod shm;
pub mod verbs;
pub mod visitors;
pub mod wait;
pub mod window;

#[cfg(any(test, feature = "conformance"))]
pub mod alone;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::fmt;

use crate::window::Writing;

pub use ccl_core::wire::{EncodedStamp, Stamp};

pub use origin::{Origin, Stretch};
pub use ring::floors_bytes;

/// Bytes in front of the payload of every tile, on the wire and in shared memory.
pub const HEADER_BYTES: usize = 64;

/// One rank's end of a connection to one peer; see the module for the contract.
pub trait Link: Send + fmt::Debug {
    /// Largest payload of a tile, in bytes. Both ends have the same.
    fn tile_bytes(&self) -> usize;

    /// Room for a tile of `bytes` bytes to fill, or `None` while there is none. Until [`Self::commit`] it may be asked for
    /// again, and is the same if the length is.
    ///
    /// # Errors
    /// The link failed.
    ///
    /// # Panics
    /// `bytes` exceeds [`Self::tile_bytes`].
    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError>;

    /// Hands the reserved tile to the peer.
    ///
    /// # Errors
    /// The link failed.
    ///
    /// # Panics
    /// Nothing is reserved.
    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError>;

    /// Whether what is reserved had better be filled past the caches, because the readers' cores do not seem to share one with
    /// this one, on a processor where that matters. It may change with every tile.
    fn is_far(&self) -> bool {
        false
    }

    /// From now on so many ranks of the host, with this one, send to each other at a time: the more, the less memory each
    /// had better use before it uses the same again.
    ///
    /// # Panics
    /// This end only receives.
    fn share(&mut self, writers: usize) {
        let _ = writers;
    }

    /// Lets the peer read own shared memory in place of a tile with its bytes, and returns the
    /// number of the tile, counted from 1; `None` while all slots are in use. The memory must not
    /// change until [`Self::returned`] reaches that number, or this rank has [renounced](Self::renounce).
    ///
    /// # Errors
    /// The link failed.
    ///
    /// # Panics
    /// The link does not [lend](Self::lends).
    fn lend(&mut self, stamp: &Stamp, loan: &Loan) -> Result<Option<u64>, TransportError> {
        panic!("{self:?} does not lend: {stamp:?}, {loan:?}")
    }

    /// Whether [`Self::lend`] can be used: the peer is on this host.
    fn lends(&self) -> bool {
        false
    }

    /// For a rank whose call ends with an error, before its caller has its memory back: peers on this host that read it
    /// meanwhile are told, from now on and for good.
    fn renounce(&self) {}

    /// Whether the peer has [renounced](Self::renounce). To be asked after its memory was read, and before anybody is told of
    /// what was made of it: if the peer has not, the memory was as it was meant to be.
    fn has_renounced(&self) -> bool {
        false
    }

    /// For a rank that is about to write memory of the peer, which waits until what this returns is dropped if it
    /// [renounces](Self::renounce) meanwhile. Nothing if the peer cannot.
    ///
    /// # Errors
    /// [`TransportError::PeerGone`]: the peer has renounced.
    fn begin_to_write(&self) -> Result<Option<Writing>, TransportError> {
        Ok(None)
    }

    /// For a rank that has [renounced](Self::renounce): whether a peer on this host writes memory of this rank still.
    fn is_written(&self) -> bool {
        false
    }

    /// Whether what was read of the oldest tile is what the peer has sent. To be asked as [`Self::has_renounced`]; only what
    /// is [lent](Self::lend) is ever in doubt.
    ///
    /// # Errors
    /// [`TransportError::PeerGone`]: the tile is lent, and the peer has renounced.
    fn check_loan(&self) -> Result<(), TransportError> {
        Ok(())
    }

    /// How many bytes to send [unstaged](Self::send_unstaged) at a time; none if the link cannot.
    fn unstaged_bytes(&self) -> usize {
        0
    }

    /// Sends as much of `bytes` as leaves at once, in whole tiles and from where it is, and returns how much and the number of
    /// the last tile, counted from 1; `None` while nothing leaves. The link does not use these bytes later. But what was sent
    /// must not change until [`Self::returned`] reaches the number of its tile: until then it may be [`Self::wanted`].
    ///
    /// # Errors
    /// The link failed.
    fn send_unstaged(
        &mut self,
        stamp: &Stamp,
        bytes: Stretch<'_>,
    ) -> Result<Option<(usize, u64)>, TransportError> {
        let _ = (stamp, bytes);
        Ok(None)
    }

    /// A tile that was sent unstaged, and lost with a rail: nothing goes on until it is [supplied](Self::supply).
    fn wanted(&self) -> Option<u64> {
        None
    }

    /// Gives the bytes of a tile that was sent unstaged, and has not returned, once more: they are staged, and the tile has
    /// returned.
    ///
    /// # Panics
    /// These are not as many bytes as were sent.
    fn supply(&mut self, tile: u64, bytes: Stretch<'_>) {
        panic!("{self:?} sends nothing unstaged: tile {tile}, {bytes:?}")
    }

    /// How many of the first tiles the sender need not keep: what was lent the peer has released; what was sent unstaged has
    /// come, or is staged.
    fn returned(&mut self) -> u64 {
        0
    }

    /// The oldest tile that has arrived and was not released.
    fn peek(&self) -> Option<Tile<'_>>;

    /// Gives the slot of the oldest tile back to the peer.
    ///
    /// # Errors
    /// The link failed.
    ///
    /// # Panics
    /// There is no such tile.
    fn release(&mut self) -> Result<(), TransportError>;

    /// Does what can be done without waiting; tells whether anything was.
    ///
    /// # Errors
    /// The link failed.
    fn progress(&mut self) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// As [`Self::progress`]. The payloads of the next tiles with this stamp, from the oldest on that was not released, may be
    /// put into `landing`, one behind the other, as far as they fit as a whole: such a tile says that it
    /// [has landed](Tile::has_landed). Until it was released all that is left of the same memory has to be given each time, and only
    /// that: a tile of which a part has landed waits for it.
    ///
    /// # Errors
    /// The link failed.
    fn progress_into(
        &mut self,
        stamp: &EncodedStamp,
        landing: &mut [u8],
    ) -> Result<bool, TransportError> {
        let _ = (stamp, landing);
        self.progress()
    }

    /// Divides the bytes of the next tiles among the rails in these proportions, or by capacity if there
    /// are none. Rails that do not drain are passed over all the same.
    fn divide(&mut self, proportions: &[u16]) {
        let _ = proportions;
    }

    /// Says how many bytes per second the rails carry, as was measured, and how many links share them.
    /// Then no more is on the way at a time than the network can be expected to hold, in tiles that are
    /// small beside that.
    fn tune(&mut self, rates: &[f64], sharing: usize) {
        let _ = (rates, sharing);
    }

    /// Whether everything committed has left this process: the network has taken it.
    fn flushed(&self) -> bool {
        true
    }

    /// Whether the peer's host has confirmed everything committed: nothing is on the way that a dying rail could lose after
    /// this process has exited.
    fn delivered(&self) -> bool {
        self.flushed()
    }

    /// Whether the peer is known to have everything committed. While it is not, somebody has to call
    /// [`Self::progress`] now and then: what a rail loses is sent again from there.
    fn settled(&self) -> bool {
        true
    }

    /// Tells the peer what was released, however little that is, and what has arrived on every rail: for who has nothing else
    /// to do, so that the peer's end is [settled](Self::settled).
    fn confirm(&mut self) {}

    /// Whether no path leads to the peer now. A link that stays so for longer than its patience fails, unless it is
    /// [spared](Self::spare).
    fn is_out_of_reach(&self) -> bool {
        false
    }

    /// Nothing is waited for on this link, so that it need not reach its peer: its patience begins anew.
    fn spare(&mut self) {}

    /// Says that this end closes, once everything committed was handed over; to be called until it tells that nothing is left
    /// to wait for, or for as long as the caller wants to wait. A link that was told so does not wait when it is dropped.
    fn leave(&mut self) -> bool {
        true
    }

    /// Grows whenever [`Self::descriptors`] would give something else.
    fn revision(&self) -> u32 {
        0
    }

    /// File descriptors whose readiness is worth waking up for.
    fn descriptors(&self, into: &mut Vec<std::os::fd::RawFd>) {
        let _ = into;
    }
}

/// Bytes in an [`shm::Allocation`] that a peer may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The memory as peers know it.
    pub segment: shm::SegmentAddress,
    /// Where the bytes begin, counted from the beginning of the allocation.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
}

/// A received tile, in place.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// Which call it belongs to, as the peer wrote it; nobody has checked it yet.
    pub stamp: &'a EncodedStamp,
    /// What the peer committed.
    pub payload: &'a [u8],
    /// The payload is where [`Link::progress_into`] was told to put it, and only its length is right here.
    pub has_landed: bool,
}

/// Why a link or a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The peer closed the connection, or its process ended.
    #[error("the peer is gone: {0}")]
    PeerGone(String),
    /// No rail to the peer can be used, though its process may live.
    #[error("no rail can be used: {0}")]
    Severed(String),
    /// A rail to the peer was lost, perhaps not the last one, and nothing is repaired.
    #[error("a rail was lost, and hot repair is off: {0}")]
    Unrepaired(String),
    /// The peer sent something that no correct peer sends.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A peer could not prove that it belongs to the job.
    #[error("refused: {0}")]
    Refused(String),
    /// Something did not happen in time.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The operating system refused something.
    #[error("{call}: {cause}")]
    System {
        /// What was attempted, and on what.
        call: String,
        /// The cause as reported.
        cause: String,
    },
}

impl TransportError {
    /// The peer has [renounced](Link::renounce) while its memory was read.
    #[must_use]
    pub fn renounced() -> Self {
        Self::PeerGone("its call has failed while its memory was read".into())
    }

    /// Shorthand for a failed call of the operating system.
    pub fn system(call: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::System { call: call.into(), cause: cause.to_string() }
    }
}
