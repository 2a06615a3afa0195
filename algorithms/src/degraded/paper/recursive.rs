//! Recursive R²CCL-AllReduce (§6): relieves several degraded hosts of different speed.
//!
//! The first ring has all hosts and runs at the pace of the slowest. Without those that are as slow, the
//! others form a ring that runs beside it on the bandwidth that they have more, and so on, as long as two
//! are left. Algorithm 1 orders every ring ([`super::bridge_order`]).
//!
//! §6 gives every ring a share "proportional to the incremental bandwidth of its members". A ring of fewer
//! hosts moves less for the same share, so here the shares are such that all rings take equally long, of
//! which [`super::formulas::optimal_share`] is the case of one degraded host.
//!
//! What §6 does not say is how the hosts outside a ring take part in its share. Two readings:
//!
//! * literally, the broadcast of §5.2 for each of them ([`recursive_literal`]). All links between healthy
//!   hosts then carry the share once more for every host outside, which with two of them is mostly worse
//!   than R²CCL-Balance;
//! * generously, every host outside exchanges its contribution for the result with the hosts that reduce
//!   the pieces ([`recursive()`]). With a single degraded host, this costs that host the same as §5.2.

use crate::combine::count;
use crate::degraded::order::ring_capacity;
use crate::degraded::{Between, Fabric};

use super::SAME_CAPACITY;
use super::bridge::bridged;
use super::formulas::ring_volume;
use super::levels::{Completion, RingLevel, together};

/// The generous reading of §6. None for a single host, if all hosts that matter are equal, or if hosts that
/// have to cannot talk.
#[must_use]
pub fn recursive(fabric: &Fabric) -> Option<Between> {
    let levels = peel(fabric)?.levels;
    let outsiders_talk = levels.iter().filter(|level| level.share > 0.0).all(|level| {
        let talk = |host: &usize| level.ring.iter().all(|to| fabric.between(*host, *to) > 0.0);
        level.outside.iter().all(talk)
    });
    outsiders_talk.then(|| together(fabric.hosts(), &levels, Completion::Exchange))
}

/// The literal reading of §6. None where [`recursive()`] is none, except that hosts outside a ring have to
/// talk to its ends only.
#[must_use]
pub fn recursive_literal(fabric: &Fabric) -> Option<Between> {
    let levels = peel(fabric)?.levels;
    let outsiders_talk = levels.iter().filter(|level| level.share > 0.0).all(|level| {
        let ends = [level.ring[0], level.ring[level.ring.len() - 1]];
        let talk = |host: &usize| ends.iter().all(|end| fabric.between(*host, *end) > 0.0);
        level.outside.iter().all(talk)
    });
    outsiders_talk.then(|| together(fabric.hosts(), &levels, Completion::Relay))
}

/// Seconds for each byte of [`recursive()`] if stage 2 began after stage 1, and rails were no obstacle: the
/// rings, and then the exchange at the host that has most to exchange for its capacity. None without plan.
#[must_use]
pub fn recursive_time(fabric: &Fabric) -> Option<f64> {
    let Peeling { levels, seconds } = peel(fabric)?;
    let exchanged = |host: usize| -> f64 {
        let part = |level: &RingLevel| {
            let outside = f64::from(count(&level.outside)) / f64::from(count(&level.ring));
            if level.outside.contains(&host) { level.share } else { level.share * outside }
        };
        levels.iter().map(part).sum()
    };
    let times = (0..fabric.hosts()).map(|host| exchanged(host) / fabric.capacity(host));
    Some(seconds + times.fold(0.0, f64::max))
}

/// Seconds for each byte of [`recursive_literal`] if stage 2 began after stage 1: the rings, and then one
/// broadcast for every host outside each ring, all at the pace of the slowest host. None without plan.
#[must_use]
pub fn literal_time(fabric: &Fabric) -> Option<f64> {
    let Peeling { levels, seconds } = peel(fabric)?;
    let slowest = fabric.capacities().into_iter().fold(f64::INFINITY, f64::min);
    let broadcast: f64 =
        levels.iter().map(|level| level.share * f64::from(count(&level.outside))).sum();
    Some(seconds + broadcast / slowest)
}

/// All rings, and the seconds that each needs for every byte of all data.
struct Peeling {
    levels: Vec<RingLevel>,
    seconds: f64,
}

/// The rings; none if there would be only one, or one that cannot run.
fn peel(fabric: &Fabric) -> Option<Peeling> {
    let capacities = fabric.capacities();
    let mut levels: Vec<RingLevel> = Vec::new();
    let mut speeds = Vec::new();
    let mut used = 0.0;
    let mut ring: Vec<usize> = (0..fabric.hosts()).collect();
    while ring.len() > 1 || (ring.len() == 1 && fabric.hosts() == 2) {
        let slowest = ring.iter().map(|host| capacities[*host]).fold(f64::INFINITY, f64::min);
        let faster = |host: &usize| capacities[*host] > slowest * (1.0 + SAME_CAPACITY);
        let next = ring.iter().copied().filter(faster).collect();
        let outside = (0..fabric.hosts()).filter(|host| !ring.contains(host)).collect();
        speeds.push((slowest - used) / ring_volume(count(&ring), 1));
        levels.push(RingLevel { ring: bridged(fabric, ring), outside, share: 0.0 });
        (used, ring) = (slowest, next);
    }
    let runs = levels.iter().all(|level| ring_capacity(fabric, &level.ring) > 0.0);
    (levels.len() > 1 && runs).then(|| Peeling::new(levels, &speeds))
}

impl Peeling {
    /// Rings that move so many bytes of their share each second. A host that needs no network for what it
    /// reduces gets everything.
    fn new(mut levels: Vec<RingLevel>, speeds: &[f64]) -> Self {
        let total: f64 = speeds.iter().sum();
        for (level, speed) in levels.iter_mut().zip(speeds) {
            let alone = if level.ring.len() == 1 { 1.0 } else { 0.0 };
            level.share = if total.is_finite() { speed / total } else { alone };
        }
        Self { levels, seconds: 1.0 / total }
    }
}
