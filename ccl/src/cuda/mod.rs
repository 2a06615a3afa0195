//! Collectives on memory of CUDA devices, in the order of streams.
//!
//! A call returns at once. Kernels of the ranks do it with each other ([`direct`]) if all ranks are on one host,
//! or kernels and NICs ([`wire`]) if each is on a host of its own, or both in turn if every host has as many as each
//! other, and if they have agreed on that; else its stream copies the input into pinned memory, waits until the driver thread of the communicator has done the ordinary
//! collective there, and copies the result back: what comes later on the stream finds it. See docs/cuda.md.
//!
//! Always true: calls on the communicator, on whichever stream or on memory of the host, are done in the
//! order in which they were made; and no stream waits for a collective that is over, however it ended.

mod deadline;
mod digest;
mod direct;
mod envoy;
mod error;
mod pieces;
mod sentinel;
mod staging;
#[cfg(test)]
mod tests;
mod uneven;
mod wire;

pub use direct::{Paths, Promise, Window};
pub use error::error;

pub use ccl_kernels::cuda::gpu::{
    Buffer, DeviceRegion, Event, Gpu, KeptContext, Place, Stream, Supply, device_of,
};
pub(crate) use direct::{ColumnsJob, Watch};
pub(crate) use staging::Job;
pub(crate) use wire::Job as WireJob;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ccl_core::collective::Request;
use ccl_core::error::Error;
use ccl_core::layout::Ragged;
use ccl_kernels::cuda::gpu;

use crate::driver::{Pending, Work, lock};
use crate::operation::{OperationOn, Span, as_done, check_own_messages};
use direct::Direct;
use error::described;
use pieces::{Cutter, batches};
use staging::{Issue, SLOTS, Staging};

/// One call, with the memory of the device that it works on.
pub type Operation<'a> = OperationOn<DeviceRegion<'a>>;

impl Span for DeviceRegion<'_> {
    fn address(&self) -> usize {
        DeviceRegion::address(self) as usize
    }

    fn bytes(&self) -> usize {
        DeviceRegion::bytes(self)
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        DeviceRegion::part(self, offset, bytes)
    }
}

/// Opens a device for [`Communicator::new`].
///
/// # Errors
/// [`Error::Cuda`]: there is no driver, it is too old, or there is no such device.
pub fn open(ordinal: usize) -> Result<Arc<Gpu>, Error> {
    Gpu::open(ordinal, Supply::default()).map(Arc::new).map_err(error)
}

/// How many devices there are.
///
/// # Errors
/// [`Error::Cuda`]: there is no driver, or it is too old.
pub fn count() -> Result<usize, Error> {
    Gpu::count().map_err(error)
}

/// A member of a group of ranks, for calls on memory of one device.
///
/// Memory that calls work on belongs to them until their streams have come past them; with `R2CCL_CUDA_NETWORK`, that of a
/// call that has failed until the communicator has been dropped, which waits for a driver that is silent. Ranks that are threads of one process need streams that
/// do not wait for each other: not the default stream.
#[derive(Debug)]
pub struct Communicator {
    host: crate::Communicator,
    gpu: Arc<Gpu>,
    staging: Arc<Staging>,
    cutter: Cutter,
    direct: Direct,
    issue: Mutex<Issue>,
    last: Mutex<Option<Pending>>,
}

impl Communicator {
    /// Prepares a communicator for calls on memory of the device: pins twice `R2CCL_CUDA_STAGING_BYTES`, and
    /// allocates as much on the device, if there are from 2 to 8 ranks and `R2CCL_CUDA_P2P` does not forbid it. Ranks
    /// that are each on a host of their own allocate as much for what goes between them, on the device or pinned, in
    /// place of that, when they first meet; ranks of hosts with several each allocate both then, and as much as once
    /// `R2CCL_CUDA_STAGING_BYTES` besides.
    ///
    /// # Errors
    /// [`Error::Cuda`]: so much cannot be pinned.
    pub fn new(host: &crate::Communicator, gpu: &Arc<Gpu>) -> Result<Self, Error> {
        let slot_bytes = host.settings().cuda_staging_bytes;
        let staging = Arc::new(Staging::new(gpu, slot_bytes)?);
        Ok(Self {
            host: host.clone(),
            gpu: Arc::clone(gpu),
            direct: Direct::new(host, gpu, &staging),
            cutter: Cutter { me: host.rank(), ranks: host.size(), slot_bytes },
            issue: Mutex::new(Issue::new(Arc::clone(&staging))),
            staging,
            last: Mutex::default(),
        })
    }

    /// The communicator that it was made of.
    #[must_use]
    pub fn host(&self) -> &crate::Communicator {
        &self.host
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Puts one call on the stream. Shapes and in-place forms are those of [`crate::Operation`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], and nothing has happened: the arguments are impossible, memory is not that of
    /// the device, or the call does not fit into the staging memory. [`Error::InvalidUsage`]: the stream
    /// is captured, or a message to this rank itself has no counterpart in the group. Everything else is what ended
    /// the communicator, in this call or before.
    pub fn enqueue(&self, operation: Operation<'_>, stream: &Stream) -> Result<(), Error> {
        self.enqueue_group(&[operation], stream)
    }

    /// Puts calls on the stream: collectives in order, then sends and receives, which progress together.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn enqueue_group(
        &self,
        operations: &[Operation<'_>],
        stream: &Stream,
    ) -> Result<(), Error> {
        self.enqueue_joined(operations, std::slice::from_ref(stream))
    }

    /// As [`Self::enqueue_group`], for several streams: the calls begin when all of them have come to
    /// them, and all of them wait for all calls.
    ///
    /// # Errors
    /// As [`Self::enqueue`]; [`Error::InvalidArgument`] if there is no stream.
    pub fn enqueue_joined(
        &self,
        operations: &[Operation<'_>],
        streams: &[Stream],
    ) -> Result<(), Error> {
        self.check()?;
        self.host.usable()?;
        let no_stream = || Error::InvalidArgument("there is no stream".into());
        let (first, others) = streams.split_first().ok_or_else(no_stream)?;
        streams.iter().try_for_each(|stream| self.check_stream(stream))?;
        operations.iter().try_for_each(|operation| self.check_call(operation))?;
        check_own_messages(operations, self.host.rank())?;
        let operations = as_done(operations);
        let batches = batches(&operations);
        let counts = batches.iter().map(|batch| self.cutter.count(batch));
        let counts = counts.collect::<Result<Vec<_>, _>>()?;
        // From here on the others wait for this rank, and streams for what the thread does.
        self.host.ensure_driver().inspect_err(|error| self.fail(error))?;
        for other in others {
            let joined = other.mark().and_then(|come| first.wait(&come));
            joined.map_err(|error| self.refused(&error))?;
        }
        // What is done first here is done first on all ranks.
        let mut issue = lock(&self.issue);
        for (batch, count) in batches.into_iter().zip(counts) {
            let issued = self.issue_batch(&mut issue, batch, count, first);
            issued.inspect_err(|error| self.fail(error)).map_err(|error| self.host.named(error))?;
        }
        drop(issue);
        for other in others {
            let joined = first.mark().and_then(|end| other.wait(&end));
            joined.map_err(|error| self.refused(&error))?;
        }
        Ok(())
    }

    /// Checks everything that this rank can know about a call, as [`Self::enqueue`] does.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn validate(&self, operation: &Operation<'_>, stream: &Stream) -> Result<(), Error> {
        self.check_stream(stream)?;
        self.check_call(operation)
    }

    /// What went wrong in a call that has returned, if something did.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), Error> {
        let failure = self.staging.failure().map(|failure| self.host.named(failure));
        failure.or_else(|| self.host.async_error()).map_or(Ok(()), Err)
    }

    /// Waits until all calls are over for the communicator; their streams have to come so far.
    /// Results are where they belong when their streams are.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn wait(&self) -> Result<(), Error> {
        let last = lock(&self.last).clone();
        // An error of it is kept.
        last.map_or(Ok(()), |last| last.wait()).or_else(|_| self.check())?;
        self.check()
    }

    /// Waits for everything that was started and takes leave, as [`crate::Communicator::finalize`] does. A
    /// stream that does not come to its call within the deadline of the communicator, from now on, ends it.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn finalize(&self) -> Result<(), Error> {
        self.end();
        let left = self.host.finalize();
        self.check().and(left)
    }

    /// Waits until all ranks have called it, with the same requests. Kernels for such collectives are loaded then,
    /// and the others have mapped this memory, where both is possible: the next calls need no call to get there. In a
    /// request only the collective and the type matter.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn prepare(&self, requests: &[Request], memory: &[DeviceRegion<'_>]) -> Result<(), Error> {
        self.check()?;
        let have_met = self.direct.prepare(requests, memory, self.host.timeout());
        let waiting = "not all ranks have called it, or one still loads kernels";
        self.met("prepare", waiting, have_met.then_some(Ok(())))
    }

    /// Registers memory of the device as a window. All ranks call it with as many bytes, in the same order of windows,
    /// calls and [`Self::prepare`], and it returns when all have: then they know where everybody's memory is. With
    /// [`Promise::Symmetric`] copy engines do large calls in it, see docs/cuda.md. Where that is not possible the window
    /// is of no use on any rank, and [`Window::obstacle`] and [`Self::paths`] say why.
    ///
    /// The memory must not be freed before the window is deregistered; nor, if the communicator has failed, before the
    /// streams of all ranks of the process have come past their calls.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: it is no memory of the device, or has no bytes, and nothing has happened; or other
    /// ranks have said something else, and all of them get this error. Else as [`Self::check`].
    pub fn register_window(
        &self,
        memory: &DeviceRegion<'_>,
        promise: Promise,
    ) -> Result<Window, Error> {
        self.check()?;
        self.check_place(memory)?;
        if memory.bytes() == 0 {
            return Err(Error::InvalidArgument("a window has no bytes".into()));
        }
        let registered = self.direct.register(memory, promise, self.host.timeout());
        let waiting = "not all ranks have called it, or one still loads kernels";
        self.met("register_window", waiting, registered)
    }

    /// Ends a window, when all calls before are over. All ranks call it, and it returns when all have: then nobody copies
    /// from their memory any more.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: it is no window of this communicator. Else as [`Self::check`].
    pub fn deregister_window(&self, window: &Window) -> Result<(), Error> {
        self.wait()?;
        let deregistered = self.direct.deregister(window, self.host.timeout());
        self.met("deregister_window", "not all ranks have called it", deregistered)
    }

    /// How many collectives went which way on this rank; and why not without the host, or, if NICs carry them, why not
    /// in memory of the device, or why a window is of no use.
    #[must_use]
    pub fn paths(&self) -> (Paths, Option<String>) {
        self.direct.paths()
    }

    /// Ends all calls, on all ranks; streams that wait for them go on.
    pub fn abort(&self, reason: &str) {
        self.host.abort(reason);
    }

    /// What has come of a call for which all ranks meet; None if one of them has not come in time.
    fn met<T>(
        &self,
        call: &str,
        waiting: &str,
        outcome: Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(outcome) = outcome else {
            let seconds = self.host.timeout().as_secs_f64();
            let (call, waiting) = (call.to_owned(), waiting.to_owned());
            let error = Error::Deadline { call, seconds, waiting };
            self.fail(&error);
            return Err(self.host.named(error));
        };
        self.check()?;
        outcome.map_err(|error| self.host.named(error))
    }

    /// With the input of an exchange in place out of the way of its output.
    fn issue_batch(
        &self,
        issue: &mut Issue,
        batch: &[Operation<'_>],
        count: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        let [operation @ OperationOn::AllToAllV { datatype, counts, output, .. }] = batch else {
            return self.issue_either(issue, batch, count, stream);
        };
        let moved = issue.aside.put(&self.gpu, stream, issue.last.as_deref(), operation);
        let Some(moved) = moved.map_err(error)? else {
            return self.issue_either(issue, batch, count, stream);
        };
        let (datatype, output, input) = (*datatype, *output, moved.memory.region());
        let counts = Ragged { send: moved.send, receive: counts.receive.clone() };
        let input = input.part(0, moved.bytes);
        let apart = [OperationOn::AllToAllV { datatype, counts, input, output }];
        self.issue_either(issue, &apart, count, stream)
    }

    /// Without the host, or through it.
    fn issue_either(
        &self,
        issue: &mut Issue,
        batch: &[Operation<'_>],
        count: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        let work = self.direct.issue(batch, stream, issue).map_err(error)?;
        let Some(work) = work else { return self.issue(issue, batch, count, stream) };
        *lock(&self.last) = Some(self.host.start_on_device(work));
        Ok(())
    }

    /// Fills one slot while the other is at work.
    fn issue(
        &self,
        issue: &mut Issue,
        batch: &[Operation<'_>],
        count: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        let mut begun = VecDeque::new();
        for index in 0..count {
            if begun.len() == SLOTS {
                begun
                    .pop_front()
                    .map_or(Ok(()), |first| issue.end(stream, &first))
                    .map_err(error)?;
            }
            let piece = self.cutter.piece(batch, index)?;
            let (next, job) = issue.begin(stream, piece).map_err(error)?;
            begun.push_back(next);
            *lock(&self.last) = Some(self.host.start_on_device(Work::Staged(job)));
        }
        begun.iter().try_for_each(|begun| issue.end(stream, begun)).map_err(error)
    }

    /// Waits for all calls, until the others have what they need of them; for their streams at most as long as the deadline.
    fn end(&self) {
        self.staging.close(self.host.timeout());
        let last = lock(&self.last).take();
        if let Some(last) = last {
            let _kept_elsewhere = last.wait();
            self.direct.settle(&self.host);
        }
        self.direct.stop();
    }

    /// The others have to know that this rank does not come. Whoever sees a stream go on finds the error.
    fn fail(&self, error: &Error) {
        self.staging.keep(error);
        self.direct.give_up();
        self.host.fail(error);
    }

    /// What the driver says in place of an answer: it ends the communicator, because the others do not hear of it else.
    fn refused(&self, error: &gpu::Error) -> Error {
        let error = described(error);
        self.fail(&error);
        self.host.named(error)
    }

    fn check_call(&self, operation: &Operation<'_>) -> Result<(), Error> {
        operation.validate(self.host.rank(), self.host.size())?;
        memory(operation).into_iter().try_for_each(|region| self.check_place(region))
    }

    fn check_stream(&self, stream: &Stream) -> Result<(), Error> {
        if stream.ordinal() != self.gpu.ordinal() {
            return Err(Error::InvalidArgument(format!(
                "the stream is of device {}, the communicator of device {}",
                stream.ordinal(),
                self.gpu.ordinal()
            )));
        }
        match stream.is_capturing().map_err(|error| self.refused(&error))? {
            false => Ok(()),
            true => Err(Error::InvalidUsage(
                "collectives cannot be captured into a graph: end the capture before the call, and \
                 make the call between two graphs"
                    .into(),
            )),
        }
    }

    fn check_place(&self, region: &DeviceRegion<'_>) -> Result<(), Error> {
        if region.bytes() == 0 {
            return Ok(());
        }
        let (own, address) = (self.gpu.ordinal(), region.address());
        let wrong = match self.gpu.place(address).map_err(|error| self.refused(&error))? {
            Place::Device(ordinal) if ordinal == own => return Ok(()),
            Place::Device(other) => {
                format!("is memory of device {other}: use a communicator of that device, or copy it")
            }
            Place::Pinned => {
                "is pinned memory of the host: call the host's communicator, or copy it".into()
            }
            Place::Unknown => {
                "is not known to the driver: call the host's communicator if it is memory of the host"
                    .into()
            }
        };
        Err(Error::InvalidArgument(format!(
            "{address:#x} is given as memory of device {own}, and {wrong}"
        )))
    }
}

impl Drop for Communicator {
    /// Ends calls as [`Self::finalize`] does, and waits until nothing of those that have failed can be launched any more. The
    /// driver thread must not be the one that frees pinned memory: that waits for the device, which may wait for the driver
    /// thread.
    fn drop(&mut self) {
        self.end();
        self.staging.envoy().rest();
    }
}

/// The memory of a call.
fn memory<'a, 'b>(operation: &'b Operation<'a>) -> Vec<&'b DeviceRegion<'a>> {
    match operation {
        OperationOn::Collective { input, output, .. } => input.iter().chain(output).collect(),
        OperationOn::AllToAllV { input, output, .. } => vec![input, output],
        OperationOn::Send { data, .. } | OperationOn::Receive { data, .. } => vec![data],
        OperationOn::Barrier => Vec::new(),
    }
}
