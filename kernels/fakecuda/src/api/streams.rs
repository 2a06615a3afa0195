//! Streams.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::entry_points;
use crate::capture;
use crate::codes::{Code, Result};
use crate::driver::{self, objects, stream};
use crate::event::Event;
use crate::graph::Captured;
use crate::outside::Out;
use crate::stream::Stream;
use crate::work::{Comparison, Work};

/// Lower numbers go first.
pub(super) const HIGHEST_PRIORITY: c_int = -5;

const NON_BLOCKING: c_uint = 1;

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: c_uint = 1;

fn create(result: Out<usize>, flags: c_uint, priority: c_int) -> Result<()> {
    let device = driver::device()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::InvalidValue);
    }
    let number = objects().number();
    let priority = priority.clamp(HIGHEST_PRIORITY, 0);
    let stream = Stream::start(device, number, flags & NON_BLOCKING == 0, priority);
    objects().keep_stream(&stream);
    result.put(number)
}

/// Lets a stream take part in a capture from here on, behind a place in it.
fn join(stream: &Stream, there: &Captured) -> Result<()> {
    let here = stream.captured();
    let wrong = match &here {
        _ if there.capture.has_ended() => Some(Code::CapturedEvent),
        Some(here) if !Arc::ptr_eq(&here.capture, &there.capture) => Some(Code::CaptureMerge),
        None if stream.number == 0 => Some(Code::CaptureImplicit),
        Some(_) | None => None,
    };
    let mut joined = here.unwrap_or_else(|| Captured { after: Vec::new(), ..there.clone() });
    if let Some(code) = wrong {
        there.capture.invalidate(code);
        return Err(joined.capture.invalidate(code));
    }
    there.capture.check()?;
    joined.join(there);
    stream.set_captured(Some(joined));
    Ok(())
}

/// Lets a stream wait for an event that was not recorded in a capture.
fn wait(stream: &Arc<Stream>, event: Arc<Event>) -> Result<()> {
    if let Some(here) = stream.captured() {
        return Err(here.capture.invalidate(Code::CaptureIsolation));
    }
    let recorded = event.recorded();
    driver::push(stream, Work::Await(event, recorded))
}

entry_points! {
    fn cuStreamCreate(result: Out<usize>, flags: c_uint) {
        create(result, flags, 0)
    }

    fn cuStreamCreateWithPriority(result: Out<usize>, flags: c_uint, priority: c_int) {
        create(result, flags, priority)
    }

    fn cuStreamDestroy_v2(number: usize) {
        let stream = objects().close_stream(number)?;
        // Nobody can end a capture that began in a stream that is gone.
        if let Some(captured) = stream.captured() {
            captured.capture.invalidate(Code::CaptureInvalidated);
            stream.set_captured(None);
            if captured.capture.origin == number {
                driver::end_capture(&captured.capture);
            }
        }
        Ok(())
    }

    fn cuStreamSynchronize(number: usize) {
        capture::permit()?;
        stream(number)?.finish()
    }

    fn cuStreamQuery(number: usize) {
        capture::permit()?;
        let stream = stream(number)?;
        stream.require_no_capture()?;
        if stream.is_idle() { stream.device.check() } else { Err(Code::NotReady) }
    }

    fn cuStreamGetPriority(number: usize, priority: Out<c_int>) {
        priority.put(stream(number)?.priority)
    }

    fn cuStreamGetFlags(number: usize, flags: Out<c_uint>) {
        flags.put(c_uint::from(!stream(number)?.is_blocking))
    }

    fn cuStreamGetCtx(number: usize, context: Out<usize>) {
        context.put(stream(number)?.device.context())
    }

    fn cuStreamGetId(number: usize, id: Out<u64>) {
        id.put(stream(number)?.number as u64)
    }

    fn cuStreamGetDevice(number: usize, device: Out<c_int>) {
        device.put(stream(number)?.device.ordinal as c_int)
    }

    fn cuStreamWaitEvent(number: usize, event: usize, flags: c_uint) {
        let _ = flags;
        let stream = stream(number)?;
        let event = objects().events.get(event)?;
        match event.captured()? {
            Some(there) => join(&stream, &there),
            None => wait(&stream, event),
        }
    }

    fn cuStreamWaitValue32_v2(number: usize, address: u64, value: c_uint, flags: c_uint) {
        let stream = stream(number)?;
        let is_known = address.is_multiple_of(4) && objects().allocations.has(address, 4);
        let comparison = Comparison::of(flags).filter(|_| is_known).ok_or(Code::InvalidValue)?;
        driver::push(&stream, Work::AwaitWord { address, value, comparison })
    }

    fn cuStreamWriteValue32_v2(number: usize, address: u64, value: c_uint, flags: c_uint) {
        let stream = stream(number)?;
        let is_known = address.is_multiple_of(4) && objects().allocations.has(address, 4);
        // Work of a stream is seen in order here, with the barrier or without.
        if !is_known || flags & !NO_BARRIER != 0 {
            return Err(Code::InvalidValue);
        }
        driver::push(&stream, Work::WriteWord { address, value })
    }

    fn cuLaunchHostFunc(number: usize, function: usize, argument: usize) {
        driver::push(&stream(number)?, Work::Call { function, argument })
    }
}
