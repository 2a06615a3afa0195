//! Calls on memory of CUDA devices, in the order of streams.
//!
//! A member gets what such calls need with the first of them, and the device of its stream with it. What
//! is pinned then is freed by a thread of its own: that waits for the device, on which streams of the
//! program may wait for the thread that ends the communicator.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use ccl::cuda::{self, KeptContext, Promise, Window};
use ccl::{Communicator, Error, OperationOn};

use crate::arguments::Buffer;
use crate::handles::locked;
use crate::member::Member;

/// The device of a member; none before the first call on it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    prepared: Mutex<Option<Arc<Prepared>>>,
    windows: Mutex<BTreeMap<usize, Window>>,
}

impl Device {
    /// Whether there was a call on it.
    pub(crate) fn is_used(&self) -> bool {
        locked(&self.prepared).is_some()
    }

    /// What went wrong in a call that has returned.
    pub(crate) fn failure(&self) -> Option<Error> {
        let prepared = locked(&self.prepared).clone()?;
        prepared.communicator().and_then(cuda::Communicator::check).err()
    }

    /// Waits for everything that was started on the communicator, and takes leave.
    pub(crate) fn finalize(&self, host: &Communicator) -> Result<(), Error> {
        let prepared = locked(&self.prepared).clone();
        prepared.map_or_else(|| host.finalize(), |prepared| prepared.communicator()?.finalize())
    }

    /// Frees what is pinned, and waits for that at most as long as for a call.
    pub(crate) fn release(&self, host: &Communicator) {
        let prepared = locked(&self.prepared).take();
        // If a call of another thread still has it, that one frees it.
        if let Some(communicator) =
            prepared.and_then(Arc::into_inner).and_then(Prepared::into_inner)
        {
            // Either it is freed, or it will be when the device comes so far.
            let _ = unpin(communicator).recv_timeout(host.timeout());
        }
    }

    /// Has it freed, and waits for nobody.
    pub(crate) fn give_up(&self) {
        drop(locked(&self.prepared).take());
    }

    /// What is there, or is made for the device of this stream.
    ///
    /// # Safety
    ///
    /// The stream is null or exists.
    unsafe fn prepare(
        &self,
        host: &Communicator,
        stream: *mut c_void,
    ) -> Result<Arc<Prepared>, Error> {
        let mut prepared = locked(&self.prepared);
        if let Some(prepared) = &*prepared {
            return Ok(Arc::clone(prepared));
        }
        host.async_error().map_or(Ok(()), Err)?;
        // A default stream is that of the context of the program, also after this.
        let _kept = kept_context()?;
        // SAFETY: the caller's promise.
        let ordinal = unsafe { cuda::device_of(stream) }.map_err(cuda::error)?;
        let communicator = cuda::Communicator::new(host, &cuda::open(ordinal)?)?;
        let made = Arc::new(Prepared(Some(communicator)));
        *prepared = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// A communicator on its device, until it is taken out or dropped.
#[derive(Debug)]
struct Prepared(Option<cuda::Communicator>);

impl Prepared {
    fn communicator(&self) -> Result<&cuda::Communicator, Error> {
        let gone = || Error::InvalidUsage("the communicator was destroyed".into());
        self.0.as_ref().ok_or_else(gone)
    }

    fn into_inner(mut self) -> Option<cuda::Communicator> {
        self.0.take()
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(communicator) = self.0.take() {
            // Nobody waits for the end of it.
            drop(unpin(communicator));
        }
    }
}

/// Drops it in a thread of its own; tells when that has happened.
fn unpin(communicator: cuda::Communicator) -> Receiver<()> {
    let (freed, receiver) = channel();
    let free = move || {
        drop(communicator);
        // The other end may have given up.
        let _ = freed.send(());
    };
    // Without a thread it is dropped here, with the function.
    let _ = std::thread::Builder::new().name("r2ccl-unpin".into()).spawn(free);
    receiver
}

/// A call that its communicator can do, as far as this rank knows.
#[derive(Debug)]
pub(crate) struct Call {
    prepared: Arc<Prepared>,
    operation: cuda::Operation<'static>,
    stream: cuda::Stream,
    /// Tells streams apart.
    stream_number: usize,
}

impl Call {
    /// Looks at the arguments.
    ///
    /// # Safety
    ///
    /// The stream is null or one that exists until it has come past the operation. Where there is memory of
    /// a device at the start of a buffer, all of it is, and is left to the operation until then.
    pub(crate) unsafe fn new(
        device: &Device,
        host: &Communicator,
        operation: OperationOn<Buffer>,
        stream: *mut c_void,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let prepared = unsafe { device.prepare(host, stream) }?;
        let communicator = prepared.communicator()?;
        let (stream_number, _kept) = (stream.addr(), kept_context()?);
        // SAFETY: the caller's promise.
        let stream =
            unsafe { communicator.gpu().checked_stream_of(stream) }.map_err(cuda::error)?;
        // SAFETY: the caller's promise.
        let operation = operation.map(|buffer| unsafe { buffer.on_device() });
        communicator.validate(&operation, &stream)?;
        Ok(Self { prepared, operation, stream, stream_number })
    }
}

/// Registers memory as a window, which gets that number, when it is called; it waits for the other ranks.
///
/// # Safety
///
/// The stream is null or exists. If there is memory of a device at the start of the buffer, all of it is, and is left to
/// the library until the window is deregistered.
pub(crate) unsafe fn registering(
    member: &Arc<Member>,
    (memory, is_symmetric, number): (Buffer, bool, usize),
    stream: *mut c_void,
) -> Result<impl FnOnce() -> Result<(), Error> + Send + use<>, Error> {
    // A barrier asks for nothing but a stream that can be used.
    // SAFETY: the caller's promise.
    let call =
        unsafe { Call::new(&member.device, member.communicator()?, OperationOn::Barrier, stream) }?;
    // SAFETY: the caller's promise.
    let (member, region) = (Arc::clone(member), unsafe { memory.on_device() });
    let promise = if is_symmetric { Promise::Symmetric } else { Promise::Nothing };
    Ok(move || {
        let _kept = kept_context()?;
        let window = call.prepared.communicator()?.register_window(&region, promise)?;
        locked(&member.device.windows).insert(number, window);
        Ok(())
    })
}

/// Deregisters the window with that number when it is called; it waits for the other ranks.
pub(crate) fn deregistering(
    member: &Arc<Member>,
    number: usize,
) -> Result<impl FnOnce() -> Result<(), Error> + Send + use<>, Error> {
    let _kept = kept_context()?;
    let prepared = locked(&member.device.prepared).clone();
    let window = locked(&member.device.windows).remove(&number);
    let none = || Error::InvalidArgument("this is no window of the communicator".into());
    let (prepared, window) = prepared.zip(window).ok_or_else(none)?;
    Ok(move || {
        let _kept = kept_context()?;
        prepared.communicator()?.deregister_window(&window)
    })
}

/// Puts calls on their streams: those of one communicator as a group, on all streams that they name.
pub(crate) fn enqueue(calls: &[(Arc<Member>, Call)]) -> Result<(), Error> {
    if calls.is_empty() {
        return Ok(());
    }
    for (member, _) in calls {
        member.ready()?;
    }
    let _kept = kept_context()?;
    let mut rest: Vec<&(Arc<Member>, Call)> = calls.iter().collect();
    while let Some((first, _)) = rest.first() {
        let is_of_first = |call: &&(Arc<Member>, Call)| Arc::ptr_eq(&call.0, first);
        let (group, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_of_first);
        enqueue_together(&group)?;
        rest = others;
    }
    Ok(())
}

/// The thread of the program has its own context again when this goes.
fn kept_context() -> Result<KeptContext, Error> {
    KeptContext::of_this_thread().map_err(cuda::error)
}

/// Calls of one communicator.
fn enqueue_together(group: &[&(Arc<Member>, Call)]) -> Result<(), Error> {
    let Some((_, first)) = group.first() else { return Ok(()) };
    let operations: Vec<_> = group.iter().map(|(_, call)| call.operation.clone()).collect();
    let mut streams: Vec<&Call> = Vec::new();
    for (_, call) in group {
        if streams.iter().all(|known| known.stream_number != call.stream_number) {
            streams.push(call);
        }
    }
    let streams: Vec<_> = streams.into_iter().map(|call| call.stream.clone()).collect();
    first.prepared.communicator()?.enqueue_joined(&operations, &streams)
}
