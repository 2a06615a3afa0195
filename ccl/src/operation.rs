//! What the application asks for, and whether it can be done.

use std::borrow::Cow;

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::{Ragged, blocks};
use ccl_kernels::Region;

/// One call, with the memory of the host that it works on.
pub type Operation<'a> = OperationOn<Region<'a>>;

/// One call, with the memory it works on.
#[derive(Clone, Debug)]
pub enum OperationOn<M> {
    /// A collective that is described by its [`Request`].
    ///
    /// Shapes, in elements of `request.datatype`, with `n` ranks and `c = request.count`:
    ///
    /// | collective | input | output | in place |
    /// |---|---|---|---|
    /// | AllReduce | c | c | same start |
    /// | Broadcast | c at the root | c | same start |
    /// | Reduce | c | c at the root | same start |
    /// | AllGather | c | n·c | input = output + rank·c |
    /// | ReduceScatter | n·c | c | output = input + rank·c |
    /// | Gather | c | n·c at the root | input = output + rank·c |
    /// | Scatter | n·c at the root | c | output = input + rank·c |
    /// | AllToAll | n·c | n·c | same start |
    ///
    /// A buffer that this rank does not have by this table may be `None`; it is not touched.
    Collective {
        /// What, on how many elements, with which root.
        request: Request,
        /// What this rank contributes.
        input: Option<M>,
        /// Where its result goes.
        output: Option<M>,
    },
    /// Every rank sends `counts.send[j]` to rank `j` and receives `counts.receive[i]` from rank `i`.
    /// In place: both buffers have the same start.
    AllToAllV {
        /// Type of the elements.
        datatype: DataType,
        /// Counts and displacements, in elements, one pair per rank.
        counts: Ragged,
        /// What this rank sends.
        input: M,
        /// Where it receives.
        output: M,
    },
    /// Sends to one rank, which must receive the same number of bytes.
    Send {
        /// To whom.
        peer: Rank,
        /// What.
        data: M,
    },
    /// Receives from one rank.
    Receive {
        /// From whom.
        peer: Rank,
        /// Where to; it is filled completely.
        data: M,
    },
    /// Waits until every rank has called it.
    Barrier,
}

/// Bytes that follow each other, somewhere.
pub trait Span: Copy {
    /// Where they begin.
    fn address(&self) -> usize;
    /// How many there are.
    fn bytes(&self) -> usize;
    /// The `bytes` bytes at `offset`, which are inside.
    #[must_use]
    fn part(&self, offset: usize, bytes: usize) -> Self;
}

impl Span for Region<'_> {
    fn address(&self) -> usize {
        Region::address(self)
    }

    fn bytes(&self) -> usize {
        Region::bytes(self)
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        Region::part(self, offset, bytes)
    }
}

impl<M> OperationOn<M> {
    /// A short name for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Collective { request, .. } => request.collective.name(),
            Self::AllToAllV { .. } => Collective::AllToAllV.name(),
            Self::Send { .. } => "send",
            Self::Receive { .. } => "recv",
            Self::Barrier => Collective::Barrier.name(),
        }
    }

    /// Whether it is a send or a receive, in which only the two ends take part.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Receive { .. })
    }

    /// The same call with other memory in the place of each buffer.
    #[inline(always)]
    pub fn map<N>(self, mut other: impl FnMut(M) -> N) -> OperationOn<N> {
        match self {
            Self::Collective { request, input, output } => {
                let (input, output) = (input.map(&mut other), output.map(&mut other));
                OperationOn::Collective { request, input, output }
            }
            Self::AllToAllV { datatype, counts, input, output } => {
                let (input, output) = (other(input), other(output));
                OperationOn::AllToAllV { datatype, counts, input, output }
            }
            Self::Send { peer, data } => OperationOn::Send { peer, data: other(data) },
            Self::Receive { peer, data } => OperationOn::Receive { peer, data: other(data) },
            Self::Barrier => OperationOn::Barrier,
        }
    }
}

/// Calls of a group in the order in which they are done: first those of all ranks, as they were added, and then all sends and
/// receives together, which may stand at other places in the groups of other ranks.
pub(crate) fn as_done<M: Clone>(group: &[OperationOn<M>]) -> Cow<'_, [OperationOn<M>]> {
    if group.is_sorted_by_key(OperationOn::is_message) {
        return Cow::Borrowed(group);
    }
    let mut group = group.to_vec();
    group.sort_by_key(OperationOn::is_message);
    Cow::Owned(group)
}

/// Messages to oneself must meet in the group they are in: nobody else can complete them.
///
/// # Errors
/// `InvalidUsage` that names the rank and how many bytes each of these messages has.
pub(crate) fn check_own_messages<M: Span>(group: &[OperationOn<M>], me: Rank) -> Result<(), Error> {
    let own = |are_sends| {
        let bytes = move |operation: &OperationOn<M>| match operation {
            OperationOn::Send { peer, data } if are_sends && *peer == me => Some(data.bytes()),
            OperationOn::Receive { peer, data } if !are_sends && *peer == me => Some(data.bytes()),
            OperationOn::Send { .. }
            | OperationOn::Receive { .. }
            | OperationOn::Collective { .. }
            | OperationOn::AllToAllV { .. }
            | OperationOn::Barrier => None,
        };
        group.iter().filter_map(bytes).filter(|bytes| *bytes > 0).collect::<Vec<usize>>()
    };
    let (sent, received) = (own(true), own(false));
    if sent == received {
        return Ok(());
    }
    Err(Error::InvalidUsage(format!(
        "rank {me} sends messages of {sent:?} bytes to itself and receives {received:?} in one group"
    )))
}

impl<M: Span> OperationOn<M> {
    /// Checks everything that one rank can know about its call.
    ///
    /// # Errors
    /// `InvalidArgument` that names the argument.
    #[inline(always)]
    pub fn validate(&self, me: Rank, ranks: u32) -> Result<(), Error> {
        match self {
            Self::Collective { request, input, output } => {
                check(request, input.as_ref(), output.as_ref(), (me, ranks))
            }
            Self::AllToAllV { datatype, counts, input, output } => {
                check_counts("send", &counts.send, *datatype, input, ranks)?;
                check_counts("receive", &counts.receive, *datatype, output, ranks)?;
                check_own_counts(counts, me)?;
                let in_place = input.address() == output.address();
                if !in_place && overlap(span(input), span(output)) {
                    return Err(overlapping());
                }
                Ok(())
            }
            Self::Send { peer, .. } | Self::Receive { peer, .. } => {
                check_rank("peer", *peer, ranks)
            }
            Self::Barrier => Ok(()),
        }
    }
}

/// [`OperationOn::validate`] for a collective that is described by a request.
#[inline(always)]
pub(crate) fn check(
    request: &Request,
    input: Option<&impl Span>,
    output: Option<&impl Span>,
    (me, ranks): (Rank, u32),
) -> Result<(), Error> {
    check_rank("root", request.root, ranks)?;
    check_scalar(request)?;
    Shapes::of(request, me, ranks)?.check(input, output)
}

/// The bits of a scalar mean another number in another type.
#[inline(always)]
fn check_scalar(request: &Request) -> Result<(), Error> {
    match request.reduction {
        Reduction::PreMulSum { datatype, .. } if datatype != request.datatype => {
            Err(other_scalar(datatype, request.datatype))
        }
        Reduction::PreMulSum { .. } | Reduction::Builtin(_) => Ok(()),
    }
}

#[cold]
fn other_scalar(scalar: DataType, elements: DataType) -> Error {
    let (scalar, elements) = (scalar.name(), elements.name());
    Error::InvalidArgument(format!(
        "the scalar of the reduction is {scalar}, elements are {elements}"
    ))
}

/// What a rank sends to itself is what it receives from itself: no other rank can tell that it is not.
fn check_own_counts(counts: &Ragged, me: Rank) -> Result<(), Error> {
    let (sent, received) = (counts.send[me.index()].0, counts.receive[me.index()].0);
    if sent == received {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "rank {me} sends {sent} elements to itself and receives {received}"
    )))
}

/// Bytes that one rank must provide for a collective, and the documented in-place form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) input_bytes: usize,
    pub(crate) output_bytes: usize,
    /// Address of the output minus address of the input when in place.
    in_place_shift: isize,
}

impl Shapes {
    #[inline(always)]
    pub(crate) fn of(request: &Request, me: Rank, ranks: u32) -> Result<Self, Error> {
        let Request { collective, count, datatype, root, .. } = *request;
        let too_large =
            || Error::InvalidArgument(format!("count {count} exceeds the address space"));
        let block = count.checked_mul(datatype.bytes()).ok_or_else(too_large)?;
        let all = block.checked_mul(ranks as usize).ok_or_else(too_large)?;
        isize::try_from(all).map_err(|_| too_large())?;
        #[allow(clippy::cast_possible_wrap, reason = "checked above: all blocks fit")]
        let own = (me.index() * block) as isize;
        let at_root = |bytes| if me == root { bytes } else { 0 };
        let (input_bytes, output_bytes, in_place_shift) = match collective {
            Collective::AllReduce => (block, block, 0),
            Collective::Broadcast => (at_root(block), block, 0),
            Collective::Reduce => (block, at_root(block), 0),
            Collective::AllGather => (block, all, -own),
            Collective::ReduceScatter => (all, block, own),
            Collective::Gather => (block, at_root(all), -own),
            Collective::Scatter => (at_root(all), block, own),
            Collective::AllToAll => (all, all, 0),
            Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => {
                let text = format!("{} is not described by a request", collective.name());
                return Err(Error::InvalidArgument(text));
            }
        };
        debug_assert!(blocks(collective, ranks) > 0);
        Ok(Self { input_bytes, output_bytes, in_place_shift })
    }

    #[inline(always)]
    fn check(self, input: Option<&impl Span>, output: Option<&impl Span>) -> Result<(), Error> {
        check_size("input", input, self.input_bytes)?;
        check_size("output", output, self.output_bytes)?;
        let (Some(input), Some(output)) = (input, output) else { return Ok(()) };
        let (read, written) =
            ((input.address(), self.input_bytes), (output.address(), self.output_bytes));
        let in_place = input.address().wrapping_add_signed(self.in_place_shift) == output.address();
        if !in_place && overlap(read, written) {
            return Err(overlapping());
        }
        Ok(())
    }
}

#[inline(always)]
fn check_rank(what: &str, rank: Rank, ranks: u32) -> Result<(), Error> {
    if rank.0 < ranks { Ok(()) } else { Err(no_rank(what, rank, ranks)) }
}

#[cold]
fn no_rank(what: &str, rank: Rank, ranks: u32) -> Error {
    Error::InvalidArgument(format!("{what} {rank} is not a rank of a group of {ranks}"))
}

#[inline(always)]
fn check_size(what: &str, region: Option<&impl Span>, bytes: usize) -> Result<(), Error> {
    let given = region.map_or(0, Span::bytes);
    if given >= bytes { Ok(()) } else { Err(too_small(what, given, bytes)) }
}

#[cold]
fn too_small(what: &str, given: usize, bytes: usize) -> Error {
    Error::InvalidArgument(format!("the {what} buffer has {given} bytes, {bytes} are needed"))
}

fn check_counts(
    what: &str,
    counts: &[(usize, usize)],
    datatype: DataType,
    region: &impl Span,
    ranks: u32,
) -> Result<(), Error> {
    if counts.len() != ranks as usize {
        let text = format!("{} {what} counts for {ranks} ranks", counts.len());
        return Err(Error::InvalidArgument(text));
    }
    let end = |(count, displacement): &(usize, usize)| {
        if *count == 0 {
            return Some(0);
        }
        count.checked_add(*displacement)?.checked_mul(datatype.bytes())
    };
    for (rank, pair) in counts.iter().enumerate() {
        if end(pair).is_none_or(|end| end > region.bytes()) {
            let (count, displacement) = pair;
            let text = format!(
                "{what} count {count} at displacement {displacement} for rank {rank} exceeds the buffer of {} bytes",
                region.bytes()
            );
            return Err(Error::InvalidArgument(text));
        }
    }
    Ok(())
}

/// A buffer that this rank does not have is one of no bytes.
pub(crate) fn or_empty(region: Option<Region<'_>>) -> Region<'_> {
    region.unwrap_or_else(Region::empty)
}

fn span(region: &impl Span) -> (usize, usize) {
    (region.address(), region.bytes())
}

fn overlap((a, a_bytes): (usize, usize), (b, b_bytes): (usize, usize)) -> bool {
    a_bytes > 0 && b_bytes > 0 && a < b.wrapping_add(b_bytes) && b < a.wrapping_add(a_bytes)
}

#[cold]
fn overlapping() -> Error {
    Error::InvalidArgument(
        "input and output overlap, and not in the documented in-place form".into(),
    )
}
