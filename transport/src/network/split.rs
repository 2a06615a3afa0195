//! Which rail carries the next tile.
//!
//! Rails share the bytes in proportion to their capacities: the tile goes where it would finish first
//! if every rail ran at its capacity. A rail that does not, because its cable or its peer is slower
//! than promised, is found out by its backlog: rails whose backlog takes longer than that of the best
//! one, by more than a slack, are passed over until it has drained. What they missed meanwhile is
//! forgiven, not caught up.

/// The rails to one peer.
#[derive(Clone, Debug)]
pub struct Split {
    shares: Vec<Share>,
    /// In seconds at nominal capacity.
    slack: f64,
}

#[derive(Clone, Debug)]
struct Share {
    /// Bytes per second.
    capacity: f64,
    /// Bytes on the way.
    backlog: usize,
    /// When everything given to it would be finished at nominal capacity, in seconds.
    finish: f64,
}

impl Share {
    fn drain_time(&self) -> f64 {
        self.backlog as f64 / self.capacity
    }
}

impl Split {
    /// Rails with these capacities, in bytes per second, and at most `window_bytes` on the way.
    #[must_use]
    pub fn new(capacities: &[f64], window_bytes: usize) -> Self {
        let total: f64 = capacities.iter().sum();
        let share = |&capacity: &f64| Share { capacity, backlog: 0, finish: 0.0 };
        let shares = capacities.iter().map(share).collect();
        Self { shares, slack: window_bytes as f64 / total / 2.0 }
    }

    /// The rail for the next `bytes` bytes, if they were given now.
    #[must_use]
    pub fn choose(&self, bytes: usize) -> usize {
        let drain = self.shares.iter().map(Share::drain_time);
        let limit = drain.fold(f64::INFINITY, f64::min) + self.slack;
        let finish = |index: usize| {
            let share = &self.shares[index];
            share.finish + bytes as f64 / share.capacity
        };
        (0..self.shares.len())
            .filter(|&index| self.shares[index].drain_time() <= limit)
            .min_by(|&one, &other| finish(one).total_cmp(&finish(other)))
            .expect("the rail with the least backlog is within the limit")
    }

    /// Gives `bytes` bytes to a rail.
    pub fn give(&mut self, rail: usize, bytes: usize) {
        let start = self.shares[rail].finish;
        let share = &mut self.shares[rail];
        share.backlog += bytes;
        share.finish = start + bytes as f64 / share.capacity;
        for share in &mut self.shares {
            let one = bytes as f64 / share.capacity;
            share.finish = share.finish.max(start - one);
        }
    }

    /// Notes that `bytes` bytes given to a rail have arrived.
    ///
    /// # Panics
    /// So many were not on the way.
    pub fn finished(&mut self, rail: usize, bytes: usize) {
        let share = &mut self.shares[rail];
        share.backlog = share.backlog.checked_sub(bytes).expect("only what was given arrives");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives tiles to rails that drain at once, and returns the bytes of each rail.
    fn prompt(split: &mut Split, tiles: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut given = vec![0; split.shares.len()];
        for bytes in tiles {
            let rail = split.choose(bytes);
            split.give(rail, bytes);
            split.finished(rail, bytes);
            given[rail] += bytes;
        }
        given
    }

    proptest! {
        #[test]
        fn bytes_are_in_proportion_to_capacity(
            capacities in prop::collection::vec(1u32..20, 1..8),
            sizes in prop::collection::vec(1usize..1000, 1..20),
        ) {
            let capacities: Vec<f64> = capacities.into_iter().map(f64::from).collect();
            let mut split = Split::new(&capacities, 1_000_000);
            let given = prompt(&mut split, sizes.iter().copied().cycle().take(20_000));
            let total: usize = given.iter().sum();
            let all: f64 = capacities.iter().sum();
            for (given, capacity) in given.iter().zip(&capacities) {
                let fair = total as f64 * capacity / all;
                prop_assert!((*given as f64 - fair).abs() <= 2000.0, "{given} for {fair}");
            }
        }
    }

    #[test]
    fn a_rail_that_does_not_drain_is_passed_over() {
        let mut split = Split::new(&[1.0, 1.0], 1000);
        let mut given = [0, 0];
        for _ in 0..1000 {
            let rail = split.choose(10);
            split.give(rail, 10);
            given[rail] += 10;
            if rail == 0 {
                split.finished(0, 10);
            }
        }
        assert!(given[1] <= 1000 / 4 + 10, "{given:?}");
    }

    #[test]
    fn what_was_missed_is_not_caught_up() {
        let mut split = Split::new(&[1.0, 1.0], 1000);
        split.give(1, 300);
        for _ in 0..1000 {
            split.give(0, 10);
            split.finished(0, 10);
        }
        split.finished(1, 300);
        let given = prompt(&mut split, std::iter::repeat_n(10, 100));
        assert!(given[0] >= 400 && given[1] >= 400, "{given:?}");
    }
}
