//! What keeps the schedule and changes only which rails carry it: R²CCL-Balance.

use crate::degraded::order::ring_capacity;
use crate::degraded::{Between, Fabric};

use super::levels;

/// R²CCL-Balance (§5.1): the ring of all hosts in their order, as if nothing had happened. The transport
/// deals the bytes of a host out to the rails that it has left, in proportion to their capacity, so the ring
/// runs at the pace of the slowest pair of neighbours. None if two of them cannot talk.
#[must_use]
pub fn balance(fabric: &Fabric) -> Option<Between> {
    let order: Vec<usize> = (0..fabric.hosts()).collect();
    (ring_capacity(fabric, &order) > 0.0).then(|| levels::single(order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;

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
