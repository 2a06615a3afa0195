//! What a run borrows, apart from how far it has come: a run can be dropped and taken up again.

use ccl_core::program::Program;

use super::{Executor, Run, Task};

impl Executor {
    /// Forgets how far the last program came, and makes room for this one.
    pub(crate) fn prepare(&mut self, program: &Program) {
        self.scratch.grow(program.scratch_bytes);
        self.progress.start(program);
    }

    /// Goes on with the task whose program was prepared last, on the same memory.
    pub(crate) fn resume<'a>(&'a mut self, task: &'a Task<'a>) -> Run<'a> {
        Run {
            me: self.me,
            task: *task,
            encoded: task.stamp.encode(),
            links: &mut self.links,
            pushed: &self.pushed,
            sockets: &mut self.sockets,
            revision: &mut self.revision,
            broken: &mut self.broken,
            scratch: self.scratch.region(),
            scaled: self.scaled.region(),
            progress: &mut self.progress,
        }
    }
}
