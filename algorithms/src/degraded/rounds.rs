//! Reduction hubs with unequal shares, in several slices.
//!
//! Every host reduces its share of the data: all others send it theirs and get the result back.
//! With the shares of [`hubs`](super::hubs::hubs) this meets the lower bound of AllReduce, but only while
//! contributions and results move at the same time. Where a host has lost many rails its contributions
//! hold up everybody's results. Hence slices: while one is given back, the next one is reduced.
//! [`pipeline`](super::pipeline) says how many.

use std::sync::Arc;

use super::hubs::{Hubs, hubs};
use super::{Between, Fabric};
use crate::combine::{InSequence, Pause, Shared, Staggered, reduction};
use crate::shares::sliced;

/// An AllReduce through hubs in `slices` slices, of which `ahead` are sent to be reduced before the
/// first is given back. None if some hosts cannot reach each other, or there are no slices.
#[must_use]
pub fn hub_shares_in_rounds(fabric: &Fabric, slices: u32, ahead: u32) -> Option<Between> {
    in_rounds(&hubs(fabric)?, slices, ahead)
}

/// [`hub_shares_in_rounds`] with hubs that are known.
pub(crate) fn in_rounds(hubs: &Hubs, slices: u32, ahead: u32) -> Option<Between> {
    if slices == 0 {
        return None;
    }
    let spread = hubs.trees().spread();
    let paused = if spread.rounds() > 0 { ahead.clamp(1, slices) - 1 } else { 0 };
    let pause = Pause { ranks: spread.ranks(), rounds: paused };
    let stages = vec![reduction(Arc::clone(&spread)), Arc::new(pause), spread];
    let inner: Shared = Arc::new(InSequence::new(stages));
    let weights = sliced(hubs.shares(), slices);
    Some(Between { schedule: Arc::new(Staggered { inner, slices, lag: 1 }), weights })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;
    use crate::degraded::proofs::rail_only;

    #[test]
    fn relays_cost_two_more_rounds() {
        let (low, high, all) = (0x0f, 0xf0, u8::MAX);
        let rounds = |masks: &[u8]| {
            hub_shares_in_rounds(&rail_only(masks), 3, 1).map(|plan| plan.schedule.rounds())
        };
        assert_eq!(rounds(&[low, low, all]), Some(2 + 2));
        assert_eq!(rounds(&[low, high, all]), Some(4 + 2));
        assert_eq!(rounds(&[1, 3, 6, 4]), Some(6 + 2));
        assert_eq!(rounds(&[low, high]), None);
    }

    #[test]
    fn shares_of_slices_follow_the_capacities() {
        let fabric = Fabric::new(vec![vec![1.0], vec![0.8], vec![1.0], vec![1.0]], Reach::Switched);
        let plan = hub_shares_in_rounds(&fabric, 2, 1).unwrap();
        assert_eq!(plan.weights.len(), 8);
        assert!(plan.weights.chunks(2).all(|slices| slices[0] == slices[1]));
        assert!(plan.weights[2] < plan.weights[0] && plan.weights[0] == plan.weights[4]);
    }
}
