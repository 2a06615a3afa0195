//! An AllGather and a ReduceScatter that run at the same time, planned together.
//!
//! Each alone is bound by the slowest host: in an AllGather it must receive everything, in a
//! ReduceScatter it must send everything. But it needs the other direction only for its own block,
//! so together they can be as fast as one AllReduce (which is one after the other): with `n` hosts
//! of which one has lost the fraction `X`, `max(1 / (1 - X), 2 (n - 1) / (n - X))` in units of data
//! over bandwidth.
//!
//! In an AllGather an owner may send its whole block to all others, or parts of it to *spreaders*,
//! which pass them on. What host `h` sends is `1 + (n - 2) s_h` blocks, if it spreads `s_h` blocks;
//! so with [`hub_shares`] `w` the loads are balanced for `s_h = n w_h`. Slow hosts leave a part of
//! their block to the fast ones. The ReduceScatter is the reverse.

use std::sync::Arc;

use ccl_core::ids::Chunk;
use ccl_core::schedule::{Mode, Transfer};

use super::{Fabric, host_rank as rank};
use crate::combine::{Listed, Shared, count, reduction};
use crate::shares::hub_shares;

/// Parts that differ by less than this fraction of a block are the same.
const SMALLEST_PART: f64 = 1e-9;

/// Two schedules to run at the same time; host `i` owns block `i`.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Of chunks `block * parts + part`.
    pub allgather: Shared,
    /// Of chunks `block * parts + part`.
    pub reduce_scatter: Shared,
    /// The parts of every block, in proportion.
    pub weights: Vec<f64>,
}

/// An AllGather and a ReduceScatter for this fabric. None if some hosts have no common rail.
#[must_use]
pub fn allgather_with_reduce_scatter(fabric: &Fabric) -> Option<Pair> {
    let hosts = fabric.hosts();
    let joined = |one| (0..one).all(|other| fabric.between(one, other) > 0.0);
    if !(0..hosts).all(joined) {
        return None;
    }
    let blocks = spreaders(&hub_shares(&fabric.capacities()));
    let bounds = boundaries(&blocks);
    let mut rounds = vec![Vec::new(), Vec::new()];
    let mut chunk = 0;
    for (owner, block) in blocks.iter().enumerate() {
        for part in bounds.windows(2) {
            let spreader = spreader_at(block, f64::midpoint(part[0], part[1])).unwrap_or(owner);
            spread(hosts, Chunk(chunk), owner, spreader, &mut rounds);
            chunk += 1;
        }
    }
    rounds.retain(|round| !round.is_empty());
    let allgather: Shared = Arc::new(Listed::new(count(&blocks), &rounds));
    let weights = bounds.windows(2).map(|part| part[1] - part[0]).collect();
    Some(Pair { reduce_scatter: reduction(Arc::clone(&allgather)), allgather, weights })
}

/// How long both take, in units of the data of each over the bandwidth of a host, when one of
/// `hosts` hosts has lost the fraction `lost` of its bandwidth.
#[must_use]
pub fn seconds_with_one_degraded(hosts: u32, lost: f64) -> f64 {
    let n = f64::from(hosts);
    f64::max(1.0 / (1.0 - lost), 2.0 * (n - 1.0) / (n - lost))
}

/// Who spreads which fractions of every block, in order: first the owner as much as it can. What is
/// left of all blocks is laid out along what the other hosts can spread besides their own.
fn spreaders(shares: &[f64]) -> Vec<Vec<(usize, f64)>> {
    let blocks = f64::from(count(shares));
    let mut spare: Vec<f64> = shares.iter().map(|share| (share * blocks - 1.0).max(0.0)).collect();
    let mut next = 0;
    let spread = |(owner, share): (usize, &f64)| {
        let own = (share * blocks).min(1.0);
        let mut parts = vec![(owner, own)];
        let mut left = 1.0 - own;
        while left > SMALLEST_PART && next < spare.len() {
            let part = left.min(spare[next]);
            parts.push((next, part));
            left -= part;
            spare[next] -= part;
            next += usize::from(spare[next] <= SMALLEST_PART);
        }
        parts
    };
    shares.iter().enumerate().map(spread).collect()
}

/// Where any block passes from one spreader to the next, from 0 to 1.
fn boundaries(blocks: &[Vec<(usize, f64)>]) -> Vec<f64> {
    let mut all: Vec<f64> = vec![0.0];
    for block in blocks {
        let mut end = 0.0;
        for (_, part) in block {
            end += part;
            all.push(end);
        }
    }
    all.retain(|end| *end < 1.0 - SMALLEST_PART);
    all.sort_unstable_by(f64::total_cmp);
    all.dedup_by(|next, last| *next - *last < SMALLEST_PART);
    all.push(1.0);
    all
}

fn spreader_at(block: &[(usize, f64)], at: f64) -> Option<usize> {
    let mut end = 0.0;
    block.iter().find_map(|(spreader, part)| {
        end += part;
        (at < end).then_some(*spreader)
    })
}

/// From the owner to the spreader, and from there to the rest.
fn spread(hosts: usize, chunk: Chunk, owner: usize, spreader: usize, rounds: &mut [Vec<Transfer>]) {
    let store = |source, target| Transfer::new(chunk, rank(source), rank(target), Mode::Store);
    let relayed = usize::from(owner != spreader);
    rounds[0].extend((relayed > 0).then(|| store(owner, spreader)));
    let others = (0..hosts).filter(|host| *host != owner && *host != spreader);
    rounds[relayed].extend(others.map(|host| store(spreader, host)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;
    use ccl_core::collective::Collective;
    use ccl_core::ids::Rank;
    use ccl_core::layout::{Layout, Partition};
    use ccl_core::schedule::{Schedule, round, run};

    fn fabric(rails: &[f64]) -> Fabric {
        Fabric::new(rails.iter().map(|rails| vec![*rails]).collect(), Reach::Switched)
    }

    /// What every host sends and receives, in units of the data of the collective.
    fn traffic(schedule: &dyn Schedule, weights: &[f64], loads: &mut [[f64; 2]]) {
        let hosts = loads.len();
        for transfer in (0..schedule.rounds()).flat_map(|number| round(schedule, number)) {
            let part = weights[transfer.chunk.index() % weights.len()] / hosts as f64;
            loads[transfer.source.index()][0] += part;
            loads[transfer.target.index()][1] += part;
        }
    }

    fn seconds(pair: &Pair, rails: &[f64]) -> f64 {
        let mut loads = vec![[0.0; 2]; rails.len()];
        traffic(&*pair.allgather, &pair.weights, &mut loads);
        traffic(&*pair.reduce_scatter, &pair.weights, &mut loads);
        let busy = loads.iter().zip(rails).map(|(load, rail)| f64::max(load[0], load[1]) / rail);
        busy.fold(0.0, f64::max)
    }

    fn verify(pair: &Pair, hosts: u32) {
        let both = [
            (Collective::AllGather, &pair.allgather),
            (Collective::ReduceScatter, &pair.reduce_scatter),
        ];
        for (collective, schedule) in both {
            let request = crate::tests::request(collective, 1000, Rank(0));
            let partition = Partition::weighted(1000, 4, &pair.weights);
            let layout = Layout::new(&request, hosts, partition);
            let after = run(&layout.initial(), &**schedule).unwrap();
            assert!(layout.satisfied(&after), "{collective:?}, {hosts} hosts");
        }
    }

    #[test]
    fn with_one_degraded_host_both_take_what_the_formula_says() {
        for hosts in 2..=16 {
            for lost in 0..8 {
                let mut rails = vec![8.0; hosts as usize];
                rails[hosts as usize / 2] -= f64::from(lost);
                let pair = allgather_with_reduce_scatter(&fabric(&rails)).unwrap();
                verify(&pair, hosts);
                let expected = seconds_with_one_degraded(hosts, f64::from(lost) / 8.0);
                let seconds = seconds(&pair, &rails) * 8.0;
                assert!((seconds / expected - 1.0).abs() < 1e-6, "{hosts} {lost}: {seconds}");
            }
        }
    }

    #[test]
    fn several_degraded_hosts_are_relieved_too() {
        for rails in [[8.0, 6.0, 7.0, 8.0, 5.0, 8.0], [2.0, 8.0, 8.0, 3.0, 7.0, 8.0]] {
            let pair = allgather_with_reduce_scatter(&fabric(&rails)).unwrap();
            verify(&pair, 6);
            let bound = crate::degraded::hubs::lower_bound(&fabric(&rails));
            assert!((seconds(&pair, &rails) / bound - 1.0).abs() < 1e-6, "{rails:?}");
        }
    }

    #[test]
    fn one_host_needs_nothing_and_hosts_apart_have_no_plan() {
        let alone = allgather_with_reduce_scatter(&fabric(&[1.0])).unwrap();
        assert_eq!((alone.allgather.rounds(), alone.weights), (0, vec![1.0]));
        assert!(allgather_with_reduce_scatter(&fabric(&[1.0, 0.0])).is_none());
    }
}
