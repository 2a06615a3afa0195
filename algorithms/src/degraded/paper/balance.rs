//! What keeps the schedule and changes only which rails carry it: R²CCL-Balance and R²CCL-HotRepair.

use crate::degraded::{Between, Fabric};

use super::{bridge::ring_rate, levels};

/// R²CCL-Balance (§5.1): the ring of all hosts in their order, as if nothing had happened. The transport
/// deals the bytes of a host out to the rails that it has left, in proportion to their capacity, so the ring
/// runs at the pace of the slowest pair of neighbours. None if two of them cannot talk.
#[must_use]
pub fn balance(fabric: &Fabric) -> Option<Between> {
    let order: Vec<usize> = (0..fabric.hosts()).collect();
    (ring_rate(fabric, &order) > 0.0).then(|| levels::single(order))
}

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
    fn balance_keeps_the_order_and_needs_neighbours_that_can_talk() {
        let apart = vec![vec![1.0, 0.0], vec![0.0, 1.0], vec![1.0, 1.0], vec![1.0, 1.0]];
        assert!(balance(&Fabric::new(apart.clone(), Reach::RailOnly)).is_none());
        let ring = balance(&Fabric::new(apart, Reach::Switched)).unwrap();
        assert_eq!((ring.weights, ring.schedule.rounds()), (vec![0.25; 4], 6));
        assert!(balance(&Fabric::new(vec![vec![0.0]; 2], Reach::Switched)).is_none());
        let alone = balance(&Fabric::new(vec![vec![0.0]], Reach::Switched)).unwrap();
        assert_eq!((alone.weights, alone.schedule.rounds()), (vec![1.0], 0));
    }
}
