//! Events, and how other processes find them.

use std::ffi::c_uint;
use std::sync::Arc;

use super::entry_points;
use crate::bell;
use crate::capture;
use crate::codes::{Code, Result};
use crate::driver::{self, objects, stream};
use crate::event::Event;
use crate::ipc::{Handle, RawHandle};
use crate::outside::Out;
use crate::work::Work;

fn record(event: usize, number: usize) -> Result<()> {
    let event = objects().events.get(event)?;
    let stream = stream(number)?;
    if event.device.ordinal != stream.device.ordinal {
        return Err(Code::InvalidHandle);
    }
    let captured = stream.captured();
    captured.as_ref().map_or(Ok(()), |captured| captured.capture.check())?;
    let is_captured = captured.is_some();
    event.set_captured(captured)?;
    if is_captured {
        return Ok(());
    }
    let recorded = event.record()?;
    let reach = Work::Reach(Arc::clone(&event), recorded);
    driver::push(&stream, reach).inspect_err(|_| event.reach(recorded))
}

/// An event that was not recorded in a capture; if it was, that one comes to nothing.
fn outside_of_captures(event: usize) -> Result<Arc<Event>> {
    driver::device()?;
    let event = objects().events.get(event)?;
    match event.captured()? {
        Some(captured) => Err(captured.capture.invalidate(Code::CapturedEvent)),
        None => Ok(event),
    }
}

fn elapsed(milliseconds: Out<f32>, start: usize, end: usize) -> Result<()> {
    let (start, end) = (outside_of_captures(start)?, outside_of_captures(end)?);
    milliseconds.put(start.elapsed(&end)?)
}

entry_points! {
    fn cuEventCreate(result: Out<usize>, flags: c_uint) {
        let event = Arc::new(Event::new(driver::device()?, flags)?);
        let number = objects().keep(|objects| &mut objects.events, event);
        result.put(number)
    }

    fn cuEventDestroy_v2(event: usize) {
        objects().events.remove(event).map(drop)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) {
        if flags != 0 {
            return Err(Code::NotSupported);
        }
        record(event, stream)
    }

    fn cuEventQuery(event: usize) {
        capture::permit()?;
        let event = outside_of_captures(event)?;
        if event.is_reached(event.recorded()) { Ok(()) } else { Err(Code::NotReady) }
    }

    fn cuEventSynchronize(event: usize) {
        capture::permit()?;
        let event = outside_of_captures(event)?;
        let recorded = event.recorded();
        bell::wait_until(|| event.is_reached(recorded));
        driver::device().map(drop)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(milliseconds, start, end)
    }

    fn cuIpcGetEventHandle(handle: Out<RawHandle>, event: usize) {
        driver::device()?;
        let event = objects().events.get(event)?;
        handle.put(event.handle()?.into())
    }

    fn cuIpcOpenEventHandle(result: Out<usize>, handle: RawHandle) {
        let device = driver::device()?;
        let event = Arc::new(Event::open(device, &Handle::try_from(handle)?)?);
        let number = objects().keep(|objects| &mut objects.events, event);
        result.put(number)
    }
}
