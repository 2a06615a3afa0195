//! One rank's part of a collective, ready to execute.
//!
//! A [`Program`] is a list of [`Step`]s. Each step moves a stretch of bytes from its beginning to
//! its end, in tiles; it may have moved at most as many bytes as every step in its `after` list has
//! (all of these are as long as it is). That one rule orders reads and writes of the same memory
//! *and* pipelines: a chunk is forwarded tile by tile while it is still arriving.
//!
//! Steps that use the same [`Port`] in the same direction run in the order of the list, so both ends
//! of a link agree on what the next tile means.
//!
//! [`lower`] makes a program from a schedule; [`point_to_point`] from sends and receives. [`check`]
//! executes the programs of all ranks symbolically.

mod check;
mod in_place;
mod lower;
mod multicast;

pub use check::{ProgramFault, check};
pub use lower::{lower, point_to_point};
pub(crate) use multicast::multicasts;

use crate::ids::Rank;

/// A link as programs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// The link to one peer.
    Pair(Rank),
    /// The link on which this rank sends to all other ranks of its host at once.
    Multicast(Rank),
}

impl Port {
    /// Index into a table of the links of one rank of `ranks`.
    #[must_use]
    pub fn index(self, ranks: usize) -> usize {
        match self {
            Self::Pair(peer) => peer.index(),
            Self::Multicast(source) => ranks + source.index(),
        }
    }

    /// Who sends on it, as a receiver sees it.
    #[must_use]
    pub fn rank(self) -> Rank {
        match self {
            Self::Pair(rank) | Self::Multicast(rank) => rank,
        }
    }
}

/// Which memory a [`Span`] lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buffer(pub u32);

impl Buffer {
    /// The application's send buffer.
    pub const INPUT: Self = Self(0);
    /// The application's receive buffer.
    pub const OUTPUT: Self = Self(1);
    /// Memory of the communicator for data in transit.
    pub const SCRATCH: Self = Self(2);

    /// Its place among the buffers of a call.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A place in memory; its length is that of the step that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Which memory.
    pub buffer: Buffer,
    /// Where it begins, in bytes.
    pub offset: usize,
}

impl Span {
    /// Whether the bytes are this rank's own contribution, not yet reduced with any other. A
    /// reduction that scales contributions scales exactly these.
    #[must_use]
    pub fn is_contribution(self) -> bool {
        self.buffer == Buffer::INPUT
    }
}

/// One input of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Memory of this rank.
    Local(Span),
    /// What arrives from a peer.
    Arrival(Port),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends to one peer, or to all on the host.
    Send {
        /// On which link.
        port: Port,
        /// What.
        from: Span,
        /// Whether a peer may read the memory in place: nothing of the same round writes it. Then
        /// the peer's use of it never waits for a step that waits for the memory's return.
        lend: bool,
    },
    /// Stores what arrives from a peer.
    Receive {
        /// On which link.
        port: Port,
        /// Where to.
        into: Span,
    },
    /// Reduces what arrives from peers, and possibly own memory, in the order of the operands.
    Reduce {
        /// What is combined; at least one operand arrives.
        operands: Vec<Operand>,
        /// Where the result goes; it may be the place of the local operand.
        into: Span,
    },
    /// Copies own memory.
    Copy {
        /// Where from.
        from: Span,
        /// Where to.
        into: Span,
    },
}

/// Index of a step in its program.
pub type StepIndex = u32;

/// A stretch of bytes that moves; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub action: Action,
    /// How many bytes it moves.
    pub bytes: usize,
    /// Steps of the same length that must stay ahead of this one.
    pub after: Vec<StepIndex>,
}

/// The steps of one link in one direction, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The link.
    pub port: Port,
    /// Indices into [`Program::steps`], ascending.
    pub steps: Vec<StepIndex>,
}

/// One rank's part of a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// All steps. A step depends only on earlier ones.
    pub steps: Vec<Step>,
    /// Per link, what is sent on it.
    pub sends: Vec<Lane>,
    /// Per link, what is received on it. A reduction stands in the lane of each of its arrivals.
    pub receives: Vec<Lane>,
    /// Steps that use no link.
    pub copies: Vec<StepIndex>,
    /// Size of [`Buffer::SCRATCH`], in bytes.
    pub scratch_bytes: usize,
    /// Per peer on another host, how the bytes to it are divided among the rails, in proportion. Peers
    /// that are not named, and those whose list is empty, get them by capacity.
    pub rails: Vec<(Rank, Vec<u16>)>,
}

impl Program {
    /// Makes a program of steps: sorts them into lanes. The lanes begin with the peer behind
    /// `rank`, so that not everybody serves the lowest rank first.
    fn from_steps(steps: Vec<Step>, rank: Rank, scratch_bytes: usize) -> Self {
        let mut program = Self { scratch_bytes, ..Self::default() };
        for (index, step) in (0..).zip(&steps) {
            match &step.action {
                Action::Send { port, .. } => push(&mut program.sends, *port, index),
                Action::Receive { port, .. } => push(&mut program.receives, *port, index),
                Action::Reduce { operands, .. } => {
                    for operand in operands {
                        if let Operand::Arrival(port) = operand {
                            push(&mut program.receives, *port, index);
                        }
                    }
                }
                Action::Copy { .. } => program.copies.push(index),
            }
        }
        let behind = |lane: &Lane| (lane.port.rank() < rank, lane.port);
        program.sends.sort_unstable_by_key(behind);
        program.receives.sort_unstable_by_key(behind);
        program.steps = steps;
        program
    }
}

fn push(lanes: &mut Vec<Lane>, port: Port, step: StepIndex) {
    match lanes.iter_mut().find(|lane| lane.port == port) {
        Some(lane) => lane.steps.push(step),
        None => lanes.push(Lane { port, steps: vec![step] }),
    }
}
