//! AllReduce between hosts that do not have all their rails any more.
//!
//! Positions are hosts here, and items are pieces of the data: [`crate::hierarchical`] gives every host's
//! part to its ranks. A strategy looks at a [`Fabric`] and answers with a [`Between`]: what moves, and
//! how large the pieces are beside each other.

pub mod completion;
pub mod concurrent;
pub mod hubs;
pub mod nested;
pub mod order;
pub mod paper;
pub mod pipeline;
#[cfg(test)]
mod proofs;
pub mod rails;
pub(crate) mod relay;
pub mod rounds;
pub(crate) mod strategies;

use ccl_core::ids::Rank;

use crate::combine::Shared;

/// Among more hosts than this, no strategy is worth its planning: a mesh has too many pairs, and a ring too
/// many hops.
pub(crate) const MOST_HOSTS: usize = 128;

/// The rails between hosts, as they are now.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Bytes per second of every rail of every host, in each direction; zero for a rail that is down.
    rails: Vec<Vec<f64>>,
    reach: Reach,
}

/// Which rails of two hosts are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Every rail with every rail: only the capacities of hosts matter.
    #[default]
    Switched,
    /// Rail `r` of one host with rail `r` of another only.
    RailOnly,
    /// Rails of two hosts by number, those of the host with fewer again and again: hosts need a pair of rails of which
    /// both work, and then only their capacities matter.
    InTurn,
}

/// An AllReduce between hosts: position `i` is host `i`, chunk `j` is piece `j`.
#[derive(Clone, Debug)]
pub struct Between {
    /// What moves.
    pub schedule: Shared,
    /// The sizes of the pieces, in proportion; a piece may have none.
    pub weights: Vec<f64>,
}

impl Fabric {
    /// Hosts with these rails, in bytes per second; zero for a rail that is down.
    ///
    /// # Panics
    /// There is no host.
    #[must_use]
    pub fn new(rails: Vec<Vec<f64>>, reach: Reach) -> Self {
        assert!(!rails.is_empty(), "a fabric without hosts");
        Self { rails, reach }
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.rails.len()
    }

    /// The rails of `host`.
    #[must_use]
    pub fn rails(&self, host: usize) -> &[f64] {
        &self.rails[host]
    }

    /// How many rails the host with the most has.
    #[must_use]
    pub fn most_rails(&self) -> usize {
        self.rails.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Bytes per second that `host` can send, and receive.
    #[must_use]
    pub fn capacity(&self, host: usize) -> f64 {
        self.rails[host].iter().sum()
    }

    /// [`Self::capacity`] of all hosts.
    #[must_use]
    pub fn capacities(&self) -> Vec<f64> {
        (0..self.hosts()).map(|host| self.capacity(host)).collect()
    }

    /// Bytes per second between two hosts when nothing else moves.
    #[must_use]
    pub fn between(&self, one: usize, other: usize) -> f64 {
        let ends = || f64::min(self.capacity(one), self.capacity(other));
        let (rails, others) = (&self.rails[one], &self.rails[other]);
        match self.reach {
            Reach::Switched => ends(),
            Reach::RailOnly => {
                rails.iter().zip(others).map(|(one, other)| f64::min(*one, *other)).sum()
            }
            Reach::InTurn => {
                let connections = rails.iter().cycle().zip(others.iter().cycle());
                let mut connections = connections.take(rails.len().max(others.len()));
                let works = connections.any(|(one, other)| *one > 0.0 && *other > 0.0);
                if works { ends() } else { 0.0 }
            }
        }
    }

    /// The hosts that have a rail that does not work and no rail in common with some others, with these others. A host
    /// all of whose rails work reaches every host that has one.
    #[must_use]
    pub fn apart(&self) -> Vec<(usize, Vec<usize>)> {
        let others = |one: usize| -> Vec<usize> {
            (0..self.hosts())
                .filter(|other| *other != one && self.between(one, *other) <= 0.0)
                .collect()
        };
        let has_lost =
            |host: &usize| self.capacity(*host) <= 0.0 || self.rails[*host].contains(&0.0);
        let lossy = (0..self.hosts()).filter(has_lost).map(|host| (host, others(host)));
        lossy.filter(|(_, others)| !others.is_empty()).collect()
    }

    /// Which rails are connected.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }
}

#[allow(clippy::cast_precision_loss, reason = "a size, or a number of hosts, in a model")]
pub(crate) fn real(number: usize) -> f64 {
    number as f64
}

/// A host as a position of a schedule.
pub(crate) fn host_rank(host: usize) -> Rank {
    Rank(u32::try_from(host).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_common_rail_cannot_talk_unless_there_is_a_switch() {
        let rails = vec![vec![1.0, 0.0, 2.0], vec![1.0, 3.0, 0.0]];
        let only = Fabric::new(rails.clone(), Reach::RailOnly);
        assert_eq!((only.between(0, 1), only.capacity(1)), (1.0, 4.0));
        assert_eq!(Fabric::new(rails, Reach::Switched).between(0, 1), 3.0);
    }

    /// The connections of two hosts with two and three rails are those of rails 0 and 0, 1 and 1, 0 and 2.
    #[test]
    fn unequal_hosts_pair_rails_in_turn() {
        let between = |one: [f64; 2], other: [f64; 3]| {
            let fabric = Fabric::new(vec![one.to_vec(), other.to_vec()], Reach::InTurn);
            assert_eq!(fabric.between(0, 1), fabric.between(1, 0));
            fabric.between(0, 1)
        };
        assert_eq!(between([1.0, 1.0], [1.0, 1.0, 1.0]), 2.0);
        assert_eq!(between([1.0, 0.0], [0.0, 1.0, 1.0]), 1.0);
        assert_eq!(between([0.0, 1.0], [1.0, 0.0, 1.0]), 0.0);
        assert_eq!(Fabric::new(vec![vec![1.0], Vec::new()], Reach::InTurn).between(0, 1), 0.0);
    }

    #[test]
    fn hosts_apart_are_found_from_those_that_have_lost_a_rail() {
        let rails = |masks: &[[f64; 2]]| masks.iter().map(|mask| mask.to_vec()).collect();
        let apart = |masks: &[[f64; 2]]| Fabric::new(rails(masks), Reach::RailOnly).apart();
        assert_eq!(apart(&[[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), []);
        let (left, right, both) = ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]);
        assert_eq!(
            apart(&[left, both, right, right]),
            [(0, vec![2, 3]), (2, vec![0]), (3, vec![0])]
        );
        assert_eq!(apart(&[both, both, [0.0; 2]]), [(2, vec![0, 1])]);
    }
}
