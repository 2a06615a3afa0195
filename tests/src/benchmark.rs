//! What a benchmark is: a collective described as a value.
//!
//! Offsets and counts are in elements. An *input* is what a rank contributes, an *output* what it
//! gets; each is a place in one of the two buffers of the rank:
//!
//! | form | input of rank r | output of rank r |
//! |---|---|---|
//! | out of place | start of the send buffer | start of the receive buffer |
//! | in place | `in_place_input · r` in the receive buffer | `in_place_output · r` in the receive buffer |

use ccl::{Collective, DataType, OperationOn, Ragged};

use crate::traffic::{Matrix, Traffic};

/// A benchmark.
#[derive(Debug)]
pub struct Benchmark {
    /// Name of the binary.
    pub name: &'static str,
    /// The collective whose candidates `--explain` prints, if a planner has a choice.
    pub collective: Option<Collective>,
    /// What the column of the operation shows.
    pub operation: OperationColumn,
    /// Whether there is a root.
    pub rooted: bool,
    /// Whether counts differ between pairs of ranks, as [`crate::traffic`] says.
    pub uneven: bool,
    /// Whether results in place are checked; where they are not, the column shows `N/A`.
    pub checks_in_place: bool,
    /// Elements of a row.
    pub counts: fn(&Job) -> Counts,
    /// The calls of one rank; the outer order is one after the other.
    pub calls: fn(&Place<'_>) -> Vec<Phase>,
    /// What must be in the output of one rank. Parts that are not mentioned may hold anything.
    pub expected: fn(&Place<'_>) -> Vec<Segment>,
    /// Elements whose bytes, divided by the time, are the algorithm bandwidth.
    pub base: fn(&Counts, usize) -> usize,
    /// What turns algorithm bandwidth into bus bandwidth.
    pub factor: Factor,
    /// What the reader should know before the table, for this number of ranks.
    pub remark: fn(usize) -> Option<String>,
}

/// What the column of the operation shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationColumn {
    /// The operation of the row; `-o` chooses.
    Chosen,
    /// Always the same, because nothing is reduced.
    Fixed(&'static str),
}

/// What a row is to be.
#[derive(Clone, Debug)]
pub struct Job {
    /// The size on the command line, in elements.
    pub elements: usize,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Who sends how much to whom, where that is not the same for all.
    pub traffic: Traffic,
}

/// Elements of a row, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The column `count`, and the count of the call.
    pub count: usize,
    /// Elements of the largest input.
    pub send: usize,
    /// Elements of the largest output.
    pub receive: usize,
    /// In place, the input of rank r starts at r times this in the receive buffer.
    pub in_place_input: usize,
    /// In place, the output of rank r starts at r times this in the receive buffer.
    pub in_place_output: usize,
    /// Elements between every pair of ranks, where they differ.
    pub matrix: Option<Matrix>,
}

impl Counts {
    /// `send` and `receive` elements with both parts at the start of the buffer in place.
    #[must_use]
    pub fn new(count: usize, send: usize, receive: usize) -> Self {
        Self { count, send, receive, in_place_input: 0, in_place_output: 0, matrix: None }
    }

    /// Elements of the larger buffer.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.send.max(self.receive)
    }
}

/// One rank in one row.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// The root, where there is one.
    pub root: usize,
    /// Elements of the row.
    pub counts: &'a Counts,
}

/// A part of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of which.
    pub side: Side,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
}

/// The two places a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What it contributes.
    Input,
    /// What it gets.
    Output,
}

/// Things that one rank does at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Copies its own data; nothing happens where source and target are the same place.
    Copy {
        /// Source.
        from: Span,
        /// Target, of the same count.
        to: Span,
    },
    /// Calls of the library, as a group if there are several.
    Calls(Vec<Call>),
}

/// A call of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A collective with the count of the row.
    Collective {
        /// Which.
        collective: Collective,
        /// Where this rank's contribution is, if it has one.
        input: Option<Span>,
        /// Where its result goes, if it gets one.
        output: Option<Span>,
    },
    /// An AllToAllV over whole input and output.
    AllToAllV {
        /// Elements and displacement for every rank.
        send: Vec<(usize, usize)>,
        /// Elements and displacement from every rank.
        receive: Vec<(usize, usize)>,
    },
    /// Sends.
    Send {
        /// To whom.
        peer: usize,
        /// What.
        data: Span,
    },
    /// Receives.
    Receive {
        /// From whom.
        peer: usize,
        /// Where to.
        data: Span,
    },
}

/// What the calls of a row have in common.
#[derive(Clone, Copy, Debug)]
pub struct RequestOf<'a> {
    /// The rank in the row.
    pub place: Place<'a>,
    /// Type of the elements.
    pub datatype: DataType,
    /// How contributions are combined.
    pub reduction: ccl::Reduction,
}

impl RequestOf<'_> {
    /// The call as the library knows it, with the memory of its spans.
    pub fn call<M>(&self, call: &Call, region: impl Fn(Span) -> M) -> OperationOn<M> {
        let peer = |rank: usize| ccl::Rank(u32::try_from(rank).unwrap_or(u32::MAX));
        let Self { place, datatype, reduction } = *self;
        match call {
            Call::Collective { collective, input, output } => OperationOn::Collective {
                request: request(*collective, datatype, reduction, &place),
                input: input.map(&region),
                output: output.map(&region),
            },
            Call::AllToAllV { send, receive } => {
                let whole = |side, parts: &[(usize, usize)]| {
                    region(Span { side, offset: 0, count: parts.iter().map(|(n, _)| n).sum() })
                };
                OperationOn::AllToAllV {
                    datatype,
                    counts: Ragged { send: send.clone(), receive: receive.clone() },
                    input: whole(Side::Input, send),
                    output: whole(Side::Output, receive),
                }
            }
            Call::Send { peer: to, data } => {
                OperationOn::Send { peer: peer(*to), data: region(*data) }
            }
            Call::Receive { peer: from, data } => {
                OperationOn::Receive { peer: peer(*from), data: region(*data) }
            }
        }
    }
}

/// Elements of an output, and what must be in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First element in the output.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
    /// Where they come from.
    pub origin: Origin,
}

/// Where elements of an output come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The reduction of all inputs from element `first` on.
    Reduced {
        /// First element.
        first: usize,
    },
    /// The input of `rank` from element `first` on.
    Rank {
        /// Whose.
        rank: usize,
        /// First element.
        first: usize,
    },
}

/// What turns algorithm bandwidth into bus bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// 1: everything crosses the bus once.
    Whole,
    /// (n-1)/n: a rank's own share stays.
    OthersShare,
    /// 2(n-1)/n: reduced and distributed.
    TwiceOthersShare,
}

impl Factor {
    /// The number, for `ranks` ranks.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
    pub fn of(self, ranks: usize) -> f64 {
        let share = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Self::Whole => 1.0,
            Self::OthersShare => share,
            Self::TwiceOthersShare => 2.0 * share,
        }
    }
}

/// Elements per rank that a size allows where every rank has a block: whole multiples of 16 bytes.
#[must_use]
pub fn block(job: &Job) -> usize {
    let multiple = (16 / job.element_bytes).max(1);
    job.elements / job.ranks / multiple * multiple
}

/// The request of a row, for the planner.
#[must_use]
pub fn request(
    collective: Collective,
    datatype: DataType,
    reduction: ccl::Reduction,
    place: &Place<'_>,
) -> ccl::Request {
    let root = ccl::Rank(u32::try_from(place.root).unwrap_or(u32::MAX));
    // No rank of an AllToAllV has the count of the column.
    let is_uneven = collective == Collective::AllToAllV;
    let count = if is_uneven { place.counts.largest() } else { place.counts.count };
    ccl::Request { collective, count, datatype, reduction, root }
}

/// All of an input.
#[must_use]
pub fn input(count: usize) -> Span {
    Span { side: Side::Input, offset: 0, count }
}

/// All of an output.
#[must_use]
pub fn output(count: usize) -> Span {
    Span { side: Side::Output, offset: 0, count }
}
