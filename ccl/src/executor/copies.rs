//! Copies into the memory of the application.

use ccl_core::program::{Action, Span, StepIndex};
use ccl_kernels::{Source, Target, copy, copy_streaming, scale};

use super::Run;

impl Run<'_> {
    /// Copies into the memory of the application, past the caches if that is better.
    pub(super) fn place(&self, source: Source<'_>, target: Target<'_>) {
        if self.stores.pass() { copy_streaming(source, target) } else { copy(source, target) }
    }

    /// Runs the steps that use no link. They depend on nothing.
    pub(super) fn copy(&mut self) -> bool {
        let program = self.task.program;
        let mut moved = false;
        for &index in &program.copies {
            let left = program.steps[index as usize].bytes - self.progress.done[index as usize];
            if left > 0 {
                self.copy_next(index, left);
                moved = true;
            }
        }
        moved
    }

    /// Copies the next bytes of a sending step, which have just been read, as far as another step would do that next: now
    /// they are in a close cache.
    pub(super) fn copy_along(&mut self, step: StepIndex, bytes: usize) {
        let program = self.task.program;
        let Action::Send { from, .. } = program.steps[step as usize].action else { return };
        let sent = Span { offset: from.offset + self.progress.posted[step as usize], ..from };
        for &index in &program.copies {
            let step = &program.steps[index as usize];
            let Action::Copy { from, .. } = step.action else { unreachable!("a copy") };
            let done = self.progress.done[index as usize];
            let left = step.bytes - done;
            if left > 0 && from.buffer == sent.buffer && from.offset + done == sent.offset {
                self.copy_next(index, bytes.min(left));
            }
        }
    }

    /// Copies the next bytes of a step.
    fn copy_next(&mut self, index: StepIndex, bytes: usize) {
        let Action::Copy { from, into } = self.task.program.steps[index as usize].action else {
            unreachable!("a copy")
        };
        let source = self.source(from, index, bytes);
        let offset = into.offset + self.progress.done[index as usize];
        let target = self.region(into.buffer).target(offset, bytes);
        match self.factor(from) {
            None => self.place(source, target),
            Some((datatype, factor)) => scale(datatype, factor, source, target),
        }
        self.progress.advance(self.task.program, index, bytes);
    }
}
