//! Memory of peers that was read, and may have changed meanwhile: a peer whose call fails does not wait for its readers, but
//! [renounces](ccl_transport::Link::renounce). For those that write its memory it waits.

use std::time::Duration;

use ccl_core::ids::Rank;
use ccl_core::program::{Action, Operand, Port};
use ccl_transport::window::Writing;
use ccl_transport::{Link, TransportError, clock};

use super::{Executor, Failure, Run};

/// How long peers may go on writing after a call has ended early: they look whether it has, before every part.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a rank looks whether peers write still.
const LOOK_EVERY: Duration = Duration::from_micros(50);

impl Executor {
    /// The call of this rank has failed, and nobody begins to write its memory from now on.
    pub(crate) fn renounce(&self) {
        self.links.iter().flatten().for_each(|link| link.renounce());
    }

    /// After [`Self::renounce`], waits for those that write memory of this rank still; then it is the caller's again. Tells
    /// whether all have ended in time. Only the first time: one that has died in the middle is never done, and calls that
    /// come later have lent nothing.
    pub(crate) fn await_writers(&mut self) -> bool {
        if std::mem::replace(&mut self.has_waited, true) {
            return true;
        }
        let end = clock::now() + PATIENCE;
        while self.links.iter().flatten().any(|link| link.is_written()) {
            if clock::now() >= end {
                return false;
            }
            clock::sleep(LOOK_EVERY);
        }
        true
    }

    /// Says that memory of `peer` is written until what this returns is dropped.
    pub(crate) fn begin_to_write(&self, peer: Rank) -> Result<Option<Writing>, Failure> {
        let Some(link) = self.link_to(peer) else { return Ok(None) };
        link.begin_to_write().map_err(|cause| Failure::Link { peer, cause })
    }

    fn link_to(&self, peer: Rank) -> Option<&dyn Link> {
        self.links[Port::Pair(peer).index(self.links.len() / 2)].as_deref()
    }

    /// Whether what was read of the memory of `peer` is what belongs to the call. To be asked before anybody is told of it.
    pub(crate) fn check_read(&self, peer: Rank) -> Result<(), Failure> {
        match self.link_to(peer).is_some_and(|link| link.has_renounced()) {
            true => Err(Failure::Link { peer, cause: TransportError::renounced() }),
            false => Ok(()),
        }
    }
}

impl Run<'_> {
    /// As [`Executor::check_read`], for tiles that a step has used, if they are lent.
    pub(super) fn check_loans(&self, action: &Action) -> Result<(), Failure> {
        arrivals(action).try_for_each(|port| {
            let link = self.links[self.index(port)].as_ref();
            let checked = link.map_or(Ok(()), |link| link.check_loan());
            checked.map_err(|cause| Failure::Link { peer: port.rank(), cause })
        })
    }
}

/// The links from which a step takes what it uses.
pub(super) fn arrivals(action: &Action) -> impl Iterator<Item = Port> {
    let (one, several) = match action {
        Action::Receive { port, .. } => (Some(*port), &[][..]),
        Action::Reduce { operands, .. } => (None, &operands[..]),
        Action::Send { .. } | Action::Copy { .. } => (None, &[][..]),
    };
    let arriving = |operand: &Operand| match operand {
        Operand::Arrival(port) => Some(*port),
        Operand::Local(_) => None,
    };
    one.into_iter().chain(several.iter().filter_map(arriving))
}
