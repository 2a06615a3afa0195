//! Collectives and point-to-point calls, each in its blocking and its non-blocking form.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use ccl::{Collective, Error, Operation};

use super::{entry_in_group, place};
use crate::abi::{CommHandle, RequestHandle};
use crate::arguments::{Call, Place, RaggedCall, Slot, bytes, datatype as checked_datatype, rank};
use crate::arguments::{source, target};
use crate::calls::requests::{REQUESTS, Started};
use crate::group::{self, submit};
use crate::member::Member;
use crate::outcome::{Status, on};

/// Exports a blocking and a non-blocking function with the same arguments.
macro_rules! operations {
    ($($blocking:ident, $starting:ident ($($name:ident: $kind:ty),*) = $operation:expr;)*) => {$(
        /// See the header.
        ///
        /// # Safety
        ///
        /// Buffers and arrays are as large as the header says. Buffers are left to the library
        /// until the operation is done.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature is the header's")]
        pub unsafe extern "C" fn $blocking($($name: $kind,)* comm: CommHandle) -> c_int {
            run(stringify!($blocking), comm, $operation)
        }

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
            // SAFETY: the caller's promise about `request`.
            let request = unsafe { Slot::at("request", request) };
            start(stringify!($starting), comm, request, $operation)
        }
    )*};
}

/// A buffer that is only read.
type Source = *const c_void;
/// A buffer that is written.
type Target = *mut c_void;
/// One count or displacement for each rank.
type Counts = *const usize;

operations! {
    ccl_allreduce, ccl_iallreduce
        (send: Source, recv: Target, count: usize, datatype: c_int, op: c_int) = |place| {
            let call = Call::new(Collective::AllReduce, count, datatype).op(op);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_allgather, ccl_iallgather
        (send: Source, recv: Target, count: usize, datatype: c_int) = |place| {
            let call = Call::new(Collective::AllGather, count, datatype);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_reducescatter, ccl_ireducescatter
        (send: Source, recv: Target, count: usize, datatype: c_int, op: c_int) = |place| {
            let call = Call::new(Collective::ReduceScatter, count, datatype).op(op);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_broadcast, ccl_ibroadcast
        (send: Source, recv: Target, count: usize, datatype: c_int, root: c_int) = |place| {
            let call = Call::new(Collective::Broadcast, count, datatype).root(root);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_reduce, ccl_ireduce
        (send: Source, recv: Target, count: usize, datatype: c_int, op: c_int, root: c_int) = |place| {
            let call = Call::new(Collective::Reduce, count, datatype).op(op).root(root);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_alltoall, ccl_ialltoall
        (send: Source, recv: Target, count: usize, datatype: c_int) = |place| {
            let call = Call::new(Collective::AllToAll, count, datatype);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_alltoallv, ccl_ialltoallv
        (send: Source, send_counts: Counts, send_displacements: Counts,
         recv: Target, receive_counts: Counts, receive_displacements: Counts,
         datatype: c_int) = |place| {
            let call = RaggedCall {
                send_counts, send_displacements, receive_counts, receive_displacements, datatype,
            };
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_gather, ccl_igather
        (send: Source, recv: Target, count: usize, datatype: c_int, root: c_int) = |place| {
            let call = Call::new(Collective::Gather, count, datatype).root(root);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_scatter, ccl_iscatter
        (send: Source, recv: Target, count: usize, datatype: c_int, root: c_int) = |place| {
            let call = Call::new(Collective::Scatter, count, datatype).root(root);
            // SAFETY: the caller's promise.
            unsafe { call.on(send, recv, place) }
        };
    ccl_barrier, ccl_ibarrier () = |_| Ok(Operation::Barrier);
    ccl_send, ccl_isend
        (send: Source, count: usize, datatype: c_int, peer: c_int) = |place| {
            let peer = rank("peer", peer, place.size)?;
            let bytes = bytes(count, 1, checked_datatype(datatype)?)?;
            // SAFETY: the caller's promise.
            let data = unsafe { source("send", send, bytes) }?;
            Ok(Operation::Send { peer, data })
        };
    ccl_recv, ccl_irecv
        (recv: Target, count: usize, datatype: c_int, peer: c_int) = |place| {
            let peer = rank("peer", peer, place.size)?;
            let bytes = bytes(count, 1, checked_datatype(datatype)?)?;
            // SAFETY: the caller's promise.
            let data = unsafe { target("recv", recv, bytes) }?;
            Ok(Operation::Receive { peer, data })
        };
}

/// The blocking form: outside a group, runs the operation; inside, collects it.
fn run(
    function: &str,
    comm: CommHandle,
    operation: impl FnOnce(Place<'_>) -> Result<Operation<'static>, Error>,
) -> c_int {
    let collect_or_run = |member: &Arc<Member>| {
        let operation = operation(place(member, member.communicator()?))?;
        submit(member, operation)
    };
    entry_in_group(function, || on(function, comm, collect_or_run))
}

/// The non-blocking form.
fn start(
    function: &str,
    comm: CommHandle,
    request: Result<Slot<RequestHandle>, Error>,
    operation: impl FnOnce(Place<'_>) -> Result<Operation<'static>, Error>,
) -> c_int {
    let begin = |member: &Arc<Member>| {
        let request = request?;
        request.put(null_mut());
        if group::is_open() {
            return Err(Error::InvalidUsage("a non-blocking form inside a group".into()));
        }
        let communicator = member.ready()?;
        let pending = communicator.start(operation(place(member, communicator))?)?;
        let started = Started { pending, member: Arc::clone(member) };
        request.put(without_provenance_mut(REQUESTS.insert(Arc::new(started))));
        Ok(Status::Done)
    };
    entry_in_group(function, || on(function, comm, begin))
}
