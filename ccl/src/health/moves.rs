//! Rails whose NICs have got other addresses: of this rank, which the others have to hear of, and of the
//! others, which the transport of this one has to hear of.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};

use ccl_core::ids::Rank;
use ccl_transport::network::{Directory, MAX_RAILS};

use crate::driver::lock;

/// Where rails listen that have moved.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    here: Mutex<Here>,
    elsewhere: Mutex<BTreeMap<(Rank, usize), SocketAddr>>,
    directory: OnceLock<Directory>,
}

#[derive(Debug, Default)]
struct Here {
    rails: BTreeMap<usize, SocketAddr>,
    /// Those that the other ranks have not been told of.
    untold: BTreeMap<usize, SocketAddr>,
}

impl Moves {
    /// The transport that is to hear of the other ranks.
    pub(crate) fn tell(&self, directory: Directory) {
        // There is one network for each communicator.
        let _ = self.directory.set(directory);
    }

    /// A rail of this rank has moved.
    pub(super) fn moved_here(&self, rail: usize, address: SocketAddr) {
        let mut here = lock(&self.here);
        here.rails.insert(rail, address);
        here.untold.insert(rail, address);
    }

    /// What the other ranks have not been told of.
    pub(super) fn take_untold(&self) -> Vec<(usize, SocketAddr)> {
        std::mem::take(&mut lock(&self.here).untold).into_iter().collect()
    }

    /// A rail of another rank has moved.
    pub(super) fn moved_elsewhere(&self, rank: Rank, rail: usize, address: SocketAddr) {
        if rail >= MAX_RAILS {
            tracing::warn!(
                rank = rank.0,
                rail,
                "a rank says that a rail has moved that it cannot have"
            );
            return;
        }
        lock(&self.elsewhere).insert((rank, rail), address);
        if let Some(directory) = self.directory.get() {
            directory.moved(rank, rail, address);
        }
    }

    /// Where a rail of this rank is, if it has moved.
    pub(super) fn here(&self, rail: usize) -> Option<SocketAddr> {
        lock(&self.here).rails.get(&rail).copied()
    }

    /// Where a rail of another rank is, if it has moved.
    pub(super) fn elsewhere(&self, rank: Rank, rail: usize) -> Option<SocketAddr> {
        lock(&self.elsewhere).get(&(rank, rail)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_address_counts_and_is_told_once() {
        let [one, other] = ["10.0.0.1:7", "10.0.0.2:8"].map(|text| text.parse().unwrap());
        let moves = Moves::default();
        moves.moved_here(1, one);
        moves.moved_here(1, other);
        assert_eq!(moves.take_untold(), [(1, other)]);
        assert_eq!(moves.take_untold(), []);
        assert_eq!((moves.here(1), moves.here(0)), (Some(other), None));
        moves.moved_elsewhere(Rank(3), 0, one);
        moves.moved_elsewhere(Rank(3), 0, other);
        moves.moved_elsewhere(Rank(3), MAX_RAILS, other);
        assert_eq!(moves.elsewhere(Rank(3), 0), Some(other));
        assert_eq!(moves.elsewhere(Rank(3), MAX_RAILS), None);
        assert_eq!(moves.elsewhere(Rank(2), 0), None);
    }
}
