//! Memory of peers that was read, and may have changed meanwhile: a peer whose call fails does not wait for its readers, but
//! [renounces](ccl_transport::Link::renounce).

use ccl_core::ids::Rank;
use ccl_core::program::{Action, Operand, Port};
use ccl_transport::TransportError;

use super::{Executor, Failure, Run};

impl Executor {
    /// The call of this rank has failed, and its memory is the caller's again as soon as this is done.
    pub(crate) fn renounce(&self) {
        self.links.iter().flatten().for_each(|link| link.renounce());
    }

    /// Whether what was read of the memory of `peer` is what belongs to the call. To be asked before anybody is told of it.
    pub(crate) fn check_read(&self, peer: Rank) -> Result<(), Failure> {
        let link = self.links[Port::Pair(peer).index(self.links.len() / 2)].as_ref();
        match link.is_some_and(|link| link.has_renounced()) {
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
