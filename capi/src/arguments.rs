//! From C's numbers and pointers to values that cannot be wrong.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ccl::{Collective, DataType, Error, OperationOn, Rank, ReduceOp, Reduction, Region, Request};
use ccl_core::layout::Ragged;

use crate::abi::FIRST_USER_OP;
use crate::member::Member;

/// Who a call is for, while its arguments are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The member, for the operations that the user made.
    pub(crate) member: &'a Member,
    /// Its rank.
    pub(crate) rank: Rank,
    /// The number of ranks.
    pub(crate) size: u32,
}

/// A collective as the header describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Which one.
    pub(crate) collective: Collective,
    /// `count`.
    pub(crate) count: usize,
    /// `ccl_datatype_t`.
    pub(crate) datatype: c_int,
    /// `ccl_redop_t`; 0 where there is none.
    pub(crate) op: c_int,
    /// The root; 0 where there is none.
    pub(crate) root: c_int,
}

impl Call {
    /// A collective with neither operation nor root.
    #[inline(always)]
    pub(crate) fn new(collective: Collective, count: usize, datatype: c_int) -> Self {
        Self { collective, count, datatype, op: 0, root: 0 }
    }

    /// The same with an operation.
    #[inline(always)]
    pub(crate) fn op(self, op: c_int) -> Self {
        Self { op, ..self }
    }

    /// The same with a root.
    #[inline(always)]
    pub(crate) fn root(self, root: c_int) -> Self {
        Self { root, ..self }
    }

    /// The request behind the numbers.
    #[inline(always)]
    pub(crate) fn request(&self, place: Place<'_>) -> Result<Request, Error> {
        let datatype = datatype(self.datatype)?;
        let reduction = match self.collective.reduces() {
            true => reduction(place.member, self.op, datatype)?,
            false => Reduction::Builtin(ReduceOp::Sum),
        };
        let root = match self.collective.is_rooted() {
            true => rank("root", self.root, place.size)?,
            false => Rank(0),
        };
        Ok(Request { collective: self.collective, count: self.count, datatype, reduction, root })
    }

    /// The operation on these buffers.
    #[inline(always)]
    pub(crate) fn on(
        self,
        send: *const c_void,
        receive: *mut c_void,
        place: Place<'_>,
    ) -> Result<OperationOn<Buffer>, Error> {
        let request = self.request(place)?;
        let (input, output) = buffers(&request, send, receive, place)?;
        Ok(OperationOn::Collective { request, input, output })
    }
}

/// What a rank sends from and receives into; `None`: no such buffer.
#[inline(always)]
pub(crate) fn buffers(
    request: &Request,
    send: *const c_void,
    receive: *mut c_void,
    place: Place<'_>,
) -> Result<(Option<Buffer>, Option<Buffer>), Error> {
    let (sent, received) = blocks(request.collective, place.size, place.rank == request.root);
    let bytes = |blocks: u32| bytes(request.count, blocks, request.datatype);
    let input = match sent {
        Some(blocks) => Some(Buffer::source("send", send, bytes(blocks)?)?),
        None => None,
    };
    let output = match received {
        Some(blocks) => Some(Buffer::target("recv", receive, bytes(blocks)?)?),
        None => None,
    };
    Ok((input, output))
}

/// Blocks of `count` elements that a rank sends from and receives into; `None`: no such buffer.
#[inline(always)]
fn blocks(collective: Collective, ranks: u32, is_root: bool) -> (Option<u32>, Option<u32>) {
    let at_root = |blocks| is_root.then_some(blocks);
    match collective {
        Collective::AllReduce => (Some(1), Some(1)),
        Collective::AllGather => (Some(1), Some(ranks)),
        Collective::ReduceScatter => (Some(ranks), Some(1)),
        Collective::Broadcast => (at_root(1), Some(1)),
        Collective::Reduce => (Some(1), at_root(1)),
        Collective::AllToAll => (Some(ranks), Some(ranks)),
        Collective::Gather => (Some(1), at_root(ranks)),
        Collective::Scatter => (at_root(ranks), Some(1)),
        Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => (None, None),
    }
}

/// The arguments of `ccl_alltoallv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RaggedCall {
    /// Elements for each rank.
    pub(crate) send_counts: *const usize,
    /// Where they begin.
    pub(crate) send_displacements: *const usize,
    /// Elements from each rank.
    pub(crate) receive_counts: *const usize,
    /// Where they go.
    pub(crate) receive_displacements: *const usize,
    /// `ccl_datatype_t`.
    pub(crate) datatype: c_int,
}

impl RaggedCall {
    /// The operation on these buffers.
    ///
    /// # Safety
    ///
    /// The arrays have an entry for every rank.
    pub(crate) unsafe fn on(
        self,
        send: *const c_void,
        receive: *mut c_void,
        place: Place<'_>,
    ) -> Result<OperationOn<Buffer>, Error> {
        let datatype = datatype(self.datatype)?;
        // SAFETY: the caller's promise about the arrays.
        let sent = unsafe { pairs(self.send_counts, self.send_displacements, place.size) }?;
        let (counts, displacements) = (self.receive_counts, self.receive_displacements);
        // SAFETY: the caller's promise about the arrays.
        let received = unsafe { pairs(counts, displacements, place.size) }?;
        let input = Buffer::source("send", send, extent(&sent, datatype)?)?;
        let output = Buffer::target("recv", receive, extent(&received, datatype)?)?;
        let counts = Ragged { send: sent, receive: received };
        Ok(OperationOn::AllToAllV { datatype, counts, input, output })
    }
}

/// Copies an array of counts and one of displacements.
///
/// # Safety
///
/// Where the pointers are not null, `ranks` values can be read there.
unsafe fn pairs(
    counts: *const usize,
    displacements: *const usize,
    ranks: u32,
) -> Result<Vec<(usize, usize)>, Error> {
    if counts.is_null() || displacements.is_null() {
        return Err(null("an array of counts or displacements"));
    }
    // SAFETY: not null, and the caller's promise.
    let counts = unsafe { std::slice::from_raw_parts(counts, ranks as usize) };
    // SAFETY: not null, and the caller's promise.
    let displacements = unsafe { std::slice::from_raw_parts(displacements, ranks as usize) };
    Ok(counts.iter().copied().zip(displacements.iter().copied()).collect())
}

/// Copies an array of ranks; that they are ranks of a group is for the callee to see.
///
/// # Safety
///
/// Where `list` is not null, `count` values can be read there.
pub(crate) unsafe fn ranks(what: &str, list: *const c_int, count: u32) -> Result<Vec<Rank>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let rank = |number: &c_int| u32::try_from(*number).map(Rank);
    list.iter()
        .map(rank)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::InvalidArgument(format!("there are negative numbers in {what}")))
}

/// Bytes up to the end of the last non-empty block.
fn extent(pairs: &[(usize, usize)], datatype: DataType) -> Result<usize, Error> {
    let end = |(count, displacement): &(usize, usize)| match count {
        0 => Ok(0),
        _ => {
            let elements = count.checked_add(*displacement).ok_or_else(too_large)?;
            bytes(elements, 1, datatype)
        }
    };
    pairs.iter().map(end).try_fold(0, |largest, end| end.map(|end| largest.max(end)))
}

/// The type with this number.
#[inline(always)]
pub(crate) fn datatype(number: c_int) -> Result<DataType, Error> {
    DataType::from_number(number)
        .ok_or_else(|| Error::InvalidArgument(format!("{number} is not a ccl_datatype_t")))
}

/// The rank with this number, called `what` in messages.
#[inline(always)]
pub(crate) fn rank(what: &str, number: c_int, ranks: u32) -> Result<Rank, Error> {
    let rank = u32::try_from(number).ok().filter(|rank| *rank < ranks);
    rank.map(Rank).ok_or_else(|| {
        Error::InvalidArgument(format!("{what} {number} is not a rank of a group of {ranks}"))
    })
}

#[inline(always)]
fn reduction(member: &Member, number: c_int, datatype: DataType) -> Result<Reduction, Error> {
    let unknown = || member.no_operation(number);
    if number < FIRST_USER_OP {
        return ReduceOp::from_number(number).map(Reduction::Builtin).ok_or_else(unknown);
    }
    let reduction = member.operation(number).ok_or_else(unknown)?;
    match reduction {
        Reduction::PreMulSum { datatype: made_for, .. } if made_for != datatype => {
            Err(Error::InvalidArgument(format!(
                "operation {number} was made for {}, not for {}",
                made_for.name(),
                datatype.name()
            )))
        }
        Reduction::PreMulSum { .. } | Reduction::Builtin(_) => Ok(reduction),
    }
}

/// Size of a buffer of `blocks` times `count` elements.
#[inline(always)]
pub(crate) fn bytes(count: usize, blocks: u32, datatype: DataType) -> Result<usize, Error> {
    count
        .checked_mul(blocks as usize)
        .and_then(|elements| elements.checked_mul(datatype.bytes()))
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(too_large)
}

/// A buffer of the program, in memory of the host or of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    start: *mut u8,
    bytes: usize,
    is_read_only: bool,
}

impl Buffer {
    /// One that an operation reads, called `what` in messages.
    #[inline(always)]
    pub(crate) fn source(what: &str, start: *const c_void, bytes: usize) -> Result<Self, Error> {
        let start = checked_start(what, start.cast_mut(), bytes)?;
        Ok(Self { start, bytes, is_read_only: true })
    }

    /// One that an operation writes.
    #[inline(always)]
    pub(crate) fn target(what: &str, start: *mut c_void, bytes: usize) -> Result<Self, Error> {
        let start = checked_start(what, start, bytes)?;
        Ok(Self { start, bytes, is_read_only: false })
    }

    /// It as memory of the host.
    ///
    /// # Safety
    ///
    /// The bytes can be read there, and written if it is no source, and nobody else uses them until the
    /// operation is done.
    #[inline(always)]
    pub(crate) unsafe fn on_host(self) -> Region<'static> {
        match self.is_read_only {
            // SAFETY: the caller's promise.
            true => unsafe { Region::read_only(self.start, self.bytes) },
            // SAFETY: the caller's promise.
            false => unsafe { Region::new(self.start, self.bytes) },
        }
    }

    /// It as memory of a device.
    ///
    /// # Safety
    ///
    /// If there is memory of a device at its start, the bytes are there, and nobody else uses them until the
    /// stream of the operation has come past it.
    #[cfg(feature = "cuda")]
    pub(crate) unsafe fn on_device(self) -> ccl::cuda::DeviceRegion<'static> {
        let address = self.start.expose_provenance() as u64;
        // SAFETY: the caller's promise.
        unsafe { ccl::cuda::DeviceRegion::new(address, self.bytes) }
    }
}

#[inline(always)]
fn checked_start(what: &str, start: *mut c_void, bytes: usize) -> Result<*mut u8, Error> {
    match (start.is_null(), bytes) {
        (false, _) => Ok(start.cast()),
        (true, 0) => Ok(NonNull::dangling().as_ptr()),
        (true, _) => Err(null(&format!("{what} (of {bytes} bytes)"))),
    }
}

/// A place of the program that a result goes to.
#[derive(Debug)]
pub(crate) struct Slot<T>(NonNull<T>);

impl<T> Slot<T> {
    /// The place behind a pointer of the program.
    ///
    /// # Safety
    ///
    /// Where `place` is not null, a `T` may be written there as long as the slot is used.
    pub(crate) unsafe fn at(what: &str, place: *mut T) -> Result<Self, Error> {
        NonNull::new(place).map(Self).ok_or_else(|| null(what))
    }

    /// Writes the result.
    pub(crate) fn put(&self, value: T) {
        // SAFETY: who made the slot promised that a `T` may be written.
        unsafe { self.0.write(value) }
    }
}

/// What a pointer that must not be NULL leads to.
pub(crate) fn null(what: &str) -> Error {
    Error::InvalidArgument(format!("{what} is NULL"))
}

fn too_large() -> Error {
    Error::InvalidArgument("the count exceeds the address space".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invalid<T>(result: Result<T, Error>) -> String {
        match result {
            Err(Error::InvalidArgument(text)) => text,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("no error"),
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert_eq!(bytes(3, 4, DataType::Float32), Ok(48));
        assert_eq!(bytes(usize::MAX, 0, DataType::Float32), Ok(0));
        for (count, blocks) in [(usize::MAX, 2), (usize::MAX / 2, 1), (usize::MAX / 8 + 1, 1)] {
            let text = invalid(bytes(count, blocks, DataType::Int64));
            assert_eq!(text, "the count exceeds the address space");
        }
        assert_eq!(extent(&[(1, 2), (0, usize::MAX), (2, 0)], DataType::Int32), Ok(12));
        invalid(extent(&[(1, usize::MAX)], DataType::Int8));
    }

    #[test]
    fn null_is_legal_for_nothing_only() {
        assert!(checked_start("send", std::ptr::null_mut(), 0).is_ok());
        let text = invalid(checked_start("send", std::ptr::null_mut(), 8));
        assert_eq!(text, "send (of 8 bytes) is NULL");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(datatype(7), Ok(DataType::Float32));
        invalid(datatype(12));
        invalid(datatype(-1));
        assert_eq!(rank("root", 3, 4), Ok(Rank(3)));
        assert_eq!(invalid(rank("root", 4, 4)), "root 4 is not a rank of a group of 4");
        invalid(rank("peer", -1, 4));
    }

    #[test]
    fn operations_of_the_user_are_bound_to_their_type() {
        let member = Member::starting(true);
        let made = Reduction::PreMulSum { datatype: DataType::Float32, scalar: 0 };
        let number = member.add_operation(made).unwrap();
        assert_eq!(number, FIRST_USER_OP);
        assert_eq!(reduction(&member, number, DataType::Float32), Ok(made));
        invalid(reduction(&member, number, DataType::Float64));
        invalid(reduction(&member, number + 1, DataType::Float32));
        invalid(reduction(&member, -1, DataType::Float32));
        assert_eq!(member.remove_operation(number), Some(made));
        invalid(reduction(&member, number, DataType::Float32));
        assert_eq!(member.add_operation(made), Ok(number + 1), "numbers are not used twice");
    }

    #[test]
    fn roots_and_others_have_different_buffers() {
        assert_eq!(blocks(Collective::Gather, 4, true), (Some(1), Some(4)));
        assert_eq!(blocks(Collective::Gather, 4, false), (Some(1), None));
        assert_eq!(blocks(Collective::Scatter, 4, false), (None, Some(1)));
        assert_eq!(blocks(Collective::Broadcast, 4, false), (None, Some(1)));
        assert_eq!(blocks(Collective::Reduce, 4, false), (Some(1), None));
    }
}
