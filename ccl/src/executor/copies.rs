//! Copies into the memory of the application.

use ccl_core::program::Action;
use ccl_kernels::{Source, Target, copy, copy_streaming, scale};

use super::Run;

impl Run<'_> {
    /// Copies to where nothing reads it soon.
    pub(super) fn place(&self, source: Source<'_>, target: Target<'_>) {
        if self.exceeds_caches { copy_streaming(source, target) } else { copy(source, target) }
    }

    /// Runs the steps that use no link. They depend on nothing.
    pub(super) fn copy(&mut self) -> bool {
        let mut moved = false;
        for &index in &self.task.program.copies {
            let step = &self.task.program.steps[index as usize];
            let Action::Copy { from, into } = step.action else { unreachable!("a copy") };
            if self.progress.done[index as usize] > 0 {
                continue;
            }
            let source = self.source(from, index, step.bytes);
            let target = self.region(into.buffer).target(into.offset, step.bytes);
            match self.factor(from) {
                None => self.place(source, target),
                Some((datatype, factor)) => scale(datatype, factor, source, target),
            }
            self.progress.advance(self.task.program, index, step.bytes);
            moved = true;
        }
        moved
    }
}
