//! Streams, events and graphs.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, result, sys};

use super::error::Error;
use super::foreign::{BesideCaptures, give_back};
use super::memory::{DeviceRegion, Pinned};

const WITHOUT_TIME: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

/// Work that a device does in order. Streams of a device run side by side.
#[derive(Clone, Debug)]
pub struct Stream(pub(super) ManuallyDrop<Arc<CudaStream>>);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nothing touches it after this.
        let stream = unsafe { ManuallyDrop::take(&mut self.0) };
        let context = Arc::clone(stream.context());
        // One of somebody else asks the driver nothing.
        if let Some(stream) = Arc::into_inner(stream) {
            drop(stream);
            // What cudarc keeps for the next call, which would be accused of it.
            let _ = context.check_err();
        }
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let _beside = BesideCaptures::with(context)?;
        let stream = context.new_stream().map_err(Error::driver("make a stream"))?;
        Ok(Self(ManuallyDrop::new(stream)))
    }

    /// A stream of somebody else.
    ///
    /// # Safety
    ///
    /// It is a stream of this context, and exists for as long as the result and its clones.
    pub(super) unsafe fn borrowed(context: &Arc<CudaContext>, stream: sys::CUstream) -> Self {
        // SAFETY: the caller answers for it; who orders work of both owners is said at every use.
        Self(ManuallyDrop::new(unsafe { context.wrap_borrowed_stream(stream) }))
    }

    /// Waits until all of its work has ended.
    ///
    /// # Errors
    ///
    /// Some of it failed.
    pub fn synchronise(&self) -> Result<(), Error> {
        self.0.synchronize().map_err(Error::driver("wait for a stream"))
    }

    /// An event that happens when the work so far has ended.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn record(&self) -> Result<Event, Error> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.0.record_event(flags).map(Event::from).map_err(Error::driver("record an event"))
    }

    /// Lets later work wait for the event.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.0.wait(event.recorded()?).map_err(Error::driver("wait for an event"))
    }

    /// As [`Self::record`], for an event that tells no time.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn mark(&self) -> Result<Event, Error> {
        let flags = Some(WITHOUT_TIME);
        self.0.record_event(flags).map(Event::from).map_err(Error::driver("record an event"))
    }

    /// Copies bytes between any memory that the driver knows: of a device, or pinned.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if lengths differ, or the driver refuses it.
    pub fn copy(&self, from: DeviceRegion<'_>, to: DeviceRegion<'_>) -> Result<(), Error> {
        if from.bytes() != to.bytes() {
            let text = format!("{} bytes are not copied to {}", from.bytes(), to.bytes());
            return Err(Error::Misuse(text));
        }
        if from.bytes() == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: whoever made the regions answers for them.
        unsafe { sys::cuMemcpyAsync(to.address(), from.address(), from.bytes(), self.raw()) }
            .result()
            .map_err(Error::driver("copy memory"))
    }

    /// Lets a thread of the driver call `act` when the work so far has ended. It must neither wait nor
    /// call the driver: other calls wait for it. It is not called, and leaks, if work before it fails.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn call(&self, act: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        self.bind()?;
        let act: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(act));
        let argument = Box::into_raw(act).cast::<c_void>();
        // SAFETY: the function takes what `argument` points to, and is called once at most.
        unsafe { result::stream::launch_host_function(self.raw(), called, argument) }.map_err(
            |error| {
                // SAFETY: a call that was refused is never made, so this is its only owner.
                drop(unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) });
                Error::driver("call a function of the host")(error)
            },
        )
    }

    /// Lets later work wait until the word at `offset` has come to `value`, counting around.
    ///
    /// # Errors
    ///
    /// The driver refuses it, for example because the device cannot do it.
    ///
    /// # Panics
    ///
    /// If there is no such word.
    pub fn wait_for_word(&self, pinned: &Pinned, offset: usize, value: u32) -> Result<(), Error> {
        let word = pinned.region().part(offset, size_of::<u32>());
        self.wait_for(word, value, sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ)
    }

    /// Lets later work wait until a word has exactly this value.
    pub(super) fn wait_for_mark(&self, word: DeviceRegion<'_>, value: u32) -> Result<(), Error> {
        self.wait_for(word, value, sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ)
    }

    fn wait_for(
        &self,
        word: DeviceRegion<'_>,
        value: u32,
        comparison: sys::CUstreamWaitValue_flags,
    ) -> Result<(), Error> {
        check_word(word);
        self.bind()?;
        let flags = comparison as u32;
        // SAFETY: the word is inside memory that outlives the wait: freeing waits for the device.
        unsafe { sys::cuStreamWaitValue32_v2(self.raw(), word.address(), value, flags) }
            .result()
            .map_err(Error::driver("wait for a word"))
    }

    /// Writes the word at `offset` when the work so far has ended. Whoever sees it sees everything that this work has written.
    ///
    /// # Errors
    ///
    /// The driver refuses it, for example because the device cannot do it.
    ///
    /// # Panics
    ///
    /// If there is no such word.
    pub fn write_word(&self, pinned: &Pinned, offset: usize, value: u32) -> Result<(), Error> {
        self.write_mark(pinned.region().part(offset, size_of::<u32>()), value)
    }

    /// Writes a word when the work so far has ended. Whoever sees it sees everything that this work has written.
    pub(super) fn write_mark(&self, word: DeviceRegion<'_>, value: u32) -> Result<(), Error> {
        check_word(word);
        self.bind()?;
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the word is inside memory that outlives the write: freeing waits for the device.
        unsafe { sys::cuStreamWriteValue32_v2(self.raw(), word.address(), value, flags) }
            .result()
            .map_err(Error::driver("write a word"))
    }

    /// As [`Self::wait_for_word`], and gives regions that are valid until the word has come to that: freeing memory waits
    /// for this stream, and who has lent it from elsewhere keeps it until the stream has come past.
    ///
    /// # Errors
    ///
    /// As [`Self::wait_for_word`].
    ///
    /// # Panics
    ///
    /// As [`Self::wait_for_word`].
    pub fn hold_until<const N: usize>(
        &self,
        pinned: &Pinned,
        offset: usize,
        value: u32,
        regions: [Option<DeviceRegion<'_>>; N],
    ) -> Result<[Option<DeviceRegion<'static>>; N], Error> {
        self.wait_for_word(pinned, offset, value)?;
        let held = |region: DeviceRegion<'_>| DeviceRegion {
            address: region.address,
            bytes: region.bytes,
            life: PhantomData,
        };
        Ok(regions.map(|region| region.map(held)))
    }

    /// Whether work is described rather than done: between the beginning and the end of a capture, of
    /// this stream or of one that this one waits for.
    ///
    /// # Errors
    ///
    /// The stream is of no use.
    pub fn is_capturing(&self) -> Result<bool, Error> {
        self.bind()?;
        // SAFETY: the stream is valid.
        match unsafe { result::stream::is_capturing(self.raw()) } {
            Ok(status) => Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
            // The default stream, beside a capture that would have to contain its work.
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            Err(error) => Err(Error::driver("ask whether a stream is captured")(error)),
        }
    }

    /// The number of its device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.0.context().ordinal()
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        self.0.context()
    }

    pub(super) fn bind(&self) -> Result<(), Error> {
        self.context().bind_to_thread().map_err(Error::driver("bind the context"))
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.0.cu_stream()
    }

    /// Work that is described now and done at every [`Graph::launch`].
    ///
    /// # Errors
    ///
    /// What `describe` returns; or it does something that cannot be part of a graph.
    pub fn capture(&self, describe: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.0.begin_capture(mode).map_err(Error::driver("capture a graph"))?;
        let described = describe();
        let flags = sys::CUgraphInstantiate_flags(0);
        // What has begun is ended, whatever came between.
        let graph = self.0.end_capture(flags).map_err(Error::driver("make a graph"));
        described?;
        let graph = graph?.ok_or_else(|| Error::Misuse("nothing was captured".into()))?;
        Ok(Graph { graph: ManuallyDrop::new(graph), stream: self.clone() })
    }
}

fn check_word(word: DeviceRegion<'_>) {
    let bytes = size_of::<u32>();
    let is_aligned = word.address().is_multiple_of(bytes as u64);
    assert!(is_aligned && word.bytes() == bytes, "words are aligned");
}

/// What the driver calls for [`Stream::call`].
unsafe extern "C" fn called(argument: *mut c_void) {
    // SAFETY: the argument was made by `Stream::call`, and comes once.
    let act = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    // Its message is on standard error; a panic must not go through functions of C.
    let _ = catch_unwind(AssertUnwindSafe(act));
}

/// Events that tell no time and are used again: to make and destroy one takes longer than to record it.
#[derive(Clone, Debug, Default)]
pub struct EventPool(Arc<Mutex<Vec<Event>>>);

impl EventPool {
    /// As [`Stream::mark`], of a stream of always the same device.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn mark(&self, stream: &Stream) -> Result<Event, Error> {
        let used = self.events().pop();
        let mut event = match used {
            Some(event) => {
                event.recorded()?.record(&stream.0).map_err(Error::driver("record an event"))?;
                event
            }
            None => stream.mark()?,
        };
        event.home = Some(self.clone());
        Ok(event)
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub struct Event {
    /// Something until it is dropped.
    event: Option<CudaEvent>,
    /// Where it goes then, if not to the driver.
    home: Option<EventPool>,
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        if let Some(home) = self.home.take() {
            home.events().push(Self::from(event));
            return;
        }
        let context = Arc::clone(event.context());
        give_back(&context, || {
            drop(event);
            // What cudarc keeps for the next call.
            context.check_err()
        });
    }
}

impl From<CudaEvent> for Event {
    fn from(event: CudaEvent) -> Self {
        Self { event: Some(event), home: None }
    }
}

impl Event {
    fn recorded(&self) -> Result<&CudaEvent, Error> {
        self.event.as_ref().ok_or_else(|| Error::Misuse("the event was dropped".into()))
    }

    /// Whether it has happened. Captures do not mind the question.
    ///
    /// # Errors
    ///
    /// Work before it failed.
    pub fn has_happened(&self) -> Result<bool, Error> {
        let event = self.recorded()?;
        let _beside = BesideCaptures::with(event.context())?;
        event.try_is_complete().map_err(Error::driver("look at an event"))
    }

    /// Waits until it happens. Captures do not mind that.
    ///
    /// # Errors
    ///
    /// Work before it failed.
    pub fn synchronise(&self) -> Result<(), Error> {
        let event = self.recorded()?;
        let _beside = BesideCaptures::with(event.context())?;
        event.synchronize().map_err(Error::driver("wait for an event"))
    }

    /// Seconds from this event to a later one; both have happened. Captures do not mind the question.
    ///
    /// # Errors
    ///
    /// One has not.
    pub fn seconds_until(&self, later: &Self) -> Result<f64, Error> {
        let event = self.recorded()?;
        let _beside = BesideCaptures::with(event.context())?;
        let milliseconds = event.elapsed_ms(later.recorded()?);
        let milliseconds = milliseconds.map_err(Error::driver("compare events"))?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

/// Work that can be repeated with one call, on the stream on which it was captured.
pub struct Graph {
    graph: ManuallyDrop<CudaGraph>,
    /// Its owners are these, and the graph until it has gone.
    stream: Stream,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nothing touches it after this.
        let graph = unsafe { ManuallyDrop::take(&mut self.graph) };
        give_back(self.stream.context(), || {
            drop(graph);
            // What cudarc keeps for the next call.
            self.stream.context().check_err()
        });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Graph")
    }
}

impl Graph {
    /// Does it, after what its stream has to do already.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn launch(&self) -> Result<(), Error> {
        self.graph.launch().map_err(Error::driver("launch a graph"))
    }
}
