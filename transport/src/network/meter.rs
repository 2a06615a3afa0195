//! How fast the rails of a link are beside each other.
//!
//! A rail is *deep* while so much is on the way on it that its bandwidth decides when that arrives, and
//! not the time a round trip takes; bytes over the time it is deep is its rate. Small messages fill no
//! rail, and say nothing about rates. A processor that is busy with something else, or a peer that is,
//! slows all rails alike. So a rail is measured against its siblings that were deep for about as long:
//! its *share* is the part of its nominal capacity that it carries, over the best such part of any.
//! Where all wait for the tiles of a slow rail, its siblings are never deep; but they carry no less than
//! their bytes over the time that anything was on the way on them. Of the last few measurements the best
//! one counts: a packet that is lost now and then, or a stall of the processor, makes no rail slow. Nor does
//! what other links send over the same NICs ([`super::census`]): who believes that gives way to them, gets
//! less, and measures even less.
//!
//! Messages that fill no rail all wait for one that is very slow, so where there are no others their tiles are
//! looked at, too ([`brief`]): a rail that is busy with its bytes for several times as long as the best one is *slow for
//! them*. That may be because of the peer, which answers late, so it is believed until the rail is measured
//! while it is full, nobody else hears of it.
//!
//! A rail that is slow is given little, or nothing, so it may be measured no more: then it is tried again after a while.

mod brief;
mod trial;

use ccl_core::ids::Timestamp;
use smallvec::SmallVec;

use self::brief::{Brief, Finding};
use self::trial::Trial;
use super::MAX_RAILS;

/// A share that differs by less than this factor from the one last told is no news.
const STEP: f64 = 1.5;
/// From here on a rail that was slow is as good as the others.
const FULL: f64 = 0.9;
/// Other links slow a rail down to this, not further.
pub(super) const CROWDED: f64 = 1.0 / 3.0;
/// No rail is so slow that it counts for nothing while it works.
const LEAST: f64 = 0.01;
/// So many measurements in a row must agree that a rail is slow.
const AGREEING: usize = 4;
/// Tiles that are shorter say nothing: only the time that messages take for their way decides when they arrive.
const LEAST_BRIEF_BYTES: usize = 16 << 10;
/// A look at messages that fill no rail follows after so many tiles for each rail.
const LOOKED_AT: usize = 8;
/// A rail that has carried at least this part of its fair part while it was deep has carried much.
const LEAST_DEEP_PART: u64 = 4;

/// Measures the rails of one link.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    gauges: Vec<Gauge>,
    /// From so many bytes on the way on, a rail at full share is deep.
    deep_bytes: f64,
    /// Bytes that have arrived since the rails were compared, and when to compare them again.
    arrived: u64,
    window_bytes: u64,
    /// Whether they were compared since the last question for news.
    is_fresh: bool,
    /// Tiles that were given to rails since the last look at messages that fill none, and those of them that filled one.
    tiles: usize,
    deep_tiles: usize,
    /// A tile that tries a rail, and arrives in so many nanoseconds, is fast enough.
    prompt_ns: u64,
}

/// What is new of a rail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct News {
    pub(super) rail: usize,
    /// Between 0 and 1.
    pub(super) share: f64,
}

#[derive(Clone, Debug)]
struct Gauge {
    deep: Span,
    /// While anything is on the way on it.
    busy: Span,
    /// The last measurements.
    latest: [f64; AGREEING],
    told: f64,
    brief: Brief,
    trial: Trial,
}

/// The times at which a rail is in some state.
#[derive(Clone, Debug, Default)]
struct Span {
    /// Since when it is.
    since: Option<Timestamp>,
    /// What has arrived meanwhile, and how long that was, since the rails were compared.
    bytes: u64,
    ns: u64,
}

impl Span {
    fn start(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
    }

    /// `bytes` have arrived. Whether the state goes on.
    fn arrived(&mut self, bytes: usize, now: Timestamp, goes_on: bool) {
        if self.since.is_some() {
            self.bytes += bytes as u64;
            self.count(now);
        }
        self.since = self.since.filter(|_| goes_on);
    }

    /// Adds the time until now.
    fn count(&mut self, now: Timestamp) {
        if let Some(since) = &mut self.since {
            self.ns += now.0.saturating_sub(since.0);
            *since = now;
        }
    }

    /// Bytes per second.
    fn rate(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        (self.ns > 0).then(|| self.bytes as f64 * 1e9 / self.ns as f64)
    }

    fn clear(&mut self) {
        (self.bytes, self.ns) = (0, 0);
    }
}

impl Gauge {
    fn new() -> Self {
        Self {
            deep: Span::default(),
            busy: Span::default(),
            latest: [1.0; AGREEING],
            told: 1.0,
            brief: Brief::new(),
            trial: Trial::new(),
        }
    }

    /// What its share is taken to be.
    fn worth(&self) -> f64 {
        self.brief.found.unwrap_or(self.told)
    }

    fn share(&self) -> f64 {
        self.latest.iter().copied().fold(0.0, f64::max)
    }

    /// What is made of the share if the NIC carries `nic`: a rail of one that is not slow may be slow
    /// because other links use it, here or at the peer.
    fn believed(&self, nic: f64) -> f64 {
        let share = self.share();
        let is_slow = nic < 1.0 / STEP || share < CROWDED;
        if is_slow { share } else { 1.0 }
    }

    fn measured(&mut self, share: f64) {
        self.latest.rotate_left(1);
        self.latest[AGREEING - 1] = share;
        self.brief.measured(share);
        self.trial.measured();
    }

    /// A look at messages that fill no rail, of one that is not known to be slow. Whether it is from now on.
    fn looked_at(&mut self, share: Option<f64>) -> bool {
        let finding = self.brief.looked_at(share);
        match finding {
            Some(Finding::Slow) => self.trial.measured(),
            Some(Finding::Good) => self.trial.found_good(),
            None => {}
        }
        finding == Some(Finding::Slow)
    }

    /// A look, while the rail is known to be slow. Whether it is taken to be good from now on: if messages are brief
    /// that is tried at once, otherwise with single tiles first, because much more would have to wait for it. What only messages
    /// that are brief have said so far is tried soon, so that it is known well enough to be told.
    fn is_tried(&mut self, are_brief: bool) -> bool {
        let is_due = self.trial.is_due();
        let is_unknown = self.told >= FULL && self.trial.is_unmeasured();
        if is_due && are_brief {
            self.brief.try_again();
            self.trial.end();
        } else if !are_brief && (is_due || is_unknown) && !self.trial.is_on() {
            self.trial.begin();
        }
        is_due && are_brief
    }

    fn spans(&mut self) -> [&mut Span; 2] {
        [&mut self.deep, &mut self.busy]
    }
}

impl Meter {
    /// So many rails, compared whenever `window_bytes` have arrived on all of them together; of a rail
    /// at full share at least `deep_bytes` must be on the way while it is measured.
    pub(super) fn new(rails: usize, deep_bytes: usize, window_bytes: u64) -> Self {
        let gauges = vec![Gauge::new(); rails];
        let deep_bytes = deep_bytes as f64;
        let (arrived, is_fresh, tiles, deep_tiles, prompt_ns) = (0, false, 0, 0, 0);
        Self { gauges, deep_bytes, arrived, window_bytes, is_fresh, tiles, deep_tiles, prompt_ns }
    }

    /// As [`Self::new`], from now on.
    pub(super) fn tune(&mut self, deep_bytes: usize, window_bytes: u64) {
        (self.deep_bytes, self.window_bytes) = (deep_bytes as f64, window_bytes);
    }

    /// A tile that tries a rail, and arrives in so many seconds, is fast enough: nothing waits for it.
    pub(super) fn expect(&mut self, prompt: f64) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let ns = (prompt * 1e9) as u64;
        self.prompt_ns = ns;
    }

    /// Bytes that arrive before the rails are compared.
    pub(super) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// A rail takes part from now on, or no longer. It is presumed to be as fast as it says.
    pub(super) fn reset(&mut self, rail: usize) {
        self.gauges[rail] = Gauge::new();
    }

    /// `bytes` were given to a rail, and so much is on the way on it now.
    pub(super) fn given(&mut self, rail: usize, (bytes, backlog): (usize, usize), now: Timestamp) {
        let is_deep = self.is_deep(rail, backlog);
        let gauge = &mut self.gauges[rail];
        gauge.busy.start(now);
        if is_deep {
            gauge.deep.start(now);
        }
        if bytes >= LEAST_BRIEF_BYTES {
            gauge.brief.busy.start(now);
            self.tiles += 1;
            self.deep_tiles += usize::from(is_deep && gauge.worth() >= FULL);
        }
    }

    /// `bytes` have arrived on a rail, and so much is on the way on it now. `capacity` is nominal. Returns
    /// since when they were what the rail was busy with.
    pub(super) fn arrived(
        &mut self,
        rail: usize,
        (bytes, backlog): (usize, usize),
        now: Timestamp,
        capacity: impl Fn(usize) -> f64,
    ) -> Timestamp {
        let is_deep = self.is_deep(rail, backlog);
        let gauge = &mut self.gauges[rail];
        let since = gauge.busy.since.unwrap_or(now);
        gauge.deep.arrived(bytes, now, is_deep);
        gauge.busy.arrived(bytes, now, backlog > 0);
        gauge.brief.busy.arrived(bytes, now, backlog > 0);
        if gauge.trial.is_on() && bytes >= LEAST_BRIEF_BYTES {
            self.tried(rail, (bytes, now.0.saturating_sub(since.0)), &capacity);
        }
        self.arrived += bytes as u64;
        if self.tiles >= LOOKED_AT * self.gauges.len() {
            self.look(now, &capacity);
        }
        if self.arrived >= self.window_bytes {
            self.compare(now, capacity);
        }
        since
    }

    /// A tile that tries a rail has arrived, and has kept it busy for so many nanoseconds.
    fn tried(&mut self, rail: usize, (bytes, ns): (usize, u64), capacity: &impl Fn(usize) -> f64) {
        let others = self.least_parts(capacity).filter(|(other, _)| *other != rail);
        let best = others.map(|(_, part)| part).fold(0.0, f64::max);
        let part = bytes as f64 * 1e9 / ns.max(1) as f64 / capacity(rail);
        let is_good = ns <= self.prompt_ns || part >= CROWDED * best;
        let gauge = &mut self.gauges[rail];
        if gauge.trial.arrived(is_good) {
            gauge.brief.try_again();
            self.is_fresh = true;
        }
        if !is_good {
            gauge.measured((part / best).clamp(LEAST, 1.0));
            self.is_fresh = true;
        }
    }

    /// Whether a rail at full share would be full with so much on the way.
    pub(super) fn fills(&self, backlog: usize) -> bool {
        backlog as f64 >= self.deep_bytes
    }

    /// Whether single tiles of so many bytes try a slow rail: shorter ones say nothing.
    pub(super) fn is_tried(&self, rail: usize, bytes: usize) -> bool {
        bytes >= LEAST_BRIEF_BYTES && self.gauges[rail].trial.is_on()
    }

    /// Whether a rail that was told to be slow is taken to be good until it is measured again.
    pub(super) fn is_given_another_chance(&self, rail: usize) -> bool {
        let gauge = &self.gauges[rail];
        gauge.told < FULL && gauge.worth() >= FULL
    }

    /// A slow rail is given less, so less on it is much.
    fn is_deep(&self, rail: usize, backlog: usize) -> bool {
        backlog as f64 >= self.deep_bytes * self.gauges[rail].worth()
    }

    /// What the share of a rail is taken to be.
    pub(super) fn share(&self, rail: usize) -> f64 {
        self.gauges[rail].worth()
    }

    /// Whether [`Self::news`] may bring something, or [`Self::share`] says something else than before.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// A rail whose share is no longer what was told last. Of the NICs of the rails it is said what part of
    /// their capacities they carry, over the best such part of any.
    pub(super) fn news(&mut self, nics: &[f64]) -> Option<News> {
        if !self.is_fresh {
            return None;
        }
        let believed = |(rail, gauge): (usize, &Gauge)| gauge.believed(nics[rail]);
        let is_news = |&(rail, gauge): &(usize, &Gauge)| {
            let share = believed((rail, gauge));
            let ratio = share / gauge.told;
            !(1.0 / STEP..=STEP).contains(&ratio) || (share >= FULL && gauge.told < 1.0)
        };
        let found = self.gauges.iter().enumerate().find(is_news);
        let found = found.map(|(rail, gauge)| (rail, believed((rail, gauge))));
        self.is_fresh = found.is_some();
        let (rail, share) = found?;
        let share = if share >= FULL { 1.0 } else { share };
        let gauge = &mut self.gauges[rail];
        gauge.told = share;
        gauge.brief.told();
        if share >= FULL {
            gauge.trial.found_good();
        }
        Some(News { rail, share })
    }

    /// Looks at messages that fill no rail, unless there are too many others between them, and tries again what was slow
    /// for long.
    fn look(&mut self, now: Timestamp, capacity: &impl Fn(usize) -> f64) {
        self.gauges.iter_mut().for_each(|gauge| gauge.brief.busy.count(now));
        let are_brief = self.deep_tiles * 4 < self.tiles;
        let shares = brief::shares(&self.brief_times(capacity));
        for (gauge, share) in self.gauges.iter_mut().zip(shares) {
            self.is_fresh |= match gauge.worth() < FULL {
                true => gauge.is_tried(are_brief),
                false => are_brief && gauge.looked_at(share),
            };
            gauge.brief.busy.clear();
        }
        (self.tiles, self.deep_tiles) = (0, 0);
    }

    /// The capacities of the rails, and how long a byte has kept those busy since the last look that have had at least half of
    /// what they should.
    fn brief_times(
        &self,
        capacity: &impl Fn(usize) -> f64,
    ) -> SmallVec<[(f64, Option<f64>); MAX_RAILS]> {
        let worth = |(rail, gauge): (usize, &Gauge)| capacity(rail) * gauge.worth();
        let all: f64 = self.gauges.iter().enumerate().map(worth).sum();
        let bytes: u64 = self.gauges.iter().map(|gauge| gauge.brief.busy.bytes).sum();
        let time = |(rail, gauge): (usize, &Gauge)| {
            let fair = bytes as f64 * worth((rail, gauge)) / all;
            let busy = &gauge.brief.busy;
            let rate = busy.rate().filter(|rate| *rate > 0.0 && busy.bytes as f64 >= fair / 2.0);
            (capacity(rail), rate.map(f64::recip))
        };
        self.gauges.iter().enumerate().map(time).collect()
    }

    fn compare(&mut self, now: Timestamp, capacity: impl Fn(usize) -> f64) {
        self.gauges.iter_mut().flat_map(Gauge::spans).for_each(|span| span.count(now));
        self.gauges.iter_mut().for_each(|gauge| gauge.trial.compared());
        for (rail, share) in self.shares(capacity) {
            self.gauges[rail].measured(share.max(LEAST));
            self.is_fresh = true;
        }
        self.arrived = 0;
        self.gauges.iter_mut().flat_map(Gauge::spans).for_each(Span::clear);
    }

    /// The shares of the rails that can be compared: those that were deep for at least half as long as
    /// the fastest of those that have carried much.
    fn shares(&self, capacity: impl Fn(usize) -> f64) -> Vec<(usize, f64)> {
        let much = self.arrived / self.gauges.len() as u64 / LEAST_DEEP_PART;
        let carried_much = self.gauges.iter().filter(|gauge| gauge.deep.bytes >= much);
        let Some(deep_ns) = carried_much.map(|gauge| gauge.deep.ns).min() else {
            return Vec::new();
        };
        let parts: Vec<(usize, f64)> = (self.gauges.iter().enumerate())
            .filter(|(_, gauge)| gauge.deep.ns >= deep_ns / 2)
            .filter_map(|(rail, gauge)| Some((rail, gauge.deep.rate()? / capacity(rail))))
            .collect();
        let best = self.least_parts(&capacity).chain(parts.iter().copied());
        let best = best.map(|(_, part)| part).fold(0.0, f64::max);
        parts.into_iter().filter(|_| best > 0.0).map(|(rail, part)| (rail, part / best)).collect()
    }

    /// What part of their capacities those rails carry at least that have had at least half of their fair
    /// part of the bytes. It is not more than promised: a port that is shaped lets bursts pass at any rate.
    fn least_parts(&self, capacity: &impl Fn(usize) -> f64) -> impl Iterator<Item = (usize, f64)> {
        let all: f64 = (0..self.gauges.len()).map(capacity).sum();
        let fair = self.arrived as f64 / all;
        let has_had = move |(rail, gauge): &(usize, &Gauge)| {
            gauge.busy.bytes as f64 >= fair * capacity(*rail) / 2.0
        };
        let part = |(rail, gauge): (usize, &Gauge)| {
            Some((rail, (gauge.busy.rate()? / capacity(rail)).min(1.0)))
        };
        self.gauges.iter().enumerate().filter(has_had).filter_map(part)
    }
}

#[cfg(test)]
mod tests;
