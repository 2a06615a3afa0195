//! What a failure leaves behind before anything is planned: R²CCL-HotRepair.

use crate::degraded::rails::Division;
use crate::degraded::relay::pair;
use crate::degraded::{Between, Fabric, real};

use super::balance;

/// R²CCL-HotRepair (§5, Figure 3): what a host with these `rails` can still send when the ones that are
/// `lost` hand all their traffic to one backup, and every other carries what it did before.
///
/// The backup is the fastest that is left. It has `1 + lost` parts of the traffic to carry if all rails are
/// equal, so with 8 of them the loss of one halves the capacity, and that of four leaves a fifth.
#[must_use]
pub fn hot_repair_capacity(rails: &[f64], lost: &[usize]) -> f64 {
    let split = |gone: bool| {
        let rails = rails.iter().enumerate();
        rails.filter(move |(rail, _)| lost.contains(rail) == gone).map(|(_, rate)| *rate)
    };
    let moved: f64 = split(true).sum();
    let backup = split(false).fold(0.0, f64::max);
    if backup > 0.0 { rails.iter().sum::<f64>() * backup / (backup + moved) } else { 0.0 }
}

/// R²CCL-HotRepair (§5, Figure 3): the ring of all hosts in their order, in which every pair of neighbours
/// still divides its bytes as if no rail were lost, and the fastest rail that both have left carries, beside
/// its own part, those of all others. None if two neighbours cannot talk.
#[must_use]
pub fn hot_repair(fabric: &Fabric) -> Option<(Between, Division)> {
    let between = balance(fabric)?;
    let (hosts, rails) = (fabric.hosts(), fabric.most_rails());
    let mut volumes = vec![0.0; hosts * (hosts - 1) / 2 * rails];
    let mut seconds = vec![0.0_f64; hosts * rails];
    let each = 2.0 * (1.0 - 1.0 / real(hosts));
    for (one, next) in (0..hosts).map(|host| (host, (host + 1) % hosts)).filter(|(a, b)| a != b) {
        let parts = parts_with_backup(fabric, one, next);
        let total: f64 = parts.iter().sum();
        for (rail, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
            let volume = each * part / total;
            volumes[pair(hosts, one, next) * rails + rail] = volume;
            for host in [one, next] {
                let busy = &mut seconds[host * rails + rail];
                *busy = busy.max(volume / fabric.rails(host)[rail]);
            }
        }
    }
    Some((between, Division::new(fabric, volumes, seconds)))
}

/// How two hosts divide their bytes among the rails when the fastest common one stands in for all that
/// either has lost.
fn parts_with_backup(fabric: &Fabric, one: usize, other: usize) -> Vec<f64> {
    let ends = fabric.rails(one).iter().zip(fabric.rails(other));
    let mut parts: Vec<f64> = ends.clone().map(|(one, other)| f64::min(*one, *other)).collect();
    let fastest = parts.iter().copied().fold(0.0, f64::max);
    // What a rail carried is what its other end still can; if both ends are gone, it was like the rest.
    let carried = |(one, other): (&f64, &f64)| match f64::max(*one, *other) {
        0.0 => fastest,
        rate => f64::min(rate, fastest),
    };
    let lost = ends.filter(|(one, other)| f64::min(**one, **other) == 0.0);
    let moved: f64 = lost.map(carried).sum();
    if let Some(backup) = parts.iter_mut().find(|part| **part == fastest) {
        *backup += moved;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;

    #[test]
    fn one_backup_for_all_lost_rails_is_the_bottleneck() {
        let percent = |lost: &[usize]| 100.0 * hot_repair_capacity(&[1.0; 8], lost) / 8.0;
        assert_eq!(percent(&[]), 100.0);
        assert_eq!(percent(&[3]), 50.0);
        assert!((percent(&[0, 7]) - 33.3).abs() < 0.05);
        assert!((percent(&[0, 1, 2, 3]) - 20.0).abs() < 1e-9);
        assert_eq!(hot_repair_capacity(&[1.0, 3.0, 2.0], &[0]), 4.5);
        assert_eq!(hot_repair_capacity(&[1.0; 2], &[0, 1]), 0.0);
        assert_eq!(hot_repair_capacity(&[], &[2]), 0.0);
    }

    #[test]
    fn one_rail_carries_what_the_lost_ones_did() {
        let mut rails = vec![vec![1.0; 8]; 4];
        let healthy = Fabric::new(rails.clone(), Reach::RailOnly);
        let (_, division) = hot_repair(&healthy).unwrap();
        assert_eq!(division.proportions(0, 1), [1000; 8]);
        assert!((division.busiest() - 1.5 / 8.0).abs() < 1e-9);
        rails[1][0] = 0.0;
        let (between, division) = hot_repair(&Fabric::new(rails, Reach::RailOnly)).unwrap();
        assert_eq!(between.schedule.rounds(), 6);
        assert_eq!(division.proportions(0, 1), [0, 1000, 500, 500, 500, 500, 500, 500]);
        assert_eq!(division.proportions(2, 3), [1000; 8]);
        let capacity = hot_repair_capacity(&[1.0; 8], &[0]);
        assert!((division.busiest() - 1.5 / capacity).abs() < 1e-9);
        assert_eq!(division.seconds(1, 0), 0.0);
    }

    #[test]
    fn hosts_that_lost_different_rails_lose_both() {
        let rails = vec![vec![0.0, 1.0, 1.0, 1.0], vec![1.0, 0.0, 1.0, 1.0]];
        let (_, division) = hot_repair(&Fabric::new(rails, Reach::RailOnly)).unwrap();
        assert_eq!(division.proportions(0, 1), [0, 0, 1000, 333]);
        let apart = Fabric::new(vec![vec![0.0, 1.0], vec![1.0, 0.0]], Reach::RailOnly);
        assert!(hot_repair(&apart).is_none());
        let alone = Fabric::new(vec![vec![1.0]], Reach::RailOnly);
        assert_eq!(hot_repair(&alone).unwrap().1.busiest(), 0.0);
    }
}
