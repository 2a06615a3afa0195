//! What the executor is given, and why it may fail.

use ccl_core::collective::Collective;
use ccl_core::ids::Rank;
use ccl_core::program::Program;
use ccl_core::wire::{EncodedStamp, Stamp};
use ccl_kernels::{Kernel, Region};
use ccl_transport::TransportError;

/// One program with everything it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) program: &'a Program,
    /// Memory by [`Buffer`](ccl_core::program::Buffer); the entry of [`SCRATCH`](ccl_core::program::Buffer::SCRATCH) is ignored.
    pub(crate) buffers: &'a [Region<'a>],
    pub(crate) stamp: Stamp,
    pub(crate) arithmetic: Option<Arithmetic>,
    /// Whether the program is [run straight through](super::is_straight); then nothing is scaled.
    pub(crate) is_straight: bool,
}

impl Task<'_> {
    /// Whether only the two ends of a message know its length.
    pub(crate) fn is_ragged(&self) -> bool {
        matches!(self.stamp.signature.collective, Collective::PointToPoint | Collective::AllToAllV)
    }
}

/// How contributions are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) kernel: Kernel,
    /// Factor of this rank's own contribution, as bits of the element type.
    pub(crate) factor: Option<u64>,
}

/// Why a program cannot go on.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The link to or from `peer` failed.
    Link { peer: Rank, cause: TransportError },
    /// `peer` is in another call, or its message is not of the `count` of bytes that this rank expects.
    Mismatch { peer: Rank, count: u64, theirs: Stamp },
}

impl Failure {
    /// A tile of `peer` does not belong to the task, where `count` should be in its stamp.
    #[cold]
    pub(crate) fn of_foreign_tile(peer: Rank, count: u64, stamp: &EncodedStamp) -> Self {
        match Stamp::decode(stamp) {
            Some(theirs) => Self::Mismatch { peer, count, theirs },
            None => {
                let cause = TransportError::Protocol("a tile carries no valid stamp".into());
                Self::Link { peer, cause }
            }
        }
    }
}
