//! What the network knows of links: their keepers, and which tile owns which slot.

use std::collections::VecDeque;
use std::ops::Range;

use ccl_transport::verbs::Depth;

use super::{EndId, Event, Network, Place};
use crate::Nanos;

/// How long a keeper waits between attempts.
const FIRST_BACK_OFF: Nanos = 5_000_000;
/// So much is lost at most between the return of a path and the next attempt: a link does not wait long
/// for a peer that has closed every path.
const LONGEST_BACK_OFF: Nanos = 100_000_000;
/// Attempts over a path that works fail so often in a row at most.
const MOST_FAILURES: u8 = 2;

/// The side of a link whose keeper dials; the other one only accepts.
const DIALS: usize = 1;
const ACCEPTS: usize = 0;

/// Immediates with this bit announce no tile.
pub(super) const CONTROL: u32 = 1 << 31;
pub(super) const GOODBYE: u32 = 1 << 30;

/// What a keeper will tell its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NewsItem {
    Answered { path: usize },
    Unreachable { path: usize },
    Severed { path: usize },
    Connected { path: usize, incarnation: u32, end: EndId, domain: u32 },
}

impl NewsItem {
    /// What it is about.
    fn subject(self) -> (u8, usize) {
        match self {
            Self::Answered { path } | Self::Unreachable { path } => (0, path),
            Self::Severed { path } => (1, path),
            Self::Connected { path, .. } => (2, path),
        }
    }
}

/// One path of a link.
#[derive(Clone, Debug)]
pub(crate) struct PathState {
    pub(super) nics: [usize; 2],
    /// The connection that each side's keeper has made last.
    present: [u32; 2],
    /// The last number that was offered: none is offered twice.
    offered: u32,
    is_dialing: bool,
    /// Attempts over a path that works that have failed.
    failures: u8,
    back_off: Nanos,
    /// When each side hears, or has heard, of its last connection.
    heard_at: [Nanos; 2],
}

/// A link between two ranks on different hosts.
#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) ranks: [usize; 2],
    pub(super) paths: Vec<PathState>,
    depth: Depth,
    pub(super) slots: u64,
    /// Tiles that each side has committed.
    pub(crate) committed: [u64; 2],
    /// One more than the highest tile that has landed in each slot of each side.
    landed: [Vec<u64>; 2],
    /// One more than the tile of each slot that came last, for [`super::falsify`].
    pub(super) seen: [Vec<u64>; 2],
    mailboxes: [VecDeque<NewsItem>; 2],
    /// Since when no path works.
    pub(super) all_lost_since: Option<Nanos>,
    /// When none did before that.
    pub(super) losses: Vec<Range<Nanos>>,
}

impl LinkState {
    pub(crate) fn new(ranks: [usize; 2], nics: &[[usize; 2]], depth: Depth, slots: usize) -> Self {
        let path = |nics: &[usize; 2]| PathState {
            nics: *nics,
            present: [0; 2],
            offered: 0,
            is_dialing: false,
            failures: 0,
            back_off: FIRST_BACK_OFF,
            heard_at: [0; 2],
        };
        Self {
            ranks,
            paths: nics.iter().map(path).collect(),
            depth,
            slots: slots as u64,
            committed: [0; 2],
            landed: [vec![0; slots], vec![0; slots]],
            seen: [vec![0; slots], vec![0; slots]],
            mailboxes: [VecDeque::new(), VecDeque::new()],
            all_lost_since: None,
            losses: Vec::new(),
        }
    }
}

impl Network {
    /// Adds a link and connects all its paths; returns its number and the two ends of each path.
    pub(crate) fn add_link(&mut self, link: LinkState) -> (usize, Vec<[EndId; 2]>) {
        let number = self.links.len();
        self.links.push(link);
        let paths = 0..self.links[number].paths.len();
        let ends = paths.map(|path| self.connect_path(number, path)).collect();
        (number, ends)
    }

    /// A pair of queue pairs for a path, of its present incarnation.
    fn connect_path(&mut self, link: usize, path: usize) -> [EndId; 2] {
        let LinkState { ranks, paths, depth, .. } = &self.links[link];
        let (ranks, depth) = (*ranks, *depth);
        let PathState { nics, offered: incarnation, .. } = paths[path];
        let mut place = |side: usize| Place {
            rank: ranks[side],
            nic: nics[side],
            domain: self.new_domain(),
            link,
            side,
            path,
            incarnation,
        };
        let places = [place(0), place(1)];
        self.connect(places, depth)
    }

    /// Whether packets pass in both directions.
    pub(crate) fn works(&self, link: usize, path: usize) -> bool {
        let [a, b] = self.links[link].paths[path].nics;
        !self.is_cut(a, b) && !self.is_cut(b, a)
    }

    pub(crate) fn domain_of(&self, end: EndId) -> u32 {
        self.ends[end].place.domain
    }

    pub(crate) fn link(&mut self, link: usize) -> &mut LinkState {
        &mut self.links[link]
    }

    /// A tile has landed in its slot, where no later tile may be, used up or not. A fence and what
    /// follows it travel together, so until then the slot is still that of the older tile.
    pub(super) fn check_landing(&mut self, end: EndId, immediate: u32) {
        let Place { link, side, .. } = self.ends[end].place;
        if immediate & CONTROL != 0 {
            self.tally.fences += u64::from(immediate & GOODBYE == 0);
            return;
        }
        let tile = u64::from(immediate);
        let LinkState { slots, landed, .. } = &mut self.links[link];
        let slot = usize::try_from(tile % *slots).unwrap_or(0);
        let latest = landed[side][slot];
        landed[side][slot] = latest.max(tile + 1);
        self.tally.tiles += 1;
        self.tally.landed_again += u64::from(latest == tile + 1);
        if latest > tile + 1 {
            let (name, latest) = (self.name(end), latest - 1);
            self.violate(format!("{name}: tile {tile} lands in the slot where tile {latest} is"));
        }
    }

    /// Asks whether the network answers on a path.
    pub(crate) fn probe(&mut self, link: usize, side: usize, path: usize) {
        self.tally.probes += 1;
        let nics = self.links[link].paths[path].nics;
        let (here, there) = (nics[side], nics[1 - side]);
        let round_trip = self.travel() + self.travel();
        let is_lost = self.random.percent(3);
        if self.nics[here].carrier_lost > 0 {
            let at = self.now + 10_000;
            self.agenda.plan(at, Event::News { link, side, item: NewsItem::Unreachable { path } });
        } else if !self.is_cut(here, there) && !self.is_cut(there, here) && !is_lost {
            let late = if self.random.percent(5) { 30_000_000 } else { 0 };
            let at = self.now + round_trip + late;
            self.agenda.plan(at, Event::News { link, side, item: NewsItem::Answered { path } });
        }
    }

    /// Asks for a connection in place of one that was given up. Only one of the two sides dials.
    pub(crate) fn reconnect(&mut self, link: usize, side: usize, path: usize, incarnation: u32) {
        self.note(|network| {
            let rank = network.links[link].ranks[side];
            format!("rank {rank} asks to replace path {path}.{incarnation} of link {link}")
        });
        let state = &mut self.links[link].paths[path];
        if side == DIALS && !state.is_dialing && incarnation >= state.present[DIALS] {
            state.is_dialing = true;
            state.back_off = FIRST_BACK_OFF;
            let at = self.now + 3 * self.physics.latency;
            self.agenda.plan(at, Event::Attempt { link, path });
        }
    }

    /// Connects a path again, or tries later. When the connection breaks half way, the side that
    /// accepts has it, and the side that dials does not know.
    pub(super) fn attempt(&mut self, link: usize, path: usize) {
        let PathState { nics: [a, b], .. } = self.links[link].paths[path];
        if self.is_cut(a, b) || self.is_cut(b, a) || self.fails(link, path, 10) {
            return self.attempt_later(link, path);
        }
        let state = &mut self.links[link].paths[path];
        state.offered = state.offered.max(state.present[DIALS]) + 1;
        let incarnation = state.offered;
        let ends = self.connect_path(link, path);
        self.tally.reconnects += 1;
        self.hear_of(link, path, ACCEPTS, incarnation, ends[ACCEPTS]);
        if self.fails(link, path, 8) {
            self.note(|_| format!("path {path}.{incarnation} of link {link} breaks half way"));
            self.drop_end(ends[DIALS]);
            return self.attempt_later(link, path);
        }
        let state = &mut self.links[link].paths[path];
        (state.is_dialing, state.failures) = (false, 0);
        self.hear_of(link, path, DIALS, incarnation, ends[DIALS]);
    }

    /// Whether an attempt fails without a reason, which happens in so many cases of a hundred.
    fn fails(&mut self, link: usize, path: usize, percent: u64) -> bool {
        let state = &mut self.links[link].paths[path];
        let fails = state.failures < MOST_FAILURES && self.random.percent(percent);
        state.failures += u8::from(fails);
        fails
    }

    fn attempt_later(&mut self, link: usize, path: usize) {
        let state = &mut self.links[link].paths[path];
        let wait = state.back_off;
        state.back_off = (2 * wait).min(LONGEST_BACK_OFF);
        let at = self.now + wait - self.random.below(wait / 2);
        self.agenda.plan(at, Event::Attempt { link, path });
    }

    /// One side hears of a connection, some time later, but in order.
    fn hear_of(&mut self, link: usize, path: usize, side: usize, incarnation: u32, end: EndId) {
        let delay = self.random.magnitude(10_000, 10_000_000);
        let state = &mut self.links[link].paths[path];
        state.present[side] = incarnation;
        let at = (self.now + delay).max(state.heard_at[side] + 1);
        state.heard_at[side] = at;
        let domain = self.domain_of(end);
        let item = NewsItem::Connected { path, incarnation, end, domain };
        self.agenda.plan(at, Event::News { link, side, item });
    }

    /// News about something replace older ones that were not collected.
    pub(super) fn deliver_news(&mut self, link: usize, side: usize, item: NewsItem) {
        let rank = self.links[link].ranks[side];
        self.note(|_| format!("rank {rank} hears {item:?} of link {link}"));
        let mailbox = &mut self.links[link].mailboxes[side];
        let older = mailbox.iter().position(|other| other.subject() == item.subject());
        if let Some(NewsItem::Connected { end, .. }) = older.and_then(|at| mailbox.remove(at)) {
            self.drop_end(end);
        }
        self.links[link].mailboxes[side].push_back(item);
        self.wake(rank);
    }

    pub(crate) fn has_news(&self, link: usize, side: usize) -> bool {
        !self.links[link].mailboxes[side].is_empty()
    }

    pub(crate) fn next_news(&mut self, link: usize, side: usize) -> Option<NewsItem> {
        self.links[link].mailboxes[side].pop_front()
    }
}
