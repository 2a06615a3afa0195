//! What is different when calls work on memory of a device.

use std::ops::Range;

use ccl::Collective;

use super::{Case, Engine, Plan};
use crate::Outcome;
use crate::benchmark::{Call, request};
use crate::buffers::Buffers;
use crate::error::Failure;
use crate::gpu::Gpu;

impl Engine<'_> {
    /// Loads kernels for a row, so that none of its calls has to go another way.
    pub(super) fn prepare(&self, case: Case) -> Outcome<()> {
        let sizes = self.sizes();
        let uneven = self.benchmark.uneven.then_some(Collective::AllToAllV);
        let collective = self.benchmark.collective.or(uneven);
        let (Some(gpu), Some(collective), Some(bytes)) = (&self.gpu, collective, sizes.last())
        else {
            return Ok(());
        };
        let counts = self.counts(case, *bytes);
        let place = self.place(case, &counts);
        let request = request(collective, case.datatype, self.reduction(case), &place);
        gpu.prepare(request).map_err(|error| self.failure(error))
    }

    /// Makes windows of the memory of the device, if there is one, or ends them.
    pub(super) fn on_windows(
        &mut self,
        act: impl Fn(&mut Gpu) -> Result<(), ccl::Error>,
    ) -> Outcome<()> {
        let done = self.gpu.as_mut().map_or(Ok(()), act);
        done.map_err(|error| self.failure(error))
    }

    /// Which way the collectives of this rank went, if there is a device.
    #[must_use]
    pub fn ways(&self) -> Option<String> {
        self.gpu.as_ref().map(Gpu::ways)
    }

    /// Puts calls of iterations on the stream, as a group if there are several.
    pub(super) fn enqueue(
        &self,
        gpu: &Gpu,
        calls: &[Call],
        plan: &Plan<'_>,
        slots: Range<usize>,
    ) -> Outcome<()> {
        let place = |span, slot| self.buffers.position(&plan.layout, span, plan.parts.start(slot));
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

    /// Copies parts of both buffers to or from the device, if there is one.
    pub(super) fn on_device(
        &mut self,
        copy: impl Fn(&Gpu, usize, [&mut [u8]; 2]) -> Result<(), ccl::Error>,
        parts: impl FnOnce(&mut Buffers) -> [&mut [u8]; 2],
    ) -> Outcome<()> {
        let (rank, start) = (self.world.rank().0, self.buffers.misalignment());
        let parts = parts(&mut self.buffers);
        let Some(gpu) = &self.gpu else { return Ok(()) };
        copy(gpu, start, parts).map_err(|error| Failure::Library { rank, error })
    }
}
