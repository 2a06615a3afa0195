//! What links need while no program runs.

use std::time::Duration;

use ccl_core::ids::Rank;
use ccl_transport::clock;
use ccl_transport::network::LINGER;

use super::Executor;

/// How long a rank that leaves waits until its peers have read what has arrived at their hosts.
pub(super) const LAST_WAIT: Duration = Duration::from_millis(300);
const SETTLING_PAUSE: Duration = Duration::from_micros(50);

impl Executor {
    /// Whether any link has to be pushed.
    pub(crate) fn is_pushed(&self) -> bool {
        !self.pushed.is_empty()
    }

    /// Looks after the links between calls, and tells the peers what this rank has. Tells whether the peers
    /// have everything.
    pub(crate) fn tend(&mut self) -> bool {
        let mut settled = true;
        for &index in &self.pushed {
            let Some(link) = self.links[index].as_mut().filter(|_| self.broken[index].is_none())
            else {
                continue;
            };
            link.spare();
            match link.progress() {
                Ok(_) => {
                    link.confirm();
                    settled &= link.settled();
                }
                Err(cause) => self.broken[index] = Some(cause),
            }
        }
        settled
    }

    /// Gives the peers what they are not known to have, before this rank leaves. That their processes read what has arrived
    /// at their hosts is waited for a little, what has not for `patience`: a rail may be dead that nobody has
    /// found dead yet, when it is the last of its peer. (Or its process reads nothing, and its host has no room for more.)
    /// Nothing is waited for once `is_over`, and no peer that `has_left`: it needs nothing any more, though it may not have been
    /// able to say so.
    pub(crate) fn settle(
        &mut self,
        patience: Duration,
        is_over: impl Fn() -> bool,
        has_left: impl Fn(Rank) -> bool,
    ) {
        let start = clock::now();
        while !is_over() && !self.tend() {
            let waited = clock::now().saturating_duration_since(start);
            let peers = (0..).map(Rank).zip(&self.links[..self.links.len() / 2]);
            let links = peers.filter_map(|(peer, link)| link.as_ref().map(|link| (peer, link)));
            let owed: Vec<_> =
                links.filter(|(peer, link)| !link.settled() && !has_left(*peer)).collect();
            let have_arrived = owed.iter().all(|(_, link)| link.delivered());
            if owed.is_empty() || waited >= patience || (have_arrived && waited >= LAST_WAIT) {
                return;
            }
            clock::sleep(SETTLING_PAUSE);
        }
    }

    /// Nobody is owed anything any more, so that this rank need not wait for peers when it leaves.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for Executor {
    /// Leaves all links at the same time: where a host is out of reach, each would be waited for in vain.
    fn drop(&mut self) {
        let deadline = clock::now() + LINGER;
        loop {
            let links = self.links.iter_mut().flatten();
            let have_left = links.fold(true, |all, link| link.leave() & all);
            if have_left || self.is_abandoned || clock::now() >= deadline {
                return;
            }
            clock::sleep(SETTLING_PAUSE);
        }
    }
}
