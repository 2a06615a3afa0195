//! Which rails carry what, where a rail reaches only the same rail of other hosts.
//!
//! [Hubs](super::hubs) with the shares `w` make every pair of hosts exchange `w_i + w_j` of the data
//! in each direction. A pair may divide that among its common rails as it likes, and the best
//! division makes all rails of all hosts equally busy: it minimises the sum of squares of what they
//! carry, over their capacity.
//!
//! That is found in two ways. First, all rails of a host that are too busy become less attractive
//! to all pairs at once, and the others more; this takes few steps for many hosts, but never
//! empties a rail. Then pair by pair. Given what the others do, the best for one pair is to fill
//! its rails like connected vessels: those that are busiest at both ends together stay empty, and
//! the rest end at one level.

use ccl_core::ids::Rank;
use ccl_core::topology::Topology;

use super::Fabric;
use super::relay::pair;

/// A division is good enough when the busiest rail is this close to what the busiest host needs.
pub(super) const TOLERANCE: f64 = 1e-3;

/// All pairs change at once at most so often.
const STEPS: u32 = 12;

/// Then the pairs are visited at most so often, one after the other.
const SWEEPS: u32 = 30;

/// What every pair of hosts sends over every rail, in each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    hosts: usize,
    rails: usize,
    /// By [`pair`] and rail.
    volumes: Vec<f64>,
    /// By host and rail.
    seconds: Vec<f64>,
}

impl Division {
    /// By pair of hosts and rail, and by host and rail.
    pub(super) fn new(fabric: &Fabric, volumes: Vec<f64>, seconds: Vec<f64>) -> Self {
        Self { hosts: fabric.hosts(), rails: fabric.most_rails(), volumes, seconds }
    }

    /// What two different hosts send each other over `rail`.
    #[must_use]
    pub fn volume(&self, one: usize, other: usize, rail: usize) -> f64 {
        self.volumes[pair(self.hosts, one, other) * self.rails + rail]
    }

    /// How long a rail of a host is busy.
    #[must_use]
    pub fn seconds(&self, host: usize, rail: usize) -> f64 {
        self.seconds[host * self.rails + rail]
    }

    /// [`Self::proportions`] for every rank on another host than `rank`; the hosts are the nodes.
    #[must_use]
    pub fn of_rank(&self, rank: Rank, topology: &Topology) -> Vec<(Rank, Vec<u16>)> {
        let home = topology.node_of(rank);
        let peers = (0..topology.ranks()).map(Rank);
        let away = peers.map(|peer| (peer, topology.node_of(peer)));
        away.filter(|(_, node)| *node != home)
            .map(|(peer, node)| (peer, self.proportions(home.index(), node.index())))
            .collect()
    }

    /// How what two different hosts send each other is divided among the rails, in proportion.
    #[must_use]
    pub fn proportions(&self, one: usize, other: usize) -> Vec<u16> {
        let volume = |rail| self.volume(one, other, rail);
        let most = (0..self.rails).map(volume).fold(0.0, f64::max);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "up to 1000")]
        let part =
            |rail| if most > 0.0 { (volume(rail) / most * 1000.0).round() as u16 } else { 0 };
        (0..self.rails).map(part).collect()
    }

    /// How long the busiest rail is busy.
    #[must_use]
    pub fn busiest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// How long the busiest rail of every host is busy.
    pub(super) fn by_host(&self) -> Vec<f64> {
        let rows = self.seconds.chunks(self.rails.max(1));
        rows.map(|row| row.iter().copied().fold(0.0, f64::max)).collect()
    }
}

/// How long every host would be busy if all its rails were equally so.
pub(super) fn busy_hosts(fabric: &Fabric, volumes: &[f64]) -> Vec<f64> {
    let hosts = fabric.hosts();
    let total = |host: usize| -> f64 {
        let others = (0..hosts).filter(|other| *other != host);
        others.map(|other| volumes[pair(hosts, host, other)]).sum()
    };
    let busy = |(host, capacity): (usize, f64)| {
        let total = total(host);
        if total > 0.0 { total / capacity } else { 0.0 }
    };
    fabric.capacities().into_iter().enumerate().map(busy).collect()
}

/// How long the busiest rail is busy if every pair of hosts divides what it sends in each direction, by
/// [`pair`], by the capacities of its common rails, as links do without a plan. Infinite if one has none.
pub(crate) fn unplanned(fabric: &Fabric, volumes: &[f64]) -> f64 {
    let (hosts, rails) = (fabric.hosts(), fabric.most_rails());
    let rate = |host: usize, rail: usize| fabric.rails(host).get(rail).copied().unwrap_or(0.0);
    let mut seconds = vec![0.0; hosts * rails];
    for (one, other) in (0..hosts).flat_map(|one| (one + 1..hosts).map(move |other| (one, other))) {
        let volume = volumes[pair(hosts, one, other)];
        let width = |rail| f64::min(rate(one, rail), rate(other, rail));
        let whole: f64 = (0..rails).map(width).sum();
        if volume > 0.0 && whole <= 0.0 {
            return f64::INFINITY;
        }
        for rail in (0..rails).filter(|rail| width(*rail) > 0.0) {
            let part = volume * width(rail) / whole;
            seconds[one * rails + rail] += part / rate(one, rail);
            seconds[other * rails + rail] += part / rate(other, rail);
        }
    }
    seconds.into_iter().fold(0.0, f64::max)
}

/// Divides what every pair of hosts sends in each direction, by [`pair`], among its common rails.
///
/// A pair that has none must have nothing to send.
#[must_use]
pub fn divide(fabric: &Fabric, volumes: &[f64]) -> Division {
    let (hosts, rails) = (fabric.hosts(), fabric.most_rails());
    let targets = busy_hosts(fabric, volumes);
    let enough = targets.iter().copied().fold(0.0, f64::max) * (1.0 + TOLERANCE);
    let mut vessels = Vessels::new(fabric, volumes);
    let mut division = Division {
        hosts,
        rails,
        volumes: vec![0.0; volumes.len() * rails],
        seconds: vec![0.0; hosts * rails],
    };
    let mut attraction = vessels.attraction();
    for step in 0..STEPS + SWEEPS {
        if step < STEPS {
            vessels.attract(&attraction, &mut division);
            attract_more(&mut attraction, &division, &targets);
        } else {
            vessels.sweep(&mut division);
        }
        if division.busiest() <= enough {
            break;
        }
    }
    division
}

/// Rails that are too busy become less attractive. If a rail of one host is too busy, that must be
/// by the same factor; if it is so on all hosts, by its square root, because both ends of a pair
/// change. The power of 5/8 is between the two, and made of roots, which all machines round alike.
fn attract_more(attraction: &mut [f64], division: &Division, targets: &[f64]) {
    let rows = division.seconds.chunks(division.rails.max(1));
    let rows = attraction.chunks_mut(division.rails.max(1)).zip(rows.zip(targets));
    for (attractions, (seconds, target)) in rows {
        for (attraction, seconds) in attractions.iter_mut().zip(seconds) {
            if *seconds > 0.0 {
                let root = (target / seconds).sqrt();
                *attraction *= root * root.sqrt().sqrt();
            }
        }
    }
}

/// The rails as vessels: what a pair puts into rail `r` raises its level by that over `widths[r]`.
struct Vessels<'a> {
    volumes: &'a [f64],
    /// Seconds for every byte, by host and rail; zero if it is down.
    costs: Vec<f64>,
    /// Of the pair at hand, by rail: the level without it, and the width; zero if a rail is down.
    floors: Vec<f64>,
    widths: Vec<f64>,
}

impl<'a> Vessels<'a> {
    fn new(fabric: &Fabric, volumes: &'a [f64]) -> Self {
        let rails = fabric.most_rails();
        let mut costs = vec![0.0; fabric.hosts() * rails];
        for host in 0..fabric.hosts() {
            for (cost, capacity) in costs[host * rails..].iter_mut().zip(fabric.rails(host)) {
                *cost = if *capacity > 0.0 { 1.0 / capacity } else { 0.0 };
            }
        }
        Self { volumes, costs, floors: vec![0.0; rails], widths: vec![0.0; rails] }
    }

    /// How attractive every rail is at first: a pair of equals divides its volume by capacity.
    fn attraction(&self) -> Vec<f64> {
        let root = |cost: &f64| if *cost > 0.0 { (1.0 / cost).sqrt() } else { 0.0 };
        self.costs.iter().map(root).collect()
    }

    /// Divides the volume of every pair in proportion to how attractive the rails are at both ends.
    fn attract(&self, attraction: &[f64], division: &mut Division) {
        let rails = division.rails;
        let row = |host: usize| host * rails..(host + 1) * rails;
        division.seconds.fill(0.0);
        let mut number = 0;
        for one in 0..division.hosts {
            for other in one + 1..division.hosts {
                let parts = &mut division.volumes[row(number)];
                let both = attraction[row(one)].iter().zip(&attraction[row(other)]);
                for (part, (one, other)) in parts.iter_mut().zip(both) {
                    *part = one * other;
                }
                let total: f64 = parts.iter().sum();
                if total > 0.0 {
                    let scale = self.volumes[number] / total;
                    for (rail, part) in parts.iter_mut().enumerate() {
                        *part *= scale;
                        division.seconds[one * rails + rail] += *part;
                        division.seconds[other * rails + rail] += *part;
                    }
                }
                number += 1;
            }
        }
        for (seconds, cost) in division.seconds.iter_mut().zip(&self.costs) {
            *seconds *= cost;
        }
    }

    /// Divides the volume of every pair anew, given what the others do.
    fn sweep(&mut self, division: &mut Division) {
        let (hosts, rails) = (division.hosts, division.rails);
        let mut number = 0;
        for one in 0..hosts {
            let (head, tail) = division.seconds.split_at_mut((one + 1) * rails);
            let seconds = &mut head[one * rails..];
            for (other, others) in (one + 1..).zip(tail.chunks_mut(rails.max(1))) {
                if self.volumes[number] > 0.0 {
                    let parts = &mut division.volumes[number * rails..(number + 1) * rails];
                    self.settle(number, [one, other], [seconds, others], parts);
                }
                number += 1;
            }
        }
    }

    /// The best division of one pair.
    fn settle(
        &mut self,
        number: usize,
        ends: [usize; 2],
        seconds: [&mut [f64]; 2],
        parts: &mut [f64],
    ) {
        let rails = parts.len();
        let [costs, others] = ends.map(|end| &self.costs[end * rails..(end + 1) * rails]);
        let [seconds, other_seconds] = seconds;
        for rail in 0..rails {
            let both = costs[rail] + others[rail];
            let usable = costs[rail] > 0.0 && others[rail] > 0.0;
            self.widths[rail] = if usable { 1.0 / both } else { 0.0 };
            self.floors[rail] = seconds[rail] + other_seconds[rail] - parts[rail] * both;
        }
        let level = level(&self.floors, &self.widths, self.volumes[number]);
        for rail in 0..rails {
            let part = self.widths[rail] * (level - self.floors[rail]).max(0.0);
            let change = part - parts[rail];
            seconds[rail] += change * costs[rail];
            other_seconds[rail] += change * others[rail];
            parts[rail] = part;
        }
    }
}

/// The level at which vessels with these floors and widths hold `volume`: the level of all of them,
/// then of those below that level, until none is above. Each time there must be fewer, so that
/// rounding cannot keep this going.
fn level(floors: &[f64], widths: &[f64], volume: f64) -> f64 {
    let mut level = f64::INFINITY;
    let mut used = usize::MAX;
    loop {
        let (mut held, mut width, mut count) = (volume, 0.0, 0);
        for (floor, vessel) in floors.iter().zip(widths) {
            if *vessel > 0.0 && *floor < level {
                held += floor * vessel;
                width += vessel;
                count += 1;
            }
        }
        if count == 0 || count >= used {
            return level;
        }
        level = held / width;
        used = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;
    use crate::degraded::hubs::{hubs, lower_bound, predicted_load};
    use crate::degraded::proofs::random_losses;
    use ccl_core::random::Random;

    #[test]
    fn a_division_moves_everything_over_common_rails() {
        let mut random = Random::new(7);
        for _ in 0..50 {
            let fabric = random_losses(6, 20, &mut random);
            let Some(hubs) = hubs(&fabric) else { continue };
            let volumes = hubs.trees().volumes(hubs.shares());
            let division = divide(&fabric, &volumes);
            let mut seconds = vec![[0.0; 8]; 6];
            for one in 0..6 {
                for other in one + 1..6 {
                    let parts = (0..8).map(|rail| division.volume(one, other, rail));
                    let total: f64 = parts.clone().sum();
                    assert!((total - volumes[pair(6, one, other)]).abs() < 1e-12);
                    for (rail, part) in parts.enumerate() {
                        let both = fabric.rails(one)[rail] * fabric.rails(other)[rail];
                        assert!(part >= 0.0 && (part == 0.0 || both > 0.0));
                        seconds[one][rail] += part;
                        seconds[other][rail] += part;
                    }
                }
            }
            for (host, rails) in seconds.iter().enumerate() {
                for (rail, seconds) in rails.iter().enumerate() {
                    assert!((division.seconds(host, rail) - seconds).abs() < 1e-9);
                }
            }
            let busiest = seconds.iter().flatten().copied().fold(0.0, f64::max);
            assert!((division.busiest() - busiest).abs() < 1e-9);
            assert!(division.busiest() >= lower_bound(&fabric) - 1e-9);
            assert_eq!(hubs.seconds_per_byte(), predicted_load(&fabric, hubs.shares()));
        }
    }

    #[test]
    fn links_without_a_plan_get_in_each_others_way() {
        let rails = |count: usize| [vec![0.0; 8 - count], vec![1.0; count]].concat();
        let fabric = |counts: &[usize]| {
            Fabric::new(counts.iter().map(|count| rails(*count)).collect(), Reach::RailOnly)
        };
        let volumes = [1.0; 6];
        assert_eq!(unplanned(&fabric(&[8; 4]), &volumes), 3.0 / 8.0);
        // The rails of healthy hosts carry a seventh and two eighths, except the one that waits.
        let one_lost = unplanned(&fabric(&[7, 8, 8, 8]), &volumes);
        assert!((one_lost - 3.0 / 7.0).abs() < 1e-12, "the degraded host is busiest: {one_lost}");
        let less = [0.5, 0.5, 0.5, 1.0, 1.0, 1.0];
        let shared = unplanned(&fabric(&[7, 8, 8, 8]), &less);
        assert!((shared - (0.5 / 7.0 + 2.0 / 8.0)).abs() < 1e-12, "{shared}");
        assert!(shared > divide(&fabric(&[7, 8, 8, 8]), &less).busiest() + 0.005);
        assert_eq!(unplanned(&fabric(&[0, 8, 8, 8]), &volumes), f64::INFINITY);
        let nothing = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(unplanned(&fabric(&[0, 8, 8, 8]), &nothing), 2.0 / 8.0);
    }

    #[test]
    fn rails_of_different_speed_are_busy_for_the_same_time() {
        let fabric = Fabric::new(vec![vec![1.0, 3.0], vec![1.0, 3.0]], Reach::RailOnly);
        let division = divide(&fabric, &[1.0]);
        assert!((division.volume(0, 1, 0) - 0.25).abs() < 1e-9, "{division:?}");
        assert!((division.volume(0, 1, 1) - 0.75).abs() < 1e-9, "{division:?}");
        assert!((division.busiest() - 0.25).abs() < 1e-9);
    }
}
