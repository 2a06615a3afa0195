//! Calls on memory of CUDA devices, in the order of streams.
//!
//! They return at once. Objects whose memory they use are kept until their streams have come past them, and so is
//! everything that a stream still needs when a communicator goes: a thread of its own waits for that.

use std::sync::{Arc, Mutex};

use ccl::cuda::{self, DeviceRegion, Event, Gpu, KeptContext, Place, Stream};
use ccl::{Communicator, Error, Operation};

use crate::buffer::{Buffer, Home};
use crate::work::locked;

/// The default stream of a device has one of these numbers, or none.
const DEFAULT_STREAMS: [usize; 2] = [0, 1];

/// One call that has not started.
#[derive(Debug)]
pub(crate) struct DeviceCall {
    pub(crate) operation: Operation<'static>,
    pub(crate) buffers: Vec<Buffer>,
    /// As the program names it; None is the default stream.
    pub(crate) stream: Option<usize>,
}

/// The device of a communicator; none before the first call on it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    communicator: Mutex<Option<Arc<cuda::Communicator>>>,
    kept: Mutex<Vec<Kept>>,
}

/// Objects that streams still use, until the event.
#[derive(Debug)]
struct Kept {
    end: Event,
    _buffers: Vec<Buffer>,
}

impl Device {
    /// Puts calls on their streams; sends and receives among them progress together.
    pub(crate) fn enqueue(&self, host: &Communicator, calls: Vec<DeviceCall>) -> Result<(), Error> {
        let _kept_context = KeptContext::of_this_thread().map_err(cuda::error)?;
        let Some(first) = calls.first() else { return Ok(()) };
        let communicator = self.communicator(host, first)?;
        let mut streams: Vec<(usize, Stream)> = Vec::new();
        for call in &calls {
            let number = plain(call.stream);
            if streams.iter().all(|(known, _)| *known != number) {
                streams.push((number, stream_of(communicator.gpu(), number)?));
            }
        }
        let streams: Vec<Stream> = streams.into_iter().map(|(_, stream)| stream).collect();
        let operations: Vec<_> = calls
            .iter()
            .map(|call| {
                call.operation.clone().map(|region| {
                    // SAFETY: the object promises that this is its memory, and is kept until the stream has
                    // come past the call; that nobody else uses it meanwhile is asked of the program.
                    unsafe { DeviceRegion::new(region.address() as u64, region.bytes()) }
                })
            })
            .collect();
        calls.iter().try_for_each(|call| await_producers(&communicator, call))?;
        communicator.enqueue_joined(&operations, &streams)?;
        // All streams have been made to wait for all calls.
        let end = streams.first().map(Stream::mark).transpose().map_err(cuda::error)?;
        let mut kept = locked(&self.kept);
        // Of a device that has failed nobody can tell: what is there stays until the communicator goes.
        let done: Vec<Kept> =
            kept.extract_if(.., |one| matches!(one.end.has_happened(), Ok(true))).collect();
        if let Some(end) = end {
            let buffers = calls.into_iter().flat_map(|call| call.buffers).collect();
            kept.push(Kept { end, _buffers: buffers });
        }
        drop(kept);
        // Giving objects back may run code of the program.
        drop(done);
        Ok(())
    }

    /// What went wrong in a call that has returned.
    pub(crate) fn failure(&self) -> Option<Error> {
        let communicator = locked(&self.communicator).clone()?;
        communicator.check().err()
    }

    /// Waits for everything that was started on the communicator, and takes leave.
    pub(crate) fn finalize(&self, host: &Communicator) -> Result<(), Error> {
        let communicator = locked(&self.communicator).clone();
        communicator.map_or_else(|| host.finalize(), |communicator| communicator.finalize())
    }
}

impl Device {
    /// What is there, or is made for the device of this call.
    fn communicator(
        &self,
        host: &Communicator,
        call: &DeviceCall,
    ) -> Result<Arc<cuda::Communicator>, Error> {
        let mut communicator = locked(&self.communicator);
        if let Some(communicator) = &*communicator {
            return Ok(Arc::clone(communicator));
        }
        let made = Arc::new(cuda::Communicator::new(host, &cuda::open(ordinal_of(call)?)?)?);
        *communicator = Some(Arc::clone(&made));
        Ok(made)
    }
}

impl Drop for Device {
    /// Nobody waits here for streams: freeing what is pinned does, and objects are theirs until they have gone by.
    fn drop(&mut self) {
        let communicator = locked(&self.communicator).take();
        let kept = std::mem::take(&mut *locked(&self.kept));
        if communicator.is_none() {
            return;
        }
        let free = move || {
            drop(communicator);
            for one in kept {
                // A device that has failed uses nothing any more.
                let _ = one.end.synchronise();
            }
        };
        // Without a thread it is dropped here, with the function.
        let _ = std::thread::Builder::new().name("r2ccl-unpin".into()).spawn(free);
    }
}

/// The number of the device of a call: that of its stream, or that of its memory.
fn ordinal_of(call: &DeviceCall) -> Result<usize, Error> {
    let number = plain(call.stream);
    if !DEFAULT_STREAMS.contains(&number) {
        // SAFETY: the program answers for its stream.
        return unsafe { cuda::device_of(std::ptr::with_exposed_provenance_mut(number)) }
            .map_err(cuda::error);
    }
    let Some(buffer) = call.buffers.iter().find(|buffer| buffer.count() > 0) else { return Ok(0) };
    let address = buffer.region().address();
    match cuda::open(0)?.place(address as u64).map_err(cuda::error)? {
        Place::Device(ordinal) => Ok(ordinal),
        // Said again, with the reason, when the call is looked at.
        Place::Pinned | Place::Unknown => Ok(0),
    }
}

/// The stream waits for what the objects still do with their memory.
fn await_producers(communicator: &cuda::Communicator, call: &DeviceCall) -> Result<(), Error> {
    let own = plain(call.stream);
    let stream = stream_of(communicator.gpu(), own)?;
    for buffer in &call.buffers {
        let Home::Device { producer: Some(number) } = buffer.home() else { continue };
        let number = plain(Some(number));
        if number != own {
            let come = stream_of(communicator.gpu(), number)?.mark().map_err(cuda::error)?;
            stream.wait(&come).map_err(cuda::error)?;
        }
    }
    Ok(())
}

fn stream_of(gpu: &Gpu, number: usize) -> Result<Stream, Error> {
    if DEFAULT_STREAMS.contains(&number) {
        // SAFETY: null is the default stream of the device's own context, which is always there.
        return Ok(unsafe { gpu.stream_of(std::ptr::null_mut()) });
    }
    // SAFETY: the program answers for its stream.
    unsafe { gpu.checked_stream_of(std::ptr::with_exposed_provenance_mut(number)) }
        .map_err(cuda::error)
}

/// One number for the default stream.
fn plain(stream: Option<usize>) -> usize {
    stream.filter(|number| !DEFAULT_STREAMS.contains(number)).unwrap_or(0)
}
