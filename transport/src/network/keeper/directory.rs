//! Where the peers are, for the keeper that connects with them, when that changes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ccl_core::ids::Rank;

use super::mailbox::{Office, Order};

/// A peer's rail that listens at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) peer: Rank,
    /// As the peer counts its rails.
    pub(super) rail: usize,
    pub(super) address: SocketAddr,
}

/// Tells the links of an [`Endpoint`](super::super::Endpoint) that a peer listens elsewhere. It may be
/// told before they are made, and does nothing when they are gone.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<Mutex<Entries>>);

#[derive(Debug)]
enum Entries {
    /// There is no keeper yet.
    Early(Vec<Move>),
    Kept(Weak<Office>),
}

impl Default for Entries {
    fn default() -> Self {
        Self::Early(Vec::new())
    }
}

impl Directory {
    /// Rail `rail` of `peer` listens at `address` now; a connection that is wanted there is attempted at
    /// once. What is said of ranks and rails that there are not is ignored.
    pub fn moved(&self, peer: Rank, rail: usize, address: SocketAddr) {
        let news = Move { peer, rail, address };
        match &mut *self.entries() {
            Entries::Early(early) => {
                early.retain(|other| (other.peer, other.rail) != (peer, rail));
                early.push(news);
            }
            Entries::Kept(office) => {
                if let Some(office) = office.upgrade() {
                    office.order(Order::Moved(news));
                }
            }
        }
    }

    /// From now on this keeper is told.
    pub(super) fn open(&self, office: &Arc<Office>) {
        let mut entries = self.entries();
        let before = std::mem::replace(&mut *entries, Entries::Kept(Arc::downgrade(office)));
        if let Entries::Early(early) = before {
            early.into_iter().for_each(|news| office.order(Order::Moved(news)));
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
