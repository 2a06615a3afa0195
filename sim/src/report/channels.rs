//! NCCL's ring on two hosts, in as many channels as there are NICs.
//!
//! Channel `c` enters the first host by GPU `c` and leaves it by the one before, goes through the second host the other
//! way round, and comes back to GPU `c`. So every NIC carries one channel out and one in, beside its own GPU.

use std::sync::Arc;

use ccl_algorithms::combine::{Items, Reversed, Shared, Staggered, Subgroup, Together};
use ccl_algorithms::pattern::Pattern;
use ccl_algorithms::spread::{AllGather, Broadcast};
use ccl_core::collective::Collective;
use ccl_core::ids::Rank;
use ccl_core::layout::Partition;
use ccl_core::program::{Port, Program};
use ccl_core::schedule::Mode;

use crate::cluster::plan::Scene;
use crate::flow::strategy::{Planned, one_way_ring};

/// A channel has at least so many bytes, as have the slices of a broadcast, of which there are not many.
const LEAST_CHANNEL_BYTES: usize = 1 << 20;
const LEAST_SLICE_BYTES: usize = 1 << 20;
const MOST_SLICES: u32 = 64;

/// What goes round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
}

impl Kind {
    pub(super) fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::Broadcast => Collective::Broadcast,
        }
    }
}

/// The programs of all GPUs of two hosts.
pub(super) fn programs(scene: &Scene, kind: Kind) -> Vec<Program> {
    let gpus = scene.cluster().gpus;
    let planned = planned(scene, kind, gpus);
    let mut programs = planned.job(scene.request(), scene.topology()).programs();
    for (rank, program) in (0..).map(Rank).zip(&mut programs) {
        let peers = program.sends.iter().filter_map(|lane| match lane.port {
            Port::Pair(peer) if !scene.topology().together(rank, peer) => Some(peer),
            Port::Pair(_) | Port::Multicast(_) => None,
        });
        let rails = scene.cluster().nics.per_host;
        let own = (rank.0 % gpus) * rails / gpus;
        let parts: Vec<u16> = (0..rails).map(|rail| u16::from(rail == own)).collect();
        program.rails = peers.map(|peer| (peer, parts.clone())).collect();
    }
    programs
}

fn planned(scene: &Scene, kind: Kind, gpus: u32) -> Planned {
    let ranks = 2 * gpus;
    let request = scene.request();
    let channels = at_most(request.bytes() / LEAST_CHANNEL_BYTES, gpus);
    let slices = match kind {
        Kind::Broadcast => at_most(request.bytes() / LEAST_SLICE_BYTES, MOST_SLICES),
        Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter => 1,
    };
    let around = AllGather { pattern: Pattern::Chain, positions: ranks, items: ranks };
    let part = |channel: u32| {
        let order = order(channel, gpus);
        let (inner, members): (Shared, Vec<Rank>) = match kind {
            Kind::AllReduce => (one_way_ring(ranks).schedule, order),
            Kind::AllGather => (Arc::new(around), order),
            Kind::ReduceScatter => {
                (Arc::new(Reversed { inner: Arc::new(around), mode: Mode::Accumulate }), order)
            }
            Kind::Broadcast => {
                let chain = Broadcast { pattern: Pattern::Chain, positions: ranks };
                (Arc::new(chain), from_root(order))
            }
        };
        // Blocks are cut into a part for every channel; an AllReduce has one block, of a part for every position too.
        let of = |item: usize| match kind {
            Kind::AllReduce => channel * ranks + u32::try_from(item).unwrap_or(u32::MAX),
            Kind::AllGather | Kind::ReduceScatter => members[item].0 * channels + channel,
            Kind::Broadcast => channel,
        };
        let count = if kind == Kind::Broadcast { 1 } else { ranks as usize };
        let items = Items::listed(count, |item| [of(item)]);
        Subgroup::new(inner, ranks, members, items)
    };
    let inner: Shared = Arc::new(Together::new(ranks, (0..channels).map(part).collect()));
    let parts = if kind == Kind::AllReduce { channels * ranks } else { channels * slices };
    // Channels share the links of the library, on which one message waits for the one before: in slices they take
    // turns.
    let schedule: Shared = match slices {
        1 => inner,
        _ => Arc::new(Staggered { inner, slices, lag: 1 }),
    };
    Planned {
        schedule,
        partition: Partition::even(request.count, request.datatype.bytes(), parts),
        division: None,
    }
}

/// A number from 1 to `most`.
fn at_most(number: usize, most: u32) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX).clamp(1, most)
}

/// The ranks in the order of a channel.
fn order(channel: u32, gpus: u32) -> Vec<Rank> {
    let first = (0..gpus).map(|step| (channel + step) % gpus);
    let second = (0..gpus).map(|step| gpus + (channel + gpus - 1 - step) % gpus);
    first.chain(second).map(Rank).collect()
}

/// The same ring, from rank 0 on.
fn from_root(mut order: Vec<Rank>) -> Vec<Rank> {
    let root = order.iter().position(|rank| *rank == Rank(0)).unwrap_or(0);
    order.rotate_left(root);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::layout::Layout;
    use ccl_core::schedule::run;

    use crate::cluster::{Cluster, Ranks};

    #[test]
    fn channels_do_what_they_should_and_use_every_nic_once() {
        let mut cluster = Cluster::plain(2, 4, 50e9);
        cluster.gpus = 4;
        for kind in [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast] {
            let scene = Scene::new(&cluster, Ranks::Gpus, &[], kind.collective(), 8 << 20);
            let planned = planned(&scene, kind, 4);
            let layout = Layout::new(scene.request(), 8, planned.partition.clone());
            let after = run(&layout.initial(), &*planned.schedule).unwrap();
            assert!(layout.satisfied(&after), "{kind:?}");
        }
        let scene = Scene::new(&cluster, Ranks::Gpus, &[], Collective::AllReduce, 8 << 20);
        for (rank, program) in programs(&scene, Kind::AllReduce).iter().enumerate() {
            let own: Vec<u16> = (0..4).map(|rail| u16::from(rail == rank % 4)).collect();
            let peer = Rank(u32::try_from((rank + 4) % 8).unwrap());
            assert_eq!(program.rails, [(peer, own)]);
        }
    }
}
