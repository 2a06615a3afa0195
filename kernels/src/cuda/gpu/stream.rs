//! Streams, events and graphs.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, sys};

use super::error::Error;

/// Work that a device does in order. Streams of a device run side by side.
#[derive(Clone, Debug)]
pub struct Stream(pub(super) Arc<CudaStream>);

impl Stream {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.new_stream().map(Self).map_err(Error::driver("make a stream"))
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
        self.0.record_event(flags).map(Event).map_err(Error::driver("record an event"))
    }

    /// Lets later work wait for the event.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.0.wait(&event.0).map_err(Error::driver("wait for an event"))
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
        graph?.map(Graph).ok_or_else(|| Error::Misuse("nothing was captured".into()))
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub struct Event(CudaEvent);

impl Event {
    /// Whether it has happened.
    ///
    /// # Errors
    ///
    /// Work before it failed.
    pub fn has_happened(&self) -> Result<bool, Error> {
        self.0.try_is_complete().map_err(Error::driver("look at an event"))
    }

    /// Waits until it happens.
    ///
    /// # Errors
    ///
    /// Work before it failed.
    pub fn synchronise(&self) -> Result<(), Error> {
        self.0.synchronize().map_err(Error::driver("wait for an event"))
    }

    /// Seconds from this event to a later one; both have happened.
    ///
    /// # Errors
    ///
    /// One has not.
    pub fn seconds_until(&self, later: &Self) -> Result<f64, Error> {
        let milliseconds = self.0.elapsed_ms(&later.0).map_err(Error::driver("compare events"))?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

/// Work that can be repeated with one call, on the stream on which it was captured.
pub struct Graph(CudaGraph);

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
        self.0.launch().map_err(Error::driver("launch a graph"))
    }
}
