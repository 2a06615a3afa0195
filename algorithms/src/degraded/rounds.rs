//! Reduction hubs with unequal shares, in several slices.
//!
//! Every host reduces its share of the data: all others send it theirs and get the result back.
//! With the shares of [`hubs`](super::hubs::hubs) this meets the lower bound of AllReduce,
//! but only while contributions and results move at the same time: a host that is slow because it
//! has lost rails sends its contributions first and receives the results later, and each direction
//! of its rails idles half of the time. Hence slices: while one is given back, the next one is
//! reduced.
//!
//! With time `T` for the bytes, latency `α` and overhead `o` for each of `n - 1` peers, `m` slices
//! take `(m + 1)(T / m + α + (n - 1) o)`, which is least for `m = √(T / (α + (n - 1) o))`.

use std::sync::Arc;

use ccl_core::cost::{CostModel, LinkCost};

use super::hubs::{Hubs, hubs};
use super::{Between, Fabric};
use crate::combine::{InSequence, Pause, Shared, Staggered, reduction};
use crate::shares::sliced;

/// No more slices than this are of use.
const SLICES: u32 = 64;

/// From so many slices on, two are sent to be reduced before the first is given back.
const MANY_SLICES: u32 = 4;

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

/// How many slices are best sent to be reduced before the first is given back.
#[must_use]
pub fn best_lead(slices: u32) -> u32 {
    if slices < MANY_SLICES { 1 } else { 2 }
}

/// The best number of slices, a power of two, for `bytes` among the hosts of `fabric`, when the busiest
/// rail is busy for `seconds` with them. A slice of an average share has at least a tile for each rail: with
/// less, rails idle.
#[must_use]
pub fn best_slices(fabric: &Fabric, bytes: usize, seconds: f64, model: &CostModel) -> u32 {
    let LinkCost { alpha, overhead, .. } = model.network;
    let hosts = fabric.hosts();
    let rails = fabric.most_rails().max(1);
    #[allow(clippy::cast_precision_loss, reason = "a number of hosts")]
    let peers = hosts.saturating_sub(1) as f64;
    let each = alpha + peers * overhead;
    let ideal = (seconds / each).max(1.0).sqrt();
    let mut slices = SLICES;
    // Between two powers of two, the nearer one by ratio.
    while slices > 1 && f64::from(slices) > ideal * std::f64::consts::SQRT_2 {
        slices /= 2;
    }
    let least = rails * model.network_tile_bytes;
    while slices > 1 && bytes / hosts.max(1) / (slices as usize) < least {
        slices /= 2;
    }
    slices
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Node;
    use ccl_core::topology::{Host, RailCapacity, Topology};

    use super::*;
    use crate::degraded::Reach;
    use crate::degraded::proofs::rail_only;

    const NETWORK: LinkCost = LinkCost { alpha: 5e-6, overhead: 0.5e-6, bytes_per_second: 200e9 };

    fn model() -> CostModel {
        let host = Host { rails: vec![RailCapacity::up(200e9)], cores: 8 };
        let topology = Topology::new((0..8).map(Node).collect(), vec![host; 8]);
        CostModel { network: NETWORK, ..CostModel::default_for(&topology) }
    }

    fn even(hosts: usize) -> Fabric {
        Fabric::new(vec![vec![200e9]; hosts], Reach::Switched)
    }

    /// Among eight healthy hosts with 200 GB/s.
    fn slices(bytes: usize) -> u32 {
        #[allow(clippy::cast_precision_loss, reason = "a size")]
        let seconds = 1.75 * bytes as f64 / 200e9;
        best_slices(&even(8), bytes, seconds, &model())
    }

    #[test]
    fn more_data_has_more_slices() {
        let sizes = [0, 64 << 10, 4 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30];
        assert_eq!(sizes.map(slices), [1, 1, 2, 8, 16, 32, 64]);
        assert_eq!(best_slices(&even(8), usize::MAX, 1e9, &model()), 64);
        assert_eq!(best_slices(&even(1), 1 << 20, 0.0, &model()), 1);
        // Time alone would allow more, but slices would be tiny.
        assert_eq!(best_slices(&even(8), 4 << 20, 1.0, &model()), 4);
        let small_tiles = CostModel { network_tile_bytes: 32 << 10, ..model() };
        assert_eq!(best_slices(&even(8), 4 << 20, 1.0, &small_tiles), 16);
        assert_eq!([1, 2, 4, 64].map(best_lead), [1, 1, 2, 2]);
    }

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
