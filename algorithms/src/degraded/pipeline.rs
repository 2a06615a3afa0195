//! What hubs cost in one slice and in several.
//!
//! In one slice, a host is sent all contributions before the first result. Tiles of both overlap, but a slow
//! host's contributions hold up those of all others, and behind these wait the results that fast hosts have
//! for each other. Several slices wait for each other only at the beginning and at the end, where a slice
//! of contributions and a slice of results move alone.

use ccl_core::cost::{CostModel, LinkCost};

use super::{Fabric, real};

/// No more slices than this are of use.
const SLICES: u32 = 64;

/// From so many slices on, two are sent to be reduced before the first is given back.
const MANY_SLICES: u32 = 4;

/// Slices that are alone at the ends, of each kind.
const SLICES_ALONE: f64 = 2.0;

/// Two things that take equally long take so much longer when they happen together: measured are 3 to 8 %.
const HINDRANCE: f64 = 0.06;

/// How long hubs keep the network busy: seconds, or seconds for each byte of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// For the bytes, while both directions of all rails are in use.
    pub busy: f64,
    /// What waiting adds in one slice.
    pub idle: f64,
    /// What the ends add in several slices, divided by their number.
    pub ends: f64,
}

impl Pipeline {
    /// Of hosts with these capacities, which reduce these shares of the data, when their bytes take `busy`;
    /// for each byte of the data.
    #[must_use]
    pub fn of_hubs(capacities: &[f64], shares: &[f64], busy: f64) -> Self {
        let peers = real(shares.len().saturating_sub(1));
        let most = |bytes: &dyn Fn(f64) -> f64| {
            let seconds = capacities.iter().zip(shares).map(|(rate, share)| bytes(*share) / rate);
            seconds.fold(0.0, f64::max)
        };
        let is_even = shares.iter().all(|share| *share == shares[0]);
        if is_even || !busy.is_normal() {
            return Self { busy, ..Self::default() };
        }
        let contributions = most(&|share| 1.0 - share);
        let half = contributions.max(most(&|share| peers * share));
        let behind = contributions + most(&|share| (peers - 1.0) * share);
        Self {
            busy,
            idle: together(busy, behind) - busy,
            ends: SLICES_ALONE * (2.0 * half - busy).max(0.0),
        }
    }

    /// For so many bytes.
    #[must_use]
    pub fn times(self, bytes: f64) -> Self {
        Self { busy: self.busy * bytes, idle: self.idle * bytes, ends: self.ends * bytes }
    }

    /// In so many slices.
    #[must_use]
    pub fn in_slices(self, slices: u32) -> f64 {
        self.busy + if slices > 1 { self.ends / f64::from(slices) } else { self.idle }
    }

    /// Seconds that slices cost apart from the bytes: overheads of messages to each of so many `peers`, and
    /// the part of the latency of contributions that the slices sent ahead do not hide.
    #[must_use]
    pub fn slices_seconds(self, slices: u32, peers: usize, network: LinkCost) -> f64 {
        let hidden = self.busy / f64::from(slices) * f64::from(best_lead(slices) - 1);
        let each = real(peers) * network.overhead + (network.alpha - hidden).max(0.0);
        f64::from(slices - 1) * each
    }
}

/// How long two things take that happen at the same time and hinder each other where they take about equally
/// long. Products only, which all machines round alike.
fn together(one: f64, other: f64) -> f64 {
    let (shorter, longer) = (one.min(other), one.max(other));
    if !longer.is_normal() {
        return longer;
    }
    let square = (shorter / longer) * (shorter / longer);
    let cube = square * square * square;
    longer * (1.0 + HINDRANCE * cube * cube)
}

/// How many slices are best sent to be reduced before the first is given back.
#[must_use]
pub fn best_lead(slices: u32) -> u32 {
    if slices < MANY_SLICES { 1 } else { 2 }
}

/// The best number of slices, a power of two, for `bytes` among the hosts of `fabric`. A slice of an
/// average share has at least a tile for each rail: with less, rails idle.
#[must_use]
pub fn best_slices(fabric: &Fabric, bytes: usize, pipeline: Pipeline, model: &CostModel) -> u32 {
    let hosts = fabric.hosts().max(1);
    let least = fabric.most_rails().max(1) * model.network_tile_bytes;
    let seconds = |slices: u32| {
        pipeline.in_slices(slices) + pipeline.slices_seconds(slices, hosts - 1, model.network)
    };
    let more = (1..=SLICES.ilog2()).map(|power| 1 << power);
    let possible = more.take_while(|slices| bytes / hosts / (*slices as usize) >= least);
    possible.fold(1, |best, slices| if seconds(slices) < seconds(best) { slices } else { best })
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Node;
    use ccl_core::topology::{Host, RailCapacity, Topology};

    use super::*;
    use crate::degraded::Reach;
    use crate::shares::hub_shares;

    const NETWORK: LinkCost = LinkCost { alpha: 5e-6, overhead: 0.5e-6, bytes_per_second: 200e9 };

    fn model() -> CostModel {
        let host = Host { rails: vec![RailCapacity::up(200e9)], cores: 8 };
        let topology = Topology::new((0..8).map(Node).collect(), vec![host; 8]);
        CostModel { network: NETWORK, ..CostModel::default_for(&topology) }
    }

    fn even(hosts: usize) -> Fabric {
        Fabric::new(vec![vec![200e9]; hosts], Reach::Switched)
    }

    /// Of hosts with these capacities, with the shares and the time that are best for them.
    fn pipeline(capacities: &[f64]) -> Pipeline {
        let shares = hub_shares(capacities);
        let others = real(capacities.len()) - 2.0;
        let loads =
            shares.iter().zip(capacities).map(|(share, rate)| (1.0 + others * share) / rate);
        Pipeline::of_hubs(capacities, &shares, loads.fold(0.0, f64::max))
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 0.01
    }

    #[test]
    fn results_wait_for_contributions_where_a_host_has_lost_many_rails() {
        for healthy in [&[1.0, 1.0] as &[f64], &[1.0; 4]] {
            let Pipeline { idle, ends, .. } = pipeline(healthy);
            assert_eq!((idle, ends), (0.0, 0.0), "{healthy:?}");
        }
        // All of the slow host's data at half the rate, then two thirds between the fast ones.
        let half = pipeline(&[0.5, 1.0, 1.0, 1.0]);
        assert!(near(half.busy, 2.0) && near(half.idle, 2.0 / 3.0) && near(half.ends, 4.0));
        // 0.940 and 0.548 of this kind, where the bytes take 1.548.
        let one = pipeline(&[0.875, 1.0, 1.0, 1.0]);
        assert!(near(one.busy, 1.548) && near(one.idle, 0.064) && near(one.ends, 0.664));
        assert!(near(one.in_slices(1), 1.612) && near(one.in_slices(4), 1.714));
        assert!(near(one.times(100.0).in_slices(64), 100.0 * one.in_slices(64)));
    }

    #[test]
    fn what_is_impossible_takes_for_ever() {
        assert_eq!(
            Pipeline::of_hubs(&[1.0, 0.0], &[1.0, 0.0], f64::INFINITY).in_slices(1),
            f64::INFINITY
        );
        assert_eq!((together(1.0, f64::INFINITY), together(0.0, 0.0)), (f64::INFINITY, 0.0));
        assert!(near(together(1.0, 1.0), 1.059) && near(together(1.0, 0.5), 1.0));
    }

    #[test]
    fn more_data_has_more_slices() {
        let slices = |bytes: usize, idle: f64| {
            let busy = 1.75 * real(bytes) / 200e9;
            let pipeline = Pipeline { busy, idle: idle * busy, ends: busy };
            best_slices(&even(8), bytes, pipeline, &model())
        };
        let sizes = [0, 64 << 10, 4 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30];
        assert_eq!(sizes.map(|bytes| slices(bytes, 1.0)), [1, 1, 4, 16, 32, 64, 64]);
        assert_eq!(sizes.map(|bytes| slices(bytes, 0.1)), [1, 1, 1, 1, 32, 64, 64]);
        assert!(sizes.iter().all(|bytes| slices(*bytes, 0.0) == 1), "nothing waits");
        let long = Pipeline { busy: 1.0, idle: 1.0, ends: 1.0 };
        assert_eq!(best_slices(&even(8), usize::MAX, long, &model()), 64);
        assert_eq!(best_slices(&even(1), 1 << 20, Pipeline::default(), &model()), 1);
        // Time alone would allow more, but slices would be tiny.
        assert_eq!(best_slices(&even(8), 4 << 20, long, &model()), 4);
        let small_tiles = CostModel { network_tile_bytes: 32 << 10, ..model() };
        assert_eq!(best_slices(&even(8), 4 << 20, long, &small_tiles), 16);
        assert_eq!([1, 2, 4, 64].map(best_lead), [1, 1, 2, 2]);
    }

    #[test]
    fn slices_ahead_hide_latency() {
        let pipeline = Pipeline { busy: 1.0, idle: 0.5, ends: 0.4 };
        let network = LinkCost { alpha: 0.3, overhead: 0.01, ..NETWORK };
        let costs = |slices| pipeline.slices_seconds(slices, 2, network);
        assert_eq!((pipeline.in_slices(1), pipeline.in_slices(4)), (1.5, 1.1));
        assert_eq!((costs(1), costs(2)), (0.0, 0.02 + 0.3));
        assert!((costs(4) - 3.0 * (0.02 + 0.05)).abs() < 1e-12, "a quarter of a second is hidden");
    }
}
