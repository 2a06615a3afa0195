//! Collectives and point-to-point calls, each in its blocking and its non-blocking form, and on memory of
//! CUDA devices.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use ccl::{Collective, Error, OperationOn, ResultCode};

use super::{entry_in_group, failed_in_group, place};
use crate::abi::{CommHandle, RequestHandle};
use crate::arguments::{
    Buffer, Call, Place, RaggedCall, Slot, buffers, bytes, datatype as checked_datatype, rank,
};
use crate::calls::requests::{REQUESTS, Started};
use crate::device;
use crate::group::{self, submit, submit_on_device};
use crate::member::{Member, with_member};
use crate::outcome::{Outcome, Status, guarded, message, on};

/// Exports the non-blocking function and the one for devices that belong to a blocking one.
macro_rules! further_forms {
    ($starting:ident, $on_device:ident ($($name:ident: $kind:ty),*) = $operation:expr) => {
        /// See the header.
        ///
        /// # Safety
        ///
        /// As for the blocking form; `request` is null or may be written to.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
        pub unsafe extern "C" fn $starting(
            $($name: $kind,)*
            comm: CommHandle,
            request: *mut RequestHandle,
        ) -> c_int {
            let operation = $operation;
            // SAFETY: the caller's promise about `request`.
            let request = unsafe { Slot::at("request", request) };
            // SAFETY: the caller's promise.
            unsafe { start(stringify!($starting), comm, request, operation) }
        }

        /// See the header.
        ///
        /// # Safety
        ///
        /// Arrays are as large as the header says, and buffers are, where they are memory of a device; they
        /// are left to the library until the stream has come past the call. The stream exists until then.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
        pub unsafe extern "C" fn $on_device(
            $($name: $kind,)*
            comm: CommHandle,
            stream: *mut c_void,
        ) -> c_int {
            let operation = $operation;
            // SAFETY: the caller's promise.
            unsafe { enqueue(stringify!($on_device), comm, stream, operation) }
        }
    };
}

/// Exports a blocking and a non-blocking function, and one for devices, with the same arguments, for a
/// collective that a [`Call`] describes.
macro_rules! collectives {
    ($($blocking:ident, $starting:ident, $on_device:ident
       ($($name:ident: $kind:ty),*) = $call:expr;)*) => {$(
        /// See the header.
        ///
        /// # Safety
        ///
        /// Buffers are as large as the header says.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
        pub unsafe extern "C" fn $blocking(
            send: Source,
            recv: Target,
            $($name: $kind,)*
            comm: CommHandle,
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { run_call(stringify!($blocking), comm, || $call, send, recv) }
        }

        further_forms! {
            $starting, $on_device (send: Source, recv: Target, $($name: $kind),*) =
                |place: Place<'_>| $call.on(send, recv, place)
        }
    )*};
}

/// As [`collectives`], for what is no such collective.
macro_rules! operations {
    ($($blocking:ident, $starting:ident, $on_device:ident
       ($($name:ident: $kind:ty),*) = $operation:expr;)*) => {$(
        /// See the header.
        ///
        /// # Safety
        ///
        /// Buffers and arrays are as large as the header says.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
        pub unsafe extern "C" fn $blocking($($name: $kind,)* comm: CommHandle) -> c_int {
            let operation = $operation;
            // SAFETY: the caller's promise.
            unsafe { run(stringify!($blocking), comm, operation) }
        }

        further_forms! { $starting, $on_device ($($name: $kind),*) = $operation }
    )*};
}

/// A buffer that is only read.
type Source = *const c_void;
/// A buffer that is written.
type Target = *mut c_void;
/// One count or displacement for each rank.
type Counts = *const usize;

collectives! {
    ccl_allreduce, ccl_iallreduce, ccl_cuda_allreduce
        (count: usize, datatype: c_int, op: c_int) =
        Call::new(Collective::AllReduce, count, datatype).op(op);
    ccl_allgather, ccl_iallgather, ccl_cuda_allgather
        (count: usize, datatype: c_int) = Call::new(Collective::AllGather, count, datatype);
    ccl_reducescatter, ccl_ireducescatter, ccl_cuda_reducescatter
        (count: usize, datatype: c_int, op: c_int) =
        Call::new(Collective::ReduceScatter, count, datatype).op(op);
    ccl_broadcast, ccl_ibroadcast, ccl_cuda_broadcast
        (count: usize, datatype: c_int, root: c_int) =
        Call::new(Collective::Broadcast, count, datatype).root(root);
    ccl_reduce, ccl_ireduce, ccl_cuda_reduce
        (count: usize, datatype: c_int, op: c_int, root: c_int) =
        Call::new(Collective::Reduce, count, datatype).op(op).root(root);
    ccl_alltoall, ccl_ialltoall, ccl_cuda_alltoall
        (count: usize, datatype: c_int) = Call::new(Collective::AllToAll, count, datatype);
    ccl_gather, ccl_igather, ccl_cuda_gather
        (count: usize, datatype: c_int, root: c_int) =
        Call::new(Collective::Gather, count, datatype).root(root);
    ccl_scatter, ccl_iscatter, ccl_cuda_scatter
        (count: usize, datatype: c_int, root: c_int) =
        Call::new(Collective::Scatter, count, datatype).root(root);
}

operations! {
    ccl_alltoallv, ccl_ialltoallv, ccl_cuda_alltoallv
        (send: Source, send_counts: Counts, send_displacements: Counts,
         recv: Target, receive_counts: Counts, receive_displacements: Counts,
         datatype: c_int) = |place: Place<'_>| {
            let call = RaggedCall {
                send_counts, send_displacements, receive_counts, receive_displacements, datatype,
            };
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_barrier, ccl_ibarrier, ccl_cuda_barrier () = |_: Place<'_>| Ok(OperationOn::Barrier);
    ccl_send, ccl_isend, ccl_cuda_send
        (send: Source, count: usize, datatype: c_int, peer: c_int) = |place: Place<'_>| {
            let peer = rank("peer", peer, place.size)?;
            let bytes = bytes(count, 1, checked_datatype(datatype)?)?;
            Ok(OperationOn::Send { peer, data: Buffer::source("send", send, bytes)? })
        };
    ccl_recv, ccl_irecv, ccl_cuda_recv
        (recv: Target, count: usize, datatype: c_int, peer: c_int) = |place: Place<'_>| {
            let peer = rank("peer", peer, place.size)?;
            let bytes = bytes(count, 1, checked_datatype(datatype)?)?;
            Ok(OperationOn::Receive { peer, data: Buffer::target("recv", recv, bytes)? })
        };
}

/// Tells of a failure on a communicator.
#[cold]
fn failed_on(function: &str, member: &Member, error: &Error) -> ResultCode {
    member.remember(message(function, error));
    failed_in_group(function, error)
}

/// The blocking form of a collective that a [`Call`] describes: outside a group, runs it; inside, collects it.
///
/// Of all calls these must begin soonest: nothing is made here that would have to be moved, and a number and no
/// result, which has room for an error, goes up through what looks for the communicator and what holds up panics.
///
/// # Safety
///
/// The buffers are memory of the host, as large as the header says, and left to the library until it is done.
#[inline(always)]
unsafe fn run_call(
    function: &str,
    comm: CommHandle,
    call: impl Fn() -> Call,
    send: Source,
    receive: Target,
) -> c_int {
    let collect_or_run = |member: &Arc<Member>| {
        if !member.blocking || group::is_open() {
            // SAFETY: the caller's promise.
            return unsafe { submit_to(member, |place| call().on(send, receive, place)) };
        }
        let communicator = member.ready()?;
        let place = place(member, communicator);
        let request = call().request(place)?;
        let (input, output) = buffers(&request, send, receive, place)?;
        // SAFETY: the caller's promise.
        let on_host = |buffer: Buffer| unsafe { buffer.on_host() };
        communicator.collective(&request, input.map(on_host), output.map(on_host))?;
        Ok(Status::Done)
    };
    let tell = |member: &Arc<Member>| match collect_or_run(member) {
        Ok(status) => status.code(),
        Err(error) => failed_on(function, member, &error),
    };
    guarded(function, || match with_member(comm.addr(), tell) {
        Ok(code) => code,
        Err(error) => failed_in_group(function, &error),
    })
}

/// The blocking form: outside a group, runs the operation; inside, collects it.
///
/// # Safety
///
/// The buffers of the operation are memory of the host that is left to the library until it is done.
unsafe fn run(
    function: &str,
    comm: CommHandle,
    operation: impl FnOnce(Place<'_>) -> Result<OperationOn<Buffer>, Error>,
) -> c_int {
    // SAFETY: the caller's promise.
    let collect_or_run = |member: &Arc<Member>| unsafe { submit_to(member, operation) };
    entry_in_group(function, || on(function, comm, collect_or_run))
}

/// Makes an operation for a member, and [submits](submit) it.
///
/// # Safety
///
/// As for [`run`].
#[inline(never)]
unsafe fn submit_to(
    member: &Arc<Member>,
    operation: impl FnOnce(Place<'_>) -> Result<OperationOn<Buffer>, Error>,
) -> Outcome {
    let operation = operation(place(member, member.communicator()?))?;
    // SAFETY: the caller's promise.
    submit(member, operation.map(|buffer| unsafe { buffer.on_host() }))
}

/// The non-blocking form.
///
/// # Safety
///
/// As for [`run`].
unsafe fn start(
    function: &str,
    comm: CommHandle,
    request: Result<Slot<RequestHandle>, Error>,
    operation: impl FnOnce(Place<'_>) -> Result<OperationOn<Buffer>, Error>,
) -> c_int {
    let begin = |member: &Arc<Member>| {
        let request = request?;
        request.put(null_mut());
        if group::is_open() {
            return Err(Error::InvalidUsage("a non-blocking form inside a group".into()));
        }
        let communicator = member.ready()?;
        let operation = operation(place(member, communicator))?;
        // SAFETY: the caller's promise.
        let pending = communicator.start(operation.map(|buffer| unsafe { buffer.on_host() }))?;
        let started = Started { pending, member: Arc::clone(member) };
        request.put(without_provenance_mut(REQUESTS.insert(Arc::new(started))));
        Ok(Status::Done)
    };
    entry_in_group(function, || on(function, comm, begin))
}

/// The form for memory of a device: outside a group, puts the operation on the stream; inside, collects it.
///
/// # Safety
///
/// The stream is null or one that exists until it has come past the operation. Where there is memory of a
/// device at the start of a buffer, all of it is, and is left to the library until then.
unsafe fn enqueue(
    function: &str,
    comm: CommHandle,
    stream: *mut c_void,
    operation: impl FnOnce(Place<'_>) -> Result<OperationOn<Buffer>, Error>,
) -> c_int {
    let collect_or_enqueue = |member: &Arc<Member>| {
        let communicator = member.ready()?;
        let operation = operation(place(member, communicator))?;
        // SAFETY: the caller's promise.
        let call = unsafe { device::Call::new(&member.device, communicator, operation, stream) }?;
        submit_on_device(member, call)
    };
    entry_in_group(function, || on(function, comm, collect_or_enqueue))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::calls::inquiry::ccl_get_last_error;
    use crate::calls::lifecycle::{
        ccl_comm_destroy, ccl_comm_init_all, ccl_group_end, ccl_group_start,
    };

    const FLOAT: c_int = 7;
    const SUM: c_int = 0;
    const DONE: c_int = ResultCode::Success as c_int;
    const INVALID: c_int = ResultCode::InvalidArgument as c_int;

    /// A group of one rank.
    fn alone() -> CommHandle {
        let mut comm = null_mut();
        // SAFETY: there is room for one.
        assert_eq!(unsafe { ccl_comm_init_all(&raw mut comm, 1) }, DONE);
        comm
    }

    /// An AllReduce of four numbers, in place.
    fn all_reduce(data: &mut [f32; 4], op: c_int, comm: CommHandle) -> c_int {
        let data = data.as_mut_ptr().cast();
        // SAFETY: there are four.
        unsafe { ccl_allreduce(data, data, 4, FLOAT, op, comm) }
    }

    fn last_error(comm: CommHandle) -> String {
        // SAFETY: the text is there until this thread asks again.
        unsafe { CStr::from_ptr(ccl_get_last_error(comm)) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_communicator_remembers_why_a_call_failed() {
        let (comm, mut data) = (alone(), [1.0; 4]);
        assert_eq!(all_reduce(&mut data, SUM, comm), DONE);
        assert_eq!(all_reduce(&mut data, 99, comm), INVALID);
        let text = "ccl_allreduce: invalid argument: 99 is not a ccl_redop_t";
        assert!(last_error(comm).starts_with(text), "{}", last_error(comm));
        assert_eq!(ccl_comm_destroy(comm), DONE);
        assert_ne!(all_reduce(&mut data, SUM, comm), DONE, "it does not exist any more");
    }

    #[test]
    fn a_group_fails_with_the_first_call_that_failed_in_it() {
        let (comm, mut data) = (alone(), [1.0; 4]);
        assert_eq!(ccl_group_start(), DONE);
        assert_eq!(all_reduce(&mut data, SUM, comm), DONE);
        assert_eq!(all_reduce(&mut data, 99, comm), INVALID);
        assert_eq!(ccl_group_end(), INVALID);
        assert_eq!(ccl_group_start(), DONE);
        assert_ne!(all_reduce(&mut data, SUM, null_mut()), DONE);
        assert_eq!(ccl_group_end(), INVALID, "nor is there a communicator");
        assert_eq!(ccl_comm_destroy(comm), DONE);
    }
}
