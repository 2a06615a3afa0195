//! Topology-aware logical re-ranking (§6 and appendix D): the order of the hosts in a ring.
//!
//! A ring is as fast as the slowest pair of neighbours, and two hosts that have lost different rails have
//! fewer in common than either has left. The paper's Algorithm 1 moves other hosts, *bridges*, between such
//! pairs. It is here as printed, with what that implies: pairs are looked for once, in the order at the
//! beginning; the first bridge that fits is taken, even if a later pair has no other; only one host moves
//! at a time, so hosts that have lost the same rail are not brought together; rings of up to three hosts
//! never change, because to take a bridge away makes the bad pair neighbours elsewhere.

use crate::degraded::order::ring_capacity;
use crate::degraded::{Between, Fabric};

use super::{SAME_CAPACITY, levels};

/// The order of all hosts that Algorithm 1 makes of `0, 1, 2, …`.
#[must_use]
pub fn bridge_order(fabric: &Fabric) -> Vec<usize> {
    bridged(fabric, (0..fabric.hosts()).collect())
}

/// A ring AllReduce in [`bridge_order`]; none if it has neighbours that cannot talk.
#[must_use]
pub fn bridge_ring(fabric: &Fabric) -> Option<Between> {
    let order = bridge_order(fabric);
    (ring_capacity(fabric, &order) > 0.0).then(|| levels::single(order))
}

/// What Algorithm 1 makes of `ring`.
pub(super) fn bridged(fabric: &Fabric, mut ring: Vec<usize>) -> Vec<usize> {
    let capacities = ring.iter().map(|host| fabric.capacity(*host));
    let enough = capacities.fold(f64::INFINITY, f64::min) * (1.0 - SAME_CAPACITY);
    let rate = |pair: &(usize, usize)| fabric.between(pair.0, pair.1);
    let mut bad: Vec<_> = pairs(&ring).filter(|pair| rate(pair) < enough).collect();
    bad.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    for (one, next) in bad {
        if let Some(bridge) = bridge(fabric, &ring, (one, next), enough) {
            relocate(&mut ring, bridge, one);
        }
    }
    ring
}

/// The first host that has enough in common with both, and whose neighbours have enough in common.
fn bridge(fabric: &Fabric, ring: &[usize], pair: (usize, usize), enough: f64) -> Option<usize> {
    let fits = |at: &usize| {
        let host = ring[*at];
        let before = ring[(at + ring.len() - 1) % ring.len()];
        let after = ring[(at + 1) % ring.len()];
        let gained = f64::min(fabric.between(pair.0, host), fabric.between(host, pair.1));
        host != pair.0
            && host != pair.1
            && gained >= enough
            && fabric.between(before, after) >= enough
    };
    (0..ring.len()).find(fits).map(|at| ring[at])
}

/// Moves `bridge` behind `host`. The printed algorithm says "between" the two hosts of a pair, which are
/// not neighbours any more if one of them has been moved.
fn relocate(ring: &mut Vec<usize>, bridge: usize, host: usize) {
    ring.retain(|other| *other != bridge);
    let at = ring.iter().position(|other| *other == host).map_or(ring.len(), |at| at + 1);
    ring.insert(at, bridge);
}

/// Neighbours in a ring.
fn pairs(ring: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let next = ring.iter().cycle().skip(1);
    ring.iter().copied().zip(next.copied()).take(if ring.len() > 1 { ring.len() } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;
    use ccl_core::random::Random;

    const RAILS: usize = 8;
    const ALL: u8 = 0xff;

    /// Hosts with eight rails, of which those in the mask are up.
    fn rail_only(masks: &[u8]) -> Fabric {
        let up = |mask: u8, rail: usize| f64::from(mask >> rail & 1);
        let host = |mask: &u8| (0..RAILS).map(|rail| up(*mask, rail)).collect();
        Fabric::new(masks.iter().map(host).collect(), Reach::RailOnly)
    }

    fn without(rail: u32) -> u8 {
        ALL & !(1 << rail)
    }

    /// Percent of a healthy ring, in the given order and in that of Algorithm 1.
    fn percent(fabric: &Fabric) -> [f64; 2] {
        let given: Vec<usize> = (0..fabric.hosts()).collect();
        [given, bridge_order(fabric)].map(|order| 12.5 * ring_capacity(fabric, &order))
    }

    #[test]
    fn a_pair_that_lost_different_rails_is_bridged() {
        let fabric = rail_only(&[without(1), without(2), ALL, ALL, ALL]);
        assert_eq!(bridge_order(&fabric), [0, 2, 1, 3, 4]);
        assert_eq!(percent(&fabric), [75.0, 87.5]);
    }

    #[test]
    fn two_bad_pairs_get_the_first_bridges_there_are() {
        let (one, other) = (without(1), without(2));
        let fabric = rail_only(&[one, other, ALL, one, other, ALL, ALL, ALL]);
        assert_eq!(bridge_order(&fabric), [0, 5, 1, 2, 3, 6, 4, 7]);
        assert_eq!(percent(&fabric), [75.0, 87.5]);
    }

    #[test]
    fn the_worst_pair_gets_the_only_bridge() {
        let lost = |one, other| without(one) & without(other);
        let fabric = rail_only(&[lost(0, 1), lost(1, 2), lost(0, 1), lost(2, 3), ALL, ALL]);
        assert_eq!(bridge_order(&fabric), [0, 1, 2, 4, 3, 5]);
        assert_eq!(percent(&fabric), [50.0, 62.5]);
    }

    #[test]
    fn where_the_printed_algorithm_fails() {
        let (one, other) = (without(1), without(2));
        let (low, high) = (0x0f, 0xf0);
        let each: Vec<u8> = (0..8).map(without).collect();
        for (name, masks, expected) in [
            ("two hosts", &[one, other][..], 75.0),
            ("three hosts, the third healthy", &[one, other, ALL], 75.0),
            ("two bridges for three pairs", &[one, other, one, other, ALL, ALL], 75.0),
            ("everybody lost another rail", &each, 75.0),
            (
                "half lost one, half another",
                &[one, one, one, one, other, other, other, other],
                75.0,
            ),
            ("halves without a common rail", &[low, high, low, high, ALL, ALL], 0.0),
            ("halves and one bridge", &[low, high, ALL], 0.0),
        ] {
            let fabric = rail_only(masks);
            assert_eq!(percent(&fabric), [expected; 2], "{name}");
            assert_eq!(bridge_ring(&fabric).is_some(), expected > 0.0, "{name}");
        }
    }

    #[test]
    fn a_switch_needs_no_bridges() {
        let rails = vec![vec![0.0, 1.0], vec![1.0, 0.0], vec![1.0, 1.0], vec![1.0, 1.0]];
        let order = |reach| bridge_order(&Fabric::new(rails.clone(), reach));
        assert_eq!(order(Reach::Switched), [0, 1, 2, 3]);
        assert_eq!(order(Reach::RailOnly), [0, 2, 1, 3]);
    }

    #[test]
    fn a_single_host_is_a_ring() {
        let alone = Fabric::new(vec![vec![0.0]], Reach::RailOnly);
        assert_eq!((bridge_order(&alone), ring_capacity(&alone, &[0])), (vec![0], f64::INFINITY));
    }

    /// `lost` rails of `hosts`, all different.
    fn struck(hosts: usize, lost: usize, random: &mut Random) -> Fabric {
        let mut masks = vec![ALL; hosts];
        for _ in 0..lost {
            let up: Vec<(usize, u32)> = (0..hosts)
                .flat_map(|host| (0..8).map(move |rail| (host, rail)))
                .filter(|(host, rail)| masks[*host] >> rail & 1 == 1)
                .collect();
            let (host, rail) = random.pick(&up);
            masks[host] &= !(1 << rail);
        }
        rail_only(&masks)
    }

    #[test]
    fn random_faults_cost_what_the_theory_says() {
        for (hosts, lost, given, bridged) in [
            (3, 2, 75.9, 75.9),
            (4, 4, 64.5, 68.2),
            (4, 8, 41.6, 43.5),
            (8, 4, 72.1, 80.2),
            (8, 8, 56.9, 65.8),
            (8, 16, 34.2, 42.7),
            (16, 8, 68.4, 76.9),
            (16, 32, 27.5, 41.6),
        ] {
            let mut random = Random::new(1);
            let mut sums = [0.0; 2];
            for _ in 0..1000 {
                let rates = percent(&struck(hosts, lost, &mut random));
                sums = [sums[0] + rates[0], sums[1] + rates[1]];
            }
            let [before, after] = sums.map(|sum| sum / 1000.0);
            assert!((before - given).abs() < 1.5, "{hosts} hosts, {lost} lost: {before} at first");
            assert!((after - bridged).abs() < 1.5, "{hosts} hosts, {lost} lost: {after} bridged");
        }
    }
}
