//! Groups of ranks and the calls on them, for Python.

mod membership;
mod submission;

use std::sync::{Arc, Mutex};

use ccl::{Collective, Config, Ongoing, Rank};
use pyo3::prelude::*;

use crate::calls::{self, Given, Kind, RaggedCounts};
use crate::errors::{build, exception, invalid_argument};
use crate::health;
use crate::interrupts::interruptible;
use crate::memory::Registration;
use crate::reduction::ReduceOp;
use crate::request::Request;
use crate::unique_id::UniqueId;
use crate::work::{Member, locked, sweep};

/// One member of a group of ranks.
///
/// Calls on it are collective: all ranks make the same calls in the same order, with the same count, type,
/// reduction and root. Buffers are anything with the buffer protocol, `__dlpack__` or
/// `__cuda_array_interface__` whose memory is on the host or on a CUDA device, C-contiguous and, where a result
/// goes, writable. They are used without a copy. Counts come from
/// their sizes; `n` is the number of ranks, block `i` of a buffer its `i`-th of `n` equal parts.
///
/// Calls return when they are done, or with `async_op=True` a `Request` at once. While they wait, other
/// threads run. Ctrl-C, or another signal whose handler raises, ends a waiting call by aborting the
/// communicator, on all ranks.
///
/// Calls on memory of a CUDA device return at once and are in the order of `stream`: a number (`cudaStream_t`), an
/// object with `__cuda_stream__`, or a stream of CuPy or PyTorch; the default stream without it. What goes wrong
/// later shows in `async_error` and in the next call.
///
/// As a context manager it is destroyed at the end; if the body raises, it is aborted, and the other ranks
/// hear why.
#[pyclass(frozen, module = "r2ccl")]
#[derive(Debug)]
pub(crate) struct Communicator {
    member: Mutex<Option<Arc<Member>>>,
    rank: u32,
    size: u32,
    name: Option<String>,
    config: Config,
    process: u32,
}

#[pymethods]
impl Communicator {
    /// Becomes rank `rank` of the `size` ranks that call this with the same id. Collective.
    ///
    /// `name` is for messages and logs. `timeout` is the deadline of every call in seconds, `R2CCL_TIMEOUT`
    /// without it.
    #[new]
    #[pyo3(signature = (unique_id, rank, size, *, name=None, timeout=None))]
    fn new(
        py: Python<'_>,
        unique_id: &UniqueId,
        rank: i64,
        size: i64,
        name: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let id = unique_id.id;
        let (rank, size) = (natural(py, "rank", rank)?, natural(py, "size", size)?);
        Self::create(py, name, timeout, move |config| {
            ccl::Communicator::create(&id, rank, size, config)
        })
    }

    /// The communicator of all processes of the job: rank, size and meeting point come from the environment
    /// of `r2ccl run`, torchrun, mpirun (Open MPI, MPICH, Intel MPI) or Slurm. Collective.
    #[staticmethod]
    #[pyo3(signature = (*, name=None, timeout=None))]
    fn from_environment(
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        Self::create(py, name, timeout, ccl::Communicator::from_environment)
    }

    /// This member's position in the group, 0 <= rank < size.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// The name for messages and logs.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// How often plans have changed because rails did, as of the last collective. Waits for one that is
    /// under way.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u32> {
        let member = self.member(py)?;
        interruptible(py, move || member.communicator.epoch().0, || ())
    }

    /// What ended the communicator, as an exception, or None.
    #[getter]
    fn async_error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.member(py)?.failure().map(|error| build(py, &error)).transpose()
    }

    /// The ranks that are lost to this one as far as is known, in order: those that have ended, left or cannot be
    /// reached, and those that `shrink` has waited for in vain or another rank excluded there. Where this communicator has
    /// failed, who leaves after this rank has called `shrink` or `grow` is not counted before another `shrink` finds nobody there.
    #[getter]
    fn lost_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let lost = self.member(py)?.communicator.lost_ranks();
        Ok(lost.into_iter().map(|rank| rank.0).collect())
    }

    /// How all rails of all ranks are, in order of rank and rail. Local: no other rank is asked.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let member = self.member(py)?;
        health::records(py, &py.detach(|| member.communicator.health()))
    }

    /// Tells the communicator of a buffer, until it is destroyed or the registration is deregistered. Local. The buffer
    /// stays alive as long, and must not become smaller.
    ///
    /// Shared memory of the program (`multiprocessing.shared_memory`, tensors after `share_memory_()`) is then reached
    /// in place by the ranks of this host, as that of `r2ccl.mem_alloc` always is. Other memory gains nothing.
    fn register(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Registration> {
        Registration::new(&self.member(buffer.py())?, buffer)
    }

    /// The algorithms that could serve a call on `count` elements, their predicted times and the choice, as
    /// text. `collective` is the name of the method, `count` that of one block where there are blocks.
    #[pyo3(signature = (collective, count, dtype="float32", op=ReduceOp::SUM, root=0))]
    #[allow(clippy::too_many_arguments, reason = "a call has as many")]
    fn explain(
        &self,
        py: Python<'_>,
        collective: &str,
        count: usize,
        dtype: &str,
        op: ReduceOp,
        root: i64,
    ) -> PyResult<String> {
        let kind = Kind::of(calls::collective(py, collective)?).op(op).root(root);
        let request = kind.planned(self.place(py), count, dtype)?;
        let member = self.member(py)?;
        let explained = interruptible(py, move || member.communicator.explain(&request), || ())?;
        explained.map_err(|error| exception(py, &error))
    }

    /// Divides the group: ranks with the same `color` >= 0 form a new communicator, in order of `key` and
    /// then of rank. A rank without a colour takes part and gets None. Collective.
    #[pyo3(signature = (color, key=0, *, name=None, timeout=None))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<i64>,
        key: i32,
        name: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Self>> {
        let color = color.map(|color| natural(py, "color", color)).transpose()?;
        let (part, config) = self.derive(py, "split", name, timeout, move |parent, config| {
            parent.split(color, key, Some(config))
        })?;
        Ok(part.map(|part| Self::of(part, config)))
    }

    /// A communicator of the ranks that are not in `exclude_ranks`, in their order: to go on without ranks that are
    /// lost, or with all of them after an error. Collective among these ranks, and only among them; this communicator
    /// may have failed. With `abort` what is going on ends on all ranks, else it is waited for.
    ///
    /// A failure is none of this communicator: if one of the others is lost, too, the call can be made again with more
    /// ranks excluded.
    #[pyo3(signature = (exclude_ranks, *, abort=false, name=None, timeout=None))]
    fn shrink(
        &self,
        py: Python<'_>,
        exclude_ranks: Vec<i64>,
        abort: bool,
        name: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let excluded = exclude_ranks.into_iter();
        let excluded = excluded.map(|rank| natural(py, "a rank to exclude", rank).map(Rank));
        let excluded = excluded.collect::<PyResult<Vec<_>>>()?;
        let ongoing = if abort { Ongoing::Abort } else { Ongoing::Finish };
        let (left, config) = self.derive(py, "shrink", name, timeout, move |parent, config| {
            parent.shrink(&excluded, ongoing, Some(config))
        })?;
        Ok(Self::of(left, config))
    }

    /// An id with which new ranks join those of this communicator when they `grow`. One rank asks for it, once for each
    /// time, and gives it to the new ones, which become ranks with `Communicator(id, rank, size)`. The place where all
    /// meet is in this process.
    fn growth_id(&self, py: Python<'_>) -> PyResult<UniqueId> {
        let member = self.member(py)?;
        let id = py.detach(|| member.communicator.growth_id());
        id.map(|id| UniqueId { id }).map_err(|error| exception(py, &error))
    }

    /// A communicator of these ranks, which keep their numbers, and of new ones behind them, `size` in all. Collective
    /// among these ranks, of which one has asked for the `growth_id`, and the new ones.
    ///
    /// If new ranks do not come, this communicator remains as it is, and ranks can try again.
    #[pyo3(signature = (size, *, name=None, timeout=None))]
    fn grow(
        &self,
        py: Python<'_>,
        size: i64,
        name: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let size = natural(py, "size", size)?;
        let (grown, config) = self.derive(py, "grow", name, timeout, move |parent, config| {
            parent.grow(size, Some(config))
        })?;
        Ok(Self::of(grown, config))
    }

    /// Reduces `input` of all ranks into `output` of all ranks; in place without an output.
    #[pyo3(signature = (input, output=None, op=ReduceOp::SUM, *, async_op=false, stream=None))]
    fn all_reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: ReduceOp,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::AllReduce).op(op);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// Block `i` of every output becomes the input of rank `i`; `output` has `n` times as many elements.
    ///
    /// Without an output `input` is the whole, and this rank contributes its own block of it.
    #[pyo3(signature = (input, output=None, *, async_op=false, stream=None))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::AllGather);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// Reduces `input` of all ranks; rank `i` gets block `i` of the result in `output`.
    ///
    /// Without an output the result goes to this rank's own block of `input`.
    #[pyo3(signature = (input, output=None, op=ReduceOp::SUM, *, async_op=false, stream=None))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: ReduceOp,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::ReduceScatter).op(op);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// Copies `buffer` of `root` to all ranks.
    #[pyo3(signature = (buffer, root=0, *, async_op=false, stream=None))]
    fn broadcast(
        &self,
        buffer: &Bound<'_, PyAny>,
        root: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let place = self.place_on(buffer.py(), stream)?;
        self.submit(place, calls::broadcast(place, root, buffer)?, async_op)
    }

    /// Reduces `input` of all ranks into `output` of `root`; others need no output. In place at the root
    /// without one.
    #[pyo3(signature = (input, output=None, op=ReduceOp::SUM, root=0, *, async_op=false, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "it has as many in every library")]
    fn reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: ReduceOp,
        root: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::Reduce).op(op).root(root);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// Block `j` of rank `i`'s input becomes block `i` of rank `j`'s output; in place without an output.
    #[pyo3(signature = (input, output=None, *, async_op=false, stream=None))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::AllToAll);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// As `all_to_all`, with blocks of different sizes, in elements: `send_counts[j]` elements go to rank
    /// `j`, `receive_counts[i]` come from rank `i`. Without displacements blocks follow each other.
    #[pyo3(signature = (
        input, output, send_counts, receive_counts, send_displacements=None,
        receive_displacements=None, *, async_op=false, stream=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "it has as many in every library")]
    fn all_to_all_v(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        send_counts: Vec<usize>,
        receive_counts: Vec<usize>,
        send_displacements: Option<Vec<usize>>,
        receive_displacements: Option<Vec<usize>>,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let (send, receive) = (send_counts, receive_counts);
        let counts = RaggedCounts { send, receive, send_displacements, receive_displacements };
        let given = Given { input: Some(input), output: Some(output) };
        let place = self.place_on(input.py(), stream)?;
        self.submit(place, calls::all_to_all_v(place, given, counts)?, async_op)
    }

    /// Block `i` of the output of `root` becomes the input of rank `i`; others need no output.
    ///
    /// Without an output at the root its `input` is the whole, of which its own block is its contribution.
    #[pyo3(signature = (input, output=None, root=0, *, async_op=false, stream=None))]
    fn gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::Gather).root(root);
        let place = self.place_on(input.py(), stream)?;
        self.collective(kind, place, Given { input: Some(input), output }, async_op)
    }

    /// Rank `i` gets block `i` of the input of `root`; others pass None as input.
    ///
    /// Without an output at the root its own block stays where it is.
    #[pyo3(signature = (input, output=None, root=0, *, async_op=false, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "it has as many in every library")]
    fn scatter(
        &self,
        py: Python<'_>,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        root: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let kind = Kind::of(Collective::Scatter).root(root);
        self.collective(kind, self.place_on(py, stream)?, Given { input, output }, async_op)
    }

    /// Sends `buffer` to `peer`, which must receive as many bytes.
    #[pyo3(signature = (buffer, peer, *, async_op=false, stream=None))]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let place = self.place_on(buffer.py(), stream)?;
        self.submit(place, calls::send(place, buffer, peer)?, async_op)
    }

    /// Fills `buffer` with what `peer` sends.
    #[pyo3(signature = (buffer, peer, *, async_op=false, stream=None))]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: i64,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        let place = self.place_on(buffer.py(), stream)?;
        self.submit(place, calls::receive(place, buffer, peer)?, async_op)
    }

    /// Returns when every rank has called it.
    ///
    /// With a stream, that goes on when the streams of all ranks have come to it, and the call returns at once.
    #[pyo3(signature = (*, async_op=false, stream=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        async_op: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Request>> {
        self.submit(self.place_on(py, stream)?, calls::barrier(), async_op)
    }

    /// Waits for everything that was started and takes leave of the other ranks. No calls may follow but
    /// `destroy()`.
    ///
    /// Raises:
    ///     r2ccl.Error: What ended the communicator, if something did.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        let member = self.member(py)?;
        let last = Arc::clone(&member);
        let finalize = move || last.finalize();
        let give_up = || member.communicator.abort("a signal interrupted finalize()");
        let result = interruptible(py, finalize, give_up);
        sweep();
        result?.map_err(|error| exception(py, &error))
    }

    /// Frees the communicator, finalizing it first where that has not happened. What ended it is not raised
    /// again. A second call does nothing.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let Some(member) = self.take() else { return Ok(()) };
        let last = Arc::clone(&member);
        let destroy = move || drop(last.finalize());
        let give_up = || member.communicator.abort("a signal interrupted destroy()");
        let result = interruptible(py, destroy, give_up);
        py.detach(|| drop(member));
        sweep();
        result
    }

    /// Ends all pending and future calls, on all ranks, with `AbortedError`. Waits for nobody, and may be
    /// called while other threads are inside a call.
    #[pyo3(signature = (reason="abort() was called"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let member = self.member(py)?;
        py.detach(|| member.communicator.abort(reason));
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (exception_type, exception, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception_type: &Bound<'_, PyAny>,
        exception: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = traceback;
        if locked(&self.member).is_none() {
            return Ok(());
        }
        if exception_type.is_none() {
            let result = self.finalize(py);
            self.destroy(py)?;
            return result;
        }
        // An exception that cannot say what it is ends the group too.
        let reason = exception.repr().or_else(|_| exception_type.str());
        let reason = reason.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        self.abort(py, &reason)?;
        self.destroy(py)
    }

    fn __repr__(&self) -> String {
        let name = self.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        format!("<Communicator{name}: rank {} of {}>", self.rank, self.size)
    }
}

/// A number of the program that cannot be negative.
fn natural(py: Python<'_>, what: &str, number: i64) -> PyResult<u32> {
    u32::try_from(number).map_err(|_| invalid_argument(py, format!("{what} is {number}")))
}
