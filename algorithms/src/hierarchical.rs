//! Schedules that treat the inside of a host and the network between hosts separately.
//!
//! Inside a host everything is direct: memory is shared, and one round is cheaper than two. Between
//! hosts, ranks with the same place on their host form a *column*, and all columns work at once, so
//! that every rank has its part of the network traffic. Hosts may have different numbers of ranks.

use std::sync::Arc;

use ccl_core::ids::{Node, Rank};
use ccl_core::topology::Topology;

use crate::combine::{InSequence, Items, Shared, Subgroup, Together, count, reduction};
use crate::pattern::Pattern;
use crate::spread::{AllGather, Broadcast};

/// The ranks of every host.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    ranks: u32,
    hosts: Vec<Vec<Rank>>,
}

impl Hierarchy {
    pub(crate) fn of(topology: &Topology) -> Self {
        let ranks_of = |node| topology.ranks_of(Node(node)).to_vec();
        Self { ranks: topology.ranks(), hosts: (0..topology.nodes()).map(ranks_of).collect() }
    }

    pub(crate) fn hosts(&self) -> u32 {
        count(&self.hosts)
    }

    fn largest(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// How many columns have a rank of their own on every host.
    pub(crate) fn shards(&self) -> u32 {
        self.hosts.iter().map(|host| count(host)).min().unwrap_or(0)
    }

    /// The rank of every host in `column`; hosts with fewer ranks use some of them repeatedly.
    fn column(&self, column: usize) -> Vec<Rank> {
        self.hosts.iter().map(|host| host[column % host.len()]).collect()
    }

    /// AllReduce of [`Self::shards`] shards of `pieces` chunks each: reduce every shard at its owner
    /// inside each host, run `between` for the pieces of each shard between its owners, and give the
    /// results to the rest of the host.
    pub(crate) fn allreduce(&self, between: &Shared, pieces: u32) -> Shared {
        let shards = self.shards();
        let shard = |item| (0..pieces).map(move |piece| place(item) * pieces + piece);
        let items = Items::listed(shards as usize, shard);
        let inside = self.inside(|_| items.clone(), |size| share_out(size, shards));
        let columns = (0..shards).map(|column| {
            let pieces = Items::listed(pieces as usize, |item| [column * pieces + place(item)]);
            let members = self.column(column as usize);
            Subgroup::new(Arc::clone(between), self.ranks, members, pieces)
        });
        let columns = Arc::new(Together::new(self.ranks, columns.collect()));
        Arc::new(InSequence::new(vec![reduction(Arc::clone(&inside)), columns, inside]))
    }

    /// AllGather of one chunk of each rank: between hosts along every column, then inside the hosts.
    pub(crate) fn allgather(&self, between: Pattern) -> Shared {
        let hosts = self.hosts();
        let gather = AllGather { pattern: between, positions: hosts, items: hosts };
        self.allgather_along(&(Arc::new(gather) as Shared))
    }

    /// The same with an AllGather of one item of each host in every column.
    pub(crate) fn allgather_along(&self, gather: &Shared) -> Shared {
        let columns = (0..self.largest()).map(|column| {
            let own = |host: usize| self.hosts[host].get(column).map(|rank| rank.0);
            let items = Items::listed(self.hosts.len(), own);
            Subgroup::new(Arc::clone(gather), self.ranks, self.column(column), items)
        });
        let columns = Arc::new(Together::new(self.ranks, columns.collect()));
        let inside = self.inside(|size| self.carried(size), |size| share_out(size, size));
        Arc::new(InSequence::new(vec![columns, inside]))
    }

    /// Broadcast from `root`: between one rank of each host, then inside the hosts.
    pub(crate) fn broadcast(&self, root: Rank, between: Pattern) -> Shared {
        let spread = Broadcast { pattern: between, positions: self.hosts() };
        self.broadcast_along(root, &(Arc::new(spread) as Shared))
    }

    /// The same with a broadcast from position 0 between hosts: that of the root is first, the others are in order.
    pub(crate) fn broadcast_along(&self, root: Rank, spread: &Shared) -> Shared {
        let mut hosts = self.hosts.clone();
        for host in &mut hosts {
            if let Some(at) = host.iter().position(|rank| *rank == root) {
                host.swap(0, at);
            }
        }
        hosts.sort_by_key(|host| host[0] != root);
        let leaders: Vec<Rank> = hosts.iter().map(|host| host[0]).collect();
        let first = Subgroup::new(Arc::clone(spread), self.ranks, leaders, Items::Same);
        let inside = hosts.into_iter().map(|host| {
            let spread = Broadcast { pattern: Pattern::Direct, positions: count(&host) };
            Subgroup::new(Arc::new(spread), self.ranks, host, Items::Same)
        });
        let inside = Together::new(self.ranks, inside.collect());
        Arc::new(InSequence::new(vec![Arc::new(first), Arc::new(inside)]))
    }

    /// A schedule inside every host at once. Hosts of the same size share what they can.
    fn inside(&self, items: impl Fn(u32) -> Items, schedule: impl Fn(u32) -> Shared) -> Shared {
        let mut sizes: Vec<u32> = self.hosts.iter().map(|host| count(host)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let made: Vec<(Items, Shared)> = sizes.iter().map(|s| (items(*s), schedule(*s))).collect();
        let hosts = self.hosts.iter().map(|host| {
            let at = sizes.partition_point(|size| *size < count(host));
            let (items, schedule) = made[at].clone();
            Subgroup::new(schedule, self.ranks, host.clone(), items)
        });
        Arc::new(Together::new(self.ranks, hosts.collect()))
    }

    /// The ranks whose chunks every place of a host with `size` ranks holds after the columns.
    fn carried(&self, size: u32) -> Items {
        let size = size as usize;
        Items::listed(size, |at| {
            let columns = move |host: &Vec<Rank>| {
                host.iter().skip(at).step_by(size).map(|rank| rank.0).collect::<Vec<_>>()
            };
            self.hosts.iter().flat_map(columns).collect::<Vec<_>>()
        })
    }
}

/// The first `items` of `positions` positions give their item to the rest, directly.
fn share_out(positions: u32, items: u32) -> Shared {
    Arc::new(AllGather { pattern: Pattern::Direct, positions, items })
}

fn place(item: usize) -> u32 {
    u32::try_from(item).unwrap_or(u32::MAX)
}
