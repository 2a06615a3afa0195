//! Where the ranks live and how fast their hosts can talk.
//!
//! Rails are capacities here: what a rail *is* belongs to the transport. A rail that is down keeps
//! its place and counts for nothing, so that planning again after a fault is the same computation
//! on a smaller number.

use serde::{Deserialize, Serialize};

use crate::ids::{Node, Rail, Rank};

/// What lies between two devices of a host, in NCCL's classes of paths (those of `NCCL_NET_GDR_LEVEL`). A
/// nearer one is less.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Distance {
    /// Nothing: it is one device, or two ports of one.
    Loc,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches, and no host bridge.
    Pxb,
    /// One PCIe host bridge.
    Phb,
    /// What connects host bridges inside a NUMA node.
    Node,
    /// What connects NUMA nodes.
    Sys,
    /// Nobody knows: one of them is not on PCI. All such distances are equal.
    #[default]
    Unknown,
}

impl Distance {
    /// Its name in NCCL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Unknown => "unknown",
        }
    }
}

/// What one rail of one node can carry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailCapacity {
    /// Bytes per second in each direction while the rail is up.
    pub bytes_per_second: f64,
    /// Whether it can be used now.
    pub up: bool,
}

impl RailCapacity {
    /// A rail that works.
    #[must_use]
    pub fn up(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, up: true }
    }
}

/// One host as the planner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its rails, in the order of their numbers.
    pub rails: Vec<RailCapacity>,
    /// Cores its ranks may use.
    pub cores: u32,
}

/// Ranks, their nodes, and the capacities between nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    node_of: Vec<Node>,
    members: Vec<Vec<Rank>>,
    hosts: Vec<Host>,
}

impl Topology {
    /// Rank `r` lives on `node_of[r]`; node `i` is `hosts[i]`.
    ///
    /// # Panics
    /// A rank lives on a node that is not in `hosts`, or a node has no ranks.
    #[must_use]
    pub fn new(node_of: Vec<Node>, hosts: Vec<Host>) -> Self {
        let mut members = vec![Vec::new(); hosts.len()];
        for (rank, node) in (0..).map(Rank).zip(&node_of) {
            members[node.index()].push(rank);
        }
        assert!(members.iter().all(|ranks| !ranks.is_empty()), "a node without ranks");
        Self { node_of, members, hosts }
    }

    /// All ranks on one host with `cores` usable cores.
    ///
    /// # Panics
    /// `ranks` is zero.
    #[must_use]
    pub fn single_host(ranks: u32, cores: u32) -> Self {
        Self::new(vec![Node(0); ranks as usize], vec![Host { rails: Vec::new(), cores }])
    }

    /// The same ranks with one rail marked up or down.
    ///
    /// # Panics
    /// There is no such node or rail.
    #[must_use]
    pub fn with_rail(mut self, node: Node, rail: Rail, up: bool) -> Self {
        self.hosts[node.index()].rails[rail.index()].up = up;
        self
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.node_of.len()).unwrap_or(u32::MAX)
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// The node on which `rank` lives.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Node {
        self.node_of[rank.index()]
    }

    /// The ranks of `node`, ascending.
    #[must_use]
    pub fn ranks_of(&self, node: Node) -> &[Rank] {
        &self.members[node.index()]
    }

    /// The lowest rank of `node`.
    #[must_use]
    pub fn leader(&self, node: Node) -> Rank {
        self.members[node.index()][0]
    }

    /// Whether both ranks live on one host.
    #[must_use]
    pub fn together(&self, one: Rank, other: Rank) -> bool {
        self.node_of(one) == self.node_of(other)
    }

    /// Cores that the ranks of `node` may use; at least one.
    #[must_use]
    pub fn cores(&self, node: Node) -> u32 {
        self.hosts[node.index()].cores.max(1)
    }

    /// The rails of `node`, in the order of their numbers.
    #[must_use]
    pub fn rails(&self, node: Node) -> &[RailCapacity] {
        &self.hosts[node.index()].rails
    }

    /// Bytes per second in each direction over the rails of `node` that are up.
    #[must_use]
    pub fn capacity(&self, node: Node) -> f64 {
        let up = self.rails(node).iter().filter(|rail| rail.up);
        up.map(|rail| rail.bytes_per_second).sum()
    }

    /// [`Self::capacity`] of every node, in order.
    #[must_use]
    pub fn capacities(&self) -> Vec<f64> {
        (0..self.nodes()).map(|node| self.capacity(Node(node))).collect()
    }

    /// Ranks per usable core on the most crowded host.
    #[must_use]
    pub fn crowding(&self) -> f64 {
        let crowd = |node| {
            f64::from(u32::try_from(self.ranks_of(node).len()).unwrap_or(u32::MAX))
                / f64::from(self.cores(node))
        };
        (0..self.nodes()).map(|node| crowd(Node(node))).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_hosts() -> Topology {
        let host = Host { rails: vec![RailCapacity::up(2e9), RailCapacity::up(1e9)], cores: 2 };
        Topology::new(vec![Node(0), Node(1), Node(0)], vec![host.clone(), host])
    }

    #[test]
    fn ranks_are_grouped_by_node() {
        let topology = two_hosts();
        assert_eq!((topology.ranks(), topology.nodes()), (3, 2));
        assert_eq!(topology.ranks_of(Node(0)), [Rank(0), Rank(2)]);
        assert_eq!(topology.leader(Node(1)), Rank(1));
        assert!(topology.together(Rank(0), Rank(2)) && !topology.together(Rank(0), Rank(1)));
        assert_eq!(topology.crowding(), 1.0);
    }

    #[test]
    fn a_rail_that_is_down_counts_for_nothing() {
        let topology = two_hosts().with_rail(Node(1), Rail(0), false);
        assert_eq!(topology.capacities(), [3e9, 1e9]);
        assert_eq!(topology.with_rail(Node(1), Rail(0), true), two_hosts());
    }

    #[test]
    #[should_panic(expected = "a node without ranks")]
    fn a_node_without_ranks_is_refused() {
        let host = Host { rails: Vec::new(), cores: 1 };
        let _ = Topology::new(vec![Node(0)], vec![host.clone(), host]);
    }
}
