//! What the executor is given, and why it may fail.

use ccl_core::ids::Rank;
use ccl_core::program::Program;
use ccl_core::wire::Stamp;
use ccl_kernels::{Kernel, Region};
use ccl_transport::{Loan, TransportError};

/// One program with everything it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) program: &'a Program,
    /// Memory by [`Buffer`](ccl_core::program::Buffer); the entry of [`SCRATCH`](ccl_core::program::Buffer::SCRATCH) is ignored.
    pub(crate) buffers: &'a [Region<'a>],
    /// How peers on this host can read the same buffers, where they can.
    pub(crate) loans: &'a [Option<Loan>],
    pub(crate) stamp: Stamp,
    pub(crate) arithmetic: Option<Arithmetic>,
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
    /// `peer` is in another call.
    Mismatch { peer: Rank, theirs: Stamp },
}
