//! Settings that say how large the rings of links are: both ends of a link need the same.

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_core::topology::Topology;
use serde::{Deserialize, Serialize};

const INSIDE: [&str; 2] = ["R2CCL_TILE_BYTES", "R2CCL_SHM_SLOTS"];
const BETWEEN: [&str; 2] = ["R2CCL_NET_TILE_BYTES", "R2CCL_NET_SLOTS"];

/// The sizes that a rank is asked for, inside its host and between hosts; 0 where the library chooses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sizes {
    inside: [usize; 2],
    between: [usize; 2],
}

impl Sizes {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            inside: [settings.tile_bytes, settings.shm_slots],
            between: [settings.net_tile_bytes, settings.net_slots],
        }
    }
}

/// Whether the ranks of every host are asked for the same, and all ranks where there are several hosts.
///
/// # Errors
/// [`Error::InvalidUsage`] that names the setting and two ranks; the same on all ranks.
pub(super) fn check(sizes: &[Sizes], topology: &Topology) -> Result<(), Error> {
    for (rank, one) in (0..).map(Rank).zip(sizes) {
        let leader = topology.leader(topology.node_of(rank));
        alike(INSIDE, (leader, sizes[leader.index()].inside), (rank, one.inside))?;
        if topology.nodes() > 1 {
            alike(BETWEEN, (Rank(0), sizes[0].between), (rank, one.between))?;
        }
    }
    Ok(())
}

fn alike(
    names: [&str; 2],
    (first, wanted): (Rank, [usize; 2]),
    (second, other): (Rank, [usize; 2]),
) -> Result<(), Error> {
    let Some(at) = (0..names.len()).find(|at| wanted[*at] != other[*at]) else { return Ok(()) };
    let said = |value: usize| match value {
        0 => "not set".to_owned(),
        value => value.to_string(),
    };
    let (name, wanted, other) = (names[at], said(wanted[at]), said(other[at]));
    Err(Error::InvalidUsage(format!(
        "{name} is {wanted} on rank {first} and {other} on rank {second}; set it alike on all ranks"
    )))
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Node;
    use ccl_core::topology::{Host, RailCapacity};

    use super::*;

    #[test]
    fn what_differs_between_linked_ranks_is_named() {
        let text = |ranks: &[(u32, usize, usize)]| {
            let nodes: Vec<Node> = ranks.iter().map(|(node, ..)| Node(*node)).collect();
            let host = Host { rails: vec![RailCapacity::up(1.0)], cores: 1 };
            let hosts = nodes.iter().max().map_or(0, |node| node.0 as usize + 1);
            let topology = Topology::new(nodes, vec![host; hosts]);
            let of = |&(_, inside, between): &(u32, usize, usize)| Sizes {
                inside: [inside, 4],
                between: [64, between],
            };
            let sizes: Vec<Sizes> = ranks.iter().map(of).collect();
            check(&sizes, &topology).map_err(|error| error.to_string())
        };
        assert_eq!(text(&[(0, 0, 1), (0, 0, 2), (0, 0, 1)]), Ok(()));
        assert_eq!(text(&[(0, 64, 1), (1, 0, 1)]), Ok(()));
        assert_eq!(
            text(&[(0, 0, 1), (1, 64, 1), (1, 0, 1)]).unwrap_err(),
            "invalid usage: R2CCL_TILE_BYTES is 64 on rank 1 and not set on rank 2; set it alike on all ranks"
        );
        assert_eq!(
            text(&[(0, 0, 1), (1, 0, 2)]).unwrap_err(),
            "invalid usage: R2CCL_NET_SLOTS is 1 on rank 0 and 2 on rank 1; set it alike on all ranks"
        );
    }
}
