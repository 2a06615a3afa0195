//! In which order a ring visits the hosts, when neighbours share only some rails.
//!
//! A ring is as fast as the slowest of its edges, so the best order is the one whose smallest
//! overlap between neighbours is largest, and has fewest edges of that size. Two steps find it:
//!
//! * *Path cover.* For every size an overlap may have, from the largest on: hosts that overlap that
//!   much with all others can stand anywhere. The rest is covered by paths of sufficient edges, and
//!   if there are no more paths than such hosts, these connect the paths to a ring.
//! * *Local search.* As long as a slow edge can be replaced, a part of the ring is reversed or
//!   moved.

use super::Fabric;

/// Longest part of a ring that is moved in one piece.
const LONGEST_MOVE: usize = 3;

/// The hosts in the order in which a ring over them is fastest; never slower than the order 0, 1,
/// 2, ….
#[must_use]
pub fn best_ring(fabric: &Fabric) -> Vec<usize> {
    best_ring_of(fabric, &(0..fabric.hosts()).collect::<Vec<_>>())
}

/// [`best_ring`] among some of the hosts.
pub(crate) fn best_ring_of(fabric: &Fabric, hosts: &[usize]) -> Vec<usize> {
    let overlaps = Overlaps::new(fabric, hosts);
    let mut best: Vec<usize> = (0..hosts.len()).collect();
    if hosts.len() > 3 {
        let sizes = overlaps.sizes();
        overlaps.improve(&mut best, &sizes);
        for size in &sizes {
            if overlaps.slowest(&best).0 >= *size {
                break;
            }
            let mut order = overlaps.covered(*size);
            overlaps.improve(&mut order, &sizes);
            if overlaps.better(&order, &best) {
                best = order;
            }
        }
    }
    best.into_iter().map(|place| hosts[place]).collect()
}

/// Bytes per second over the slowest edge of a ring in this order; infinite if there is no edge.
#[must_use]
pub fn ring_capacity(fabric: &Fabric, order: &[usize]) -> f64 {
    let next = order.iter().skip(1).chain(order.first());
    let edges = order.iter().zip(next).filter(|(one, other)| one != other);
    edges.map(|(one, other)| fabric.between(*one, *other)).fold(f64::INFINITY, f64::min)
}

/// What every pair of some hosts has in common, by their places in the list.
struct Overlaps {
    hosts: usize,
    values: Vec<f64>,
}

impl Overlaps {
    fn new(fabric: &Fabric, hosts: &[usize]) -> Self {
        let rows = hosts.iter().flat_map(|one| hosts.iter().map(move |other| (*one, *other)));
        let value = |(one, other)| if one == other { 0.0 } else { fabric.between(one, other) };
        Self { hosts: hosts.len(), values: rows.map(value).collect() }
    }

    fn at(&self, one: usize, other: usize) -> f64 {
        self.values[one * self.hosts + other]
    }

    /// The sizes that the smallest overlap in a ring may have, the largest first: every host has
    /// two edges, so its second largest overlap is a limit.
    fn sizes(&self) -> Vec<f64> {
        let second = |row: &[f64]| {
            let mut row = row.to_vec();
            row.sort_unstable_by(|a, b| b.total_cmp(a));
            row[1]
        };
        let limit = self.values.chunks(self.hosts).map(second).fold(f64::INFINITY, f64::min);
        let possible = self.values.iter().copied().filter(|value| *value <= limit);
        let mut sizes: Vec<f64> = possible.collect();
        sizes.sort_unstable_by(|a, b| b.total_cmp(a));
        sizes.dedup();
        sizes
    }

    /// The smallest overlap of neighbours, and how many there are of that size.
    fn slowest(&self, order: &[usize]) -> (f64, usize) {
        let mut slowest = (f64::INFINITY, 0);
        for edge in 0..order.len() {
            let value = self.at(order[edge], order[(edge + 1) % order.len()]);
            if value < slowest.0 {
                slowest = (value, 0);
            }
            slowest.1 += usize::from(value == slowest.0);
        }
        slowest
    }

    fn better(&self, one: &[usize], other: &[usize]) -> bool {
        let ((slow, edges), (other_slow, other_edges)) = (self.slowest(one), self.slowest(other));
        slow > other_slow || (slow == other_slow && edges < other_edges)
    }

    /// A ring in which as few edges as possible are below `size`, hosts that fit everywhere being
    /// put between paths of the others.
    fn covered(&self, size: f64) -> Vec<usize> {
        let joined = |one: usize, other: usize| one != other && self.at(one, other) >= size;
        let fits = |host: &usize| (0..self.hosts).filter(|o| joined(*host, *o)).count();
        let (anywhere, rest): (Vec<usize>, Vec<usize>) =
            (0..self.hosts).partition(|host| fits(host) + 1 == self.hosts);
        let mut anywhere = anywhere.into_iter();
        let mut order = Vec::with_capacity(self.hosts);
        for path in paths(rest, joined) {
            order.extend(path);
            order.extend(anywhere.next());
        }
        order.extend(anywhere);
        order
    }

    /// Replaces slow edges as long as one can be, and the smallest is not as large as it may ever
    /// be.
    fn improve(&self, order: &mut Vec<usize>, sizes: &[f64]) {
        loop {
            let (slow, _) = self.slowest(order);
            if sizes.first().is_none_or(|limit| slow >= *limit) {
                return;
            }
            let last = order.len() - 1;
            let ends = |edge: usize| (order[edge], order[if edge == last { 0 } else { edge + 1 }]);
            let is_slow = |edge: &usize| self.at(ends(*edge).0, ends(*edge).1) == slow;
            let better = (0..order.len()).filter(is_slow).find_map(|edge| {
                let mut turned = order.clone();
                turned.rotate_left((edge + 1) % order.len());
                let mirrored = turned.iter().rev().copied().collect::<Vec<_>>();
                let moved = self.reversed(&turned).or_else(|| self.moved_in(&turned));
                moved.or_else(|| self.moved_out(&turned)).or_else(|| self.moved_out(&mirrored))
            });
            match better {
                Some(better) => *order = better,
                None => return,
            }
        }
    }

    /// Whether a ring gets better with these edges instead of those, of which the first is a
    /// slowest one.
    fn gains(&self, removed: &[(usize, usize)], added: &[(usize, usize)]) -> bool {
        let slow = self.at(removed[0].0, removed[0].1);
        let slow_ones = |edges: &[(usize, usize)]| {
            edges.iter().filter(|(one, other)| self.at(*one, *other) <= slow).count()
        };
        let faster = |(one, other): &(usize, usize)| self.at(*one, *other) >= slow;
        added.iter().all(faster) && slow_ones(added) < slow_ones(removed)
    }

    /// The first part reversed; here and below, the edge from the last host to the first is to go.
    fn reversed(&self, order: &[usize]) -> Option<Vec<usize>> {
        let (first, last) = (order[0], order[order.len() - 1]);
        let gains = |end: &usize| {
            let (before, after) = (order[*end - 1], order[*end]);
            self.gains(&[(last, first), (before, after)], &[(last, before), (first, after)])
        };
        let end = (2..order.len() - 1).find(gains)?;
        let mut order = order.to_vec();
        order[..end].reverse();
        Some(order)
    }

    /// A part from elsewhere between the last host and the first, perhaps reversed.
    fn moved_in(&self, order: &[usize]) -> Option<Vec<usize>> {
        let (first, last) = (order[0], order[order.len() - 1]);
        for (start, end) in parts(order.len()) {
            let (head, tail) = (order[start], order[end - 1]);
            let (before, after) = (order[start - 1], order[end]);
            let removed = [(last, first), (before, head), (tail, after)];
            let mut part = order[start..end].to_vec();
            let rest = [&order[..start], &order[end..]].concat();
            if self.gains(&removed, &[(before, after), (last, head), (tail, first)]) {
                return Some([part, rest].concat());
            }
            if self.gains(&removed, &[(before, after), (last, tail), (head, first)]) {
                part.reverse();
                return Some([part, rest].concat());
            }
        }
        None
    }

    /// The first part somewhere else, perhaps reversed.
    fn moved_out(&self, order: &[usize]) -> Option<Vec<usize>> {
        let (first, last) = (order[0], order[order.len() - 1]);
        for length in 1..=LONGEST_MOVE.min(order.len() - 3) {
            let (mut part, rest) = (order[..length].to_vec(), &order[length..]);
            let tail = part[length - 1];
            for gap in 1..rest.len() {
                let (before, after) = (rest[gap - 1], rest[gap]);
                let removed = [(last, first), (tail, rest[0]), (before, after)];
                let same = [(last, rest[0]), (before, first), (tail, after)];
                let turned = [(last, rest[0]), (before, tail), (first, after)];
                let turn = !self.gains(&removed, &same);
                if !turn || self.gains(&removed, &turned) {
                    if turn {
                        part.reverse();
                    }
                    return Some([&rest[..gap], &part, &rest[gap..]].concat());
                }
            }
        }
        None
    }
}

/// Parts of a list that leave its ends alone, from `start` to before `end`.
fn parts(length: usize) -> impl Iterator<Item = (usize, usize)> {
    let ends = move |start: usize| start + 1..=(start + LONGEST_MOVE).min(length - 1);
    (1..length - 1).flat_map(move |start| ends(start).map(move |end| (start, end)))
}

/// Paths through all `hosts` along joined ones, grown at both ends from those with the fewest
/// neighbours.
fn paths(hosts: Vec<usize>, joined: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut left = hosts;
    let mut paths = Vec::new();
    let degree = |left: &[usize], host: usize| left.iter().filter(|o| joined(host, **o)).count();
    while let Some(start) = left.iter().copied().min_by_key(|host| degree(&left, *host)) {
        left.retain(|host| *host != start);
        let mut path = vec![start];
        for _ in 0..2 {
            let mut end = start;
            while let Some(next) = left
                .iter()
                .copied()
                .filter(|host| joined(end, *host))
                .min_by_key(|host| degree(&left, *host))
            {
                left.retain(|host| *host != next);
                path.push(next);
                end = next;
            }
            path.reverse();
        }
        paths.push(path);
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::proofs::{rail_only, random_losses};
    use ccl_core::random::Random;

    /// Percent of a healthy ring in the given order and in the best one.
    fn percent(fabric: &Fabric) -> [f64; 2] {
        let given: Vec<usize> = (0..fabric.hosts()).collect();
        let best = best_ring(fabric);
        let mut sorted = best.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, given);
        [given, best].map(|order| ring_capacity(fabric, &order) / 8.0 * 100.0)
    }

    #[test]
    fn mismatched_neighbours_are_kept_apart_where_that_is_possible() {
        let (a, b, all) = (!2, !4, u8::MAX);
        let each: Vec<u8> = (0..8).map(|rail| !(1 << rail)).collect();
        assert_eq!(percent(&rail_only(&[a, b])), [75.0, 75.0]);
        assert_eq!(percent(&rail_only(&[a, b, all])), [75.0, 75.0]);
        assert_eq!(percent(&rail_only(&[a, b, a, b, all, all])), [75.0, 87.5]);
        assert_eq!(percent(&rail_only(&each)), [75.0, 75.0]);
        assert_eq!(percent(&rail_only(&[a, b, a, b, a, b, a, b])), [75.0, 75.0]);
        assert_eq!(percent(&rail_only(&[0x0f, 0xf0, 0x0f, 0xf0, all, all])), [0.0, 50.0]);
        assert_eq!(percent(&rail_only(&[0x0f, 0xf0, all])), [0.0, 0.0]);
    }

    #[test]
    fn of_equally_slow_rings_the_one_with_fewest_slow_edges_is_taken() {
        let (a, b) = (!2, !4);
        let fabric = rail_only(&[a, b, a, b, a, b, a, b]);
        let order = best_ring(&fabric);
        let slow = (0..8).filter(|edge| fabric.between(order[*edge], order[(edge + 1) % 8]) < 7.0);
        assert_eq!(slow.count(), 2, "{order:?}");
    }

    #[test]
    fn the_best_order_is_as_good_on_random_rails_as_expected_and_never_worse_than_the_given_one() {
        for (hosts, lost, expected) in [(4, 8, 46.2), (8, 8, 68.3), (8, 16, 46.2)] {
            let mut random = Random::new(1);
            let mut total = 0.0;
            for _ in 0..400 {
                let [given, best] = percent(&random_losses(hosts, lost, &mut random));
                assert!(best >= given);
                total += best;
            }
            assert!((total / 400.0 - expected).abs() <= 1.5, "{hosts} {lost}: {}", total / 400.0);
        }
    }

    #[test]
    fn among_few_hosts_the_best_order_is_found() {
        let mut random = Random::new(3);
        for hosts in 4..=7 {
            for _ in 0..40 {
                let fabric = random_losses(hosts, 2 * hosts, &mut random);
                let best = ring_capacity(&fabric, &best_ring(&fabric));
                let mut order: Vec<usize> = (0..hosts).collect();
                let mut largest: f64 = 0.0;
                every_order(&mut order, 1, &mut |order| {
                    largest = largest.max(ring_capacity(&fabric, order));
                });
                assert_eq!(best, largest, "{fabric:?}");
            }
        }
    }

    /// Calls `visit` with all orders that agree before `fixed`.
    fn every_order(order: &mut Vec<usize>, fixed: usize, visit: &mut dyn FnMut(&[usize])) {
        if fixed == order.len() {
            return visit(order);
        }
        for place in fixed..order.len() {
            order.swap(fixed, place);
            every_order(order, fixed + 1, visit);
            order.swap(fixed, place);
        }
    }
}
