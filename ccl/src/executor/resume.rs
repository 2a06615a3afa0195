//! What a run borrows, apart from how far it has come: a run can be dropped and taken up again.

use ccl_core::program::{Lane, Port, Program};
use ccl_core::wire::Stamp;
use ccl_kernels::Region;
use ccl_transport::Loan;

use super::{Executor, Run, Task};
use crate::stores::{Caches, Stores};

impl Executor {
    /// What is stored goes past these caches where that is [better](crate::stores).
    pub(crate) fn caching(mut self, caches: Caches) -> Self {
        self.stores = Stores::new(caches);
        self
    }

    /// Forgets how far the last program came, and makes room for this one.
    pub(crate) fn prepare(&mut self, program: &Program) {
        self.scratch.grow(program.scratch_bytes);
        self.progress.start(program);
        self.share(program);
    }

    /// Tells the link to all ranks of the host how many of these send on such links in this program.
    fn share(&mut self, program: &Program) {
        let is_to_all = |lane: &&Lane| matches!(lane.port, Port::Multicast(_));
        let senders = 1 + program.receives.iter().filter(is_to_all).count();
        for lane in program.sends.iter().filter(is_to_all) {
            let index = lane.port.index(self.links.len() / 2);
            if let Some(link) = &mut self.links[index] {
                link.share(senders);
            }
        }
    }

    /// Whether a call with these buffers had better store past the caches, as far as is known.
    pub(crate) fn stores_past(&self, stamp: Stamp, buffers: &[Region<'_>]) -> bool {
        let call = self.call(stamp, buffers);
        self.stores.known(call, self.caches().limit(call.collective))
    }

    /// Tries no stores from now on, or does again; see [`Stores::hold`].
    pub(crate) fn hold_trials(&mut self, is_held: bool) {
        self.stores.hold(is_held);
    }

    /// What is known of the caches.
    pub(crate) fn caches(&self) -> Caches {
        self.stores.caches()
    }

    /// As [`Self::prepare`], for a program that is run straight through.
    #[inline]
    pub(super) fn prepare_straight(&mut self, program: &Program) {
        assert!(self.pushed.is_empty(), "only links inside a host need no push");
        self.scratch.grow(program.scratch_bytes);
        self.progress.passed = 0;
    }

    /// Goes on with the task that has begun, on the same memory, which peers on this host can read where there
    /// are `loans` of it. The memory stays with the returned run until it is finished or dropped.
    pub(crate) fn resume<'a>(
        &'a mut self,
        task: &'a Task<'a>,
        loans: &'a [Option<Loan>],
    ) -> Run<'a> {
        let all = self.stores.caches().all;
        let exceeds_all = task.buffers.iter().any(|buffer| buffer.bytes() > all);
        Run {
            me: self.me,
            task,
            loans,
            encoded: task.stamp.encode(),
            links: &mut self.links,
            pushed: &self.pushed,
            sockets: &mut self.sockets,
            revision: &mut self.revision,
            broken: &mut self.broken,
            scratch: self.scratch.region(),
            scaled: self.scaled.region(),
            progress: &mut self.progress,
            stores: &mut self.stores,
            least: self.least,
            exceeds_all,
        }
    }
}
