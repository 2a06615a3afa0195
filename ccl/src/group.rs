//! Operations that start together.

use ccl_core::error::Error;

use crate::communicator::Communicator;
use crate::driver::Pending;
use crate::engine::Watch;
use crate::operation::Operation;

/// Operations of one or several communicators that start together, as between `ncclGroupStart` and
/// `ncclGroupEnd`.
///
/// Collectives of one communicator run in the order in which they were added. Then all its sends and
/// receives progress at the same time, in any order, wherever they stand among the collectives: that may be
/// elsewhere in the groups of other ranks. Different communicators progress at the same time, so
/// that one thread may serve several ranks.
#[derive(Debug, Default)]
pub struct Group<'a> {
    members: Vec<(Communicator, Vec<Operation<'a>>)>,
}

impl<'a> Group<'a> {
    /// Adds an operation of `communicator`.
    pub fn add(&mut self, communicator: &Communicator, operation: Operation<'a>) {
        match self.members.iter_mut().find(|(member, _)| member.is(communicator)) {
            Some((_, operations)) => operations.push(operation),
            None => self.members.push((communicator.clone(), vec![operation])),
        }
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Runs everything that was added.
    ///
    /// # Errors
    /// The first error, in the order in which communicators were added.
    pub fn run(self) -> Result<(), Error> {
        self.run_with(None)
    }

    /// Runs everything that was added. Now and then while it waits it asks `watch`; a reason aborts the
    /// communicators, as [`Communicator::abort`] does. For a caller whose process may get signals.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_watched(self, watch: &(dyn Fn() -> Option<String> + Sync)) -> Result<(), Error> {
        self.run_with(Some(watch))
    }

    fn run_with(self, watch: Option<Watch<'_>>) -> Result<(), Error> {
        if let [(communicator, operations)] = self.members.as_slice() {
            return communicator.run_all(operations, watch);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .members
                .iter()
                .map(|(communicator, operations)| {
                    scope.spawn(move || communicator.run_all(operations, watch))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let panicked = |_| Error::Internal("a thread of the group panicked".into());
                thread.join().map_err(panicked)?
            })
        })
    }
}

impl Group<'static> {
    /// Starts everything that was added; one request per communicator.
    ///
    /// # Errors
    /// The arguments are impossible, or a communicator failed before: nothing was started.
    pub fn start(self) -> Result<Vec<Pending>, Error> {
        for (communicator, operations) in &self.members {
            communicator.check_start(operations)?;
        }
        let start = |(communicator, operations): (Communicator, _)| communicator.push(operations);
        Ok(self.members.into_iter().map(start).collect())
    }
}
