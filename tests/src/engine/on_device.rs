//! What is different when calls work on memory of a device.

use std::ops::Range;

use super::{Engine, Plan};
use crate::Outcome;
use crate::benchmark::Call;
use crate::error::Failure;
use crate::gpu::Gpu;

impl Engine<'_> {
    /// Puts calls of iterations on the stream, as a group if there are several.
    pub(super) fn enqueue(
        &self,
        gpu: &Gpu,
        calls: &[Call],
        plan: &Plan<'_>,
        slots: Range<usize>,
    ) -> Outcome<()> {
        let place = |span, slot| self.buffers.position(&plan.layout, span, slot);
        let call = |call, slot| plan.request.call(call, |span| gpu.region(place(span, slot)));
        let operations: Vec<_> =
            slots.flat_map(|slot| calls.iter().map(move |each| (each, slot))).collect();
        let operations: Vec<_> =
            operations.into_iter().map(|(each, slot)| call(each, slot)).collect();
        gpu.enqueue(&operations).map_err(|error| self.failure(error))
    }

    /// Waits for the stream, if there is one.
    pub(super) fn finish(&self) -> Outcome<()> {
        let finished = self.gpu.as_ref().map_or(Ok(()), Gpu::finish);
        finished.map_err(|error| self.failure(error))
    }

    /// Copies what a checked call touches, to or from the device.
    pub(super) fn move_checked(
        &mut self,
        plan: &Plan<'_>,
        act: impl Fn(&Gpu, usize, [&mut [u8]; 2]) -> Result<(), ccl::Error>,
    ) -> Outcome<()> {
        let (rank, start) = (self.world.rank().0, self.buffers.misalignment());
        let Some(gpu) = &self.gpu else { return Ok(()) };
        act(gpu, start, self.buffers.checked(&plan.layout))
            .map_err(|error| Failure::Library { rank, error })
    }
}
