//! Hubs: every host reduces a share of the data, which all others send it and get back.
//!
//! How long that takes is up to the busiest rail. The shares of [`hub_shares`] make all hosts
//! equally busy, but where a rail reaches only the same rail of other hosts they may leave one rail
//! busier than the rest, however [`divide`] spreads the load. That happens among few hosts; then
//! hubs with busy rails hand some of their share to the others.

use super::pipeline::Pipeline;
use super::rails::{Division, TOLERANCE, busy_hosts, divide, unplanned};
use super::relay::Trees;
use super::{Fabric, MOST_HOSTS, Reach, real};
use crate::shares::hub_shares;

/// Shares are shifted until it did not help so often.
const PATIENCE: u32 = 6;

/// Hubs, and what they cost.
#[derive(Clone, Debug)]
pub struct Hubs {
    /// How much of the data each host reduces.
    shares: Vec<f64>,
    trees: Trees,
    pipeline: Pipeline,
    /// If a rail reaches only the same rail of other hosts.
    division: Option<Division>,
}

impl Hubs {
    /// How much of the data each host reduces; in all that is 1.
    #[must_use]
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// How long the busiest rail is busy, for every byte of the data.
    #[must_use]
    pub fn seconds_per_byte(&self) -> f64 {
        self.pipeline.busy
    }

    /// How that changes with slices, for every byte of the data.
    #[must_use]
    pub fn pipeline(&self) -> Pipeline {
        self.pipeline
    }

    /// What every pair of hosts sends over every rail; none if every rail reaches every other.
    #[must_use]
    pub fn division(&self) -> Option<&Division> {
        self.division.as_ref()
    }

    pub(crate) fn trees(&self) -> &Trees {
        &self.trees
    }
}

/// The best hubs for this fabric; none if some hosts cannot reach each other.
#[must_use]
pub fn hubs(fabric: &Fabric) -> Option<Hubs> {
    let mut shares = hub_shares(&useful_capacities(fabric));
    let (mut best, mut busy) = evaluate(fabric, &shares)?;
    let enough = lower_bound(fabric) * (1.0 + TOLERANCE);
    let mut left = if fabric.hosts() > 2 { PATIENCE } else { 0 };
    while left > 0 && best.seconds_per_byte() > enough {
        shares = shifted(fabric, &shares, &busy);
        let (next, next_busy) = evaluate(fabric, &shares)?;
        left -= 1;
        if next.seconds_per_byte() < best.seconds_per_byte() * (1.0 - TOLERANCE) {
            left = PATIENCE;
        }
        if next.seconds_per_byte() < best.seconds_per_byte() {
            best = next;
        }
        busy = next_busy;
    }
    Some(best)
}

/// How long the busiest rail is busy for every byte of the data, when host `h` reduces the share
/// `shares[h]` of it. Infinite if some hosts cannot reach each other.
#[must_use]
pub fn predicted_load(fabric: &Fabric, shares: &[f64]) -> f64 {
    evaluate(fabric, shares).map_or(f64::INFINITY, |(hubs, _)| hubs.seconds_per_byte())
}

/// The same when all hosts send to each other directly, and links divide what they send by capacity; if
/// there are very many hosts, as if every rail reached every other.
pub(crate) fn direct_seconds(fabric: &Fabric, shares: &[f64]) -> f64 {
    let hosts = fabric.hosts();
    if fabric.reach() == Reach::RailOnly && hosts <= MOST_HOSTS && !fabric.is_even() {
        let others = |one: usize| one + 1..hosts;
        let volumes = (0..hosts).flat_map(|one| others(one).map(move |other| (one, other)));
        let volumes: Vec<f64> = volumes.map(|(one, other)| shares[one] + shares[other]).collect();
        return unplanned(fabric, &volumes);
    }
    let passed_on = real(hosts.saturating_sub(2));
    let busy = shares.iter().zip(fabric.capacities());
    let busy = busy.filter(|(share, _)| **share < 1.0);
    busy.map(|(share, rate)| (1.0 + passed_on * share) / rate).fold(0.0, f64::max)
}

/// Seconds for every byte below which no AllReduce can be: [`ccl_core::cost::bound_allreduce`] with
/// the rails that reach any other host.
#[must_use]
pub fn lower_bound(fabric: &Fabric) -> f64 {
    if fabric.hosts() < 2 {
        return 0.0;
    }
    let capacities = useful_capacities(fabric);
    let slowest = capacities.iter().copied().fold(f64::INFINITY, f64::min);
    let volume = 2.0 * real(fabric.hosts() - 1) / capacities.iter().sum::<f64>();
    f64::max(1.0 / slowest, volume)
}

/// The capacity of every host without the rails that no other host has.
fn useful_capacities(fabric: &Fabric) -> Vec<f64> {
    let hosts = 0..fabric.hosts();
    let has = |host: usize, rail: usize| fabric.rails(host).get(rail).is_some_and(|r| *r > 0.0);
    let useful = |host: usize, rail: usize| {
        let mut others = hosts.clone().filter(|other| *other != host);
        fabric.reach() != Reach::RailOnly || others.any(|other| has(other, rail))
    };
    let capacity = |host: usize| -> f64 {
        let rails = fabric.rails(host).iter().enumerate();
        rails.filter(|(rail, _)| useful(host, *rail)).map(|(_, capacity)| capacity).sum()
    };
    hosts.clone().map(capacity).collect()
}

/// Hubs with these shares, and how long the busiest rail of every host is busy.
fn evaluate(fabric: &Fabric, shares: &[f64]) -> Option<(Hubs, Vec<f64>)> {
    let trees = Trees::new(fabric, shares)?;
    let volumes = trees.volumes(shares);
    let division = (fabric.reach() == Reach::RailOnly).then(|| divide(fabric, &volumes));
    let busy = match &division {
        Some(division) => division.by_host(),
        None => busy_hosts(fabric, &volumes),
    };
    let seconds_per_byte = busy.iter().copied().fold(0.0, f64::max);
    let pipeline = Pipeline::of_hubs(&useful_capacities(fabric), shares, seconds_per_byte);
    Some((Hubs { shares: shares.to_vec(), trees, pipeline, division }, busy))
}

/// Hosts that are busier than the average give up some of their share, the others get it.
fn shifted(fabric: &Fabric, shares: &[f64], busy: &[f64]) -> Vec<f64> {
    let capacities = fabric.capacities();
    let weighted = busy.iter().zip(&capacities).map(|(busy, capacity)| busy * capacity);
    let average = weighted.sum::<f64>() / capacities.iter().sum::<f64>();
    let step = 0.5 / real(fabric.hosts() - 2);
    let moved = shares.iter().zip(busy.iter().zip(&capacities));
    let moved = moved.map(|(share, (busy, capacity))| share + step * (average - busy) * capacity);
    let moved: Vec<f64> = moved.map(|share| share.max(0.0)).collect();
    let total: f64 = moved.iter().sum();
    moved.iter().map(|share| share / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::proofs::{rail_only, random_losses, retained};
    use ccl_core::random::Random;

    fn percent(fabric: &Fabric) -> f64 {
        hubs(fabric).map_or(0.0, |hubs| retained(fabric, hubs.seconds_per_byte()))
    }

    #[test]
    fn hubs_reach_the_bound_where_rings_of_mismatched_rails_do_not() {
        let (a, b, all) = (!2, !4, u8::MAX);
        let each: Vec<u8> = (0..8).map(|rail| !(1 << rail)).collect();
        let table: [(&[u8], f64); 6] = [
            (&[a, b], 75.0),
            (&[a, b, all], 91.7),
            (&[a, b, a, b, all, all], 91.7),
            (&each, 87.5),
            (&[a, b, a, b, a, b, a, b], 87.5),
            (&[0x0f, 0xf0, all], 66.7),
        ];
        for (masks, expected) in table {
            let percent = percent(&rail_only(masks));
            assert!((percent - expected).abs() < 0.15, "{masks:?}: {percent}");
        }
        // Hosts without a common rail go through the two that have all; 55.6 if only these were
        // hubs.
        let halves = percent(&rail_only(&[0x0f, 0xf0, 0x0f, 0xf0, all, all]));
        assert!((55.6..=66.7).contains(&halves), "{halves}");
    }

    /// The means over a thousand patterns, and what they would be if every rail reached every
    /// other.
    #[test]
    fn hubs_on_random_rails_are_nearly_as_fast_as_can_be() {
        for (hosts, lost, expected) in [(8, 8, 87.5), (8, 16, 73.1), (4, 4, 87.3), (16, 8, 93.8)] {
            let mut random = Random::new(1);
            let fabrics = || random_losses(hosts, lost, &mut random);
            let trials: Vec<Fabric> = std::iter::repeat_with(fabrics).take(1000).collect();
            let mean = trials.iter().map(percent).sum::<f64>() / 1000.0;
            let bound = |fabric: &Fabric| retained(fabric, lower_bound(fabric));
            let bound = trials.iter().map(bound).sum::<f64>() / 1000.0;
            println!("{hosts} hosts, {lost} rails lost: {mean} of {bound}");
            assert!((mean - expected).abs() <= 0.5, "{hosts} hosts, {lost} rails lost: {mean}");
            assert!(mean <= bound && bound - mean < 0.5, "{mean} of {bound}");
        }
    }

    #[test]
    fn what_goes_directly_is_as_fast_as_hubs_where_rails_do_not_matter() {
        for masks in [&[u8::MAX; 4], &[!1, u8::MAX, u8::MAX, u8::MAX], &[!1, !2, u8::MAX, u8::MAX]]
        {
            let switched = Fabric::new(rail_only(masks).rails.clone(), Reach::Switched);
            let hubs = hubs(&switched).unwrap();
            let direct = direct_seconds(&switched, hubs.shares());
            assert!((direct - hubs.seconds_per_byte()).abs() < 1e-9, "{masks:?}: {direct}");
            let rails = direct_seconds(&rail_only(masks), hubs.shares());
            let is_even = masks.iter().all(|mask| *mask == masks[0]);
            assert_eq!(rails > direct + 1e-3, !is_even, "{masks:?}: {rails} beside {direct}");
        }
        assert_eq!(direct_seconds(&rail_only(&[1]), &[1.0]), 0.0);
    }

    #[test]
    fn hosts_apart_are_infinitely_slow() {
        assert_eq!(predicted_load(&rail_only(&[1, 2]), &[0.5, 0.5]), f64::INFINITY);
        assert_eq!(predicted_load(&rail_only(&[1]), &[1.0]), 0.0);
    }
}
