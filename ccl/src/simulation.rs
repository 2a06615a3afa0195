//! The executor without a communicator around it: for worlds that run all ranks in one thread.
//!
//! What runs here is what runs behind a [`Communicator`](crate::Communicator); only what a
//! communicator is for is missing: how ranks meet, threads, and waiting.

use ccl_core::collective::Request;
use ccl_core::ids::Rank;
use ccl_core::program::Program;
use ccl_core::wire::Stamp;
use ccl_kernels::{Region, divide};
use ccl_transport::{Link, TransportError};

use crate::engine::{arithmetic, is_integer_mean};
use crate::executor::{Executor, Failure, Least, Task};

/// One call of one rank, with its memory.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// This rank's part of it.
    pub program: &'a Program,
    /// Memory by [`Buffer`](ccl_core::program::Buffer).
    pub buffers: &'a [Region<'a>],
    /// What its tiles carry.
    pub stamp: Stamp,
    /// How contributions are combined, and among how many ranks; of calls that may combine.
    pub request: Option<(Request, u32)>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing could be moved.
    Idle,
    /// Something was moved.
    Moved,
    /// Every byte has moved, and none waits in this process.
    Finished,
}

/// Why a call cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Whom it was waiting for.
    pub peer: Rank,
    /// Why not.
    pub cause: Cause,
}

/// What is wrong with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The link to it, which says this.
    Link(TransportError),
    /// It is in another call, with this stamp.
    OtherCall(Stamp),
}

/// One rank.
#[derive(Debug)]
pub struct Player {
    executor: Executor,
}

impl Player {
    /// A rank with its links, by [`Port::index`](ccl_core::program::Port::index): two places per rank.
    #[must_use]
    pub fn new(me: Rank, links: Vec<Option<Box<dyn Link>>>) -> Self {
        // Some steps are shorter than that.
        let least = Least { landing_bytes: 128, ..Least::NOTHING };
        Self { executor: Executor::new(me, links).unstaging(least) }
    }

    /// Begins a call; from here to its end every [`Self::sweep`] is given the same.
    pub fn begin(&mut self, program: &Program) {
        self.executor.prepare(program);
    }

    /// Moves what can be moved.
    ///
    /// # Errors
    /// A link that the call needs has failed, or the peer is in another call.
    pub fn sweep(&mut self, call: &Call<'_>) -> Result<Sweep, Failed> {
        let task = task(call);
        let mut run = self.executor.resume(&task, &[]);
        let moved = run.sweep().map_err(Failed::from)?;
        if run.finished() {
            if let Some((request, ranks)) = &call.request
                && is_integer_mean(request)
            {
                let output = call.buffers[1];
                let bytes = request.bytes().min(output.bytes());
                divide(request.datatype, u64::from(*ranks), output.target(0, bytes));
            }
            return Ok(Sweep::Finished);
        }
        Ok(if moved { Sweep::Moved } else { Sweep::Idle })
    }

    /// Looks at all links, as a communicator does after each pause.
    ///
    /// # Errors
    /// A link that the call needs has failed.
    pub fn inspect(&mut self, call: &Call<'_>) -> Result<(), Failed> {
        self.executor.resume(&task(call), &[]).inspect().map_err(Failed::from)
    }

    /// Which ranks a call waits for, in words.
    #[must_use]
    pub fn waiting(&mut self, call: &Call<'_>) -> String {
        self.executor.resume(&task(call), &[]).waiting()
    }

    /// Looks after the links between calls. Tells whether the peers have everything.
    pub fn tend(&mut self) -> bool {
        self.executor.tend()
    }
}

fn task<'a>(call: &Call<'a>) -> Task<'a> {
    Task {
        program: call.program,
        buffers: call.buffers,
        stamp: call.stamp,
        arithmetic: call.request.map(|(request, ranks)| arithmetic(&request, ranks)),
        is_straight: false,
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Link { peer, cause } => Self { peer, cause: Cause::Link(cause) },
            Failure::Mismatch { peer, theirs, .. } => {
                Self { peer, cause: Cause::OtherCall(theirs) }
            }
        }
    }
}
