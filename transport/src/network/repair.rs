//! Hot repair: what a link does when one of its paths dies, and when it returns.
//!
//! ```text
//!   evidence (device, carrier, silence, the peer's fence)
//!      └─▶ give the path up: fail its queue pair, so that nothing of it is sent or taken any more
//!            ├─▶ a fence on every other path, ahead of whatever follows there
//!            ├─▶ tiles that were not confirmed: again, on the paths that are left
//!            └─▶ ask the keeper for a new connection; when it comes, the path carries its share again
//! ```
//!
//! The decisions are made in [`ccl_core::failover`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::failover::fence::Fence;
use ccl_core::failover::quarantine::{FIRST_HOLD_NS, Quarantine};
use ccl_core::failover::watch::{Limits, Order, Reason, Sight, Watch};
use ccl_core::failover::window::Loss;
use ccl_core::ids::Timestamp;

use super::carrier::{Awaited, Live};
use super::events::{Evidence, Log, RailEvent, RailEventKind, Witness};
use super::keeper::{Keeper, News};
use super::link::{NetworkLink, arrivals};
use crate::verbs::{Completion, Domain, QueuePair};
use crate::{TransportError, clock};

/// How often the paths are looked at, which costs a system call for each.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// Looks without anything new on the way before they stop: what was sent last was a credit, and nobody
/// confirms that to this end.
const LAST_LOOKS: u32 = 500;
/// A peer that closed every path without a word has ended, unless it comes back within this time, which
/// is longer than the longest pause between two attempts to connect.
const CLOSED_PATIENCE: Duration = Duration::from_secs(2);

/// How a link repairs itself.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Is told what happens.
    pub witness: Arc<dyn Witness>,
    /// When silence becomes suspicion, and suspicion certainty.
    pub limits: Limits,
    /// How long a link without any path waits for one before it fails.
    pub patience: Duration,
    /// How long the second of two quick faults keeps a path out of use; twice as long each time.
    pub hold: Duration,
    /// Whether a path that dies is survived at all; else it is the end of the link.
    pub enabled: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            witness: Arc::<Log>::default(),
            limits: Limits::default(),
            patience: Duration::from_secs(5),
            hold: Duration::from_nanos(FIRST_HOLD_NS),
            enabled: true,
        }
    }
}

/// What a link remembers about its faults.
#[derive(Debug)]
pub(super) struct Repair {
    terms: Terms,
    keeper: Box<dyn Keeper>,
    watch: Watch,
    quarantines: Vec<Quarantine>,
    /// When a path may ask for a new connection, by path.
    holds: Vec<Option<Instant>>,
    /// The beginning of time.
    start: Instant,
    next_look: Instant,
    /// Looks since something was posted.
    quiet_looks: u32,
    /// Since when there is no path that can carry tiles.
    severed: Option<Instant>,
    /// Whether every path since then ended by being closed at the other end.
    only_closed: bool,
    /// The path given up last, until traffic goes on: what was sent again, in tiles and bytes.
    mending: Option<(usize, usize, usize)>,
    news: Vec<News>,
    orders: Vec<Order>,
    sights: Vec<Sight>,
    /// Grows when the descriptors of the link change.
    pub(super) revision: u32,
}

impl Repair {
    /// Time begins with `start`.
    pub(super) fn new(paths: usize, start: Instant, terms: Terms, keeper: Box<dyn Keeper>) -> Self {
        let hold_ns = u64::try_from(terms.hold.as_nanos()).unwrap_or(u64::MAX);
        Self {
            watch: Watch::new(paths, terms.limits),
            terms,
            keeper,
            quarantines: vec![Quarantine::new(hold_ns); paths],
            holds: vec![None; paths],
            start,
            next_look: clock::now(),
            quiet_looks: 0,
            severed: None,
            only_closed: true,
            mending: None,
            news: Vec::new(),
            orders: Vec::new(),
            sights: Vec::new(),
            revision: 0,
        }
    }

    /// The time of all links of an endpoint.
    pub(super) fn now(&self) -> Timestamp {
        self.timestamp(clock::now())
    }

    fn timestamp(&self, now: Instant) -> Timestamp {
        let elapsed = now.saturating_duration_since(self.start).as_nanos();
        Timestamp(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

impl NetworkLink {
    /// Something was handed to a path.
    pub(super) fn posted(&mut self) {
        self.repair.quiet_looks = 0;
        self.used();
    }

    /// Something was handed to a path, or has come over one.
    pub(super) fn used(&mut self) {
        self.repair.keeper.used();
    }

    /// Tells the witness about a path.
    pub(super) fn tell(&self, path: usize, kind: RailEventKind) {
        let carrier = &self.carriers[path];
        self.repair.terms.witness.witness(RailEvent {
            at: clock::now(),
            name: carrier.name.clone(),
            path,
            rail: carrier.rail,
            incarnation: self.fences.incarnation(path),
            kind,
        });
    }

    /// A path carries this part of its nominal capacity, as does its NIC.
    pub(super) fn measured(&self, path: usize, share: f64) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and 100"
        )]
        let percent = (share * 100.0).round().clamp(1.0, 100.0) as u8;
        self.tell(path, RailEventKind::Measured { percent });
    }

    /// The queue pair of a path went to the error state.
    pub(super) fn path_broke(&mut self, path: usize) {
        let Some(live) = &self.carriers[path].live else { return };
        let (evidence, cause) = match live.pair.fault() {
            Some(TransportError::Protocol(text)) => {
                let text = format!("{}: {text}", self.carriers[path].name);
                self.failure.get_or_insert(TransportError::Protocol(text));
                return;
            }
            Some(TransportError::PeerGone(text)) => (Evidence::Closed, text.clone()),
            Some(fault) => (Evidence::Device, fault.to_string()),
            None => (Evidence::Device, "the queue pair is in error".to_owned()),
        };
        self.give_up(path, evidence, cause);
    }

    /// Stops using a path: nothing that was posted on it is sent or taken any more, and what the peer
    /// is not known to have is sent again elsewhere.
    pub(super) fn give_up(&mut self, path: usize, evidence: Evidence, cause: String) {
        let Some(mut live) = self.carriers[path].live.take() else { return };
        self.carriers[path].awaited = Awaited::default();
        match evidence {
            Evidence::Peer => live.pair.discard(),
            Evidence::Device
            | Evidence::Closed
            | Evidence::Carrier
            | Evidence::PeerCarrier
            | Evidence::Silence => live.pair.fail(),
        }
        let mut last = Vec::new();
        live.pair.poll(&mut last);
        let confirms_alone = live.pair.confirms_alone();
        drop(live);
        self.take_last(path, &last);
        self.repair.revision += 1;
        self.split.close(path);
        self.fences.give_up(path);
        self.owes_credit = true;
        self.repair.watch.forget(path);
        if confirms_alone {
            self.window.doubt(path);
        }
        let loss = self.lose(path);
        self.go_on_without(path, evidence, cause, &loss);
    }

    /// The ends have not met over a path: as if it had been given up.
    pub(super) fn begin_without(&mut self, path: usize, evidence: Evidence, cause: String) {
        self.fences.give_up(path);
        self.go_on_without(path, evidence, cause, &Loss::default());
    }

    /// Tells of a path that was given up, and has it made again.
    fn go_on_without(&mut self, path: usize, evidence: Evidence, cause: String, loss: &Loss) {
        self.carriers[path].cause = format!("{cause} ({})", evidence.name());
        self.repair.only_closed &= evidence == Evidence::Closed;
        if self.peer_left || !self.repair.terms.enabled {
            return self.end_if_severed(Duration::ZERO);
        }
        let (tiles, bytes) = (loss.tiles, loss.bytes);
        self.tell(path, RailEventKind::GivenUp { evidence, cause, tiles, bytes });
        self.repair.mending = Some((path, 0, 0));
        let now = clock::now();
        let timestamp = self.repair.timestamp(now);
        let hold = self.repair.quarantines[path].fault(timestamp);
        self.repair.holds[path] = Some(now + Duration::from_nanos(hold));
        if self.fences.is_severed() {
            // A path that may flap is better than none.
            self.repair.severed.get_or_insert(now);
            self.repair.holds.iter_mut().flatten().for_each(|hold| *hold = now);
        }
        self.end_holds(now);
    }

    /// What was under way on a path is lost with its latest connection, which the peer may have closed before.
    fn lose(&mut self, path: usize) -> Loss {
        let incarnation = self.fences.incarnation(path);
        let mut arrived = arrivals(&mut self.split, &self.carriers, self.repair.now());
        let loss = self.window.lose(path, incarnation, &mut arrived);
        self.window.closed(path, self.fences.closed_below(path), &mut arrived);
        loss
    }

    /// The peer gave a path up, and said so on another.
    pub(super) fn fenced(&mut self, on: usize, fence: Fence) {
        if self.fences.hits(fence) {
            let cause = format!("the peer gave it up, and said so on path {on}");
            self.give_up(fence.path, Evidence::Peer, cause);
        }
        self.closed(fence);
    }

    /// The peer takes nothing more from old connections of a path.
    pub(super) fn closed(&mut self, fence: Fence) {
        self.fences.heard(fence);
        let mut arrived = arrivals(&mut self.split, &self.carriers, self.repair.now());
        self.window.closed(fence.path, fence.below, &mut arrived);
    }

    /// What a path had done before it was given up counts: the peer may know that a tile has arrived
    /// of which this end has not heard, and will not send it again.
    fn take_last(&mut self, path: usize, last: &[Completion]) {
        for completion in last {
            if let Err(what) = self.complete(path, completion) {
                let text = format!("{}: {what}", self.carriers[path].name);
                self.failure.get_or_insert(TransportError::Protocol(text));
            }
        }
        self.take_credit(path);
    }

    /// A tile that was lost with a path was handed to another.
    pub(super) fn resent(&mut self, bytes: usize) {
        if let Some((_, tiles, total)) = &mut self.repair.mending {
            *tiles += 1;
            *total += bytes;
        }
    }

    /// A tile came or was confirmed: if a path was given up before, traffic goes on now.
    pub(super) fn resumed(&mut self) {
        let Some((path, tiles, bytes)) = self.repair.mending.take() else { return };
        if tiles > 0 {
            self.tell(path, RailEventKind::Resent { tiles, bytes });
        }
        self.tell(path, RailEventKind::Resumed);
    }

    /// Takes news, looks at the paths when it is time to, and does what follows. Tells whether
    /// anything changed.
    pub(super) fn mend(&mut self) -> bool {
        let has_news = self.take_news();
        let now = clock::now();
        if now >= self.repair.next_look {
            self.repair.next_look = now + LOOK_EVERY;
            self.repair.quiet_looks = self.repair.quiet_looks.saturating_add(1);
            if !self.window.is_settled() || self.repair.quiet_looks < LAST_LOOKS {
                self.look_at_paths(now);
            }
            self.end_holds(now);
        }
        if let Some(severed) = self.repair.severed {
            let patience = match self.repair.only_closed {
                true => CLOSED_PATIENCE.min(self.repair.terms.patience),
                false => self.repair.terms.patience,
            };
            self.end_if_severed(patience.saturating_sub(now.saturating_duration_since(severed)));
        }
        has_news
    }

    /// Tells whether there were any.
    pub(super) fn take_news(&mut self) -> bool {
        if !self.repair.keeper.has_news() {
            return false;
        }
        let mut news = std::mem::take(&mut self.repair.news);
        self.repair.keeper.news(&mut news);
        for item in news.drain(..) {
            self.hear(item);
        }
        self.repair.news = news;
        true
    }

    fn hear(&mut self, news: News) {
        let now = self.repair.timestamp(clock::now());
        match news {
            News::Answered { path } => self.repair.watch.answered(now, path),
            News::Confirmed { path } => self.repair.watch.confirmed(now, path),
            News::Unreachable { path } => {
                self.give_up(path, Evidence::Device, "no route to the peer".into());
            }
            News::Severed { path, cause } => self.give_up(path, Evidence::Carrier, cause),
            News::Connected { path, incarnation, domain, pair } => {
                self.renew(path, incarnation, domain, pair);
            }
        }
    }

    /// Puts a new connection in place of one that was given up, here or at the other end.
    fn renew(
        &mut self,
        path: usize,
        incarnation: u32,
        domain: Box<dyn Domain>,
        pair: Box<dyn QueuePair>,
    ) {
        if incarnation <= self.fences.incarnation(path) || self.failure.is_some() {
            return;
        }
        if self.fences.is_up(path) {
            self.give_up(path, Evidence::Peer, "the peer made a new connection".into());
        }
        let geometry = self.geometry;
        let memory = (&self.outbound, &self.inbound.memory);
        let live = Live::new(domain, pair, memory, self.carriers.len());
        let announced = live.and_then(|mut live| {
            live.announce(path, geometry, &self.outbound)?;
            Ok(live)
        });
        match announced {
            Ok(live) => {
                self.carriers[path].live = Some(live);
                self.fences.renew(path, incarnation);
                let now = self.repair.timestamp(clock::now());
                self.repair.quarantines[path].returned(now);
                self.repair.holds[path] = None;
                self.repair.revision += 1;
                self.posted();
            }
            // The connection did not live long enough to be used: the keeper makes another, in place
            // of this one and not of the one before.
            Err(cause) => {
                self.carriers[path].cause = cause.to_string();
                self.repair.keeper.reconnect(path, incarnation);
            }
        }
    }

    /// A path can carry tiles. A connection that never came so far does not count.
    pub(super) fn usable(&mut self, path: usize) {
        self.repair.severed = None;
        self.repair.keeper.usable(path);
        self.carriers[path].cause.clear();
        let mut paths = 0..self.carriers.len();
        self.repair.only_closed |= paths.all(|path| self.fences.is_up(path));
        if self.fences.incarnation(path) > 0 {
            self.tell(path, RailEventKind::Returned);
        }
    }

    /// As [`Self::end_hold`], of all paths.
    pub(super) fn end_holds(&mut self, now: Instant) {
        (0..self.carriers.len()).for_each(|path| self.end_hold(path, now));
    }

    /// Asks for a new connection once the path has been out of use for long enough.
    fn end_hold(&mut self, path: usize, now: Instant) {
        if self.repair.holds[path].is_none_or(|end| now < end) {
            return;
        }
        self.repair.holds[path] = None;
        self.repair.keeper.reconnect(path, self.fences.incarnation(path));
    }

    /// Looks for paths that have been silent for too long.
    fn look_at_paths(&mut self, now: Instant) {
        let timestamp = self.repair.timestamp(now);
        let mut sights = std::mem::take(&mut self.repair.sights);
        sights.clear();
        sights.extend(self.carriers.iter().map(|carrier| carrier.sight(timestamp)));
        let mut orders = std::mem::take(&mut self.repair.orders);
        self.repair.watch.look(timestamp, &sights, &mut orders);
        for order in orders.drain(..) {
            self.obey(order);
        }
        (self.repair.sights, self.repair.orders) = (sights, orders);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Probe(path, question) => {
                if self.repair.watch.suspects(path) {
                    self.tell(path, RailEventKind::Suspected);
                }
                self.repair.keeper.probe(path, question);
            }
            Order::GiveUp(path, reason) => {
                let cause = match reason {
                    Reason::Silent => "it answers nothing while other paths do",
                    Reason::AllSilent => "nothing answers on any path",
                    Reason::Stuck => "probes are answered, but the connection makes no progress",
                };
                self.give_up(path, Evidence::Silence, cause.into());
            }
        }
    }

    /// Whether no path can carry tiles: a new connection does so when the peer has announced its memory.
    pub(super) fn is_severed(&self) -> bool {
        self.repair.severed.is_some()
    }

    /// If no path is left, it is so from now on.
    pub(super) fn begin_anew_to_wait(&mut self) {
        if let Some(severed) = &mut self.repair.severed {
            *severed = clock::now();
        }
    }

    /// Without any path, or without repair, the link has failed, once `patience` is used up.
    fn end_if_severed(&mut self, patience: Duration) {
        let is_severed = self.repair.severed.is_some() || self.fences.is_severed();
        let is_over = is_severed || !self.repair.terms.enabled;
        if !is_over || !patience.is_zero() || self.failure.is_some() {
            return;
        }
        // A path that came back and was never announced has its last cause too.
        let lost = self.carriers.iter().filter(|carrier| !carrier.cause.is_empty());
        let causes: Vec<String> =
            lost.map(|carrier| format!("{}: {}", carrier.name, carrier.cause)).collect();
        let causes = causes.join("; ");
        self.failure = Some(if self.peer_left || is_severed && self.repair.only_closed {
            TransportError::PeerGone(causes)
        } else if !self.repair.terms.enabled {
            TransportError::Unrepaired(causes)
        } else {
            let waited = self.repair.severed.map_or(Duration::ZERO, |since| clock::now() - since);
            TransportError::Severed(format!("{causes}; waited {:.1} s", waited.as_secs_f64()))
        });
    }
}
