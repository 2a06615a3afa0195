//! Which rail carries the next tile.
//!
//! Rails share the bytes in proportion to their capacities: the tile goes where it would finish first
//! if every rail ran at its capacity. A rail that does not, because its cable or its peer is slower
//! than promised, is found out by its backlog: rails whose backlog takes longer than that of the best
//! one, by more than a slack, are passed over until it has drained. What they missed meanwhile is
//! forgiven, not caught up. A rail that turns out to be slow for longer counts for less from then on
//! ([`super::meter`]); and while the others are not full it gets only what it would finish before them:
//! a message that fills no rail would wait for its one tile there. It gets nothing at all while a tile would take longer there
//! than a window takes on all rails: the others would wait for it.

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

/// A tile is on the way for at most this part of the time that all rails together take for a window: what is late for reasons
/// of its own would stop the others.
const PUNCTUAL: f64 = 0.75;

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
        let mut meter = Meter::new(rails, deep_bytes, metered_bytes(rails, MOST_TILE_BYTES));
        let slack = slack(window_bytes, capacities);
        meter.expect(slack);
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
        self.meter.expect(self.slack);
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
            // A plan does not know that it may be good again.
            Some(part) if !self.meter.is_given_another_chance(rail) => {
                let all: f64 = self.shares.iter().map(|share| share.nominal).sum();
                (all * part).max(nominal * LEAST_PART)
            }
            Some(_) | None => self.rate(rail),
        }
    }

    /// Bytes per second that a rail carries, whatever a plan wants of it.
    fn rate(&self, rail: usize) -> f64 {
        self.shares[rail].nominal * self.meter.share(rail)
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
        let start = self.open_shares().map(|share| share.finish).fold(0.0, f64::max);
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

    /// The rail for the next `bytes` bytes, if they were given now; `None` while all are closed or full. What has no bytes, and
    /// counts for nothing, goes over a slow one only while no other takes it.
    #[must_use]
    pub fn choose(&self, bytes: usize) -> Option<usize> {
        // A slow one that gets nothing holds no other up.
        let limit =
            self.longest_backlog(|rail| self.shares[rail].backlog > 0 || !self.is_slow(rail));
        let finish = |rail: usize| {
            let share = &self.shares[rail];
            share.finish + bytes as f64 / share.capacity
        };
        let is_late = |rail: usize| bytes == 0 && self.is_slow(rail);
        let turn = |rail: usize| (rail + self.shares.len() - self.first) % self.shares.len();
        let is_fit = |rail: usize| {
            let is_worth = || self.is_in_window(rail, bytes) && self.is_worth_waiting(rail, bytes);
            self.shares[rail].drain_time() <= limit && (!self.is_slow(rail) || is_worth())
        };
        (0..self.shares.len())
            .filter(|&rail| self.takes(rail, bytes) && (self.is_tried(rail, bytes) || is_fit(rail)))
            .min_by(|&one, &other| {
                let by_finish = finish(one).total_cmp(&finish(other));
                let by_speed = is_late(one).cmp(&is_late(other));
                by_speed.then(by_finish).then(turn(one).cmp(&turn(other)))
            })
    }

    /// Whether a rail is open, and has room for so many bytes.
    fn takes(&self, rail: usize, bytes: usize) -> bool {
        let share = &self.shares[rail];
        // Who is slow is given another chance with a whole queue.
        let part = if self.is_slow(rail) { share.drained } else { 1.0 };
        let fits = || (share.backlog + bytes) as f64 <= share.limit as f64 * part;
        share.is_open && (share.backlog == 0 || fits())
    }

    /// Whether a tile of so many bytes tries a rail, and none is on the way.
    fn is_tried(&self, rail: usize, bytes: usize) -> bool {
        self.shares[rail].backlog == 0 && self.meter.is_tried(rail, bytes)
    }

    /// When a rail would be done with so many bytes more, in seconds from now.
    fn end(&self, rail: usize, bytes: usize) -> f64 {
        (self.shares[rail].backlog + bytes) as f64 / self.rate(rail)
    }

    /// Whether a rail is done with so many bytes before the others, or well before all rails together have carried a window:
    /// otherwise those would wait for it.
    fn is_in_window(&self, rail: usize, bytes: usize) -> bool {
        let all: f64 = self.open_rails().map(|rail| self.rate(rail)).sum();
        let own = self.end(rail, bytes);
        own * all <= self.window_bytes as f64 * PUNCTUAL
            || self.open_rails().all(|other| own <= self.end(other, bytes))
    }

    /// The rails that take part.
    fn open_shares(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(|share| share.is_open)
    }

    fn open_rails(&self) -> impl Iterator<Item = usize> {
        (0..self.shares.len()).filter(|&rail| self.shares[rail].is_open)
    }

    /// How long the backlog of a rail may take to drain, in seconds, beside those that count: nothing holds it up if none does.
    fn longest_backlog(&self, counts: impl Fn(usize) -> bool) -> f64 {
        let times = self.open_rails().filter(|rail| counts(*rail));
        let times = times.map(|rail| self.shares[rail].drain_time());
        times.fold(f64::INFINITY, f64::min) + self.slack
    }

    fn is_slow(&self, rail: usize) -> bool {
        self.meter.share(rail) < 1.0
    }

    /// Whether a slow rail is done with so many bytes no later than any other, or others have enough to do meanwhile: they are
    /// full, or take as long as any may.
    fn is_worth_waiting(&self, rail: usize, bytes: usize) -> bool {
        let limit = self.longest_backlog(|_| true);
        let has_enough = |rail: usize| {
            let share = &self.shares[rail];
            let is_busy = share.drain_time() > limit || self.meter.fills(share.backlog);
            !share.is_open || self.is_slow(rail) || is_busy
        };
        let own = self.end(rail, bytes);
        self.open_rails().all(|other| own <= self.end(other, bytes))
            || (0..self.shares.len()).all(has_enough)
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

    /// Whether [`Self::news`] may bring something, or rails are worth something else than before.
    pub fn is_measured(&self) -> bool {
        self.meter.is_fresh()
    }

    /// A rail that turned out, while it was full, to carry another share of its nominal capacity, beside the others, than
    /// was told before, and the share of its NIC, between 0 and 1. `nics` is what part of their capacities
    /// the NICs of the rails carry on all links together, over the best such part of any.
    pub fn news(&mut self, nics: &[f64]) -> Option<(usize, f64)> {
        let news = self.meter.news(nics);
        for rail in 0..self.shares.len() {
            self.shares[rail].capacity = self.capacity(rail);
        }
        let News { rail, share } = news?;
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
mod tests;
