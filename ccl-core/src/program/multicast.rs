//! Which transfers leave once for a whole host.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Chunk, Rank};
use crate::schedule::Transfer;
use crate::topology::Topology;

/// The chunks that `source` sends to all other ranks of its host in one round, if there are at
/// least two of those.
pub(crate) fn multicasts(
    transfers: &[Transfer],
    source: Rank,
    topology: &Topology,
) -> BTreeSet<Chunk> {
    let others = topology.ranks_of(topology.node_of(source)).len() - 1;
    let mut targets: BTreeMap<Chunk, usize> = BTreeMap::new();
    if others >= 2 && transfers.len() >= others {
        for transfer in transfers.iter().filter(|t| t.source == source) {
            let near = topology.together(source, transfer.target);
            *targets.entry(transfer.chunk).or_default() += usize::from(near);
        }
    }
    targets.into_iter().filter(|(_, near)| *near == others).map(|(chunk, _)| chunk).collect()
}
