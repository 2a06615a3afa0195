//! How large the rings of links are: both ends of a link need the same.

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_core::topology::Topology;
use ccl_core::tuning::model;
use serde::{Deserialize, Serialize};

/// Tiles on the way between two hosts, for each rail between them and at least.
const SLOTS_PER_RAIL: usize = 8;
const LEAST_SLOTS: usize = 16;
/// A link needs so many.
const FEWEST_SLOTS: usize = 2;

/// The sizes that a rank is asked for; 0 where the library chooses. They come from others, and what follows from them
/// must not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sizes {
    tile_bytes: u32,
    shm_slots: u32,
    net_tile_bytes: u32,
    net_slots: u32,
}

/// What follows for links, in words, and the setting that it follows from.
type Consequence = (&'static str, &'static str, usize);

impl Sizes {
    pub(super) fn new(settings: &Settings) -> Self {
        // The table of settings allows no larger ones.
        let bounded = |size| u32::try_from(size).unwrap_or(u32::MAX);
        Self {
            tile_bytes: bounded(settings.tile_bytes),
            shm_slots: bounded(settings.shm_slots),
            net_tile_bytes: bounded(settings.net_tile_bytes),
            net_slots: bounded(settings.net_slots),
        }
    }

    fn settings(self) -> Settings {
        Settings {
            tile_bytes: self.tile_bytes as usize,
            shm_slots: self.shm_slots as usize,
            net_tile_bytes: self.net_tile_bytes as usize,
            net_slots: self.net_slots as usize,
            ..Settings::default()
        }
    }

    /// Inside a host with so many ranks. Slots come first: how long tiles are depends on them.
    fn inside(self, ranks: usize) -> [Consequence; 4] {
        let settings = self.settings();
        let (slots, tile) = ("R2CCL_SHM_SLOTS", "R2CCL_TILE_BYTES");
        [
            (slots, "tiles on the way between two ranks of a host", settings.pair_slots(ranks)),
            (slots, "tiles on the way to all ranks of a host", settings.multicast_slots()),
            (tile, "bytes of a tile between two ranks of a host", settings.pair_tile_bytes(ranks)),
            (tile, "bytes of a tile to all ranks of a host", settings.multicast_tile_bytes(ranks)),
        ]
    }

    /// Between hosts of which the one with most rails has so many.
    fn between(self, rails: usize) -> [Consequence; 2] {
        let settings = self.settings();
        let slots = net_slots(settings.net_slots, rails);
        [
            ("R2CCL_NET_SLOTS", "tiles on the way between two hosts", slots),
            ("R2CCL_NET_TILE_BYTES", "bytes of a tile between two hosts", settings.net_tile_bytes),
        ]
    }

    /// In the plans of all ranks, which have to be the same.
    fn in_plans(self, topology: &Topology) -> [Consequence; 1] {
        let bytes = model(topology, &self.settings(), None).tile_bytes;
        [("R2CCL_TILE_BYTES and R2CCL_SHM_SLOTS", "bytes of a tile inside a host, in plans", bytes)]
    }
}

/// Tiles on the way between hosts, of which the one with most rails has so many; 0 where the library chooses.
///
/// A tile waits for those before it on its rail, and the receiver for the slowest one: with few tiles for each
/// rail, rails idle.
pub(super) fn net_slots(asked: usize, rails: usize) -> usize {
    match asked {
        0 => (SLOTS_PER_RAIL * rails).max(LEAST_SLOTS),
        slots => slots.max(FEWEST_SLOTS),
    }
}

/// Whether what follows from these sizes is the same for the ranks of every host, and for all ranks where there are several
/// hosts, of which the one with most rails has `rails`. What is so inside of hosts may differ between them, unless plans do.
///
/// # Errors
/// [`Error::InvalidUsage`] that names the setting and two ranks; the same on all ranks.
pub(super) fn check(sizes: &[Sizes], topology: &Topology, rails: usize) -> Result<(), Error> {
    let has_network = topology.nodes() > 1;
    // Where all ranks are alone nothing inside of hosts is planned.
    let has_neighbours = topology.nodes() < topology.ranks();
    let ranks = || (0..).map(Rank).zip(sizes.iter().copied());
    for (rank, one) in ranks() {
        let node = topology.node_of(rank);
        let (leader, ranks) = (topology.leader(node), topology.ranks_of(node).len());
        alike((leader, sizes[leader.index()]), (rank, one), |sizes| sizes.inside(ranks))?;
        if has_network {
            alike((Rank(0), sizes[0]), (rank, one), |sizes| sizes.between(rails))?;
        }
    }
    // Only then: who differs from a neighbour is told of that.
    for other in ranks().filter(|_| has_network && has_neighbours) {
        alike((Rank(0), sizes[0]), other, |sizes| sizes.in_plans(topology))?;
    }
    Ok(())
}

fn alike<const N: usize>(
    (first, wanted): (Rank, Sizes),
    (second, other): (Rank, Sizes),
    consequences: impl Fn(Sizes) -> [Consequence; N],
) -> Result<(), Error> {
    if wanted == other {
        return Ok(());
    }
    let mut both = consequences(wanted).into_iter().zip(consequences(other));
    let Some(((name, what, wanted), (.., other))) = both.find(|(one, other)| one != other) else {
        return Ok(());
    };
    Err(Error::InvalidUsage(format!(
        "{what}: {wanted} on rank {first} and {other} on rank {second}; set {name} alike on all ranks"
    )))
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Node;
    use ccl_core::topology::{Host, RailCapacity};

    use super::*;

    /// The ranks are on these hosts, and asked for these sizes.
    fn checked(ranks: &[(u32, Sizes)], rails: usize) -> Result<(), String> {
        let nodes: Vec<Node> = ranks.iter().map(|(node, _)| Node(*node)).collect();
        let host = Host { rails: vec![RailCapacity::up(1.0); rails], cores: 1 };
        let hosts = nodes.iter().max().map_or(0, |node| node.0 as usize + 1);
        let sizes: Vec<Sizes> = ranks.iter().map(|(_, sizes)| *sizes).collect();
        let topology = Topology::new(nodes, vec![host; hosts]);
        check(&sizes, &topology, rails).map_err(|error| error.to_string())
    }

    fn unset() -> Sizes {
        Sizes::new(&Settings::default())
    }

    #[test]
    fn what_differs_between_linked_ranks_is_named() {
        let slots = |net_slots| Sizes { net_slots, ..unset() };
        let tiles = Sizes { tile_bytes: 4096, ..unset() };
        assert_eq!(checked(&[(0, slots(4)), (0, slots(3)), (0, slots(4))], 1), Ok(()));
        assert_eq!(checked(&[(0, tiles), (1, unset())], 1), Ok(()));
        assert_eq!(
            checked(&[(0, unset()), (1, tiles), (1, unset())], 1).unwrap_err(),
            "invalid usage: bytes of a tile between two ranks of a host: 4096 on rank 1 and 524288 on rank 2; set \
             R2CCL_TILE_BYTES alike on all ranks"
        );
        assert_eq!(
            checked(&[(0, slots(2)), (0, slots(2)), (1, slots(3))], 1).unwrap_err(),
            "invalid usage: tiles on the way between two hosts: 2 on rank 0 and 3 on rank 2; set R2CCL_NET_SLOTS alike on \
             all ranks"
        );
    }

    #[test]
    fn who_is_asked_for_what_is_so_anyway_is_like_the_others() {
        let beside = |host: u32, one, rails| checked(&[(0, unset()), (host, one)], rails);
        assert_eq!(beside(0, Sizes { tile_bytes: 512 << 10, shm_slots: 4, ..unset() }, 1), Ok(()));
        assert!(beside(0, Sizes { shm_slots: 2, ..unset() }, 1).is_err());
        assert_eq!(beside(1, Sizes { net_slots: 24, ..unset() }, 3), Ok(()));
        assert!(beside(1, Sizes { net_slots: 24, ..unset() }, 2).is_err());
        let slots = |net_slots| Sizes { net_slots, ..unset() };
        assert_eq!(checked(&[(0, slots(1)), (1, slots(2))], 1), Ok(()));
    }

    #[test]
    fn what_plans_are_priced_with_is_the_same_on_all_hosts() {
        // What one is asked for follows on the smaller host anyhow, but not on the larger one.
        let asked = Sizes { tile_bytes: 512 << 10, ..unset() };
        let with_neighbours = |count| {
            let larger = std::iter::repeat_n((1, unset()), count);
            let ranks: Vec<_> = [(0, asked), (0, unset())].into_iter().chain(larger).collect();
            checked(&ranks, 1)
        };
        assert_eq!(with_neighbours(2), Ok(()));
        assert_eq!(
            with_neighbours(8).unwrap_err(),
            "invalid usage: bytes of a tile inside a host, in plans: 524288 on rank 0 and 65536 on rank 1; set \
             R2CCL_TILE_BYTES and R2CCL_SHM_SLOTS alike on all ranks"
        );
    }

    #[test]
    fn sizes_of_others_overflow_nothing() {
        let read = |each: usize| {
            let bytes = postcard::to_allocvec(&[each; 4]).unwrap();
            postcard::from_bytes::<Sizes>(&bytes)
        };
        assert!(read(usize::MAX).is_err());
        let largest = read(u32::MAX as usize).unwrap();
        assert!(checked(&[(0, unset()), (0, largest), (1, largest)], 1).is_err());
    }
}
