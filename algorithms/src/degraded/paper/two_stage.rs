//! R²CCL-AllReduce (§5.2, Figure 5): relieves one degraded host.

use crate::degraded::order::ring_capacity;
use crate::degraded::{Between, Fabric};

use super::SAME_CAPACITY;
use super::formulas::{optimal_share, printed_share, ring_volume};
use super::levels::{Completion, RingLevel, together};

/// Which fraction of the data goes past the degraded host at first; see [`super::formulas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The one that is best in truth, for every loss.
    Corrected,
    /// As the paper decides: none at all up to its threshold, which leaves a plain ring.
    Printed,
}

/// R²CCL-AllReduce of a fabric in which one host is slower than all others.
///
/// Stage 1 is a ring AllReduce of all hosts on a part of the data, and at the same time one of all but the
/// slowest on the rest. Stage 2 takes the contribution of the slowest host into the rest: it goes to the
/// next host in the ring, the complete result from there along the ring, and from the last one to the
/// slowest host. Nothing separates the stages but the data: what is ready moves on.
///
/// The paper assumes that all other hosts have the same capacity. Where they have not, the slowest of them
/// counts, as it would in their ring. Between two hosts the rest is everything: the slower one sends its
/// data, and gets the result.
///
/// None for a single host, if no host is slower than all others, if it has no rail left, or if neighbours
/// cannot talk.
#[must_use]
pub fn two_stage(fabric: &Fabric, share: Share) -> Option<Between> {
    let (slowest, lost) = degraded(fabric)?;
    let hosts = fabric.hosts();
    let past = past(hosts, lost, share);
    let from_slowest: Vec<usize> = (0..hosts).map(|step| (slowest + step) % hosts).collect();
    let healthy = from_slowest[1..].to_vec();
    let rate = f64::min(ring_capacity(fabric, &from_slowest), ring_capacity(fabric, &healthy));
    let levels = [
        RingLevel { ring: from_slowest, outside: Vec::new(), share: 1.0 - past },
        RingLevel { ring: healthy, outside: vec![slowest], share: past },
    ];
    (rate > 0.0).then(|| together(hosts, &levels, Completion::Relay))
}

/// Seconds for each byte if stage 2 begins after stage 1, as §5.2 counts them, with the third term as it
/// must be (see [`super::formulas`]). None where [`two_stage()`] is none.
#[must_use]
pub fn two_stage_time(fabric: &Fabric, share: Share) -> Option<f64> {
    let (slowest, lost) = degraded(fabric)?;
    let past = past(fabric.hosts(), lost, share);
    let ring = |hosts: u32| ring_volume(hosts, 1);
    let hosts = u32::try_from(fabric.hosts()).unwrap_or(u32::MAX);
    let left = fabric.capacity(slowest);
    let freed = left / (1.0 - lost) * lost;
    let partial = ring(hosts - 1) * past / freed;
    Some(f64::max(ring(hosts) * (1.0 - past) / left, partial) + past / left)
}

/// The fraction of the data that goes past the slowest host at first.
fn past(hosts: usize, lost: f64, share: Share) -> f64 {
    let positions = u32::try_from(hosts).unwrap_or(u32::MAX);
    match share {
        Share::Corrected => optimal_share(positions, 1, lost),
        Share::Printed => printed_share(positions, 1, lost),
    }
}

/// The slowest host, and the fraction that it has less than the slowest of the others.
fn degraded(fabric: &Fabric) -> Option<(usize, f64)> {
    let capacities = fabric.capacities();
    let mut hosts: Vec<usize> = (0..fabric.hosts()).collect();
    hosts.sort_by(|one, other| capacities[*one].total_cmp(&capacities[*other]));
    let [slowest, next, ..] = hosts[..] else { return None };
    let lost = 1.0 - capacities[slowest] / capacities[next];
    (capacities[slowest] > 0.0 && lost > SAME_CAPACITY).then_some((slowest, lost))
}
