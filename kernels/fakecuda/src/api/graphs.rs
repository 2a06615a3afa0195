//! Captures and graphs.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::entry_points;
use crate::capture::{self, Mode};
use crate::codes::Code;
use crate::driver::{self, objects, stream};
use crate::graph::{Captured, Executable};
use crate::outside::Out;

const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;
const INVALIDATED: c_int = 2;
/// Flags of an instantiation that change nothing here: freeing on launch, upload, priorities.
const KNOWN_FLAGS: u64 = 1 | 2 | 8;

entry_points! {
    fn cuStreamBeginCapture_v2(number: usize, mode: c_uint) {
        let (mode, stream) = (Mode::of(mode)?, stream(number)?);
        if stream.number == 0 || stream.is_capturing() {
            return Err(Code::CaptureUnsupported);
        }
        stream.set_captured(Some(Captured::begin(number, mode)));
        Ok(())
    }

    fn cuStreamEndCapture(number: usize, graph: Out<usize>) {
        let stream = stream(number)?;
        let captured = stream.captured().ok_or(Code::InvalidValue)?;
        if captured.capture.origin != number {
            return Err(Code::CaptureUnmatched);
        }
        captured.capture.permit_end()?;
        driver::end_capture(&captured.capture);
        graph.put(0)?;
        let ended = Arc::new(captured.end()?);
        let number = objects().keep(|objects| &mut objects.graphs, ended);
        graph.put(number)
    }

    fn cuStreamIsCapturing(number: usize, status: Out<c_int>) {
        let captured = driver::captured(&stream(number)?)?;
        status.put(match captured.map(|captured| captured.capture.check()) {
            None => NOT_CAPTURING,
            Some(Ok(())) => CAPTURING,
            Some(Err(_)) => INVALIDATED,
        })
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = Mode::of(mode.given()?)?;
        mode.put(capture::exchange(wanted).number())
    }

    fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, flags: u64) {
        driver::device()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Code::InvalidValue);
        }
        let graph = objects().graphs.get(graph)?;
        let made = Arc::new(Executable::new(graph));
        let number = objects().keep(|objects| &mut objects.executables, made);
        executable.put(number)
    }

    fn cuGraphUpload(executable: usize, number: usize) {
        stream(number)?;
        objects().executables.get(executable).map(drop)
    }

    fn cuGraphLaunch(executable: usize, number: usize) {
        let executable = objects().executables.get(executable)?;
        executable.launch(&stream(number)?)
    }

    fn cuGraphDestroy(graph: usize) {
        objects().graphs.remove(graph).map(drop)
    }

    fn cuGraphExecDestroy(executable: usize) {
        objects().executables.remove(executable).map(drop)
    }

    fn cuGraphGetNodes(graph: usize, nodes: Out<usize>, count: Out<usize>) {
        let graph = objects().graphs.get(graph)?;
        if !nodes.is_null() {
            return Err(Code::NotSupported);
        }
        count.put(graph.len())
    }
}
