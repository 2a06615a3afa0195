//! What a run borrows, apart from how far it has come: a run can be dropped and taken up again.

use std::ops::Range;

use ccl_core::collective::Collective;
use ccl_core::program::Program;
use ccl_kernels::Region;
use ccl_transport::Loan;

use super::{Executor, Run, Task};

/// How much the last caches hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caches {
    /// Of one rank, in bytes.
    pub(crate) share: usize,
    /// Of all ranks on the machine, in bytes.
    pub(crate) all: usize,
}

/// Bytes of buffers; what lies in an earlier one does not count again.
fn footprint(buffers: &[Region<'_>]) -> usize {
    let range = |buffer: &Region<'_>| buffer.address()..buffer.address() + buffer.bytes();
    let is_new = |index: usize, buffer: &Region<'_>| {
        let this = range(buffer);
        let apart = |other: Range<usize>| this.end <= other.start || other.end <= this.start;
        buffers[..index].iter().map(range).all(apart)
    };
    let all = buffers.iter().enumerate();
    all.filter(|(index, buffer)| is_new(*index, buffer)).map(|(_, buffer)| buffer.bytes()).sum()
}

/// Buffers exceed the caches if they have half as many bytes again: what would be needed next is gone by then, if all
/// of it is used in turn. Measured with 2 to 8 ranks that share 32 MiB: from here on streaming makes collectives that
/// store what arrives faster by up to a third; AllReduce in place, whose buffers fit, it makes slower by a fifth.
fn exceed(bytes: usize, cache_bytes: usize) -> bool {
    bytes >= cache_bytes.saturating_add(cache_bytes / 2)
}

/// Whether what a collective stores in so many bytes of buffers goes past the caches. What a broadcast stores nobody looks at
/// again, so there it is enough that it would fill them.
fn passes(collective: Collective, bytes: usize, cache_bytes: usize) -> bool {
    if collective == Collective::Broadcast {
        bytes >= cache_bytes
    } else {
        exceed(bytes, cache_bytes)
    }
}

impl Executor {
    /// What is stored in buffers that are much larger than this rank's share of the caches goes past them.
    pub(crate) fn caching(self, caches: Caches) -> Self {
        Self { caches, ..self }
    }

    /// Forgets how far the last program came, and makes room for this one.
    pub(crate) fn prepare(&mut self, program: &Program) {
        self.scratch.grow(program.scratch_bytes);
        self.progress.start(program);
    }

    /// Whether nothing of these buffers stays in a cache until somebody needs it.
    pub(crate) fn exceeds_caches(&self, buffers: &[Region<'_>]) -> bool {
        exceed(footprint(buffers), self.caches.share)
    }

    /// Whether what a task stores in its buffers goes past the caches.
    fn passes_caches(&self, task: &Task<'_>) -> bool {
        let collective = task.stamp.signature.collective;
        passes(collective, footprint(task.buffers), self.caches.share)
    }

    /// Whether so many bytes are as many as this rank's share of the caches.
    pub(crate) fn fills_caches(&self, bytes: usize) -> bool {
        bytes >= self.caches.share
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
        let exceeds_caches = !task.is_straight && self.passes_caches(task);
        let exceeds_all =
            exceeds_caches && task.buffers.iter().any(|buffer| buffer.bytes() > self.caches.all);
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
            exceeds_caches,
            exceeds_all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_two_roles_counts_once() {
        let (mut one, other) = ([0_u8; 100], [0_u8; 20]);
        let whole = Region::of_mut(&mut one);
        let block = whole.part(40, 20);
        assert_eq!(footprint(&[whole, block]), 100, "in place");
        assert_eq!(footprint(&[whole, Region::of(&other)]), 120);
        assert_eq!(footprint(&[]), 0);
    }

    #[test]
    fn a_broadcast_goes_past_the_caches_sooner() {
        let passing = |bytes| {
            [Collective::Broadcast, Collective::AllReduce, Collective::AllToAll]
                .map(|collective| passes(collective, bytes, 1024))
        };
        assert_eq!(passing(1023), [false, false, false]);
        assert_eq!(passing(1024), [true, false, false]);
        assert_eq!(passing(1536), [true, true, true]);
    }

    #[test]
    fn what_is_unknown_is_never_exceeded() {
        assert!(exceed(1536, 1024) && !exceed(1535, 1024));
        assert!(!exceed(1 << 40, usize::MAX));
    }
}
