//! What links are told about rails.

use ccl_core::ids::Rank;
use ccl_core::program::Port;
use ccl_core::topology::{RailCapacity, Topology};

use super::Executor;

impl Executor {
    /// Divides the bytes among the rails as a program wants it.
    pub(super) fn divide(&mut self, rails: &[(Rank, Vec<u16>)]) {
        if self.rails == rails {
            return;
        }
        let ranks = self.links.len() / 2;
        for rank in (0..).map(Rank).take(ranks) {
            let proportions = rails.iter().find(|(peer, _)| *peer == rank);
            if let Some(link) = &mut self.links[Port::Pair(rank).index(ranks)] {
                link.divide(proportions.map_or(&[], |(_, proportions)| proportions));
            }
        }
        self.rails = rails.to_vec();
    }

    /// Takes note of the measured rates of all rails.
    pub(crate) fn tune(&mut self, topology: &Topology) {
        let home = topology.node_of(self.me);
        let rate = |rail: &RailCapacity| rail.bytes_per_second;
        for peer in (0..topology.ranks()).map(Rank) {
            let away = topology.node_of(peer);
            let ends = topology.rails(home).iter().zip(topology.rails(away));
            let rates: Vec<f64> = ends.map(|(one, other)| rate(one).min(rate(other))).collect();
            let port = Port::Pair(peer).index(self.links.len() / 2);
            if let Some(link) = self.links[port].as_mut().filter(|_| away != home) {
                link.tune(&rates, topology.nodes() as usize - 1);
            }
        }
    }
}
