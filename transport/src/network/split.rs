//! Which rail carries the next tile.
//!
//! Rails share the bytes in proportion to their capacities: the tile goes where it would finish first
//! if every rail ran at its capacity. A rail that does not, because its cable or its peer is slower
//! than promised, is found out by its backlog: rails whose backlog takes longer than that of the best
//! one, by more than a slack, are passed over until it has drained. What they missed meanwhile is
//! forgiven, not caught up. A rail that turns out to be slow for longer counts for less from then on
//! ([`super::meter`]); and while the others are not full it gets only what it would finish before them:
//! a message that fills no rail would wait for its one tile there.

use ccl_core::ids::Timestamp;
use ccl_core::queue::{queue_bytes, tile_bytes};

use super::meter::{CROWDED, Meter, News};

/// Before the rails are compared, so many tiles are given out for each, so that one more or less does not
/// matter.
const METERED_TILES: usize = 32;
/// How large tiles are until it is known how fast rails are, and at most.
const MOST_TILE_BYTES: usize = 128 << 10;
/// A rail is measured while at least this part of what it carries at most is on the way on it.
const METERED_DEPTH: usize = 4;

/// A rail is worth so much of its capacity even if a plan wants nothing of it.
const LEAST_PART: f64 = 0.01;

/// The rails to one peer.
#[derive(Clone, Debug)]
pub struct Split {
    shares: Vec<Share>,
    meter: Meter,
    /// Bytes on the way on all rails, at most.
    window_bytes: usize,
    /// In seconds at nominal capacity.
    slack: f64,
    /// The rail that goes first where all are alike.
    first: usize,
    /// Parts of the bytes as a plan wants them, in place of the capacities; or nothing.
    parts: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Share {
    /// Bytes per second, as promised.
    nominal: f64,
    /// Bytes per second, as far as it is known.
    capacity: f64,
    /// Bytes on the way, and how many there may be; one tile in any case.
    backlog: usize,
    limit: usize,
    /// What part of its capacity the NIC carries: its queue drains as much more slowly, and less is put into
    /// it. Not so if the rail is slow because other links use it: who waits with more gets more of it.
    drained: f64,
    /// When everything given to it would be finished at nominal capacity, in seconds.
    finish: f64,
    is_open: bool,
}

impl Share {
    fn drain_time(&self) -> f64 {
        self.backlog as f64 / self.capacity
    }

    fn takes(&self, bytes: usize) -> bool {
        let fits = || (self.backlog + bytes) as f64 <= self.limit as f64 * self.drained;
        self.is_open && (self.backlog == 0 || fits())
    }
}

impl Split {
    /// Rails with these capacities, in bytes per second, and at most `window_bytes` on the way. All of
    /// them are closed.
    #[must_use]
    pub fn new(capacities: &[f64], window_bytes: usize) -> Self {
        let share = |&nominal: &f64| Share {
            nominal,
            capacity: nominal,
            backlog: 0,
            limit: usize::MAX,
            drained: 1.0,
            finish: 0.0,
            is_open: false,
        };
        let shares = capacities.iter().map(share).collect();
        let rails = capacities.len();
        let deep_bytes = window_bytes / rails.max(1) / METERED_DEPTH;
        let meter = Meter::new(rails, deep_bytes, metered_bytes(rails, MOST_TILE_BYTES));
        let slack = slack(window_bytes, capacities);
        Self { shares, meter, window_bytes, slack, first: 0, parts: Vec::new() }
    }

    /// Begins with this rail where all are alike: if all links of a host began with the same one, their
    /// first tiles would wait for each other.
    pub fn begin_with(&mut self, rail: usize) {
        self.first = rail % self.shares.len();
    }

    /// Divides the bytes in these proportions from now on, as if the capacities of all rails together were
    /// so divided; by capacity if there is not one for each rail, or all are zero.
    pub fn divide(&mut self, proportions: &[u16]) {
        let total: u64 = proportions.iter().copied().map(u64::from).sum();
        self.parts.clear();
        if total > 0 && proportions.len() == self.shares.len() {
            let part = |proportion: &u16| f64::from(*proportion) / total as f64;
            self.parts.extend(proportions.iter().map(part));
        }
        let latest = self.shares.iter().map(|share| share.finish).fold(0.0, f64::max);
        for rail in 0..self.shares.len() {
            self.shares[rail].capacity = self.capacity(rail);
            // What was right before is not caught up.
            self.shares[rail].finish = latest;
        }
    }

    /// The rails carry so many bytes per second, of which this link is one of so many that share them.
    /// From now on no rail has more on the way than its queue holds. Returns how much the slowest has.
    pub fn tune(&mut self, rates: &[f64], sharing: usize) -> usize {
        let rails = self.shares.len();
        if rates.len() != rails || rates.iter().any(|rate| !rate.is_normal() || *rate < 0.0) {
            return usize::MAX;
        }
        for (share, rate) in self.shares.iter_mut().zip(rates) {
            share.nominal = *rate;
            share.limit = queue_bytes(*rate, sharing);
        }
        for rail in 0..rails {
            self.shares[rail].capacity = self.capacity(rail);
        }
        self.slack = slack(self.window_bytes, rates);
        let least = self.shares.iter().map(|share| share.limit).fold(usize::MAX, usize::min);
        let deep_bytes = (self.window_bytes / rails / METERED_DEPTH).min(least / 2);
        let tile_bytes = tile_bytes(least, MOST_TILE_BYTES);
        self.meter.tune(deep_bytes, metered_bytes(rails, tile_bytes));
        least
    }

    /// Bytes per second that a rail is worth.
    fn capacity(&self, rail: usize) -> f64 {
        let nominal = self.shares[rail].nominal;
        match self.parts.get(rail) {
            Some(part) => {
                let all: f64 = self.shares.iter().map(|share| share.nominal).sum();
                (all * part).max(nominal * LEAST_PART)
            }
            None => nominal * self.meter.share(rail),
        }
    }

    /// Bytes that are given out before the rails are compared.
    pub(super) fn metered_bytes(&self) -> u64 {
        self.meter.window_bytes()
    }

    /// Bytes per second, as promised.
    pub(super) fn nominal(&self, rail: usize) -> f64 {
        self.shares[rail].nominal
    }

    /// Lets a rail take part from now on, with nothing on the way.
    pub fn open(&mut self, rail: usize) {
        let open = self.shares.iter().filter(|share| share.is_open);
        let start = open.map(|share| share.finish).fold(0.0, f64::max);
        let share = &mut self.shares[rail];
        (share.is_open, share.backlog, share.finish, share.drained) = (true, 0, start, 1.0);
        self.meter.reset(rail);
        self.shares[rail].capacity = self.capacity(rail);
    }

    /// Gives a rail nothing more, and forgets what is on the way on it.
    pub fn close(&mut self, rail: usize) {
        (self.shares[rail].is_open, self.shares[rail].backlog) = (false, 0);
        self.meter.reset(rail);
    }

    /// The rail for the next `bytes` bytes, if they were given now; `None` while all are closed or full.
    #[must_use]
    pub fn choose(&self, bytes: usize) -> Option<usize> {
        let open = || self.shares.iter().filter(|share| share.is_open);
        let limit = open().map(Share::drain_time).fold(f64::INFINITY, f64::min) + self.slack;
        let end = |share: &Share| (share.backlog + bytes) as f64 / share.capacity;
        let first_end = || open().map(end).fold(f64::INFINITY, f64::min);
        let is_slow = |rail: usize| self.meter.share(rail) < 1.0;
        let is_full = |rail: usize| {
            let share = &self.shares[rail];
            !share.is_open || is_slow(rail) || self.meter.fills(share.backlog)
        };
        let is_late = |rail: usize| {
            is_slow(rail)
                && end(&self.shares[rail]) > first_end()
                && !(0..self.shares.len()).all(is_full)
        };
        let finish = |index: usize| {
            let share = &self.shares[index];
            share.finish + bytes as f64 / share.capacity
        };
        (0..self.shares.len())
            .filter(|&index| self.shares[index].takes(bytes))
            .filter(|&index| self.shares[index].drain_time() <= limit && !is_late(index))
            .min_by(|&one, &other| {
                let turn =
                    |rail: usize| (rail + self.shares.len() - self.first) % self.shares.len();
                finish(one).total_cmp(&finish(other)).then(turn(one).cmp(&turn(other)))
            })
    }

    /// Gives `bytes` bytes to a rail.
    pub fn give(&mut self, rail: usize, bytes: usize, now: Timestamp) {
        let start = self.shares[rail].finish;
        let share = &mut self.shares[rail];
        share.backlog += bytes;
        self.meter.given(rail, (bytes, share.backlog), now);
        share.finish = start + bytes as f64 / share.capacity;
        for share in &mut self.shares {
            let one = bytes as f64 / share.capacity;
            share.finish = share.finish.max(start - one);
        }
    }

    /// Whether [`Self::news`] may bring something.
    pub fn is_measured(&self) -> bool {
        self.meter.is_fresh()
    }

    /// A rail that turned out, while it was full, to carry another share of its nominal capacity, beside the others, than
    /// was told before, and the share of its NIC, between 0 and 1. `nics` is what part of their capacities
    /// the NICs of the rails carry on all links together, over the best such part of any.
    pub fn news(&mut self, nics: &[f64]) -> Option<(usize, f64)> {
        let News { rail, share, is_sure } = self.meter.news(nics)?;
        self.shares[rail].capacity = self.capacity(rail);
        if !is_sure {
            return None;
        }
        let drained = &mut self.shares[rail].drained;
        // A slow NIC that is given little passes it on in bursts and looks fast, except to who waits for it.
        let is_still_slow = *drained < 1.0 && share < CROWDED;
        *drained = if is_still_slow { share } else { share.max(nics[rail]) };
        Some((rail, *drained))
    }

    /// Notes that `bytes` bytes given to a rail have arrived. Returns since when the rail was busy with them.
    ///
    /// # Panics
    /// So many were not on the way.
    pub fn finished(&mut self, rail: usize, bytes: usize, now: Timestamp) -> Timestamp {
        let share = &mut self.shares[rail];
        share.backlog = share.backlog.checked_sub(bytes).expect("only what was given arrives");
        let backlog = share.backlog;
        self.meter.arrived(rail, (bytes, backlog), now, |rail| self.shares[rail].nominal)
    }
}

/// Bytes in which every rail has enough tiles of this size to be compared.
fn metered_bytes(rails: usize, tile_bytes: usize) -> u64 {
    (METERED_TILES * tile_bytes * rails) as u64
}

/// Half of the time that the rails together take for a window.
fn slack(window_bytes: usize, capacities: &[f64]) -> f64 {
    window_bytes as f64 / capacities.iter().sum::<f64>() / 2.0
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// All rails are open.
    fn open(capacities: &[f64], window_bytes: usize) -> Split {
        let mut split = Split::new(capacities, window_bytes);
        (0..capacities.len()).for_each(|rail| split.open(rail));
        split
    }

    /// Gives tiles to rails that drain at once, and returns the bytes of each rail.
    fn prompt(split: &mut Split, tiles: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut given = vec![0; split.shares.len()];
        for bytes in tiles {
            let rail = split.choose(bytes).expect("a rail is open");
            split.give(rail, bytes, Timestamp(0));
            split.finished(rail, bytes, Timestamp(0));
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
            let mut split = open(&capacities, 1_000_000);
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
    fn a_plan_may_divide_the_bytes_otherwise() {
        let mut split = open(&[1.0, 1.0, 2.0], 1_000_000);
        split.divide(&[300, 100, 0]);
        let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
        assert!((7300..=7500).contains(&given[0]) && given[2] < 100, "{given:?}");
        split.divide(&[]);
        let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
        assert_eq!(given, [2500, 2500, 5000]);
        split.divide(&[1, 1]);
        let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
        assert_eq!(given, [2500, 2500, 5000], "not one for each rail");
    }

    #[test]
    fn links_can_begin_with_different_rails() {
        let mut split = open(&[1.0; 3], 1000);
        split.begin_with(5);
        assert_eq!(split.choose(10), Some(2));
        split.give(2, 10, Timestamp(0));
        assert_eq!(split.choose(10), Some(0));
    }

    #[test]
    fn no_more_is_on_the_way_than_queues_hold() {
        let mut split = open(&[1e9, 1e9], 1 << 20);
        assert_eq!(split.metered_bytes(), 2 * (4 << 20));
        assert_eq!(split.tune(&[1e6, 2e6], 3), 10_000);
        assert_eq!(split.metered_bytes(), 2 * (256 << 10), "32 tiles, which are small now");
        let mut given = [0, 0];
        while let Some(rail) = split.choose(1000) {
            split.give(rail, 1000, Timestamp(0));
            given[rail] += 1000;
        }
        assert_eq!(given, [10_000, 20_000]);
        assert!(split.choose(0).is_some(), "what needs no room");
        split.finished(1, 1000, Timestamp(0));
        assert_eq!((split.choose(1000), split.choose(1001)), (Some(1), None));
        split.finished(0, 10_000, Timestamp(0));
        assert_eq!(split.choose(1 << 20), Some(0), "one tile in any case");
        let (before, unknown) = (split.choose(1), split.tune(&[1.0, 0.0], 1));
        assert_eq!((split.choose(1), unknown), (before, usize::MAX));
    }

    /// Sends tiles for which two rails need so long each, and then waits until all have arrived. Returns
    /// what was told and how much was on the way on each rail at most.
    fn told(
        (split, now): (&mut Split, &mut u64),
        tile_ns: [u64; 2],
        nics: [f64; 2],
    ) -> (Vec<(usize, f64)>, [usize; 2]) {
        const TILE: usize = 1000;
        let (mut told, mut most, mut tiles) = (Vec::new(), [0; 2], 4000);
        let mut ends = [const { VecDeque::new() }; 2];
        loop {
            while tiles > 0
                && let Some(rail) = split.choose(TILE)
            {
                tiles -= 1;
                split.give(rail, TILE, Timestamp(*now));
                let start = ends[rail].back().copied().unwrap_or(*now);
                ends[rail].push_back(start + tile_ns[rail]);
                most[rail] = most[rail].max(ends[rail].len() * TILE);
                told.extend(split.news(&nics));
            }
            let next = |rail: &usize| ends[*rail].front().copied().unwrap_or(u64::MAX);
            let rail = [0, 1].into_iter().min_by_key(next).expect("there are two");
            let Some(end) = ends[rail].pop_front() else { return (told, most) };
            *now = end;
            split.finished(rail, TILE, Timestamp(end));
        }
    }

    #[test]
    fn less_waits_for_a_slow_nic_but_not_for_one_that_others_use() {
        for (nics, share) in [([1.0, 0.1], 0.1), ([1.0, 1.0], 1.0)] {
            let (mut split, mut now) = (open(&[1e9, 1e9], 1 << 20), 0);
            split.tune(&[1e9, 1e9], 1000);
            let limit = queue_bytes(1e9, 1000);
            let (heard, _) = told((&mut split, &mut now), [1000, 10_000], nics);
            assert!(matches!(heard[..], [(1, heard)] if (heard - share).abs() < 0.02), "{heard:?}");
            let (heard, _) = told((&mut split, &mut now), [1000, 5000], nics);
            let share = share.max(0.2);
            assert!(matches!(heard[..], [(1, heard)] if (heard - share).abs() < 0.02), "{heard:?}");
            let (heard, most) = told((&mut split, &mut now), [1000, 5000], nics);
            assert_eq!(heard, []);
            assert!(most[1] as f64 <= limit as f64 * share, "{most:?} of {limit}");
            let (healed, _) = told((&mut split, &mut now), [1000, 1000], [1.0, 1.0]);
            assert_eq!(healed.last(), Some(&(1, 1.0)), "{healed:?}");
            let (_, most) = told((&mut split, &mut now), [1000, 1000], [1.0, 1.0]);
            assert_eq!(most, [limit; 2]);
        }
    }

    /// It is no news for anybody else.
    #[test]
    fn messages_that_fill_no_rail_do_not_wait_for_one_that_is_slow() {
        const TILE: usize = 16 << 10;
        let mut split = open(&[1e9, 1e9], 64 * TILE);
        let mut now = 0;
        // Messages of two tiles, of which each rail has one.
        let mut has_both = |split: &mut Split| {
            let mut rails = [0; 2].map(|_| {
                let rail = split.choose(TILE).expect("both are open");
                split.give(rail, TILE, Timestamp(now));
                rail
            });
            rails.sort_unstable();
            for rail in rails {
                now += [20_000, 200_000][rail];
                split.finished(rail, TILE, Timestamp(now));
            }
            assert_eq!(split.news(&[1.0; 2]), None);
            rails == [0, 1]
        };
        let before = (0..1000).take_while(|_| has_both(&mut split)).count();
        assert!((30..100).contains(&before), "{before} messages have waited for it");
        assert!((0..100).all(|_| !has_both(&mut split)));
        let given = std::array::from_fn::<_, 16, _>(|_| {
            let rail = split.choose(TILE).expect("there is room");
            split.give(rail, TILE, Timestamp(now));
            rail
        });
        let first = given.iter().position(|rail| *rail == 1);
        assert!(
            first.is_some_and(|first| (7..16).contains(&first)),
            "once the other is full: {given:?}"
        );
    }

    #[test]
    fn a_rail_that_does_not_drain_is_passed_over() {
        let mut split = open(&[1.0, 1.0], 1000);
        let mut given = [0, 0];
        for _ in 0..1000 {
            let rail = split.choose(10).expect("a rail is open");
            split.give(rail, 10, Timestamp(0));
            given[rail] += 10;
            if rail == 0 {
                split.finished(0, 10, Timestamp(0));
            }
        }
        assert!(given[1] <= 1000 / 4 + 10, "{given:?}");
    }

    #[test]
    fn what_was_missed_is_not_caught_up() {
        let mut split = open(&[1.0, 1.0], 1000);
        split.give(1, 300, Timestamp(0));
        for _ in 0..1000 {
            split.give(0, 10, Timestamp(0));
            split.finished(0, 10, Timestamp(0));
        }
        split.finished(1, 300, Timestamp(0));
        let given = prompt(&mut split, std::iter::repeat_n(10, 100));
        assert!(given[0] >= 400 && given[1] >= 400, "{given:?}");
    }

    #[test]
    fn a_closed_rail_gets_nothing_and_returns_with_its_share() {
        let mut split = open(&[1.0, 3.0], 1000);
        split.give(0, 100, Timestamp(0));
        split.close(0);
        assert_eq!(prompt(&mut split, std::iter::repeat_n(10, 100)), [0, 1000]);
        split.close(1);
        assert_eq!(split.choose(10), None);
        split.open(1);
        split.open(0);
        let given = prompt(&mut split, std::iter::repeat_n(10, 400));
        assert!(
            (980..=1020).contains(&given[0]),
            "a quarter of 4000, nothing caught up: {given:?}"
        );
    }
}
