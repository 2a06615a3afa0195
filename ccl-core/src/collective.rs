//! Which collective, on what: the request that planners and ranks agree on.

use std::fmt;

use crate::datatype::{DataType, ReduceOp, Reduction};
use crate::ids::Rank;

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the reduction of all contributions.
    AllReduce = 0,
    /// Every rank gets all contributions, in order of rank.
    AllGather = 1,
    /// Rank `i` gets block `i` of the reduction.
    ReduceScatter = 2,
    /// Every rank gets the root's data.
    Broadcast = 3,
    /// The root gets the reduction of all contributions.
    Reduce = 4,
    /// Rank `j` gets block `j` of every rank, in order of rank.
    AllToAll = 5,
    /// As `AllToAll`, with a count for every pair of ranks.
    AllToAllV = 6,
    /// The root gets all contributions, in order of rank.
    Gather = 7,
    /// Rank `i` gets block `i` of the root's data.
    Scatter = 8,
    /// Nobody leaves before everybody has entered.
    Barrier = 9,
    /// A group of sends and receives.
    PointToPoint = 10,
}

impl Collective {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
        Self::PointToPoint,
    ];

    /// Those that move blocks, all of one size.
    pub const UNIFORM: [Self; 8] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
    ];

    /// The kind with this number on the wire.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name of the C function without its prefix.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::AllGather => "allgather",
            Self::ReduceScatter => "reducescatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "alltoall",
            Self::AllToAllV => "alltoallv",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::PointToPoint => "send/recv",
        }
    }

    /// Whether the call has a root.
    #[must_use]
    pub fn is_rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether contributions are reduced.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

/// One collective call, as all ranks must make it.
///
/// `count` is NCCL's: elements per rank for AllReduce, Broadcast and Reduce; elements of one block
/// (what one rank sends to, or receives from, one other) for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which collective.
    pub collective: Collective,
    /// Elements, see above.
    pub count: usize,
    /// Type of the elements.
    pub datatype: DataType,
    /// How contributions are combined; [`ReduceOp::Sum`] where they are not.
    pub reduction: Reduction,
    /// The root of a rooted collective, `Rank(0)` otherwise.
    pub root: Rank,
}

impl Request {
    /// One byte from everybody to everybody.
    pub const BARRIER: Self = Self {
        collective: Collective::Barrier,
        count: 1,
        datatype: DataType::Uint8,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    };

    /// Bytes of `count` elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count * self.datatype.bytes()
    }

    /// What the ranks compare, with the digest of the chosen plan.
    #[must_use]
    pub fn signature(&self, plan: u32) -> Signature {
        Signature {
            collective: self.collective,
            datatype: self.datatype as u8,
            reduction: self.reduction.code(),
            root: self.root.0,
            count: self.count as u64,
            plan,
        }
    }
}

/// The part of a [`Request`] on which ranks must agree, in its wire representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Which collective.
    pub collective: Collective,
    /// Number of the element type.
    pub datatype: u8,
    /// [`Reduction::code`].
    pub reduction: u8,
    /// Rank of the root, 0 where there is none.
    pub root: u32,
    /// Elements.
    pub count: u64,
    /// Digest of algorithm, partition and epoch.
    pub plan: u32,
}

impl Signature {
    /// Of every group of sends and receives: only the two ends of each take part, and need not agree
    /// on the rest of the group.
    pub const POINT_TO_POINT: Self = Self {
        collective: Collective::PointToPoint,
        datatype: DataType::Uint8 as u8,
        reduction: 0,
        root: 0,
        count: 0,
        plan: 0,
    };
}

/// The call, without the digest of its plan.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.collective == Collective::PointToPoint {
            // Type and count are those of a tile, not of the call.
            return write!(f, "{}({} bytes)", self.collective.name(), self.count);
        }
        let datatype = DataType::from_number(i32::from(self.datatype)).map_or("?", DataType::name);
        write!(f, "{}(count={}, type={datatype}", self.collective.name(), self.count)?;
        if self.collective.reduces() {
            let op =
                ["sum", "prod", "max", "min", "avg", "mulsum"].get(usize::from(self.reduction));
            write!(f, ", op={}", op.unwrap_or(&"?"))?;
        }
        if self.collective.is_rooted() {
            write!(f, ", root={}", self.root)?;
        }
        f.write_str(")")
    }
}
