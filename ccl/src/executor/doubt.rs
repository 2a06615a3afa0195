//! Memory of peers that was read, and may have changed meanwhile: a peer whose call fails does not wait for its readers, but
//! [renounces](ccl_transport::Link::renounce). For those that write its memory it waits.

use std::time::Duration;

use ccl_core::ids::Rank;
use ccl_core::program::{Action, Operand, Port};
use ccl_transport::window::Writing;
use ccl_transport::{Link, TransportError, clock};

use super::{Executor, Failure, Run};

/// How long peers may go on writing after a call has ended early: a part takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a rank looks whether peers write still.
const LOOK_EVERY: Duration = Duration::from_micros(50);

impl Executor {
    /// The call of this rank has failed, and its memory is the caller's again as soon as this is done. Waits for those that
    /// write it, and tells whether all have ended in time.
    pub(crate) fn renounce(&self) -> bool {
        let links = || self.links.iter().flatten();
        links().for_each(|link| link.renounce());
        let end = clock::now() + PATIENCE;
        while links().any(|link| link.is_written()) {
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
